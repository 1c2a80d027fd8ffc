/* SPDX-License-Identifier: MIT */
/*
 * repack - the kinds of struct repack (expert.h): how a source's bytes lie in its file.
 *
 * A kind is a pure function of granules. All numbers in a struct repack come from tensors that have been checked
 * against the layout, so that whatever the bytes are, each kind writes inside its part's planes.
 */
#ifndef MODEL_REPACK_H
#define MODEL_REPACK_H

#include "base/util.h"
#include "model/expert.h"

enum repack_kind {
	/* Bytes as they are, at the beginning of plane parameter[0]. Granule: 1 byte. */
	REPACK_COPY,

	/* F32, BF16 or F16 (parameter[1], enum tensor_type) [rows] -> floats of plane parameter[0]. Granule: one. */
	REPACK_FLOATS,

	/* The same for gate and up at once: gate's first, up's first, gate's second ... Granule: one of each. */
	REPACK_FLOATS_PAIRED,

	/* One number (parameter[1]) -> each row's scale. Granule: the number. */
	REPACK_FLOAT_FOR_ALL,

	/* Numbers (parameter[1]) [rows / 128][cols / 128], both rounded up -> tiles. Granule: a row of them. */
	REPACK_TILES,

	/*
	 * What lies row by row -> panels. parameter[0]: bytes of an element of a row (4: eight 4-bit codes, the first
	 * in the lowest bits, else 2 or 1: a scale); parameter[1]: 1 when even rows are gate's and odd ones up's, and
	 * `rows` counts those of both. Granule: as many rows as the largest power of two that divides `rows`, up to a
	 * panel of each part.
	 */
	REPACK_ROWS,

	/* int32 [rows / 8, rounded up][groups]: zero points of 8 rows, the first in the lowest bits. Granule: a row. */
	REPACK_ROWS_ZEROS,

	/* GPTQ: int32 [cols / 8][rows]: eight columns' codes, the first in the lowest bits. Granule: a row. */
	REPACK_GPTQ,

	/* AWQ: int32 [cols][rows / 8]: the codes of rows 0, 2, 4, 6, 1, 3, 5, 7 of eight. Granule: 8 rows. */
	REPACK_AWQ,

	/* GPTQ and AWQ: F16 or BF16 [cols / group][rows]. Granule: a row. */
	REPACK_GROUP_SCALES,

	/* The same with int32 [cols / group][rows / 8]; parameter: 1 for AWQ's order; what to add to each
	 * zero point, with carries from one to the next. */
	REPACK_GROUP_ZEROS,

	/* From here on: repack-gguf.h. */
	REPACK_GGUF = 64
};

/* Rows first .. end of a part, and granules first .. end of a source. */
struct repack_range {
	uint64_t first, end;
};

static inline struct repack_range repack_share_rows(const struct record_share *to, uint32_t part)
{
	const struct moe_layout *l = to->layout;

	return (struct repack_range){moe_share_row(l->part[part].rows, to->share, l->shares),
				     moe_share_row(l->part[part].rows, to->share + 1, l->shares)};
}

/* Of granules first .. first + n, each of which brings `rows` rows (a divisor of 16), those that bring some of the
 * share's; none of them where `first` is not below `end`. */
static inline struct repack_range repack_share_granules(const struct record_share *to, uint32_t part, uint64_t rows,
							uint64_t first, uint64_t n)
{
	const struct repack_range of = repack_share_rows(to, part);

	return (struct repack_range){MAX(first, of.first / rows), MIN(first + n, DIV_UP(of.end, rows))};
}

/* -- the kinds, each in its file; arguments as those of repack() -------------------------------------------------- */

void repack_rows(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		 const uint8_t *bytes);
void repack_rows_zeros(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		       const uint8_t *bytes);
void repack_gptq(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		 const uint8_t *bytes);
void repack_awq(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		const uint8_t *bytes);
void repack_group_scales(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
			 const uint8_t *bytes);
void repack_group_zeros(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
			const uint8_t *bytes);

#endif
