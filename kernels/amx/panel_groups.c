/* SPDX-License-Identifier: MIT */
/*
 * panel_groups - the formats in panels for many tokens, whose activations were put together before
 * (struct kernel_group_ops).
 *
 * Weights are decoded to bfloat16 with their scales: what leaves a tile goes through memory, and the processor does not
 * compute with vectors while it does (docs/decisions/0096), so integer sums of 32 columns, each with a factor of its
 * own, take as long as four times the multiplications. A column block of two panels is decoded into the first-level
 * cache, and all tokens pass by it, 32 at a time; their sums wait in memory meanwhile.
 *
 * Law: 32 columns at a time in the order of the instruction, for any number of tokens. Weights are rounded to the
 * nearest bfloat16 (denormal ones to zero), and so is what the packed activations stand for.
 */
#include "kernels/amx/group_call.h"
#include "kernels/amx/panel_decode.h"
#include "kernels/vec/activation.h"

#define BLOCK_COLS DECODE_COLS /* 32 KiB of decoded weights. A multiple of all scale blocks. */
#define BLOCK_STEPS (BLOCK_COLS / STEP_COLS)

/* A column block of two panels, and where they lie. The second one may be missing: then its sums are nobody's. */
struct group_block {
	struct group_at at;
	size_t cols;
	struct panel_at panels[2];
};

struct group_work {
	_Alignas(64) uint8_t weights[2][BLOCK_STEPS][TILE_SIZE];
	struct tile_results results;
	_Alignas(64) group_quad sums[GROUP_QUADS];
};

/* -- blocks ------------------------------------------------------------------------------------------------------- */

static void group_place(const struct group_call *c, struct group_block *block)
{
	const uint32_t format = c->m[0]->format;
	const size_t first = block->at.block * BLOCK_COLS, row = block->at.row;

	block->cols = MIN_OF(c->cols - first, BLOCK_COLS);
	for (size_t p = 0; p < group_strips(c, &block->at); p++) {
		const struct kernel_matrix m = c->m[1] ? kernel_rows(c->m[p], row)
						       : kernel_rows(c->m[0], row + p * MOE_PANEL_ROWS);

		block->panels[p].codes = (const uint8_t *)m.codes + moe_band_bytes(format, MOE_PLANE_CODES, first);
		block->panels[p].scales = (const uint8_t *)m.scales + moe_band_bytes(format, MOE_PLANE_SCALES, first);
	}
}

/* What is asked for while a block is multiplied, some lines with each step. */
struct group_asks {
	uintptr_t at[4];
	size_t lines[4], each;
};

static void group_asks(const struct group_call *c, const struct group_block *next, size_t steps, struct group_asks *ret)
{
	const uint32_t format = c->m[0]->format;

	*ret = (struct group_asks){.each = 0};
	for (size_t p = 0; p < group_strips(c, &next->at); p++) {
		ret->at[2 * p] = (uintptr_t)next->panels[p].codes;
		ret->at[2 * p + 1] = (uintptr_t)next->panels[p].scales;
		ret->lines[2 * p] = (moe_band_bytes(format, MOE_PLANE_CODES, next->cols) + 63) / 64;
		ret->lines[2 * p + 1] = (moe_band_bytes(format, MOE_PLANE_SCALES, next->cols) + 63) / 64;
		ret->each += ret->lines[2 * p] + ret->lines[2 * p + 1];
	}
	ret->each = (ret->each + steps - 1) / steps;
}

TILE_INLINE void group_ask(struct group_asks *asks)
{
	for (size_t n = asks->each, i = 0; n && i < 4; i++)
		for (; n && asks->lines[i]; n--, asks->lines[i]--, asks->at[i] += 64)
			_mm_prefetch((const char *)asks->at[i], _MM_HINT_T1);
}

/* -- multiplications ---------------------------------------------------------------------------------------------- */

/* All tokens pass by a decoded block. */
static void group_multiply(const struct group_work *work, const struct group_call *c, const struct group_block *block,
			   group_quad *sums, struct group_asks *asks)
{
	const size_t steps = block->cols / STEP_COLS;
	const uint8_t(*w0)[TILE_SIZE] = work->weights[0];
	const uint8_t(*w1)[TILE_SIZE] = work->weights[group_strips(c, &block->at) - 1];

	for (size_t g = 0; g < c->groups; g += 2, sums++) {
		const uint8_t *x0 = c->x + g * c->x_pitch + KERNEL_HEAD + block->at.block * BLOCK_STEPS * TILE_SIZE;
		const uint8_t *x1 = x0 + c->x_pitch;

		if (block->at.block == 0)
			quad_zero();
		else
			quad_load(sums);
		for (size_t i = 0; i < steps; i++) {
			if (g + 1 < c->groups)
				QUAD_STEP(TILE_BF16, w0[i], w1[i], x0 + i * TILE_SIZE, x1 + i * TILE_SIZE);
			else
				HALF_STEP(TILE_BF16, w0[i], w1[i], x0 + i * TILE_SIZE);
			group_ask(asks);
		}
		quad_store(sums);
	}
}

/* -- results ------------------------------------------------------------------------------------------------------ */

/* The sums of a row and 16 tokens, with its bias. */
static inline vec row_biased(const float *sums, const float *bias, size_t row)
{
	return bias ? vec_add(vec_load(sums), vec_set(bias[row])) : vec_load(sums);
}

static void group_results(const struct group_call *c, size_t row, const group_quad *sums, struct tile_results *results)
{
	for (size_t p = 0; p < (c->m[1] ? 1 : 2) && row + p * MOE_PANEL_ROWS < c->rows; p++) {
		const size_t first = row + p * MOE_PANEL_ROWS, rows = MIN_OF(c->rows - first, MOE_PANEL_ROWS);

		for (size_t t = 0, g = 0; t < c->tokens; t += TILE_ROWS, g++) {
			const group_quad *q = &sums[g / 2];

			for (size_t r = 0; r < rows; r++) {
				vec v = row_biased((*q)[2 * p + g % 2][r], c->m[0]->bias, first + r);

				if (c->m[1])
					v = vec_gated(c->act, v,
						      row_biased((*q)[2 + g % 2][r], c->m[1]->bias, first + r));
				vec_store(results->rows[r], vec_one_nan(v));
			}
			results_put(results, first, rows, MIN_OF(c->tokens - t, TILE_ROWS), c->out + t);
		}
	}
}

/* -- a call ------------------------------------------------------------------------------------------------------- */

#define FORMATS(FORMAT)                                                                                                \
	FORMAT(INT4_G32_F16)                                                                                           \
	FORMAT(INT4_G64_F16)                                                                                           \
	FORMAT(INT4_G128_F16)                                                                                          \
	FORMAT(INT4_G32_BF16)                                                                                          \
	FORMAT(INT4_G64_BF16)                                                                                          \
	FORMAT(INT4_G128_BF16)                                                                                         \
	FORMAT(INT4_G32_F16_ZP)                                                                                        \
	FORMAT(INT4_G64_F16_ZP)                                                                                        \
	FORMAT(INT4_G128_F16_ZP)                                                                                       \
	FORMAT(INT4_G32_BF16_ZP)                                                                                       \
	FORMAT(INT4_G64_BF16_ZP)                                                                                       \
	FORMAT(INT4_G128_BF16_ZP)                                                                                      \
	FORMAT(MXFP4)                                                                                                  \
	FORMAT(Q8_0)                                                                                                   \
	FORMAT(Q4_0)                                                                                                   \
	FORMAT(Q4_1)                                                                                                   \
	FORMAT(Q4_K)                                                                                                   \
	FORMAT(Q5_K)                                                                                                   \
	FORMAT(Q6_K)                                                                                                   \
	FORMAT(IQ4_XS)

typedef void block_decode_function(const struct panel_at *at, size_t cols, uint8_t (*to)[TILE_SIZE]);

#define DECODE(format)                                                                                                 \
	static void decode_##format(const struct panel_at *at, size_t cols, uint8_t(*to)[TILE_SIZE])                   \
	{                                                                                                              \
		panel_decode_tiles(MOE_FORMAT_##format, at, cols, to);                                                 \
	}
#define DECODER(format) [MOE_FORMAT_##format] = decode_##format,

FORMATS(DECODE)

static block_decode_function *const decoders[MOE_FORMAT_COUNT] = {FORMATS(DECODER)};

static void group_run(const struct group_call *c)
{
	block_decode_function *const decode = decoders[c->m[0]->format];
	struct group_block block = {0}, next;
	struct group_work work;

	if (!c->cols)
		memset(work.sums, 0, c->quads * sizeof(work.sums[0]));
	group_place(c, &block);
	for (int more = 1; more; block = next) {
		group_quad *sums = work.sums + group_sums(c, &block.at);
		struct group_asks asks = {.each = 0};

		for (size_t p = 0; p < group_strips(c, &block.at); p++)
			decode(&block.panels[p], block.cols, work.weights[p]);
		next = block;
		more = group_next(c, &next.at);
		if (more) {
			group_place(c, &next);
			group_asks(c, &next, c->quads * BLOCK_STEPS, &asks);
		}
		if (c->cols)
			group_multiply(&work, c, &block, sums, &asks);
		if (block.at.block + 1 >= c->blocks)
			group_results(c, block.at.row, sums, &work.results);
	}
}

/* What 32 codes stand for as bfloat16, in the order of decoded weights. */
static inline __m512i codes_bf16(const int8_t *codes, const float *scales, uint32_t block, size_t c)
{
	const vec low = vec_mul(ivec_float(ivec_from_s8((const uint8_t *)codes + c)), vec_set(scales[c / block]));
	const vec high = vec_mul(ivec_float(ivec_from_s8((const uint8_t *)codes + c + 16)),
				 vec_set(scales[(c + 16) / block]));

	return _mm512_permutexvar_epi16(step_order(), pair_bf16(low, high));
}

static void group_pack(size_t cols, uint32_t block, size_t tokens, const void *const *packed, uint8_t *group)
{
	_Alignas(64) uint8_t lines[TILE_ROWS][TILE_BYTES];
	const uint8_t *rows[TILE_ROWS];

	for (size_t t = 0; t < TILE_ROWS; t++)
		rows[t] = lines[t];
	for (size_t c = 0; c < cols; c += STEP_COLS) {
		for (size_t t = 0; t < TILE_ROWS; t++) {
			/* Those that are missing are the first one again. */
			const uint8_t *row = packed[t < tokens ? t : 0];
			const float *scales = (const float *)(row + KERNEL_I8_SCALES(cols));

			ivec_store(lines[t], codes_bf16((const int8_t *)row, scales, block, c));
		}
		tile_turn(rows, 0, group + KERNEL_HEAD + c / STEP_COLS * TILE_SIZE);
	}
}

static void pack_panel(size_t cols, size_t tokens, const void *const *packed, void *group)
{
	group_pack(cols, 32, tokens, packed, group);
}

static void pack_panel_fine(size_t cols, size_t tokens, const void *const *packed, void *group)
{
	group_pack(cols, 16, tokens, packed, group);
}

GROUP_FUNCTIONS(panel, ops_panel_amx, BLOCK_COLS, pack_panel, group_run)
GROUP_FUNCTIONS(panel_fine, ops_panel_fine_amx, BLOCK_COLS, pack_panel_fine, group_run)
