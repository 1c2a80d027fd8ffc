/* SPDX-License-Identifier: MIT */
/*
 * rows_serial - the same sums as rows.h's for few tokens, one row after the other.
 *
 * With few tokens the limit is reading weights, and one forward stream is read faster than four rows side by side,
 * which are four streams that jump at each row's end (docs/decisions). The processor itself overlaps a row's chain of
 * sums with the next row's. Vectors of sums are kept until four rows are done, then added up as in rows.h: the same
 * bits.
 */
#ifndef KERNELS_VEC_ROWS_SERIAL_H
#define KERNELS_VEC_ROWS_SERIAL_H

#include "kernels/vec/rows.h"

#define ROWS_SERIAL_BLOCKS 32 /* blocks of columns whose sums are kept at a time */

/* Rows that are read one after the other. */
struct rows_span {
	uintptr_t first;
	size_t pitch, rows, width; /* width: of a row, in bytes */
};

/* What is asked for: some KiB before it is read, line by line, row by row, span by span. */
struct rows_ahead {
	uintptr_t at, end;            /* in a row */
	size_t width;                 /* of a row of the span */
	size_t pitch, rows;           /* of the span, rows after this one */
	const struct rows_span *next; /* the last one has more rows than are ever asked for */
	uintptr_t run_end, then;      /* of the rows that are read now, and what is read behind them */
};

/* Some rows, ROWS_CHUNK at most, and some blocks of columns. */
struct rows_serial {
	const char *w;
	size_t pitch, rows, cols, block, blocks;
	struct rows_ahead *ahead;
	const void *const *x;
	size_t x_at;        /* bytes before the first column in a packed row */
	const char *scales; /* of the columns' groups */
	float *totals;      /* of the first row and token; ROWS_CHUNK from token to token */
	size_t far;         /* bytes ahead that a line of each page is asked for; 0: none is */
};

typedef void rows_serial_function(const struct rows_serial *part);

typedef vec rows_kept[ROWS_TILE][ROWS_SERIAL_BLOCKS][ROWS_FEW_TOKENS];

ROWS_INLINE void serial_turn(struct rows_ahead *ahead)
{
	if (ahead->rows) {
		ahead->rows--;
		ahead->at = ahead->end - ahead->width + ahead->pitch;
	} else {
		ahead->at = ahead->next->first;
		ahead->pitch = ahead->next->pitch;
		ahead->width = ahead->next->width;
		ahead->rows = ahead->next->rows - 1;
		ahead->next++;
	}
	ahead->end = ahead->at + ahead->width;
}

ROWS_INLINE void serial_ask(struct rows_ahead *ahead)
{
	if (ahead->at >= ahead->end)
		serial_turn(ahead);
	_mm_prefetch((const char *)ahead->at, _MM_HINT_T0);
	ahead->at += ROWS_STEP_BYTES;
}

/* `near` bytes behind the beginning of the first span. */
static inline struct rows_ahead serial_ahead(const struct rows_span *spans, size_t near)
{
	struct rows_ahead ahead = {.next = spans};
	size_t lines = near / ROWS_STEP_BYTES;

	for (serial_turn(&ahead); ahead.width && lines; lines--) {
		ahead.at += ROWS_STEP_BYTES;
		if (ahead.at >= ahead.end)
			serial_turn(&ahead);
	}
	return ahead;
}

/* The v-th vector of a step's activations. */
ROWS_INLINE vec serial_x(enum rows_kind kind, const char *x, size_t v)
{
	if (rows_few_x_bytes(kind) < rows_x_bytes(kind))
		return vec_f16((const uint16_t *)x + v * VEC_FLOATS);
	return vec_load((const float *)(x + v * VEC_BYTES));
}

ROWS_INLINE void serial_step(enum rows_kind kind, size_t tokens, vec sums[ROWS_TOKENS], const char *w,
			     const char *const *x, size_t at)
{
	const size_t vecs = ROWS_STEP_BYTES / rows_w_bytes(kind) * rows_x_bytes(kind) / VEC_BYTES;

#pragma GCC unroll 8
	for (size_t v = 0; v < vecs; v++) {
		const vec weights = row_weights(kind, w, v);

#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			sums[t] = row_dot(kind, sums[t], weights, serial_x(kind, x[t] + at, v));
	}
}

/* The last columns, through copies that are filled up with zeros. */
ROWS_INLINE void serial_tail(enum rows_kind kind, size_t tokens, vec sums[ROWS_TOKENS], const char *w,
			     const char *const *x, size_t at, size_t cols)
{
	_Alignas(64) char weights[ROWS_STEP_BYTES] = {0};
	_Alignas(64) char copies[ROWS_TOKENS][ROWS_STEP_FLOATS * sizeof(float)] = {0};
	const char *from[ROWS_TOKENS];

	memcpy(weights, w, cols * rows_w_bytes(kind));
	for (size_t t = 0; t < tokens; t++) {
		memcpy(copies[t], x[t] + at, rows_filled(rows_fours(kind), cols) * rows_few_x_bytes(kind));
		from[t] = copies[t];
	}
	serial_step(kind, tokens, sums, weights, from, 0);
}

ROWS_INLINE void serial_clear(size_t tokens, vec sums[ROWS_TOKENS])
{
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		sums[t] = vec_zero();
}

/* `steps` steps from column c on. */
ROWS_INLINE void serial_steps(enum rows_kind kind, size_t steps, size_t tokens, vec sums[ROWS_TOKENS], const char *w,
			      struct rows_ahead *ahead, const char *const *x, size_t c)
{
	const size_t step = ROWS_STEP_BYTES / rows_w_bytes(kind);

#pragma GCC unroll 8
	for (size_t i = 0; i < steps; i++, c += step) {
		serial_ask(ahead);
		serial_step(kind, tokens, sums, w + c * rows_w_bytes(kind), x, c * rows_few_x_bytes(kind));
	}
}

/* Columns from .. to of a row, one chain. */
ROWS_INLINE void serial_chain(enum rows_kind kind, size_t tokens, vec sums[ROWS_TOKENS], const char *w,
			      struct rows_ahead *ahead, const char *const *x, size_t from, size_t to)
{
	const size_t step = ROWS_STEP_BYTES / rows_w_bytes(kind), whole = from + (to - from) / step * step;

	for (size_t c = from; c < whole; c += step)
		serial_steps(kind, 1, tokens, sums, w, ahead, x, c);
	if (whole < to)
		serial_ask(ahead);
	if (whole < to)
		serial_tail(kind, tokens, sums, w + whole * rows_w_bytes(kind), x, whole * rows_few_x_bytes(kind),
			    to - whole);
}

/* The same of integers, whose sums are exact in any order: two chains, of which none waits for the other. */
ROWS_INLINE void serial_chains(enum rows_kind kind, size_t tokens, vec sums[ROWS_TOKENS], const char *w,
			       struct rows_ahead *ahead, const char *const *x, size_t from, size_t to)
{
	const size_t step = ROWS_STEP_BYTES / rows_w_bytes(kind);
	vec others[ROWS_TOKENS];

	serial_clear(tokens, others);
	for (; to - from >= 2 * step; from += 2 * step) {
		serial_steps(kind, 1, tokens, sums, w, ahead, x, from);
		serial_steps(kind, 1, tokens, others, w, ahead, x, from + step);
	}
	serial_chain(kind, tokens, sums, w, ahead, x, from, to);
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		sums[t] = vec_add_int(sums[t], others[t]);
}

/* One group's sums with their scale, the tokens' in pairs as the tiles have their rows'. */
ROWS_INLINE void serial_scale(size_t tokens, const struct rows_serial *part, size_t c, const vec sums[ROWS_TOKENS],
			      vec scaled[ROWS_TOKENS])
{
	const vec scale = rows_scale(part->scales, c / ROWS_GROUP);

#pragma GCC unroll 4
	for (size_t t = 0; t < tokens; t += 2)
		scaled[t / 2] = vec_fma(scale, t + 1 < tokens ? vec_pair(sums[t], sums[t + 1]) : vec_single(sums[t]),
					scaled[t / 2]);
}

/* One block of a row in groups; what is left behind the last whole one apart: those have no ends to look for. */
ROWS_INLINE void serial_groups(enum rows_kind kind, size_t tokens, const struct rows_serial *part, const char *w,
			       struct rows_ahead *ahead, const char *const *x, size_t from, size_t to,
			       vec scaled[ROWS_TOKENS])
{
	const size_t steps = ROWS_GROUP * rows_w_bytes(kind) / ROWS_STEP_BYTES;
	vec sums[ROWS_TOKENS];

	for (size_t n = (to - from) / ROWS_GROUP; n; n--, from += ROWS_GROUP) {
		serial_clear(tokens, sums);
		serial_steps(kind, steps, tokens, sums, w, ahead, x, from);
		serial_scale(tokens, part, from, sums, scaled);
	}
	if (from < to) {
		serial_clear(tokens, sums);
		serial_chain(kind, tokens, sums, w, ahead, x, from, to);
		serial_scale(tokens, part, from, sums, scaled);
	}
}

/* One block of a row; in groups its sums are those of pairs of tokens. */
ROWS_INLINE void serial_block(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_serial *part,
			      const char *w, struct rows_ahead *ahead, const char *const *x, size_t from, size_t to,
			      vec kept[ROWS_TOKENS])
{
	const size_t n = grouped ? (tokens + 1) / 2 : tokens;
	vec sums[ROWS_TOKENS];

	serial_clear(n, sums);
	if (grouped)
		serial_groups(kind, tokens, part, w, ahead, x, from, to, sums);
	else if (rows_x_bytes(kind) == 1)
		serial_chains(kind, tokens, sums, w, ahead, x, from, to);
	else
		serial_chain(kind, tokens, sums, w, ahead, x, from, to);
#pragma GCC unroll 8
	for (size_t t = 0; t < n; t++)
		kept[t] = sums[t];
}

/* totals += four rows' sums of block b. */
ROWS_INLINE void serial_reduce(enum rows_kind kind, size_t tokens, rows_kept kept, size_t b, float *totals)
{
	vec sums[ROWS_TILE][ROWS_TOKENS];

#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++)
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			sums[i][t] = kept[i][b][t];
	rows_reduce(kind, tokens, sums, totals);
}

/* The same in groups. */
ROWS_INLINE void serial_reduce_groups(size_t tokens, rows_kept kept, size_t b, float *totals)
{
	const size_t last = (tokens - 1) / 2;
	__m128 of[ROWS_TILE];

#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++) {
		vec *pairs = kept[i][b];

		if (tokens % 2)
			pairs[last] = vec_single_pair(pairs[last]);
		of[i] = vec_quad(pairs[0], pairs[last]);
	}
	_MM_TRANSPOSE4_PS(of[0], of[1], of[2], of[3]);
#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		quad_add(totals + t * ROWS_CHUNK, of[t]);
}

/* Asks for the line where the page begins that is read `far` bytes after w, in the next matrix where this one ends: the
 * processor finds out early where the page lies. No other line may be the first one (docs/decisions/0101). */
ROWS_INLINE void serial_page(size_t far, const char *w, const struct rows_ahead *ahead)
{
	uintptr_t to = (uintptr_t)w + far;

	to = to < ahead->run_end ? to : ahead->then + (to - ahead->run_end);
	_mm_prefetch((const char *)(to + -to % ROWS_PAGE), _MM_HINT_T0);
}

/* Four rows at most. Pages are asked for one by one: several at once hold up the lines that are needed before them
 * (docs/decisions/0109). */
ROWS_INLINE void serial_tile(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_serial *part,
			     const char *w, size_t rows, struct rows_ahead *ahead, const char *const *x, float *totals)
{
	size_t asked = part->far ? 0 : SIZE_MAX; /* bytes of these rows that pages have been asked for */
	rows_kept kept;

	for (size_t i = 0; i < rows; i++)
		for (size_t b = 0, c = 0; b < part->blocks; b++, c += part->block) {
			for (; asked <= i * part->pitch + c * rows_w_bytes(kind); asked += ROWS_PAGE)
				serial_page(part->far, w + asked, ahead);
			serial_block(kind, grouped, tokens, part, w + i * part->pitch, ahead, x, c,
				     part->cols - c < part->block ? part->cols : c + part->block, kept[i][b]);
		}
	for (size_t i = rows; i < ROWS_TILE; i++)
		for (size_t b = 0; b < part->blocks; b++)
			serial_clear(tokens, kept[i][b]);
	for (size_t b = 0; b < part->blocks; b++) {
		if (grouped)
			serial_reduce_groups(tokens, kept, b, totals);
		else
			serial_reduce(kind, tokens, kept, b, totals);
	}
}

ROWS_INLINE void serial_run(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_serial *part)
{
	struct rows_ahead ahead = *part->ahead;
	const char *x[ROWS_TOKENS];

#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		x[t] = (const char *)part->x[t] + part->x_at;
	for (size_t r = 0; r < part->rows; r += ROWS_TILE)
		serial_tile(kind, grouped, tokens, part, part->w + r * part->pitch,
			    part->rows - r < ROWS_TILE ? part->rows - r : ROWS_TILE, &ahead, x, part->totals + r);
	*part->ahead = ahead;
}

/* One function for each number of tokens: constants for the compiler. */
#define ROWS_SERIAL(name, kind, grouped, tokens)                                                                       \
	static __attribute__((noinline)) void name##_##tokens(const struct rows_serial *part)                          \
	{                                                                                                              \
		serial_run(kind, grouped, tokens, part);                                                               \
	}

/* Tables of them: name[tokens], for up to so many tokens. */
#define ROWS_SERIAL_2(name, kind, grouped)                                                                             \
	ROWS_SERIAL(name, kind, grouped, 1)                                                                            \
	ROWS_SERIAL(name, kind, grouped, 2)                                                                            \
	static rows_serial_function *const name[] = {NULL, name##_1, name##_2};
#define ROWS_SERIAL_4(name, kind, grouped)                                                                             \
	ROWS_SERIAL(name, kind, grouped, 1)                                                                            \
	ROWS_SERIAL(name, kind, grouped, 2)                                                                            \
	ROWS_SERIAL(name, kind, grouped, 3)                                                                            \
	ROWS_SERIAL(name, kind, grouped, 4)                                                                            \
	static rows_serial_function *const name[] = {NULL, name##_1, name##_2, name##_3, name##_4};

#endif
