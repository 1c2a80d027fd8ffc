/* SPDX-License-Identifier: MIT */
/*
 * prefill - matrices times the vectors of many tokens, by tensor cores: a grouped matrix product, one group an expert.
 *
 * A block has 128 lines of weights, rows of down or by turns 16 of gate and 16 of up, and up to 128 pairs of one expert.
 * It goes through the columns in steps of 64 bytes a line, as the tensor cores take them: panels and 8-bit integers as
 * signed bytes, 16-bit formats as they are, E4M3 as bfloat16, which is exact. Each of 8 warps multiplies 32 lines with
 * half of the pairs. While it does so the next steps are on their way: as asynchronous copies where nothing is to be
 * decoded, else in registers. A step has one barrier: before it each thread's part of the step has arrived, behind it
 * nobody reads what the next copies overwrite.
 *
 * Integer sums of a group and those of E4M3 meet their scales at once and are added up as floats; those of plain rows at
 * the end. The sums of a pair do not depend on its neighbours.
 */
#include "kernels/cuda/prefill-coded.h"
#include "kernels/cuda/prefill-tile.h"

struct prefill_plain {
	MMA_ALIGNED uint32_t w[PREFILL_STAGES][PREFILL_WORDS], x[PREFILL_STAGES][PREFILL_WORDS];
};

/* Two lines of weights of which a thread copies a chunk, from here on; and how much further the second is. */
struct prefill_lines {
	uint64_t from, further;
	uint32_t row;
};

FUNC void lines_start(const struct cuda_product *p, const struct prefill_tile *tile, unsigned matrices, unsigned tid,
		      struct prefill_lines *lines)
{
	const struct cuda_matrix *m = line_matrix(p, tid / 4, matrices);

	lines->row = tile->row + line_row(tid / 4, matrices);
	lines->further = 64 / matrices * m->pitch;
	lines->from = tile->slot + m->codes + lines->row * m->pitch + tid % 4 * 16;
}

FUNC void lines_copy(const struct cuda_product *p, const struct prefill_lines *lines, uint32_t step,
		     uint32_t line_bytes, unsigned matrices, unsigned tid, uint32_t *to)
{
	const uint32_t at = step * 64 + tid % 4 * 16, left = at < line_bytes ? line_bytes - at : 0;
	const unsigned n = left < 16 ? left : 16;
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++) {
		const unsigned here = lines->row + i * 64 / matrices < p->rows ? n : 0;
		const uint64_t from = lines->from + i * lines->further + (uint64_t)step * 64;
		uint32_t *chunk = to + mma_chunk(tid / 4 + 64 * i, tid % 4);

		if (from % 16 == 0)
			copy_async16(chunk, from, here);
		else
			store_words4(chunk, load_bytes16(from, here));
	}
}

/* A step of a warp's tiles. */
FUNC void plain_multiply(const uint32_t *w, const uint32_t *x, uint32_t count, unsigned family, unsigned tid,
			 struct prefill_sums *sums)
{
	unsigned half, m, g, n;

	UNROLL
	for (half = 0; half < 2; half++) {
		struct mma_rows a[2];
		struct mma_tokens b;

		UNROLL
		for (m = 0; m < 2; m++)
			mma_rows_load(&a[m], w + (warp_line(tid) + 16 * m) * MMA_LINE, half, tid % 32);
		UNROLL
		for (g = 0; g < PREFILL_GROUPS; g++) {
			if (32 * g >= count)
				continue;
			mma_tokens_load(&b, x + (32 * g + warp_pair(tid)) * MMA_LINE, half, tid % 32);
			UNROLL
			for (m = 0; m < 2; m++)
				UNROLL
			for (n = 0; n < 2; n++)
				if (family == CUDA_FAMILY_INT8)
					mma_s8(sums->i[m][2 * g + n], &a[m], &b, n, tid % 32);
				else
					mma_half(sums->f[m][2 * g + n], &a[m], &b, n, tid % 32,
						 family == CUDA_FAMILY_BF16);
		}
	}
}

FUNC void prefill_as_is(const struct cuda_product *p, unsigned family, unsigned matrices)
{
	SHARED(struct prefill_plain, s);
	PER_THREAD(struct prefill_sums, sums);
	PER_THREAD(struct prefill_lines, lines);
	PER_THREAD(struct prefill_x, x);
	const struct prefill_tile tile = prefill_tile_of(p, matrices);
	const uint32_t bytes = p->cols * (family == CUDA_FAMILY_INT8 ? 1 : 2), steps = (bytes + 63) / 64;
	uint32_t step, at;

	if (tile.count == 0)
		return;
	EACH_THREAD(tid)
	{
		memset(&OWN(sums), 0, sizeof OWN(sums));
		lines_start(p, &tile, matrices, tid, &OWN(lines));
		for (at = 0; at < PREFILL_STAGES - 1 && at < steps; at++) /* x waits for its order, they do not */
			lines_copy(p, &OWN(lines), at, bytes, matrices, tid, s.w[at]);
		x_start(p, &tile, family, matrices, tid, &OWN(x));
		for (at = 0; at < PREFILL_STAGES - 1; at++) {
			if (at < steps)
				x_copy(p, &OWN(x), at, tid, s.x[at]);
			copies_end();
		}
	}
	for (step = 0; step < steps; step++) {
		COPIES_AWAIT(PREFILL_STAGES - 2);
		BARRIER();
		EACH_THREAD(tid)
		{
			const uint32_t next = step + PREFILL_STAGES - 1, here = step % PREFILL_STAGES;

			if (next < steps) {
				lines_copy(p, &OWN(lines), next, bytes, matrices, tid, s.w[next % PREFILL_STAGES]);
				x_copy(p, &OWN(x), next, tid, s.x[next % PREFILL_STAGES]);
			}
			copies_end();
			if (warp_needed(p, &tile, matrices, tid))
				plain_multiply(s.w[here], s.x[here], tile.count, family, tid, &OWN(sums));
		}
	}
	EACH_THREAD(tid)
	{
		finish(p, &tile, family, matrices, tid, &OWN(sums));
	}
}

FUNC void prefill(const struct cuda_product *p, unsigned family, unsigned bits, unsigned matrices)
{
	if (family == CUDA_FAMILY_FP8 || family == CUDA_FAMILY_PANEL)
		prefill_coded(p, family, bits, matrices);
	else
		prefill_as_is(p, family, matrices);
}

#define PREFILL_BLOCKS(family, bits) 2

CUDA_VARIANTS(PRODUCT, prefill, PREFILL_BLOCKS)
