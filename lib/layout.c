/* SPDX-License-Identifier: MIT */
#include "layout.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"

int layout_check(const struct moe_manifest *m, const struct moe_layout *layouts, uint32_t tp_size,
		 struct moe_error *err)
{
	uint32_t i;

	for (i = 0; i < m->n_layouts; i++)
		if (tp_size > moe_slice_units(&layouts[i]))
			return moe_error_set(err, -EPROTO,
					     "manifest: layout %u of %u (%s): tp_size %u attached, at most %u expected",
					     i, m->n_layouts, moe_formats[layouts[i].part[MOE_PART_DOWN].format].name,
					     tp_size, moe_slice_units(&layouts[i]));
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
