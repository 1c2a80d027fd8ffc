/* SPDX-License-Identifier: MIT */
/*
 * repack-panel - what the kinds that fill panels of 16 rows share: where things lie, and words turned round.
 *
 * Eight 4-bit codes of consecutive columns of a row are one 32-bit word of a panel's codes, and the words of the same
 * columns of 16 rows are one cache line (moe_format.h): line w of a panel is columns 8w .. 8w + 7. In the word, code k
 * is in the low half of byte k, code k + 4 in its high half.
 */
#ifndef MODEL_REPACK_PANEL_H
#define MODEL_REPACK_PANEL_H

#include <string.h>

#include "base/util.h"
#include "model/repack.h"

#define LINE 64
#define WORDS 8 /* of a vector */

typedef uint32_t words8 __attribute__((vector_size(32)));

/* One plane of one part: a share of its rows. Panels and rows in it are counted from the share's first. */
struct panels {
	uint8_t *data;
	uint64_t pitch;         /* bytes of a panel */
	uint64_t first;         /* row of the part */
	uint32_t rows, n, step; /* n: panels; step: bytes of a scale block */
};

static inline struct panels panels_of(const struct record_share *to, uint32_t part, enum moe_plane plane)
{
	const struct moe_part *p = &to->layout->part[part];
	const struct repack_range rows = repack_share_rows(to, part);
	const uint32_t n = (uint32_t)(rows.end - rows.first);

	return (struct panels){.data = to->memory + p->plane[plane],
			       .pitch = moe_band_bytes(p->format, plane, p->cols),
			       .first = rows.first,
			       .rows = n,
			       .n = DIV_UP(n, MOE_PANEL_ROWS),
			       .step = moe_formats[p->format].block_bytes};
}

static inline words8 load_words(const uint8_t *bytes)
{
	words8 v;

	memcpy(&v, bytes, sizeof v);
	return v;
}

static inline void store_words(uint8_t *bytes, words8 v)
{
	memcpy(bytes, &v, sizeof v);
}

/* Nibbles 0 1 2 3 4 5 6 7 -> 0 4 1 5 2 6 3 7; for words and for vectors of them. */
#define PANEL_ORDER(w)                                                                                                 \
	({                                                                                                             \
		__typeof__(w) w_ = (w);                                                                                \
		w_ = (w_ & 0xff0000ff) | (w_ << 8 & 0x00ff0000) | (w_ >> 8 & 0x0000ff00);                              \
		(w_ & 0xf00ff00f) | (w_ << 4 & 0x0f000f00) | (w_ >> 4 & 0x00f000f0);                                   \
	})

/* Eight words of eight rows -> the eight rows of each word. */
static inline void turn_words(words8 r[WORDS])
{
	words8 a[WORDS], b[WORDS];

	for (int i = 0; i < WORDS; i += 2) {
		a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
		a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
	}
	for (int i = 0; i < WORDS; i += 4) {
		b[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
		b[i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
		b[i + 2] = __builtin_shufflevector(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
		b[i + 3] = __builtin_shufflevector(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
	}
	for (int i = 0; i < WORDS / 2; i++) {
		r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
		r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
	}
}

/* Nibble i becomes byte i. */
static inline uint64_t spread_nibbles(uint32_t word)
{
	uint64_t x = word;

	x = (x | x << 16) & 0x0000ffff0000ffff;
	x = (x | x << 8) & 0x00ff00ff00ff00ff;
	return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}

/* The zero points of rows 8 * eight .. + 7 of scale block `block`, one a byte; rows beyond the last have none. */
static inline void put_zeros(const struct panels *to, uint64_t eight, uint64_t block, uint64_t zeros)
{
	const uint64_t first = eight * 8, rows = MIN(to->rows - first, (uint64_t)8);
	uint8_t *at = to->data + eight / 2 * to->pitch + block * to->step + MOE_PANEL_ROWS * 2 + eight % 2 * 8;

	if (rows == sizeof zeros)
		memcpy(at, &zeros, sizeof zeros);
	else
		memcpy(at, &zeros, rows);
}

#endif
