/* SPDX-License-Identifier: MIT */
/* few - BF16 and FP8 of up to FEW_TOKENS tokens, and with more by tiles of tokens (rows.c). */
#include "kernels/amx/few.h"
#include "kernels/vec/pack.h"

/* Rows of a strip in a run's results, and those that are there. */
struct few_lanes {
	__m512i at;
	__mmask16 there;
};

static inline struct few_lanes few_lanes(const struct few_strip *s)
{
	const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

	return (struct few_lanes){_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)s->apart)),
				  (__mmask16)((1u << s->rows) - 1)};
}

static inline vec few_gather(const struct few_lanes *lanes, const float *from)
{
	return _mm512_mask_i32gather_ps(vec_zero(), lanes->there, lanes->at, from, sizeof(*from));
}

/* The results of a strip's sums of one token. */
static inline vec few_result(const struct few_strip *s, const struct few_lanes *lanes, const float *sums)
{
	vec v = vec_load(sums);

	if (s->m->row_scales)
		v = vec_mul(v, few_gather(lanes, s->m->row_scales + s->first));
	return s->m->bias ? vec_add(v, few_gather(lanes, s->m->bias + s->first)) : v;
}

/* Streams a whole number of pages apart meet in one set of the first-level cache: an odd number of rows then, and some
 * rows are neighbours. */
static inline size_t few_apart(size_t rows, size_t pitch)
{
	const size_t most = rows / TILE_ROWS;

	return most && most * pitch % 4096 == 0 ? (most - 1) | 1 : most;
}

static inline struct few_run few_cut(enum strip_kind kind, const struct kernel_matrix *gate,
				     const struct kernel_matrix *up, size_t first, size_t rows, size_t cols)
{
	return (struct few_run){.m = {gate, up},
				.matrices = up ? 2 : 1,
				.first = first,
				.rows = rows,
				.cols = cols,
				.apart = few_apart(rows, gate->pitch),
				.strips = (rows + TILE_ROWS - 1) / TILE_ROWS,
				.groups = (cols + FEW_COLS - 1) / FEW_COLS,
				.width = kind == STRIP_BF16 ? FEW_COLS * 2 : FEW_COLS};
}

TILE_INLINE void few_rows(enum strip_kind kind, int scaled, size_t tokens, const struct kernel_matrix *gate,
			  const struct kernel_matrix *up, size_t rows, size_t cols, const struct kernel_act *act,
			  const void *const *x, float *const *out)
{
	_Alignas(64) few_sums sums[2 * FEW_RUN / TILE_ROWS];

	for (size_t first = 0; first < rows; first += FEW_RUN) {
		const struct few_run run = few_cut(kind, gate, up, first, MIN_OF(rows - first, FEW_RUN), cols);

		few_sum(kind, scaled, tokens, &run, x, sums);
		for (size_t i = 0; i < run.strips; i++) {
			const struct few_strip s = few_strip(&run, i), other = few_strip(&run, up ? run.strips + i : i);
			const struct few_lanes lanes = few_lanes(&s);

			for (size_t t = 0; t < tokens; t++) {
				vec v = few_result(&s, &lanes, sums[i][t]);

				if (up)
					v = vec_gated(act, v, few_result(&other, &lanes, sums[run.strips + i][t]));
				_mm512_mask_i32scatter_ps(out[t] + s.first, lanes.there, lanes.at, vec_one_nan(v),
							  sizeof(*out[t]));
			}
		}
	}
}

/* ops_name_few_amx: `many` for more tokens. */
#define FEW_OPS(name, kind, scaled, many)                                                                              \
	static __attribute__((noinline)) void name##_few(                                                              \
		const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,            \
		const struct kernel_act *act, size_t tokens, const void *const *x, float *const *out)                  \
	{                                                                                                              \
		few_configure();                                                                                       \
		if (tokens == 1)                                                                                       \
			few_rows(kind, scaled, 1, gate, up, rows, cols, act, x, out);                                  \
		else if (tokens == 2)                                                                                  \
			few_rows(kind, scaled, 2, gate, up, rows, cols, act, x, out);                                  \
		else if (tokens == 3)                                                                                  \
			few_rows(kind, scaled, 3, gate, up, rows, cols, act, x, out);                                  \
		else                                                                                                   \
			few_rows(kind, scaled, 4, gate, up, rows, cols, act, x, out);                                  \
		tiles_release();                                                                                       \
	}                                                                                                              \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *const *x, float *const *y)                                               \
	{                                                                                                              \
		if (tokens == 0 || tokens > FEW_TOKENS)                                                                \
			(many).matmul(w, rows, cols, tokens, x, y);                                                    \
		else                                                                                                   \
			name##_few(w, NULL, rows, cols, NULL, tokens, x, y);                                           \
	}                                                                                                              \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *const *x,     \
				   float *const *h)                                                                    \
	{                                                                                                              \
		if (tokens == 0 || tokens > FEW_TOKENS)                                                                \
			(many).gate_up(gate, up, rows, cols, act, tokens, x, h);                                       \
		else                                                                                                   \
			name##_few(gate, up, rows, cols, act, tokens, x, h);                                           \
	}                                                                                                              \
	const struct kernel_ops ops_##name##_few_amx = {.pack = PACK_BF16,                                             \
							.pack_row = pack_bf16_row,                                     \
							.gate_up = name##_gate_up,                                     \
							.matmul = name##_matmul,                                       \
							.groups = &groups_##name##_amx};

FEW_OPS(bf16, STRIP_BF16, 0, ops_bf16_amx)
FEW_OPS(fp8_block, STRIP_E4M3, 1, ops_fp8_block_amx)
FEW_OPS(fp8_row, STRIP_E4M3, 0, ops_fp8_row_amx)
