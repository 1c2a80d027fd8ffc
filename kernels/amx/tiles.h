/* SPDX-License-Identifier: MIT */
/*
 * tiles - the eight tile registers of AMX as all kernels here use them, and what is put into them.
 *
 * A tile of sums has 16 tokens (rows) x 16 weight rows (columns): 16 results of one token are one vector. Activations
 * are the left operand (a token's 64 bytes per row), weights the right one (each row has the same 4 bytes of 16 weight
 * rows). Panels are stored so (uapi/moe_format.h); row-major weights are turned.
 *
 * Law: a call configures the tiles when it begins and releases them when it ends, so that threads which wait have no
 * tile state that a context switch would have to save. What a tile instruction computes is defined to the bit (Intel's
 * Software Developer's Manual, volume 2): integers exact, and BF16 in an order that depends on columns only. Which of
 * two NaNs stays depends on the side that weights are on: so every NaN that is a result becomes the same one.
 */
#ifndef KERNELS_AMX_TILES_H
#define KERNELS_AMX_TILES_H

#include <string.h>

#include "kernels/avx512/vec.h"
#include "kernels/levels.h"

#define TILE_INLINE static inline __attribute__((always_inline))
#define TILE_ROWS 16
#define TILE_BYTES 64 /* of a row of a tile: a step */
#define TILE_SIZE (TILE_ROWS * TILE_BYTES)

#define MIN_OF(a, b) ((a) < (b) ? (a) : (b))

/* The intrinsics of GCC 12 do not tell the compiler that tiles are loaded from memory. */
#define TILE_LOAD(tile, base, stride)                                                                                  \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((long)(stride)) : "memory")
/* The same of what is used once: it should not push other lines out of the first-level cache. */
#define TILE_PASS(tile, base, stride)                                                                                  \
	__asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((long)(stride)) : "memory")
#define TILE_STORE(tile, base, stride)                                                                                 \
	__asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"((long)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)

/* sums += activations . weights */
#define TILE_BF16(sums, activations, weights)                                                                          \
	__asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #activations ", %%tmm" #sums ::)
#define TILE_S8_S8(sums, activations, weights)                                                                         \
	__asm__ volatile("tdpbssd %%tmm" #weights ", %%tmm" #activations ", %%tmm" #sums ::)
#define TILE_S8_U8(sums, activations, weights)                                                                         \
	__asm__ volatile("tdpbsud %%tmm" #weights ", %%tmm" #activations ", %%tmm" #sums ::)

struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};

static inline void tiles_load_config(const struct tile_config *config)
{
	__asm__ volatile("ldtilecfg %0" ::"m"(*config));
}

/* Tiles 0 .. 3 are sums, 4 and 5 activations of `tokens` (1 .. 16), 6 and 7 weights; steps have `bytes`. */
static inline void tiles_configure(size_t tokens, size_t bytes)
{
	_Alignas(64) struct tile_config config = {.palette = 1};

	for (int i = 0; i < 8; i++) {
		config.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes : TILE_BYTES);
		config.rows[i] = (uint8_t)(i < 6 ? tokens : bytes / 4);
	}
	tiles_load_config(&config);
}

static inline void tiles_release(void)
{
	__asm__ volatile("tilerelease" ::);
}

/* The first n <= 64 bytes at p, and zeros. */
static inline __m512i bytes_first(const void *p, size_t n)
{
	return _mm512_maskz_loadu_epi8(n < TILE_BYTES ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0, p);
}

/* 16 bytes from memory as a quarter of v. The compiler would load them first and insert on the port that permutes. */
#define QUARTER(v, quarter, p)                                                                                         \
	__asm__("vinserti32x4 $" #quarter ", %1, %0, %0" : "+v"(v) : "m"(*(const __m128i_u *)(p)))

/* Four bytes of 16 rows each, from 16 bytes of them: 16 bytes of four rows make a vector, whose quarters are turned by
 * themselves. */
TILE_INLINE void turn_quarter(const uint8_t *const *rows, size_t at, uint8_t *to)
{
	__m512i v[4];

#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		v[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
		QUARTER(v[i], 1, rows[4 + i] + at);
		QUARTER(v[i], 2, rows[8 + i] + at);
		QUARTER(v[i], 3, rows[12 + i] + at);
	}
	const __m512i ab = _mm512_unpacklo_epi32(v[0], v[1]), cd = _mm512_unpacklo_epi32(v[2], v[3]);
	const __m512i ef = _mm512_unpackhi_epi32(v[0], v[1]), gh = _mm512_unpackhi_epi32(v[2], v[3]);

	_mm512_store_si512(to, _mm512_unpacklo_epi64(ab, cd));
	_mm512_store_si512(to + TILE_BYTES, _mm512_unpackhi_epi64(ab, cd));
	_mm512_store_si512(to + 2 * TILE_BYTES, _mm512_unpacklo_epi64(ef, gh));
	_mm512_store_si512(to + 3 * TILE_BYTES, _mm512_unpackhi_epi64(ef, gh));
}

/* A tile of weights from 64 bytes of 16 rows. */
TILE_INLINE void tile_turn(const uint8_t *const *rows, size_t at, uint8_t *to)
{
	for (size_t quarter = 0; quarter < 4; quarter++)
		turn_quarter(rows, at + quarter * 16, to + quarter * 4 * TILE_BYTES);
}

/* Some tokens' rows as tiles are loaded from: rows `stride` bytes apart. */
struct tile_rows {
	const uint8_t *base;
	ptrdiff_t stride;
};

/* Whether rows lie equally far apart; then they need no copy. */
static inline int rows_even(const void *const *rows, size_t n, struct tile_rows *ret)
{
	*ret = (struct tile_rows){rows[0], n > 1 ? (const uint8_t *)rows[1] - (const uint8_t *)rows[0] : TILE_BYTES};
	for (size_t t = 2; t < n; t++)
		if ((const uint8_t *)rows[t] - (const uint8_t *)rows[t - 1] != ret->stride)
			return 0;
	return 1;
}

/* Copies `bytes` of n rows, from byte `at` on, to rows that are `pitch` apart; up to the end of the last 64. */
static inline void rows_copy(const void *const *rows, size_t n, size_t at, size_t bytes, uint8_t *to, size_t pitch)
{
	for (size_t t = 0; t < n; t++)
		for (size_t i = 0; i < bytes; i += TILE_BYTES)
			_mm512_store_si512(to + t * pitch + i, _mm512_loadu_si512((const uint8_t *)rows[t] + at + i));
}

#endif
