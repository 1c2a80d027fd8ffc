/* SPDX-License-Identifier: MIT */
/*
 * strip - 16 rows of a row-major matrix, and how a step of their columns becomes a tile of weights.
 *
 * A step is what 64 bytes of a row of activations are multiplied with: 32 columns of bfloat16 or 64 of integers. FP8 is
 * decoded to bfloat16, which has all its values.
 */
#ifndef KERNELS_AMX_STRIP_H
#define KERNELS_AMX_STRIP_H

#include "kernels/amx/tiles.h"

#define STRIP_AHEAD 1024 /* bytes of a row that are asked for before their use */

enum strip_kind { STRIP_BF16, STRIP_E4M3, STRIP_INT8 };

#define STEP_COLS(kind) ((kind) == STRIP_INT8 ? TILE_BYTES : TILE_BYTES / 2)
#define STEP_BYTES(kind) ((kind) == STRIP_E4M3 ? TILE_BYTES / 2 : TILE_BYTES) /* of codes */

struct strip {
	const struct kernel_matrix *m;
	size_t first, rows;            /* rows <= 16 are there */
	const uint8_t *row[TILE_ROWS]; /* the last one again for those that are missing */
	size_t next;                   /* bytes to the rows that are computed after these */
};

static inline void strip_set(struct strip *s, const struct kernel_matrix *m, size_t first, size_t rows, size_t ahead)
{
	s->m = m;
	s->first = first;
	s->rows = MIN_OF(rows, TILE_ROWS);
	s->next = ahead * m->pitch;
	for (size_t r = 0; r < TILE_ROWS; r++)
		s->row[r] = (const uint8_t *)m->codes + (first + MIN_OF(r, s->rows - 1)) * m->pitch;
}

/* An address that is not mapped is ignored by the processor. */
static inline void strip_ahead(const struct strip *s, size_t at, size_t row_bytes)
{
	const size_t to = at + STRIP_AHEAD, beyond = to < row_bytes ? to : to - row_bytes + s->next;

	for (size_t r = 0; r < TILE_ROWS; r++)
		_mm_prefetch((const char *)((uintptr_t)s->row[r] + beyond), _MM_HINT_T0);
}

/* 32 E4M3 codes as bfloat16: the exponents' biases are 120 apart, and E4M3's denormals are none. */
static inline __m512i e4m3_bf16(__m256i codes)
{
	const __m512i denormals = _mm512_castsi128_si512(
		_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
	const __m512i wide = _mm512_cvtepu8_epi16(codes), size = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
	const __mmask32 small = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8));
	const __mmask32 nan = _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f));
	__m512i bits = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));

	bits = _mm512_mask_permutexvar_epi16(bits, small, size, denormals);
	bits = _mm512_mask_mov_epi16(bits, nan, _mm512_set1_epi16(0x7fc0));
	/* | (wide << 8 & 0x8000) */
	return _mm512_ternarylogic_epi32(bits, _mm512_slli_epi16(wide, 8), _mm512_set1_epi16((short)0x8000), 0xf8);
}

/* The step whose codes begin at byte `at` of the rows; behind their ends are zeros, and nothing is read. */
TILE_INLINE void strip_tile(enum strip_kind kind, const struct strip *s, size_t at, size_t row_bytes, uint8_t *tile)
{
	const size_t bytes = MIN_OF(row_bytes - at, STEP_BYTES(kind));
	_Alignas(64) uint8_t copies[TILE_ROWS][TILE_BYTES];
	const uint8_t *rows[TILE_ROWS];

	strip_ahead(s, at, row_bytes);
	if (kind != STRIP_E4M3 && bytes == TILE_BYTES) {
		tile_turn(s->row, at, tile);
		return;
	}
	for (size_t r = 0; r < TILE_ROWS; r++) {
		const __m512i codes = bytes_first(s->row[r] + at, bytes);

		_mm512_store_si512(copies[r], kind == STRIP_E4M3 ? e4m3_bf16(_mm512_castsi512_si256(codes)) : codes);
		rows[r] = copies[r];
	}
	tile_turn(rows, 0, tile);
}

#endif
