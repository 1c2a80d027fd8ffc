/* SPDX-License-Identifier: MIT */
/* Sources that lie row by row, as compressed-tensors and gpt-oss publish them. */
#include "model/repack-panel.h"

/* A row's elements and where they go: element i of a row of `size` bytes goes `step` bytes behind element i - 1. */
struct rows {
	struct panels to[2]; /* of gate and up, or of the one part */
	uint32_t n, size;    /* elements in a row, and their bytes */
	uint32_t step, parts;
	uint64_t row_bytes;
};

static void put_row(const struct rows *r, uint64_t row, const uint8_t *from)
{
	const struct panels *to = &r->to[row % r->parts];
	const uint64_t in_part = row / r->parts - to->first;
	uint8_t *at = to->data + in_part / MOE_PANEL_ROWS * to->pitch + in_part % MOE_PANEL_ROWS * r->size;

	for (uint32_t i = 0; i < r->n; i++, at += r->step, from += r->size) {
		uint32_t word;

		if (r->size == 4) {
			memcpy(&word, from, 4);
			word = PANEL_ORDER(word);
			memcpy(at, &word, 4);
		} else {
			memcpy(at, from, r->size == 2 ? 2 : 1);
		}
	}
}

/* A panel of codes: rows `pitch` bytes apart become lines. */
static void put_codes(uint8_t *to, const uint8_t *from, uint64_t pitch, uint32_t n)
{
	uint32_t w = 0;

	for (; w + WORDS <= n; w += WORDS) {
		for (int half = 0; half < 2; half++) {
			words8 v[WORDS];

			for (int i = 0; i < WORDS; i++)
				v[i] = PANEL_ORDER(load_words(from + (uint64_t)(half * WORDS + i) * pitch + w * 4));
			turn_words(v);
			for (int i = 0; i < WORDS; i++)
				store_words(to + (uint64_t)(w + i) * LINE + half * sizeof v[i], v[i]);
		}
	}
	for (; w < n; w++) {
		for (int i = 0; i < MOE_PANEL_ROWS; i++) {
			uint32_t word;

			memcpy(&word, from + (uint64_t)i * pitch + w * 4, 4);
			word = PANEL_ORDER(word);
			memcpy(to + (uint64_t)w * LINE + i * 4, &word, 4);
		}
	}
}

static void put_pairs(uint8_t *to, uint32_t step, const uint8_t *from, uint64_t pitch, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (int row = 0; row < MOE_PANEL_ROWS; row++)
			memcpy(to + (uint64_t)i * step + row * 2, from + (uint64_t)row * pitch + i * 2, 2);
}

static void put_bytes(uint8_t *to, uint32_t step, const uint8_t *from, uint64_t pitch, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (int row = 0; row < MOE_PANEL_ROWS; row++)
			to[(uint64_t)i * step + row] = from[(uint64_t)row * pitch + i];
}

/* A panel of each part, from `row` on. */
static void put_panels(const struct rows *r, uint64_t row, const uint8_t *from)
{
	for (uint32_t part = 0; part < r->parts; part++) {
		const uint64_t panel = (row / r->parts - r->to[part].first) / MOE_PANEL_ROWS;
		uint8_t *to = r->to[part].data + panel * r->to[part].pitch;
		const uint8_t *first = from + part * r->row_bytes;
		const uint64_t pitch = r->parts * r->row_bytes;

		if (r->size == 4)
			put_codes(to, first, pitch, r->n);
		else if (r->size == 2)
			put_pairs(to, r->step, first, pitch, r->n);
		else
			put_bytes(to, r->step, first, pitch, r->n);
	}
}

void repack_rows(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		 const uint8_t *bytes)
{
	const enum moe_plane plane = repack->parameter[0] == 4 ? MOE_PLANE_CODES : MOE_PLANE_SCALES;
	const uint32_t full = MOE_PANEL_ROWS * (repack->parameter[1] ? 2 : 1);
	struct rows r = {.size = repack->parameter[0], .parts = repack->parameter[1] ? 2 : 1};
	struct repack_range range;
	uint64_t row, end, each, rows;

	r.to[0] = panels_of(to, repack->part, plane);
	r.to[1] = panels_of(to, repack->parameter[1] ? MOE_PART_UP : repack->part, plane);
	r.step = plane == MOE_PLANE_CODES ? LINE : r.to[0].step;
	r.n = (uint32_t)(r.to[0].pitch / r.step);
	r.row_bytes = (uint64_t)r.n * r.size;
	rows = repack->granule_bytes / r.row_bytes;
	range = repack_share_granules(to, repack->part, rows / r.parts, first, n);
	if (range.first >= range.end)
		return;
	bytes += (range.first - first) * repack->granule_bytes;
	end = range.end * rows;
	for (row = range.first * rows; row < end; row += each, bytes += each * r.row_bytes) {
		each = row % full == 0 && end - row >= full ? full : 1;
		if (each == full)
			put_panels(&r, row, bytes);
		else
			put_row(&r, row, bytes);
	}
}

void repack_rows_zeros(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
		       const uint8_t *bytes)
{
	const struct panels to = panels_of(share, repack->part, MOE_PLANE_SCALES);
	const struct repack_range eights = repack_share_granules(share, repack->part, 8, first, n);
	const uint64_t groups = repack->granule_bytes / 4;

	for (uint64_t i = eights.first; i < eights.end; i++) {
		const uint8_t *row = bytes + (i - first) * repack->granule_bytes;

		for (uint64_t group = 0; group < groups; group++) {
			uint32_t word;

			memcpy(&word, row + group * 4, 4);
			put_zeros(&to, i - to.first / 8, group, spread_nibbles(word));
		}
	}
}
