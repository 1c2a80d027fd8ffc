/* SPDX-License-Identifier: MIT */
#include "model/repack.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "model/repack-gguf.h"

static uint8_t *plane_of(const struct moe_layout *layout, uint8_t *record, uint32_t part, uint32_t plane)
{
	return record + layout->part[part].plane[plane];
}

/* binary16's exponent moves under binary32's by a multiplication, which makes subnormals right as well. */
static float from_f16(uint16_t half)
{
	const uint32_t exponent_and_fraction = (uint32_t)(half & 0x7fff) << 13;
	const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t bits;
	float value;

	memcpy(&value, &exponent_and_fraction, 4);
	value *= 0x1p112f;
	memcpy(&bits, &value, 4);
	if ((half & 0x7c00) == 0x7c00)
		bits = 0x7f800000 | (exponent_and_fraction & 0x007fffff);
	bits |= sign;
	memcpy(&value, &bits, 4);
	return value;
}

static float number_at(uint32_t type, const uint8_t *bytes, uint64_t i)
{
	uint32_t bits;
	uint16_t half;
	float value;

	if (type == TENSOR_F32) {
		memcpy(&value, bytes + i * 4, 4);
		return value;
	}
	memcpy(&half, bytes + i * 2, 2);
	if (type == TENSOR_F16)
		return from_f16(half);
	bits = (uint32_t)half << 16;
	memcpy(&value, &bits, 4);
	return value;
}

static void repack_floats(const struct repack *r, float *to, uint64_t first, uint64_t n, const uint8_t *bytes)
{
	for (uint64_t i = 0; i < n; i++)
		to[first + i] = number_at(r->parameter[1], bytes, i);
}

static void repack_floats_paired(const struct repack *r, float *gate, float *up, uint64_t first, uint64_t n,
				 const uint8_t *bytes)
{
	for (uint64_t i = 0; i < n; i++) {
		gate[first + i] = number_at(r->parameter[1], bytes, 2 * i);
		up[first + i] = number_at(r->parameter[1], bytes, 2 * i + 1);
	}
}

static void repack_float_for_all(const struct repack *r, float *to, uint64_t n, const uint8_t *bytes)
{
	for (uint64_t i = 0; n > 0 && i < r->rows; i++)
		to[i] = number_at(r->parameter[1], bytes, 0);
}

/* A scale of 128 rows becomes eight of 16. */
static void repack_tiles(const struct repack *r, float *to, uint64_t first, uint64_t n, const uint8_t *bytes)
{
	const struct moe_format_spec *f = &moe_formats[MOE_FORMAT_FP8_BLOCK];
	const uint64_t tiles = DIV_UP(r->cols, f->block), bands = DIV_UP(r->rows, MOE_PANEL_ROWS);
	const uint64_t each = f->block / MOE_PANEL_ROWS;

	for (uint64_t i = 0; i < n; i++)
		for (uint64_t band = (first + i) * each; band < MIN((first + i + 1) * each, bands); band++)
			for (uint64_t tile = 0; tile < tiles; tile++)
				to[band * tiles + tile] = number_at(r->parameter[1], bytes, i * tiles + tile);
}

void repack(const struct repack *r, const struct moe_layout *layout, uint8_t *record, uint64_t first, uint64_t n,
	    const void *bytes)
{
	const uint32_t part = r->part, plane = r->parameter[0];

	assert(first <= r->bytes / r->granule_bytes && n <= r->bytes / r->granule_bytes - first);
	switch (r->kind) {
	case REPACK_COPY:
		memcpy(plane_of(layout, record, part, plane) + first, bytes, n);
		break;
	case REPACK_FLOATS:
		repack_floats(r, (float *)plane_of(layout, record, part, plane), first, n, bytes);
		break;
	case REPACK_FLOATS_PAIRED:
		repack_floats_paired(r, (float *)plane_of(layout, record, MOE_PART_GATE, plane),
				     (float *)plane_of(layout, record, MOE_PART_UP, plane), first, n, bytes);
		break;
	case REPACK_FLOAT_FOR_ALL:
		repack_float_for_all(r, (float *)plane_of(layout, record, part, plane), n, bytes);
		break;
	case REPACK_TILES:
		repack_tiles(r, (float *)plane_of(layout, record, part, MOE_PLANE_SCALES), first, n, bytes);
		break;
	case REPACK_ROWS:
		repack_rows(r, layout, record, first, n, bytes);
		break;
	case REPACK_ROWS_ZEROS:
		repack_rows_zeros(r, layout, record, first, n, bytes);
		break;
	case REPACK_GPTQ:
		repack_gptq(r, layout, record, first, n, bytes);
		break;
	case REPACK_AWQ:
		repack_awq(r, layout, record, first, n, bytes);
		break;
	case REPACK_GROUP_SCALES:
		repack_group_scales(r, layout, record, first, n, bytes);
		break;
	case REPACK_GROUP_ZEROS:
		repack_group_zeros(r, layout, record, first, n, bytes);
		break;
	case REPACK_GGUF:
		repack_gguf(r, layout, record, first, n, bytes);
		break;
	default:
		assert(!"a kind that expert_sources names");
	}
}
