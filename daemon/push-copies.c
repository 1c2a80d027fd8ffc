/* SPDX-License-Identifier: MIT */
#include "daemon/push-copies.h"

#include "base/util.h"

/* The bytes from `begin` to `end` of a plane's packed rows: at most one part of a row, whole rows, one part. */
static uint32_t plane_copies(struct device_copy *copies, const struct moe_slice_plane *plane, const uint8_t *record,
			     uint64_t begin, uint64_t end, device_ptr base)
{
	uint32_t n = 0;

	while (begin < end) {
		const uint64_t row = begin / plane->width, in_row = begin % plane->width;
		const bool whole = in_row == 0 && end - begin >= plane->width;
		const uint64_t rows = whole ? (end - begin) / plane->width : 1;
		const uint64_t width = whole ? plane->width : MIN(plane->width - in_row, end - begin);

		copies[n++] = (struct device_copy){
			.to = base + plane->slot_offset + begin,
			.from = record + plane->offset + row * plane->pitch + in_row,
			.pitch = rows > 1 ? plane->pitch : width,
			.width = width,
			.rows = rows,
		};
		begin += rows * width;
	}
	return n;
}

uint32_t push_copies(struct device_copy *copies, const struct pool_copy *copy, uint8_t *const *maps, device_ptr base)
{
	const struct moe_layout *layout = &copy->model->layouts[resident_layout(copy->model, copy->row)];
	const uint64_t offset = resident_offset(copy->model, copy->row, copy->expert);
	const uint64_t range_end = copy->from + copy->bytes;
	uint32_t n = 0;

	for (uint32_t share = 0; share < layout->shares; share++) {
		struct moe_slice slice;

		moe_slice_share(&slice, copy->slice, layout, share);
		for (int i = 0; i < MOE_PARTS * MOE_PLANES; i++) {
			const struct moe_slice_plane *plane = &slice.plane[i / MOE_PLANES][i % MOE_PLANES];
			const uint64_t at = plane->slot_offset, bytes = plane->rows * plane->width;

			if (bytes == 0 || copy->from >= at + bytes || range_end <= at)
				continue;
			n += plane_copies(copies + n, plane, maps[share] + offset, MAX(copy->from, at) - at,
					  MIN(range_end, at + bytes) - at, base);
		}
	}
	return n;
}
