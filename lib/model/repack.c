/* SPDX-License-Identifier: MIT */
#include "model/repack.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "model/repack-gguf.h"

static uint8_t *plane_of(const struct record_share *to, uint32_t part, uint32_t plane)
{
	return to->memory + to->layout->part[part].plane[plane];
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

/* Row-major: a row of the plane is a range of the source's bytes. */
static void repack_copy(const struct repack *r, const struct record_share *to, uint64_t first, uint64_t n,
			const uint8_t *bytes)
{
	const struct moe_part *part = &to->layout->part[r->part];
	const struct repack_range rows = repack_share_rows(to, r->part);
	const uint64_t pitch = moe_band_bytes(part->format, (enum moe_plane)r->parameter[0], part->cols);
	const uint64_t begin = MAX(first, rows.first * pitch), end = MIN(first + n, rows.end * pitch);

	assert(moe_band_rows(part->format, (enum moe_plane)r->parameter[0]) == 1);
	if (begin < end)
		memcpy(plane_of(to, r->part, r->parameter[0]) + (begin - rows.first * pitch), bytes + (begin - first),
		       end - begin);
}

static void repack_floats(const struct repack *r, const struct record_share *to, uint64_t first, uint64_t n,
			  const uint8_t *bytes)
{
	const struct repack_range rows = repack_share_rows(to, r->part);
	float *plane = (float *)plane_of(to, r->part, r->parameter[0]);

	for (uint64_t i = MAX(first, rows.first); i < MIN(first + n, rows.end); i++)
		plane[i - rows.first] = number_at(r->parameter[1], bytes, i - first);
}

static void repack_floats_paired(const struct repack *r, const struct record_share *to, uint64_t first, uint64_t n,
				 const uint8_t *bytes)
{
	const struct repack_range rows = repack_share_rows(to, MOE_PART_GATE);
	float *gate = (float *)plane_of(to, MOE_PART_GATE, r->parameter[0]);
	float *up = (float *)plane_of(to, MOE_PART_UP, r->parameter[0]);

	for (uint64_t i = MAX(first, rows.first); i < MIN(first + n, rows.end); i++) {
		gate[i - rows.first] = number_at(r->parameter[1], bytes, 2 * (i - first));
		up[i - rows.first] = number_at(r->parameter[1], bytes, 2 * (i - first) + 1);
	}
}

static void repack_float_for_all(const struct repack *r, const struct record_share *to, uint64_t n,
				 const uint8_t *bytes)
{
	const struct repack_range rows = repack_share_rows(to, r->part);
	float *plane = (float *)plane_of(to, r->part, r->parameter[0]);

	for (uint64_t i = 0; n > 0 && i < rows.end - rows.first; i++)
		plane[i] = number_at(r->parameter[1], bytes, 0);
}

/* A scale of 128 rows becomes eight of 16. */
static void repack_tiles(const struct repack *r, const struct record_share *to, uint64_t first, uint64_t n,
			 const uint8_t *bytes)
{
	const struct moe_format_spec *f = &moe_formats[MOE_FORMAT_FP8_BLOCK];
	const struct repack_range rows = repack_share_rows(to, r->part);
	const uint64_t tiles = DIV_UP(r->cols, f->block), each = f->block / MOE_PANEL_ROWS;
	const uint64_t begin = rows.first / MOE_PANEL_ROWS, end = DIV_UP(rows.end, MOE_PANEL_ROWS);
	float *plane = (float *)plane_of(to, r->part, MOE_PLANE_SCALES);

	for (uint64_t band = MAX(first * each, begin); band < MIN((first + n) * each, end); band++)
		for (uint64_t tile = 0; tile < tiles; tile++)
			plane[(band - begin) * tiles + tile] = number_at(r->parameter[1], bytes,
									 (band / each - first) * tiles + tile);
}

void repack(const struct repack *r, const struct record_share *to, uint64_t first, uint64_t n, const void *bytes)
{

	assert(first <= r->bytes / r->granule_bytes && n <= r->bytes / r->granule_bytes - first);
	switch (r->kind) {
	case REPACK_COPY:
		repack_copy(r, to, first, n, bytes);
		break;
	case REPACK_FLOATS:
		repack_floats(r, to, first, n, bytes);
		break;
	case REPACK_FLOATS_PAIRED:
		repack_floats_paired(r, to, first, n, bytes);
		break;
	case REPACK_FLOAT_FOR_ALL:
		repack_float_for_all(r, to, n, bytes);
		break;
	case REPACK_TILES:
		repack_tiles(r, to, first, n, bytes);
		break;
	case REPACK_ROWS:
		repack_rows(r, to, first, n, bytes);
		break;
	case REPACK_ROWS_ZEROS:
		repack_rows_zeros(r, to, first, n, bytes);
		break;
	case REPACK_GPTQ:
		repack_gptq(r, to, first, n, bytes);
		break;
	case REPACK_AWQ:
		repack_awq(r, to, first, n, bytes);
		break;
	case REPACK_GROUP_SCALES:
		repack_group_scales(r, to, first, n, bytes);
		break;
	case REPACK_GROUP_ZEROS:
		repack_group_zeros(r, to, first, n, bytes);
		break;
	case REPACK_GGUF:
		repack_gguf(r, to, first, n, bytes);
		break;
	default:
		assert(!"a kind that expert_sources names");
	}
}
