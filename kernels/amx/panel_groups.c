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
#include "kernels/amx/panel_decode.h"
#include "kernels/amx/quad.h"
#include "kernels/vec/activation.h"

#define GROUP_TOKENS 256
#define GROUP_X_BYTES ((size_t)512 << 10) /* activations of all tokens that pass together */
#define PASS_SUMS 64                      /* quads that are kept meanwhile */
#define BLOCK_COLS DECODE_COLS            /* 32 KiB of decoded weights. A multiple of all scale blocks. */
#define BLOCK_STEPS (BLOCK_COLS / STEP_COLS)

/* What a call computes. */
struct group_call {
	const struct kernel_matrix *m[2]; /* gate and up, or one */
	size_t rows, cols, tokens;        /* tokens <= GROUP_TOKENS */
	const struct kernel_act *act;
	const uint8_t *x;
	size_t x_pitch; /* of groups */
	float *const *out;
	size_t pair_rows; /* that two panels are together */
	size_t pass_cols; /* columns that pass together, a multiple of BLOCK_COLS */
	size_t pass_rows; /* whose sums are kept meanwhile */
};

/* A column block of two panels, and where they lie. The second one may be missing: then it is the first one again, and
 * its sums are nobody's. */
struct group_block {
	size_t base, pass, row, c; /* rows and columns that pass together begin at base and pass */
	size_t cols;
	struct panel_at at[2];
};

struct group_work {
	_Alignas(64) uint8_t weights[2][BLOCK_STEPS][TILE_SIZE];
	struct tile_results results;
	_Alignas(64) group_quad sums[PASS_SUMS];
};

/* -- blocks ------------------------------------------------------------------------------------------------------- */

/* The block after `at`; 0: there is none. */
static int group_next(const struct group_call *c, struct group_block *at)
{
	at->c += BLOCK_COLS;
	if (at->c < MIN_OF(at->pass + c->pass_cols, c->cols))
		return 1;
	at->c = at->pass;
	at->row += c->pair_rows;
	if (at->row < MIN_OF(at->base + c->pass_rows, c->rows))
		return 1;
	at->row = at->base;
	at->pass += c->pass_cols;
	at->c = at->pass;
	if (at->pass < c->cols)
		return 1;
	at->c = at->pass = 0;
	at->base += c->pass_rows;
	at->row = at->base;
	return at->base < c->rows;
}

static inline size_t group_panels(const struct group_call *c, const struct group_block *at)
{
	return c->m[1] || c->rows - at->row > MOE_PANEL_ROWS ? 2 : 1;
}

static void group_place(const struct group_call *c, struct group_block *at)
{
	const uint32_t format = c->m[0]->format;

	at->cols = MIN_OF(c->cols - at->c, BLOCK_COLS);
	for (size_t p = 0; p < group_panels(c, at); p++) {
		const struct kernel_matrix m = c->m[1] ? kernel_rows(c->m[p], at->row)
						       : kernel_rows(c->m[0], at->row + p * MOE_PANEL_ROWS);

		at->at[p].codes = (const uint8_t *)m.codes + moe_band_bytes(format, MOE_PLANE_CODES, at->c);
		at->at[p].scales = (const uint8_t *)m.scales + moe_band_bytes(format, MOE_PLANE_SCALES, at->c);
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
	for (size_t p = 0; p < group_panels(c, next); p++) {
		ret->at[2 * p] = (uintptr_t)next->at[p].codes;
		ret->at[2 * p + 1] = (uintptr_t)next->at[p].scales;
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
static void group_block(const struct group_work *work, const struct group_call *c, const struct group_block *at,
			group_quad *sums, struct group_asks *asks)
{
	const size_t groups = (c->tokens + TILE_ROWS - 1) / TILE_ROWS, steps = at->cols / STEP_COLS;
	const uint8_t(*w0)[TILE_SIZE] = work->weights[0], (*w1)[TILE_SIZE] = work->weights[group_panels(c, at) - 1];

	for (size_t g = 0; g < groups; g += 2, sums++) {
		const uint8_t *x0 = c->x + g * c->x_pitch + KERNEL_HEAD + at->c / STEP_COLS * TILE_SIZE;
		const uint8_t *x1 = x0 + c->x_pitch;

		if (at->c == 0)
			quad_zero();
		else
			quad_load(sums);
		for (size_t i = 0; i < steps; i++) {
			if (g + 1 < groups)
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

static size_t group_quads(const struct group_call *c)
{
	return (c->tokens + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
}

static void group_plan(struct group_call *c)
{
	const size_t x = (c->tokens + TILE_ROWS - 1) / TILE_ROWS * c->x_pitch;
	const size_t passes = (x + GROUP_X_BYTES - 1) / GROUP_X_BYTES;

	c->pair_rows = c->m[1] ? MOE_PANEL_ROWS : 2 * MOE_PANEL_ROWS;
	c->pass_cols = (c->cols / passes + BLOCK_COLS) / BLOCK_COLS * BLOCK_COLS;
	c->pass_rows = PASS_SUMS / group_quads(c) * c->pair_rows;
}

static void group_run(const struct group_call *c)
{
	block_decode_function *const decode = decoders[c->m[0]->format];
	struct group_block at = {0}, next;
	struct group_work work;

	if (!c->cols)
		memset(work.sums, 0, sizeof(work.sums));
	group_place(c, &at);
	for (int more = 1; more; at = next) {
		group_quad *sums = &work.sums[(at.row - at.base) / c->pair_rows * group_quads(c)];
		struct group_asks asks = {.each = 0};

		for (size_t p = 0; p < group_panels(c, &at); p++)
			decode(&at.at[p], at.cols, work.weights[p]);
		next = at;
		more = group_next(c, &next);
		if (more) {
			group_place(c, &next);
			group_asks(c, &next, group_quads(c) * BLOCK_STEPS, &asks);
		}
		if (c->cols)
			group_block(&work, c, &at, sums, &asks);
		if (at.c + at.cols == c->cols)
			group_results(c, at.row, sums, &work.results);
	}
}

static void group_all(struct group_call c, const struct kernel_ops *ops)
{
	const size_t tokens = c.tokens;

	tiles_configure(TILE_ROWS, TILE_BYTES);
	c.x_pitch = kernel_group_bytes(ops, c.cols);
	for (size_t t = 0; t < tokens && c.rows; t += GROUP_TOKENS) {
		c.tokens = MIN_OF(tokens - t, GROUP_TOKENS);
		group_plan(&c);
		group_run(&c);
		c.x += GROUP_TOKENS / KERNEL_GROUP * c.x_pitch;
		c.out += GROUP_TOKENS;
	}
	tiles_release();
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

#define GROUP_FUNCTIONS(name, columns)                                                                                 \
	static void name##_pack(size_t cols, size_t tokens, const void *const *packed, void *group)                    \
	{                                                                                                              \
		group_pack(cols, columns, tokens, packed, group);                                                      \
	}                                                                                                              \
	static void name##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,      \
				   size_t cols, const struct kernel_act *act, size_t tokens, const void *x,            \
				   float *const *h)                                                                    \
	{                                                                                                              \
		group_all((struct group_call){.m = {gate, up},                                                         \
					      .rows = rows,                                                            \
					      .cols = cols,                                                            \
					      .tokens = tokens,                                                        \
					      .act = act,                                                              \
					      .x = x,                                                                  \
					      .out = h},                                                               \
			  &ops_##name##_amx);                                                                          \
	}                                                                                                              \
	static void name##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,              \
				  const void *x, float *const *y)                                                      \
	{                                                                                                              \
		group_all(                                                                                             \
			(struct group_call){.m = {w}, .rows = rows, .cols = cols, .tokens = tokens, .x = x, .out = y}, \
			&ops_##name##_amx);                                                                            \
	}                                                                                                              \
	const struct kernel_group_ops groups_##name##_amx = {                                                          \
		.least = 16, .pack = name##_pack, .gate_up = name##_gate_up, .matmul = name##_matmul};

GROUP_FUNCTIONS(panel, 32)
GROUP_FUNCTIONS(panel_fine, 16)
