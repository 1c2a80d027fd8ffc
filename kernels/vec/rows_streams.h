/* SPDX-License-Identifier: MIT */
/*
 * rows_streams - the same sums as rows_serial.h's, of four rows side by side that lie far apart: each at the head of a
 * quarter of the rows that are computed.
 *
 * Where the processor follows streams itself, four long ones are read faster than one (docs/decisions/0021), and
 * activations are loaded once for four rows. For more than ROWS_FEW_TOKENS tokens two of the rows pass a block of
 * columns, then the other two: their sums have room in registers, and none waits for the last product as a row alone
 * does (0097). Each vector of sums is the chain of rows.h: the same bits.
 */
#ifndef KERNELS_VEC_ROWS_STREAMS_H
#define KERNELS_VEC_ROWS_STREAMS_H

#include "kernels/vec/rows_serial.h"
#include "kernels/vec/streams_codes.h"

/* Four rows, one of each stream. */
struct rows_streams {
	const char *w;
	size_t apart, width; /* bytes from stream to stream, of a row */
	size_t cols, block;
	uintptr_t after; /* what is read after the first stream's row; and from there to that of the next stream */
	size_t after_apart;
	size_t near; /* bytes ahead that rows are asked for, at most `width`; 0: none are */
	const void *const *x;
	size_t x_at;
	const char *scales[ROWS_TILE]; /* of each row's groups, scale_step apart */
	size_t scale_step;
	float *totals; /* of the first row's first token; ROWS_CHUNK from token to token */
};

typedef void rows_streams_function(const struct rows_streams *part);

/* Rows whose sums are in registers together: all four, or two by two where tokens are many. */
ROWS_INLINE size_t streams_rows(size_t tokens)
{
	return tokens > ROWS_FEW_TOKENS ? ROWS_TILE / 2 : ROWS_TILE;
}

/* Halves of numbers that few tokens have, whose widening more of them would pay for each pair of rows. */
ROWS_INLINE bool streams_halves(enum rows_kind kind, size_t tokens)
{
	return rows_few_x_bytes(kind) < rows_x_bytes(kind) && tokens <= ROWS_FEW_TOKENS;
}

ROWS_INLINE size_t streams_x_bytes(enum rows_kind kind, size_t tokens)
{
	return streams_halves(kind, tokens) ? rows_few_x_bytes(kind) : rows_x_bytes(kind);
}

/* The v-th vector of a step's activations. */
ROWS_INLINE vec streams_x(enum rows_kind kind, size_t tokens, const char *x, size_t v)
{
	if (streams_halves(kind, tokens))
		return vec_f16((const uint16_t *)x + v * VEC_FLOATS);
	return vec_loaded((const float *)(x + v * VEC_BYTES));
}

/* With STREAMS_ROW_BY_ROW activations are loaded for each row, where a weight needs more registers than one. */
ROWS_INLINE void streams_step(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS],
			      struct streams_codes *codes, const char *w, size_t apart, const char *const *x, size_t at)
{
	const size_t vecs = ROWS_STEP_BYTES / rows_w_bytes(kind) * rows_x_bytes(kind) / VEC_BYTES;

#ifdef VEC_FP8_NUMBERS
	if (kind == ROWS_FP8) {
		streams_codes_step(streams_rows(tokens), tokens, sums, codes, w, apart, x, at);
		return;
	}
#endif
#pragma GCC unroll 8
	for (size_t v = 0; v < vecs; v++) {
#ifdef STREAMS_ROW_BY_ROW
#pragma GCC unroll 4
		for (size_t i = 0; i < streams_rows(tokens); i++)
#pragma GCC unroll 8
			for (size_t t = 0; t < tokens; t++)
				sums[i][t] = row_dot(kind, sums[i][t], row_weights(kind, w + i * apart, v),
						     streams_x(kind, tokens, x[t] + at, v));
#else
#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++) {
			const vec a = streams_x(kind, tokens, x[t] + at, v);

#pragma GCC unroll 4
			for (size_t i = 0; i < streams_rows(tokens); i++)
				sums[i][t] = row_dot(kind, sums[i][t], row_weights(kind, w + i * apart, v), a);
		}
#endif
	}
}

ROWS_INLINE void streams_tail(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS],
			      struct streams_codes *codes, const char *w, size_t apart, const char *const *x, size_t at,
			      size_t cols)
{
	_Alignas(64) char weights[ROWS_TILE][ROWS_STEP_BYTES] = {0};
	_Alignas(64) char copies[ROWS_TOKENS][ROWS_STEP_FLOATS * sizeof(float)] = {0};
	const char *from[ROWS_TOKENS];

	for (size_t i = 0; i < streams_rows(tokens); i++)
		memcpy(weights[i], w + i * apart, cols * rows_w_bytes(kind));
	for (size_t t = 0; t < tokens; t++) {
		memcpy(copies[t], x[t] + at, rows_filled(rows_fours(kind), cols) * streams_x_bytes(kind, tokens));
		from[t] = copies[t];
	}
	streams_step(kind, tokens, sums, codes, weights[0], sizeof(weights[0]), from, 0);
}

/* Asks for a line of each stream, `near` bytes ahead of byte `at`. FP8's activations are twice as wide as its weights,
 * which leave them in the first-level cache when they are asked for as lines that are used once. */
ROWS_INLINE void streams_ask(enum rows_kind kind, size_t rows, const struct rows_streams *part, size_t first, size_t at)
{
	const size_t to = at + part->near;
	const bool here = to < part->width;
	const size_t apart = here ? part->apart : part->after_apart;
	const uintptr_t ask = (here ? (uintptr_t)part->w + to : part->after + to - part->width) + first * apart;

	if (!part->near)
		return;
#pragma GCC unroll 4
	for (size_t i = 0; i < rows; i++) { /* the hint is a constant to each compiler */
		if (kind == ROWS_FP8_DOT)
			_mm_prefetch((const char *)(ask + i * apart), _MM_HINT_NTA);
		else
			_mm_prefetch((const char *)(ask + i * apart), _MM_HINT_T0);
	}
}

/* sums = columns c .. to of the rows from `first` on. */
ROWS_INLINE void streams_chain(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS],
			       const struct rows_streams *part, size_t first, const char *const *x, size_t c, size_t to)
{
	const size_t w_bytes = rows_w_bytes(kind), x_bytes = streams_x_bytes(kind, tokens);
	const size_t step = ROWS_STEP_BYTES / w_bytes, rows = streams_rows(tokens);
	const char *w = part->w + first * part->apart;
	struct streams_codes codes;

	rows_clear(tokens, sums);
	streams_begin(kind, &codes);
#pragma GCC unroll 2
	for (; to - c >= step; c += step) {
		streams_ask(kind, rows, part, first, c * w_bytes);
		streams_step(kind, tokens, sums, &codes, w + c * w_bytes, part->apart, x, c * x_bytes);
	}
	if (c < to) {
		streams_ask(kind, rows, part, first, c * w_bytes);
		streams_tail(kind, tokens, sums, &codes, w + c * w_bytes, part->apart, x, c * x_bytes, to - c);
	}
	streams_end(kind, rows, tokens, &codes, sums);
}

/* sums = columns c .. to of all four rows. Those of the first two of them are in memory on purpose while the others are
 * computed: the compiler would keep them in registers, and others of the innermost loop not. */
ROWS_INLINE void streams_sums(enum rows_kind kind, size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS],
			      const struct rows_streams *part, const char *const *x, size_t c, size_t to)
{
	const size_t rows = streams_rows(tokens);
	_Alignas(64) float kept[ROWS_TILE][ROWS_TOKENS][VEC_FLOATS];

	streams_chain(kind, tokens, sums, part, 0, x, c, to);
	if (rows == ROWS_TILE)
		return;
	for (size_t i = 0; i < rows; i++)
		for (size_t t = 0; t < tokens; t++)
			vec_store(kept[i][t], sums[i][t]);
	__asm__("" : "+m"(kept));
	streams_chain(kind, tokens, sums, part, rows, x, c, to);
	for (size_t i = 0; i < rows; i++)
		for (size_t t = 0; t < tokens; t++) {
			sums[rows + i][t] = sums[i][t];
			sums[i][t] = vec_load(kept[i][t]);
		}
}

/* scaled += the sums of the group at column c, each row's with its own scale. */
ROWS_INLINE void streams_scale(size_t tokens, vec sums[ROWS_TILE][ROWS_TOKENS], const struct rows_streams *part,
			       size_t c, vec scaled[ROWS_PAIRS][ROWS_TOKENS])
{
	float scales[ROWS_TILE];

#pragma GCC unroll 4
	for (size_t i = 0; i < ROWS_TILE; i++)
		memcpy(&scales[i], part->scales[i] + c / ROWS_GROUP * part->scale_step, sizeof(scales[i]));
#pragma GCC unroll 2
	for (size_t i = 0; i < ROWS_PAIRS; i++) {
		const vec scale = vec_turns(scales[2 * i], scales[2 * i + 1]);

#pragma GCC unroll 8
		for (size_t t = 0; t < tokens; t++)
			scaled[i][t] = vec_fma(scale, vec_pair(sums[2 * i][t], sums[2 * i + 1][t]), scaled[i][t]);
	}
}

/* totals += columns c .. to, in groups that have scales. */
ROWS_INLINE void streams_groups(enum rows_kind kind, size_t tokens, const struct rows_streams *part,
				const char *const *x, size_t c, size_t to)
{
	vec sums[ROWS_TILE][ROWS_TOKENS], scaled[ROWS_PAIRS][ROWS_TOKENS];

	rows_clear_groups(tokens, scaled);
	for (; to - c >= ROWS_GROUP; c += ROWS_GROUP) {
		streams_sums(kind, tokens, sums, part, x, c, c + ROWS_GROUP);
		streams_scale(tokens, sums, part, c, scaled);
	}
	if (c < to) {
		streams_sums(kind, tokens, sums, part, x, c, to);
		streams_scale(tokens, sums, part, c, scaled);
	}
	rows_reduce_groups(tokens, scaled, part->totals);
}

ROWS_INLINE void streams_run(enum rows_kind kind, bool grouped, size_t tokens, const struct rows_streams *part)
{
	vec sums[ROWS_TILE][ROWS_TOKENS];
	const char *x[ROWS_TOKENS];

#pragma GCC unroll 8
	for (size_t t = 0; t < tokens; t++)
		x[t] = (const char *)part->x[t] + part->x_at;
	for (size_t c = 0, to; c < part->cols; c = to) {
		to = part->cols - c > part->block ? c + part->block : part->cols;
		if (grouped) {
			streams_groups(kind, tokens, part, x, c, to);
			continue;
		}
		streams_sums(kind, tokens, sums, part, x, c, to);
		rows_reduce(kind, tokens, sums, part->totals);
	}
}

/* One function for each number of tokens: constants for the compiler. */
#define ROWS_STREAM(name, kind, grouped, tokens)                                                                       \
	static __attribute__((noinline)) void name##_##tokens(const struct rows_streams *part)                         \
	{                                                                                                              \
		streams_run(kind, grouped, tokens, part);                                                              \
	}

#define ROWS_STREAMS_4(name, kind, grouped)                                                                            \
	ROWS_STREAM(name, kind, grouped, 1)                                                                            \
	ROWS_STREAM(name, kind, grouped, 2)                                                                            \
	ROWS_STREAM(name, kind, grouped, 3)                                                                            \
	ROWS_STREAM(name, kind, grouped, 4)                                                                            \
	static rows_streams_function *const name[] = {NULL, name##_1, name##_2, name##_3, name##_4};

#endif
