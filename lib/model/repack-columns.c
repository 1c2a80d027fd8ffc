/* SPDX-License-Identifier: MIT */
/*
 * Sources that hold the transposed matrix, as GPTQ and AWQ publish them: a row of the source is some columns of all
 * rows, of which a share takes its own. A few of them at a time fill neighbouring lines of a panel.
 */
#include "model/repack-panel.h"

#define TOGETHER 8

/* The row of eight that AWQ's nibble i is of. */
static const uint8_t awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* -- codes -------------------------------------------------------------------------------------------------------- */

/* Words of the rows of one panel, as far as there are some. */
static void put_line(uint8_t *to, const uint8_t *from, uint32_t rows)
{
	if (rows >= MOE_PANEL_ROWS) {
		store_words(to, PANEL_ORDER(load_words(from)));
		store_words(to + LINE / 2, PANEL_ORDER(load_words(from + LINE / 2)));
		return;
	}
	for (uint32_t i = 0; i < rows; i++) {
		uint32_t word;

		memcpy(&word, from + i * 4, 4);
		word = PANEL_ORDER(word);
		memcpy(to + i * 4, &word, 4);
	}
}

void repack_gptq(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
		 const uint8_t *bytes)
{
	const struct panels to = panels_of(share, repack->part, MOE_PLANE_CODES);
	const uint64_t row_bytes = repack->granule_bytes;

	bytes += to.first * 4;
	for (uint64_t w = 0; w < n; w += TOGETHER)
		for (uint32_t panel = 0; panel < to.n; panel++)
			for (uint64_t i = w; i < MIN(w + TOGETHER, n); i++)
				put_line(to.data + panel * to.pitch + (first + i) * LINE,
					 bytes + i * row_bytes + (uint64_t)panel * LINE,
					 to.rows - panel * MOE_PANEL_ROWS);
}

static void swap_nibbles(words8 *a, words8 *b, int shift, uint32_t mask)
{
	const words8 t = ((*a >> shift) ^ *b) & mask;

	*b ^= t;
	*a ^= t << shift;
}

/*
 * Words of eight columns (v[k] of column k: a row in each nibble) -> words of eight rows with a column in each nibble,
 * in the panel's order of columns and the rows' own order.
 */
static void turn_nibbles(words8 v[WORDS])
{
	words8 a[WORDS];

	for (int i = 0; i < WORDS; i++)
		a[i] = v[i / 2 + i % 2 * 4];
	for (int i = 0; i < 4; i++)
		swap_nibbles(&a[i], &a[i + 4], 16, 0x0000ffff);
	for (int i = 0; i < WORDS; i++)
		if (i % 4 < 2)
			swap_nibbles(&a[i], &a[i + 2], 8, 0x00ff00ff);
	for (int i = 0; i < WORDS; i += 2)
		swap_nibbles(&a[i], &a[i + 1], 4, 0x0f0f0f0f);
	for (int i = 0; i < WORDS; i++)
		v[awq_order[i]] = a[i];
}

/* Eight columns of `n` times eight rows, n <= 8, from eight rows `eight` on. */
static void put_eights(const struct panels *to, uint64_t line, uint64_t eight, uint64_t n, const uint8_t *from,
		       uint64_t pitch)
{
	words8 v[WORDS];

	for (int k = 0; k < WORDS; k++) {
		if (n == WORDS) {
			v[k] = load_words(from + (uint64_t)k * pitch);
		} else {
			v[k] = (words8){0};
			memcpy(&v[k], from + (uint64_t)k * pitch, n * 4);
		}
	}
	turn_nibbles(v);
	turn_words(v);
	for (uint64_t i = 0; i < n; i++)
		store_words(to->data + (eight + i) / 2 * to->pitch + line * LINE + (eight + i) % 2 * (LINE / 2), v[i]);
}

void repack_awq(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
		const uint8_t *bytes)
{
	const struct panels to = panels_of(share, repack->part, MOE_PLANE_CODES);
	const uint64_t pitch = repack->granule_bytes / 8, eights = DIV_UP(to.rows, 8);

	bytes += to.first / 8 * 4;
	for (uint64_t w = 0; w < n; w += TOGETHER)
		for (uint64_t eight = 0; eight < eights; eight += WORDS)
			for (uint64_t i = w; i < MIN(w + TOGETHER, n); i++)
				put_eights(&to, first + i, eight, MIN(eights - eight, (uint64_t)WORDS),
					   bytes + i * repack->granule_bytes + eight * 4, pitch);
}

/* -- scales and zero points --------------------------------------------------------------------------------------- */

void repack_group_scales(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
			 const uint8_t *bytes)
{
	const struct panels to = panels_of(share, repack->part, MOE_PLANE_SCALES);

	for (uint64_t i = 0; i < n; i++)
		for (uint64_t panel = 0; panel < to.n; panel++) {
			const uint64_t row = panel * MOE_PANEL_ROWS,
				       rows = MIN(to.rows - row, (uint64_t)MOE_PANEL_ROWS);

			memcpy(to.data + panel * to.pitch + (first + i) * to.step,
			       bytes + i * repack->granule_bytes + (to.first + row) * 2, rows * 2);
		}
}

void repack_group_zeros(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
			const uint8_t *bytes)
{
	const struct panels to = panels_of(share, repack->part, MOE_PLANE_SCALES);
	const uint64_t eights = DIV_UP(to.rows, 8);
	const uint32_t more = (uint32_t)repack->parameter[1] * 0x11111111u;

	for (uint64_t i = 0; i < n; i++)
		for (uint64_t eight = 0; eight < eights; eight++) {
			uint64_t zeros;
			uint32_t word;

			memcpy(&word, bytes + i * repack->granule_bytes + (to.first / 8 + eight) * 4, 4);
			/* 1 was subtracted from eight at a time, as one word: a zero point of 0 has borrowed */
			word += more;
			/* AWQ's order of eight rows happens to be what the panel's order of columns undoes */
			zeros = spread_nibbles(repack->parameter[0] ? PANEL_ORDER(word) : word);
			put_zeros(&to, eight, first + i, zeros);
		}
}
