/* SPDX-License-Identifier: MIT */
/*
 * test-cuda-pack - activations are packed on the device bit by bit as on the CPU, by every table that this CPU runs:
 * all packings that a device has, which are all but the pairs of a CPU whose additions are free
 * (kernels/vec/panel_pairs.h).
 */
#include "kernels/cuda/launch.h"
#include "kernels/detect.h"
#include "tests/kernel-problem.h"

#define COLS_TESTED 3000
#define ROWS_TESTED 3

static uint64_t at(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

/* Of a packed row: what the device writes too. F16: not the floats behind the codes. */
static bool row_same(const struct kernel_ops *ops, uint32_t cols, const float *x, const uint8_t *packed, uint64_t bytes)
{
	static uint8_t want[COLS_TESTED * 8 + 4096] __attribute__((aligned(64)));

	memset(want, 0xff, sizeof want);
	ops->pack_row(cols, ops->block, x, want);
	return memcmp(want, packed, bytes) == 0;
}

/* Rows that end at a wall, packed to rows that end at one; `fewer` of them by the counts. */
static bool rows_same(const struct kernel_ops *ops, const struct wall walls[2], uint32_t cols, uint32_t fewer)
{
	const uint64_t pitch = cuda_pack_pitch(ops->pack, ops->block, cols);
	struct cuda_launch launch = {.kernel = CUDA_KERNEL_moe_pack, .grid = {ROWS_TESTED, 1, 1}, .block = {128, 1, 1}};
	struct cuda_counts counts = {.n_pairs = ROWS_TESTED - fewer};
	float *x = (float *)wall_before(&walls[0], (size_t)cols * ROWS_TESTED * sizeof(float));
	uint8_t *packed = (uint8_t *)wall_before(&walls[1], pitch * ROWS_TESTED);
	bool good = true;

	memset(packed, 0xee, pitch * ROWS_TESTED);
	for (uint32_t i = 0; i < ROWS_TESTED; i++)
		x_fill(once_in(2) ? DATA_PLAIN : DATA_SPECIAL, x + (size_t)i * cols, cols);
	launch.params.pack = (struct cuda_pack){.x = at(x),
						.packed = at(packed),
						.counts = fewer ? at(&counts) : 0,
						.pitch = pitch,
						.rows = ROWS_TESTED,
						.cols = cols,
						.kind = ops->pack,
						.block = ops->block};
	cuda_launch_twin(&launch, once_in(2) ? CUDA_TWIN_FORWARDS : CUDA_TWIN_BACKWARDS);
	for (uint32_t i = 0; i < ROWS_TESTED - fewer; i++)
		good = good && row_same(ops, cols, x + (size_t)i * cols, packed + i * pitch, pitch);
	for (uint64_t i = pitch * (ROWS_TESTED - fewer); i < pitch * ROWS_TESTED; i++)
		good = good && packed[i] == 0xee;
	return good;
}

static void test_format(const struct kernels *table, uint32_t format, const struct wall walls[2])
{
	const struct kernel_ops *ops = table->of[format];
	bool good = true;

	for (int i = 0; i < 300 && good; i++) {
		uint32_t cols = once_in(3) ? 1 + pick(COLS_TESTED) : 1 + pick(200);

		if (ops->block)
			cols = (cols + ops->block - 1) / ops->block * ops->block;
		good = rows_same(ops, walls, cols, once_in(4));
		if (!good)
			diag("%u columns, round %d", cols, i);
	}
	ok(good, "%s, %s: the device packs the same bits (pack %d, block %u)", table->variant, moe_formats[format].name,
	   (int)ops->pack, ops->block);
}

int main(void)
{
	static const uint32_t formats[] = {MOE_FORMAT_BF16, MOE_FORMAT_F16, MOE_FORMAT_INT8, MOE_FORMAT_Q4_K,
					   MOE_FORMAT_Q6_K};
	const struct wall walls[2] = {wall_new(ROWS_TESTED * (COLS_TESTED + 64) * 4),
				      wall_new(ROWS_TESTED * (COLS_TESTED * 8 + 4096))};
	const struct kernels *k;

	seed = tap_seed();
	for (unsigned i = 0; (k = kernels_runnable(cpu_features_here(), i)); i++)
		for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
			if (k->of[formats[f]] && k->of[formats[f]]->pack != PACK_F32 &&
			    k->of[formats[f]]->pack != PACK_I8_PAIRS)
				test_format(k, formats[f], walls);
	ok(tap_count >= 3, "there are tables to compare with (%d)", tap_count);
	return tap_done();
}
