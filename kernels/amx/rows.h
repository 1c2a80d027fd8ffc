/* SPDX-License-Identifier: MIT */
/*
 * rows - gate_up and matmul of the row-major formats: a block of columns becomes tiles once for all tokens of a pass.
 *
 * Two strips are computed together, of gate and up or neighbours, with up to 32 tokens: each tile that is loaded is
 * used twice. Sums stay in tiles within a block and in memory between blocks.
 *
 * Law: bfloat16 is summed 32 columns at a time in the order of the instruction, whatever the tokens; a factor of 128
 * columns is applied to their sum. So a result depends on its own row and token only.
 */
#ifndef KERNELS_AMX_ROWS_H
#define KERNELS_AMX_ROWS_H

#include "kernels/amx/strip.h"
#include "kernels/vec/activation.h"

#define BLOCK_STEPS 12 /* rows of a block lie in different sets of the cache */
#define BLOCK_BYTES (BLOCK_STEPS * TILE_BYTES)
#define PASS_TOKENS 128
#define PAIR_TOKENS (2 * TILE_ROWS)
#define SCALE_COLS 128

/* Sums of 16 rows: floats or integers. */
typedef float rows_sums[PASS_TOKENS][TILE_ROWS];

struct rows_work {
	_Alignas(64) uint8_t weights[2][BLOCK_STEPS][TILE_ROWS * TILE_BYTES];
	_Alignas(64) uint8_t activations[PAIR_TOKENS][BLOCK_BYTES];
	_Alignas(64) rows_sums sums[2];
	_Alignas(
		64) float parts[2][2][TILE_ROWS * TILE_ROWS]; /* sums of the columns of a factor, by tokens and strip */
};

/* What a pass computes. */
struct rows_pass {
	size_t strips; /* 1 or 2 */
	struct strip strip[2];
	size_t cols, tokens; /* tokens <= PASS_TOKENS */
	const void *const *x;
	size_t x_codes; /* bytes from where a packed row begins */
};

/* -- a block of columns and up to 32 tokens ----------------------------------------------------------------------- */

/* sums += activations . weights, `steps` from `from` on. Tiles 0 and 1 are the first 16 tokens' of both strips. */
#define STEPS(dot, two_strips, two_tokens)                                                                             \
	for (size_t i = from; i < from + steps; i++) {                                                                 \
		TILE_LOAD(4, x[0].base + i * TILE_BYTES, x[0].stride);                                                 \
		TILE_LOAD(6, work->weights[0][i], TILE_BYTES);                                                         \
		dot(0, 4, 6);                                                                                          \
		if (two_strips) {                                                                                      \
			TILE_LOAD(7, work->weights[1][i], TILE_BYTES);                                                 \
			dot(1, 4, 7);                                                                                  \
		}                                                                                                      \
		if (two_tokens) {                                                                                      \
			TILE_LOAD(5, x[1].base + i * TILE_BYTES, x[1].stride);                                         \
			dot(2, 5, 6);                                                                                  \
		}                                                                                                      \
		if (two_strips && two_tokens)                                                                          \
			dot(3, 5, 7);                                                                                  \
	}

#define STEPS_OF(name, dot)                                                                                            \
	static inline void name(const struct rows_work *work, const struct tile_rows *x, size_t strips, int more,      \
				size_t from, size_t steps)                                                             \
	{                                                                                                              \
		if (strips > 1 && more)                                                                                \
			STEPS(dot, 1, 1)                                                                               \
		else if (strips > 1)                                                                                   \
			STEPS(dot, 1, 0)                                                                               \
		else if (more)                                                                                         \
			STEPS(dot, 0, 1)                                                                               \
		else                                                                                                   \
			STEPS(dot, 0, 0)                                                                               \
	}

STEPS_OF(steps_bf16, TILE_BF16)
STEPS_OF(steps_int8, TILE_S8_S8)

static inline void sums_load(const float *a0, const float *a1, const float *b0, const float *b1)
{
	TILE_LOAD(0, a0, TILE_BYTES);
	TILE_LOAD(1, a1, TILE_BYTES);
	TILE_LOAD(2, b0, TILE_BYTES);
	TILE_LOAD(3, b1, TILE_BYTES);
}

static inline void sums_store(float *a0, float *a1, float *b0, float *b1)
{
	TILE_STORE(0, a0, TILE_BYTES);
	TILE_STORE(1, a1, TILE_BYTES);
	TILE_STORE(2, b0, TILE_BYTES);
	TILE_STORE(3, b1, TILE_BYTES);
}

/* Where the second 16 tokens' sums are; without them a place that nobody reads. */
static inline float *sums_more(struct rows_work *work, size_t strip, size_t t, int more)
{
	return more ? work->sums[strip][t + TILE_ROWS] : work->parts[1][strip];
}

TILE_INLINE void block_plain(enum strip_kind kind, struct rows_work *work, const struct rows_pass *p,
			     const struct tile_rows *x, size_t t, int more, size_t steps)
{
	float *b0 = sums_more(work, 0, t, more), *b1 = sums_more(work, 1, t, more);

	sums_load(work->sums[0][t], work->sums[1][t], b0, b1);
	if (kind == STRIP_INT8)
		steps_int8(work, x, p->strips, more, 0, steps);
	else
		steps_bf16(work, x, p->strips, more, 0, steps);
	sums_store(work->sums[0][t], work->sums[1][t], b0, b1);
}

/* sums += factor * parts */
static inline void parts_add(size_t tokens, float factor, const float *parts, float (*sums)[TILE_ROWS])
{
	for (size_t t = 0; t < tokens; t++)
		vec_store(sums[t], vec_fma(vec_set(factor), vec_load(parts + t * TILE_ROWS), vec_load(sums[t])));
}

static inline float strip_factor(const struct strip *s, size_t col)
{
	float factor;

	memcpy(&factor,
	       (const char *)s->m->scales + s->first / TILE_ROWS * s->m->scale_pitch +
		       col / SCALE_COLS * sizeof(factor),
	       sizeof(factor));
	return factor;
}

/* The same with a factor for each 128 columns; `c` is the block's first. */
static inline void block_scaled(struct rows_work *work, const struct rows_pass *p, const struct tile_rows *x, size_t t,
				size_t tokens, size_t c, size_t steps)
{
	const size_t group = SCALE_COLS / STEP_COLS(STRIP_E4M3);
	const int more = tokens > TILE_ROWS;

	for (size_t from = 0; from < steps; from += group) {
		TILE_ZERO(0);
		TILE_ZERO(1);
		TILE_ZERO(2);
		TILE_ZERO(3);
		steps_bf16(work, x, p->strips, more, from, MIN_OF(steps - from, group));
		sums_store(work->parts[0][0], work->parts[0][1], work->parts[1][0], work->parts[1][1]);
		for (size_t s = 0; s < p->strips; s++) {
			const float factor = strip_factor(&p->strip[s], c + from * STEP_COLS(STRIP_E4M3));

			parts_add(MIN_OF(tokens, TILE_ROWS), factor, work->parts[0][s], work->sums[s] + t);
			if (more)
				parts_add(tokens - TILE_ROWS, factor, work->parts[1][s], work->sums[s] + t + TILE_ROWS);
		}
	}
}

/* -- a pass ------------------------------------------------------------------------------------------------------- */

/* 16 tokens' activations of a block, up to a boundary of packed rows. They are copied where they are not equally far
 * apart, and where some of the 16 that the tiles are configured for are missing. */
static inline struct tile_rows block_x(struct rows_work *work, const struct rows_pass *p, size_t t, size_t tokens,
				       size_t at, size_t bytes)
{
	uint8_t *copy = work->activations[t % PAIR_TOKENS];
	const size_t n = MIN_OF(tokens, TILE_ROWS), configured = MIN_OF(p->tokens, TILE_ROWS);
	struct tile_rows x;

	if (n == configured && rows_even(p->x + t, n, &x)) {
		x.base += p->x_codes + at;
		return x;
	}
	rows_copy(p->x + t, n, p->x_codes + at, bytes, copy, BLOCK_BYTES);
	return (struct tile_rows){copy, BLOCK_BYTES};
}

TILE_INLINE void pass_block(enum strip_kind kind, int scaled, struct rows_work *work, const struct rows_pass *p,
			    size_t c)
{
	const size_t width = kind == STRIP_INT8 ? 1 : 2, cols = MIN_OF(p->cols - c, BLOCK_BYTES / width);
	const size_t bytes = KERNEL_LINE(cols * width), steps = bytes / TILE_BYTES;

	for (size_t t = 0; t < p->tokens; t += PAIR_TOKENS) {
		const size_t tokens = MIN_OF(p->tokens - t, PAIR_TOKENS);
		const int more = tokens > TILE_ROWS;
		struct tile_rows x[2];

		x[0] = block_x(work, p, t, tokens, c * width, bytes);
		x[1] = more ? block_x(work, p, t + TILE_ROWS, tokens - TILE_ROWS, c * width, bytes) : x[0];
		if (scaled)
			block_scaled(work, p, x, t, tokens, c, steps);
		else
			block_plain(kind, work, p, x, t, more, steps);
	}
}

TILE_INLINE void strip_block(enum strip_kind kind, const struct strip *s, size_t c, size_t cols,
			     uint8_t (*tiles)[TILE_ROWS * TILE_BYTES])
{
	const size_t width = kind == STRIP_BF16 ? 2 : 1;
	const size_t end = MIN_OF(cols - c, BLOCK_STEPS * STEP_COLS(kind));

	for (size_t i = 0; i < end; i += STEP_COLS(kind))
		strip_tile(kind, s, (c + i) * width, cols * width, *tiles++);
}

/* From columns to work->sums; tiles are configured. */
TILE_INLINE void pass_run(enum strip_kind kind, int scaled, struct rows_work *work, struct rows_pass *p)
{
	for (size_t s = 0; s < p->strips; s++)
		memset(work->sums[s], 0, (p->tokens + TILE_ROWS - 1) / TILE_ROWS * sizeof(float[TILE_ROWS][TILE_ROWS]));
	for (size_t c = 0; c < p->cols; c += BLOCK_STEPS * STEP_COLS(kind)) {
		for (size_t s = 0; s < p->strips; s++)
			strip_block(kind, &p->strip[s], c, p->cols, work->weights[s]);
		pass_block(kind, scaled, work, p, c);
	}
}

/* -- results ------------------------------------------------------------------------------------------------------ */

static inline vec floats_first(const float *p, size_t n)
{
	return n < VEC_FLOATS ? vec_load_n(p, n) : vec_load(p);
}

static inline void floats_put(float *to, vec v, size_t n)
{
	if (n < VEC_FLOATS)
		vec_store_n(to, v, n);
	else
		vec_store(to, v);
}

/* What the sums of a strip's token become; `x` is its packed row. */
static inline vec strip_result(enum strip_kind kind, const struct strip *s, const float *sums, const void *x)
{
	const struct kernel_matrix *m = s->m;
	vec v = vec_load(sums);

	if (kind == STRIP_INT8)
		v = vec_mul(_mm512_cvtepi32_ps(_mm512_castps_si512(v)),
			    vec_mul(floats_first(m->row_scales + s->first, s->rows),
				    vec_set(((const struct kernel_i8_row *)x)->scale)));
	else if (m->row_scales)
		v = vec_mul(v, floats_first(m->row_scales + s->first, s->rows));
	return m->bias ? vec_add(v, floats_first(m->bias + s->first, s->rows)) : v;
}

/* -- operations --------------------------------------------------------------------------------------------------- */

TILE_INLINE void rows_matmul(enum strip_kind kind, int scaled, const struct kernel_matrix *w, size_t rows, size_t cols,
			     size_t tokens, const void *const *x, float *const *y)
{
	struct rows_work work;
	struct rows_pass p = {.cols = cols, .tokens = tokens, .x = x, .x_codes = kind == STRIP_INT8 ? 64 : 0};

	for (size_t first = 0; first < rows; first += PAIR_TOKENS) {
		p.strips = rows - first > TILE_ROWS ? 2 : 1;
		for (size_t s = 0; s < p.strips; s++)
			strip_set(&p.strip[s], w, first + s * TILE_ROWS, rows - first - s * TILE_ROWS, 2 * TILE_ROWS);
		pass_run(kind, scaled, &work, &p);
		for (size_t t = 0; t < tokens; t++)
			for (size_t s = 0; s < p.strips; s++)
				floats_put(y[t] + p.strip[s].first,
					   vec_one_nan(strip_result(kind, &p.strip[s], work.sums[s][t], x[t])),
					   p.strip[s].rows);
	}
}

TILE_INLINE void rows_gate_up(enum strip_kind kind, int scaled, const struct kernel_matrix *gate,
			      const struct kernel_matrix *up, size_t rows, size_t cols, const struct kernel_act *act,
			      size_t tokens, const void *const *x, float *const *h)
{
	struct rows_work work;
	struct rows_pass p = {
		.strips = 2, .cols = cols, .tokens = tokens, .x = x, .x_codes = kind == STRIP_INT8 ? 64 : 0};

	for (size_t first = 0; first < rows; first += TILE_ROWS) {
		strip_set(&p.strip[0], gate, first, rows - first, TILE_ROWS);
		strip_set(&p.strip[1], up, first, rows - first, TILE_ROWS);
		pass_run(kind, scaled, &work, &p);
		for (size_t t = 0; t < tokens; t++)
			floats_put(h[t] + first,
				   vec_one_nan(vec_gated(act, strip_result(kind, &p.strip[0], work.sums[0][t], x[t]),
							 strip_result(kind, &p.strip[1], work.sums[1][t], x[t]))),
				   p.strip[0].rows);
	}
}

#endif
