/* SPDX-License-Identifier: MIT */
#include "layout.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

/* The bytes of a plane of the largest share; false when they cannot be counted. */
static bool plane_bytes(uint64_t *ret, const struct moe_layout *layout, const struct moe_part *part,
			enum moe_plane plane)
{
	const uint32_t band = moe_band_rows(part->format, plane);
	const uint64_t rows = moe_share_room(part->rows, layout->shares);

	return checked_mul(ret, (rows + band - 1) / band, moe_band_bytes(part->format, plane, part->cols));
}

static bool plane_is_sound(const struct moe_layout *layout, uint32_t number, enum moe_plane plane)
{
	const struct moe_part *part = &layout->part[number];
	const uint64_t at = part->plane[plane];
	uint64_t bytes;

	if (plane == MOE_PLANE_CODES && number == MOE_PART_GATE) {
		if (at != 0)
			return false;
	} else if (at == 0) {
		return !moe_format_has(part->format, plane);
	} else if (plane != MOE_PLANE_BIAS && !moe_format_has(part->format, plane)) {
		return false;
	}
	return at % MOE_PART_ALIGN == 0 && plane_bytes(&bytes, layout, part, plane) &&
	       checked_range(at, bytes, layout->record_bytes);
}

static bool part_is_sound(const struct moe_manifest *m, const struct moe_layout *layout, uint32_t number)
{
	const struct moe_part *part = &layout->part[number];
	const bool down = number == MOE_PART_DOWN;
	int plane;

	if (part->format == MOE_FORMAT_NONE || part->format >= MOE_FORMAT_COUNT ||
	    part->rows != (down ? m->hidden : m->inter) || part->cols != (down ? m->inter : m->hidden))
		return false;
	/* Panels have no column outside a scale block. */
	if (moe_formats[part->format].panel && part->cols % moe_formats[part->format].block)
		return false;
	for (plane = 0; plane < MOE_PLANES; plane++)
		if (!plane_is_sound(layout, number, (enum moe_plane)plane))
			return false;
	return true;
}

static bool is_sound(const struct moe_manifest *m, const struct moe_layout *layout)
{
	uint32_t i;

	if (layout->shares != m->n_pools || layout->record_bytes % MOE_RECORD_ALIGN ||
	    layout->record_bytes > m->record_bytes)
		return false;
	for (i = 0; i < MOE_PARTS; i++)
		if (!part_is_sound(m, layout, i))
			return false;
	return layout->part[MOE_PART_GATE].format == layout->part[MOE_PART_UP].format;
}

int layout_check(const struct moe_manifest *m, const struct moe_layout *layouts, uint32_t tp_size,
		 struct moe_error *err)
{
	uint32_t i;

	for (i = 0; i < m->n_layouts; i++) {
		if (!is_sound(m, &layouts[i]))
			return moe_error_set(
				err, -EPROTO,
				"manifest: layout %u of %u: formats, sizes or planes do not fit hidden %u, "
				"intermediate %u and a record of %llu bytes in each of %u pool files",
				i, m->n_layouts, m->hidden, m->inter, (unsigned long long)layouts[i].record_bytes,
				m->n_pools);
		if (tp_size > moe_slice_units(&layouts[i]))
			return moe_error_set(err, -EPROTO,
					     "manifest: layout %u of %u (%s): tp_size %u attached, at most %u expected",
					     i, m->n_layouts, moe_formats[layouts[i].part[MOE_PART_DOWN].format].name,
					     tp_size, moe_slice_units(&layouts[i]));
	}
	return 0;
}

int layout_slices(struct moe_slice **ret, const struct moe_layout *layouts, uint32_t n_layouts, uint32_t tp_rank,
		  uint32_t tp_size, struct moe_error *err)
{
	struct moe_slice *slices = calloc(n_layouts, sizeof *slices);
	uint32_t i;

	if (!slices)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for %u layouts", n_layouts);
	for (i = 0; i < n_layouts; i++)
		moe_slice_of(&slices[i], &layouts[i], tp_rank, tp_size);
	*ret = slices;
	return 0;
}

void layout_describe(struct moe_slot_layout *ret, const struct moe_layout *layout, const struct moe_slice *slice)
{
	uint32_t i, plane;

	*ret = (struct moe_slot_layout){.bytes = slice->bytes, .first = slice->first, .inter = slice->inter};
	for (i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *part = &layout->part[i];
		struct moe_slot_part *to = &ret->part[i];

		to->format_name = moe_formats[part->format].name;
		to->format = part->format;
		to->rows = i == MOE_PART_DOWN ? part->rows : slice->inter;
		to->cols = i == MOE_PART_DOWN ? slice->inter : part->cols;
		for (plane = 0; plane < MOE_PLANES; plane++) {
			const struct moe_slice_plane *from = &slice->plane[i][plane];

			if (from->rows > 0)
				to->plane[plane] = (struct moe_slot_plane){.offset = from->slot_offset,
									   .pitch = from->width,
									   .width = from->width,
									   .rows = from->rows};
		}
	}
}

_Static_assert((int)MOE_PARTS == MOE_SLOT_PARTS && (int)MOE_PLANES == MOE_SLOT_PLANES, "parts and planes of a slot");
