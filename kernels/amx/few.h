/* SPDX-License-Identifier: MIT */
/*
 * few - BF16 and FP8 for few tokens: weights are the left operand, 16 rows by 32 columns, and 32 activations of one
 * token the right one. Nothing is turned: bfloat16 is loaded as it lies in the record, FP8 is decoded on its way.
 *
 * The 16 rows of a tile are not neighbours but lie far apart, each at the head of a sixteenth of the rows that are
 * computed: 16 long streams, which the processor follows by itself. Neighbours are many short ones in the same pages,
 * which it does not (docs/decisions/0021).
 *
 * Law: as in rows.h bfloat16 is summed 32 columns at a time in the order of the instruction, products commute, and a
 * factor of 128 columns is applied to their sum: a result has the same bits here and there.
 */
#ifndef KERNELS_AMX_FEW_H
#define KERNELS_AMX_FEW_H

#include "kernels/amx/e4m3.h"
#include "kernels/amx/strip.h"
#include "kernels/vec/activation.h"

#define FEW_TOKENS 4 /* a tile of sums each */
#define FEW_COLS 128 /* of a group: what has a factor */
#define FEW_STEPS 4  /* of a group */
#define FEW_RUN 512  /* rows of gate, then the same of up */
#define FEW_NEAR 4   /* groups that are asked for before their use */

/* Sums of 16 rows by token. */
typedef float few_sums[FEW_TOKENS][TILE_ROWS];

/* The rows of a tile: `apart` from one to the next, the last of the matrix fewer than 16. */
struct few_strip {
	const struct kernel_matrix *m;
	size_t first, apart, rows;
};

/* Some rows of one matrix, or of two: strips 0 .. strips - 1 of the first one, then of the other. */
struct few_run {
	const struct kernel_matrix *m[2];
	size_t matrices, first, rows, cols;
	size_t apart,
		strips; /* of a matrix; where there are not 16 rows for each sixteenth, the last one has the rest */
	size_t groups, width; /* of a row; bytes of a group */
};

/* A group of a strip, of those of a run in order. */
struct few_at {
	size_t strip, group;
	uintptr_t w;  /* of the strip's first row */
	size_t pitch; /* from row to row of the tile */
};

static inline void few_configure(void)
{
	_Alignas(64) struct tile_config config = {.palette = 1};

	for (int i = 0; i < 7; i++) {
		config.row_bytes[i] = i < 6 ? 4 : TILE_BYTES;
		config.rows[i] = TILE_ROWS;
	}
	tiles_load_config(&config);
}

/* -- where rows are ----------------------------------------------------------------------------------------------- */

static inline struct few_strip few_strip(const struct few_run *run, size_t strip)
{
	const struct kernel_matrix *m = run->m[strip / run->strips];
	const size_t i = strip % run->strips, rest = run->rows - i * TILE_ROWS;

	if (i < run->apart)
		return (struct few_strip){m, run->first + i, run->apart, TILE_ROWS};
	return (struct few_strip){m, run->first + i * TILE_ROWS, 1, MIN_OF(rest, TILE_ROWS)};
}

static inline void few_place(const struct few_run *run, struct few_at *at)
{
	const struct kernel_matrix *next = run->m[0]->next;

	at->group = 0;
	if (at->strip < run->matrices * run->strips) {
		const struct few_strip s = few_strip(run, at->strip);

		at->w = (uintptr_t)s.m->codes + s.first * s.m->pitch;
		at->pitch = s.apart * s.m->pitch;
	} else if (next) { /* which is cut alike, most likely */
		at->w = (uintptr_t)next->codes;
		at->pitch = run->apart * next->pitch;
	}
}

static inline void few_advance(const struct few_run *run, struct few_at *at)
{
	at->w += run->width;
	if (++at->group < run->groups)
		return;
	at->strip++;
	few_place(run, at);
}

/* -- a group ------------------------------------------------------------------------------------------------------ */

/* A group that is not whole, filled up with zeros. */
static inline void few_copy(const uint8_t *w, size_t pitch, size_t rows, size_t bytes, uint8_t *to, size_t width)
{
	memset(to, 0, TILE_ROWS * width);
	for (size_t r = 0; r < rows; r++)
		for (size_t i = 0; i < bytes; i += TILE_BYTES)
			_mm512_store_si512(to + r * width + i, bytes_first(w + r * pitch + i, bytes - i));
}

TILE_INLINE void few_ask(const struct few_at *ask, size_t row, size_t line)
{
	_mm_prefetch((const char *)(ask->w + row * ask->pitch + line * TILE_BYTES), _MM_HINT_T0);
}

TILE_INLINE void few_ask_line(const struct few_at *ask, size_t line)
{
#pragma GCC unroll 16
	for (size_t r = 0; r < TILE_ROWS; r++)
		few_ask(ask, r, line);
}

/* Four rows of a group of FP8 as bfloat16. */
TILE_INLINE void few_decode(const uint8_t *w, size_t pitch, size_t row, uint8_t *to, const struct few_at *ask)
{
#pragma GCC unroll 4
	for (size_t r = row; r < row + 4; r++)
#pragma GCC unroll 2
		for (size_t line = 0; line < FEW_COLS / TILE_BYTES; line++) {
			few_ask(ask, r, line);
			e4m3_line(w + r * pitch + line * TILE_BYTES, to + r * FEW_COLS * 2 + line * TILE_BYTES * 2);
		}
}

/* sums += 32 columns of 16 rows . activations */
TILE_INLINE void few_step(size_t tokens, const uint8_t *w, size_t pitch, const void *const *x, size_t at)
{
	TILE_LOAD(6, w, pitch);
	TILE_LOAD(4, (const uint8_t *)x[0] + at, 4);
	TILE_BF16(0, 6, 4);
	if (tokens > 1) {
		TILE_LOAD(5, (const uint8_t *)x[1] + at, 4);
		TILE_BF16(1, 6, 5);
	}
	if (tokens > 2) {
		TILE_LOAD(4, (const uint8_t *)x[2] + at, 4);
		TILE_BF16(2, 6, 4);
	}
	if (tokens > 3) {
		TILE_LOAD(5, (const uint8_t *)x[3] + at, 4);
		TILE_BF16(3, 6, 5);
	}
}

TILE_INLINE void few_zero(void)
{
	TILE_ZERO(0);
	TILE_ZERO(1);
	TILE_ZERO(2);
	TILE_ZERO(3);
}

TILE_INLINE void few_store(size_t tokens, few_sums sums)
{
	TILE_STORE(0, sums[0], 4);
	if (tokens > 1)
		TILE_STORE(1, sums[1], 4);
	if (tokens > 2)
		TILE_STORE(2, sums[2], 4);
	if (tokens > 3)
		TILE_STORE(3, sums[3], 4);
}

/* -- a strip ------------------------------------------------------------------------------------------------------ */

/* Where the factors of a strip's rows are, in bytes from the matrix's first ones. */
static inline __m512i few_factors(const struct few_strip *s)
{
	_Alignas(64) int32_t at[TILE_ROWS];

	for (size_t r = 0; r < TILE_ROWS; r++)
		at[r] = (int32_t)((s->first + MIN_OF(r, s->rows - 1) * s->apart) / TILE_ROWS * s->m->scale_pitch);
	return _mm512_load_si512(at);
}

/* sums += factors * parts, of a group. */
TILE_INLINE void few_scale(size_t tokens, const struct few_strip *s, __m512i factors, size_t group, few_sums parts,
			   few_sums sums)
{
	const vec factor = _mm512_i32gather_ps(factors, (const float *)s->m->scales + group, 1);

#pragma GCC unroll 4
	for (size_t t = 0; t < tokens; t++)
		vec_store(sums[t], vec_fma(factor, vec_load(parts[t]), vec_load(sums[t])));
}

/* A group whose weights are ready to be loaded. */
struct few_part {
	struct few_strip s;
	__m512i factors;
	size_t group, steps, pitch;
	const uint8_t *w;
};

/* Room for it: as it is in the record, filled up, and decoded. */
struct few_room {
	_Alignas(64) uint8_t copy[TILE_ROWS * FEW_COLS * 2];
	_Alignas(64) uint8_t decoded[TILE_ROWS * FEW_COLS * 2];
};

TILE_INLINE void few_open(int scaled, const struct few_run *run, const struct few_at *at, struct few_room *room,
			  struct few_part *part)
{
	const size_t cols = MIN_OF(run->cols - at->group * FEW_COLS, FEW_COLS);

	if (at->group == 0) {
		part->s = few_strip(run, at->strip);
		part->factors = scaled ? few_factors(&part->s) : _mm512_setzero_si512();
	}
	part->group = at->group;
	part->steps = (cols + TILE_BYTES / 2 - 1) / (TILE_BYTES / 2);
	part->w = (const uint8_t *)at->w;
	part->pitch = at->pitch;
	if (part->s.rows < TILE_ROWS || cols < FEW_COLS) {
		few_copy(part->w, part->pitch, part->s.rows, cols * run->width / FEW_COLS, room->copy, run->width);
		part->w = room->copy;
		part->pitch = run->width;
	}
}

TILE_INLINE void few_close(int scaled, size_t tokens, const struct few_run *run, const struct few_part *part,
			   few_sums sums)
{
	_Alignas(64) few_sums parts;

	if (scaled) {
		few_store(tokens, parts);
		few_scale(tokens, &part->s, part->factors, part->group, parts, sums);
	} else if (part->group + 1 == run->groups) {
		few_store(tokens, sums);
	}
}

/* The sums of all strips. A group is multiplied while the next one is decoded. */
TILE_INLINE void few_sum(enum strip_kind kind, int scaled, size_t tokens, const struct few_run *run,
			 const void *const *x, few_sums *sums)
{
	const size_t all = run->matrices * run->strips * run->groups;
	struct few_part part = {0}, before;
	struct few_at at = {0}, ask;
	struct few_room room[2];

	memset(sums, 0, run->matrices * run->strips * sizeof(*sums));
	few_place(run, &at);
	ask = at;
	for (size_t i = 0; i < FEW_NEAR; i++)
		few_advance(run, &ask);
	for (size_t n = 0; n <= all; n++) {
		before = part;
		if (n < all)
			few_open(scaled, run, &at, &room[n % 2], &part);
		if (scaled || before.group == 0)
			few_zero();
#pragma GCC unroll 4
		for (size_t i = 0; i < FEW_STEPS; i++) {
			if (n < all && kind == STRIP_E4M3)
				few_decode(part.w, part.pitch, i * 4, room[n % 2].decoded, &ask);
			else
				few_ask_line(&ask, i);
			if (i < before.steps)
				few_step(tokens, before.w + i * TILE_BYTES, before.pitch, x,
					 (before.group * FEW_STEPS + i) * TILE_BYTES);
		}
		if (n)
			few_close(scaled, tokens, run, &before, sums[(n - 1) / run->groups]);
		if (kind == STRIP_E4M3) {
			part.w = room[n % 2].decoded;
			part.pitch = FEW_COLS * 2;
		}
		few_advance(run, &at);
		few_advance(run, &ask);
	}
}

#endif
