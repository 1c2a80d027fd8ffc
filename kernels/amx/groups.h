/* SPDX-License-Identifier: MIT */
/*
 * groups - gate_up and matmul of the row-major formats for many tokens, whose activations were put into tiles before
 * (struct kernel_group_ops).
 *
 * Weights are the left operand: 16 rows by 64 bytes as they lie, so that nothing of them is turned. 32 rows pass by all
 * tokens in blocks of four steps of columns, and while a block is multiplied the next one is copied (or decoded), a few
 * lines between multiplications, into the other half of a buffer that stays in the first-level cache. Activations come
 * from the second level, a few columns' at a time where they are larger than that; the sums of a block's rows wait in
 * memory.
 *
 * Law: as in rows.h and few.h: 32 columns at a time in the order of the instruction, a factor of 128 columns is applied
 * to their sum. Results have the same bits.
 */
#ifndef KERNELS_AMX_GROUPS_H
#define KERNELS_AMX_GROUPS_H

#include "kernels/amx/group_call.h"
#include "kernels/amx/strip.h"
#include "kernels/vec/activation.h"

#define GROUP_STEPS 4 /* of a block: the columns that have a factor of FP8 */
#define GROUP_COLS(kind) (GROUP_STEPS * STEP_COLS(kind))

struct group_work {
	_Alignas(64) uint8_t weights[2][2][GROUP_STEPS][TILE_SIZE];
	_Alignas(64) group_quad parts;
	struct tile_results results;
	_Alignas(64) group_quad sums[GROUP_QUADS];
};

/* The second strip may be missing: then it is the first one again, and its results are nobody's. */
static inline void group_place(const struct group_call *c, const struct group_at *at, struct strip *s)
{
	const size_t left = c->rows - at->row;

	strip_set(&s[0], c->m[0], at->row, left, 0);
	if (c->m[1])
		strip_set(&s[1], c->m[1], at->row, left, 0);
	else if (left > TILE_ROWS)
		strip_set(&s[1], c->m[0], at->row + TILE_ROWS, left - TILE_ROWS, 0);
	else
		s[1] = s[0];
}

/* -- copying ------------------------------------------------------------------------------------------------------ */

/* Columns of two strips on their way to a half of the buffer; row 32: all are there. */
struct group_copy {
	const struct strip *s;
	size_t at, row_bytes, row; /* at: bytes of codes */
	uint8_t (*to)[GROUP_STEPS][TILE_SIZE];
};

TILE_INLINE __m512i copy_line(enum strip_kind kind, __m512i codes)
{
	return kind == STRIP_E4M3 ? e4m3_bf16(_mm512_castsi512_si256(codes)) : codes;
}

TILE_INLINE void copy_row(enum strip_kind kind, struct group_copy *c)
{
	const size_t step = STEP_BYTES(kind), r = c->row % TILE_ROWS, left = c->row_bytes - c->at;
	const uint8_t *from = c->s[c->row / TILE_ROWS].row[r] + c->at;
	uint8_t *to = c->to[c->row / TILE_ROWS][0] + r * TILE_BYTES;

	c->row++;
	if (left >= GROUP_STEPS * step) {
#pragma GCC unroll 4
		for (size_t i = 0; i < GROUP_STEPS; i++)
			_mm512_store_si512(to + i * TILE_SIZE,
					   copy_line(kind, kind == STRIP_E4M3
								   ? _mm512_castsi256_si512(_mm256_loadu_si256(
									     (const __m256i *)(from + i * step)))
								   : _mm512_loadu_si512(from + i * step)));
		return;
	}
	for (size_t i = 0; i * step < left; i++)
		_mm512_store_si512(to + i * TILE_SIZE,
				   copy_line(kind, bytes_first(from + i * step, MIN_OF(left - i * step, step))));
}

/* -- a block ------------------------------------------------------------------------------------------------------ */

static inline float strip_factor(const struct strip *s, size_t block)
{
	float factor;

	memcpy(&factor, (const char *)s->m->scales + s->first / TILE_ROWS * s->m->scale_pitch + block * sizeof(factor),
	       sizeof(factor));
	return factor;
}

/* sums = factor * parts + (first ? 0 : sums), with a factor for each strip */
static inline void quad_add(group_quad *sums, const group_quad *parts, const float *factors, int first)
{
	for (size_t tile = 0; tile < 4; tile++) {
		const vec factor = vec_set(factors[tile / 2]);

		for (size_t r = 0; r < TILE_ROWS; r++) {
			float *sum = (*sums)[tile][r];

			vec_store(sum,
				  vec_fma(factor, vec_load((*parts)[tile][r]), first ? vec_zero() : vec_load(sum)));
		}
	}
}

/* All tokens pass by a block; `copy` brings the next one. */
TILE_INLINE void group_block(enum strip_kind kind, int scaled, struct group_work *work, const struct group_call *c,
			     const struct strip *s, size_t block, size_t steps, uint8_t (*w)[GROUP_STEPS][TILE_SIZE],
			     group_quad *sums, struct group_copy *copy)
{
	const size_t each = (2 * TILE_ROWS / GROUP_STEPS + c->quads - 1) / c->quads;

	for (size_t q = 0; q < c->quads; q++, sums++) {
		const uint8_t *x0 = c->x + 2 * q * c->x_pitch + KERNEL_HEAD + block * GROUP_STEPS * TILE_SIZE;
		const uint8_t *x1 = 2 * q + 1 < c->groups ? x0 + c->x_pitch : x0;

		if (block == 0 || scaled)
			quad_zero();
		else
			quad_load(sums);
		for (size_t i = 0; i < steps; i++) {
			if (kind == STRIP_INT8)
				QUAD_STEP(TILE_S8_S8, w[0][i], w[1][i], x0 + i * TILE_SIZE, x1 + i * TILE_SIZE);
			else
				QUAD_STEP(TILE_BF16, w[0][i], w[1][i], x0 + i * TILE_SIZE, x1 + i * TILE_SIZE);
			for (size_t n = 0; n < each && copy->row < 2 * TILE_ROWS; n++)
				copy_row(kind, copy);
		}
		if (scaled) {
			const float factors[2] = {strip_factor(&s[0], block), strip_factor(&s[1], block)};

			quad_store(&work->parts);
			quad_add(sums, &work->parts, factors, block == 0);
		} else {
			quad_store(sums);
		}
	}
	while (copy->row < 2 * TILE_ROWS)
		copy_row(kind, copy);
}

/* -- results ------------------------------------------------------------------------------------------------------ */

/* What the sums of a row and 16 tokens become. */
TILE_INLINE vec row_result(enum strip_kind kind, const struct strip *s, size_t r, const float *sums, const uint8_t *x)
{
	const struct kernel_matrix *m = s->m;
	vec v = vec_load(sums);

	if (kind == STRIP_INT8)
		v = vec_mul(_mm512_cvtepi32_ps(_mm512_castps_si512(v)),
			    vec_mul(vec_set(m->row_scales[s->first + r]), vec_load((const float *)x)));
	else if (m->row_scales)
		v = vec_mul(v, vec_set(m->row_scales[s->first + r]));
	return m->bias ? vec_add(v, vec_set(m->bias[s->first + r])) : v;
}

TILE_INLINE void group_results(enum strip_kind kind, struct group_work *work, const struct group_call *c,
			       const struct strip *s, group_quad *sums)
{
	const size_t strips = s[1].first != s[0].first ? 2 : 1;

	for (size_t t = 0, g = 0; t < c->tokens; t += TILE_ROWS, g++) {
		const size_t tokens = MIN_OF(c->tokens - t, TILE_ROWS);
		const uint8_t *x = c->x + g * c->x_pitch;
		const group_quad *q = &sums[g / 2];

		for (size_t i = 0; i < (c->m[1] ? 1 : strips); i++) {
			for (size_t r = 0; r < s[i].rows; r++) {
				vec v = row_result(kind, &s[i], r, (*q)[2 * i + g % 2][r], x);

				if (c->m[1])
					v = vec_gated(c->act, v, row_result(kind, &s[1], r, (*q)[2 + g % 2][r], x));
				vec_store(work->results.rows[r], vec_one_nan(v));
			}
			results_put(&work->results, s[i].first, s[i].rows, tokens, c->out + t);
		}
	}
}

/* -- a call ------------------------------------------------------------------------------------------------------- */

TILE_INLINE void group_run(enum strip_kind kind, int scaled, const struct group_call *c)
{
	const size_t steps = (c->cols + STEP_COLS(kind) - 1) / STEP_COLS(kind);
	struct group_at at = {0}, next;
	struct strip strips[2][2];
	struct group_work work;
	struct group_copy copy = {
		.s = strips[0], .row_bytes = c->cols * (kind == STRIP_BF16 ? 2 : 1), .to = work.weights[0]};
	size_t half = 0, here = 0, then;

	group_place(c, &at, strips[0]);
	while (copy.row < 2 * TILE_ROWS)
		copy_row(kind, &copy);
	if (!c->cols)
		memset(work.sums, 0, c->quads * sizeof(work.sums[0]));
	for (int more = 1; more; at = next, here = then, half ^= 1) {
		const struct strip *s = strips[here];
		group_quad *sums = work.sums + group_sums(c, &at);

		next = at;
		more = group_next(c, &next);
		then = more && next.row != at.row ? here ^ 1 : here;
		if (then != here)
			group_place(c, &next, strips[then]);
		copy.s = strips[then];
		copy.at = next.block * GROUP_STEPS * STEP_BYTES(kind);
		copy.row = more ? 0 : 2 * TILE_ROWS;
		copy.to = work.weights[half ^ 1];
		if (c->cols)
			group_block(kind, scaled, &work, c, s, at.block,
				    MIN_OF(steps - at.block * GROUP_STEPS, GROUP_STEPS), work.weights[half], sums,
				    &copy);
		if (at.block + 1 >= c->blocks)
			group_results(kind, &work, c, s, sums);
	}
}

#endif
