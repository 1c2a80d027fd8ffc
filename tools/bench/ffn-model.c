/* SPDX-License-Identifier: MIT */
#include "tools/bench/ffn-model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/util.h"
#include "bench.h"
#include "model/expert.h"

#define TEMPLATES 3

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
	return (uint32_t)(*state >> 33);
}

/* -- one part's planes -------------------------------------------------------------------------------------------- */

static void fill_codes(uint8_t *codes, uint64_t bytes, uint32_t code, uint64_t *random)
{
	for (uint64_t i = 0; i < bytes; i++)
		codes[i] = (uint8_t)next_random(random);
	for (uint64_t i = 0; i + 1 < bytes && code == MOE_CODE_BF16; i += 2) /* +-2^-7 .. 2^-4 */
		codes[i + 1] = (codes[i + 1] & 0x80) | (0x3c + codes[i + 1] % 2);
	for (uint64_t i = 0; i + 1 < bytes && code == MOE_CODE_F16; i += 2) /* the same */
		codes[i + 1] = (codes[i + 1] & 0x83) | (0x20 + codes[i + 1] % 3 * 4);
	for (uint64_t i = 0; i < bytes && code == MOE_CODE_E4M3; i++) /* no NaN */
		codes[i] = (codes[i] & 0x7f) == 0x7f ? 0x38 : codes[i];
}

static void fill_floats(uint8_t *plane, uint64_t bytes, float value)
{
	for (uint64_t i = 0; i < bytes; i += sizeof value)
		memcpy(plane + i, &value, sizeof value);
}

/* Scale blocks of 16 rows whose weights are at most about 1 / 16. */
static void fill_scales(uint8_t *plane, uint64_t bytes, const struct moe_format_spec *f, uint64_t *random)
{
	const uint16_t half = f->scale == MOE_SCALE_BF16 ? 0x3b80 : f->bits == 8 ? 0x0800 : 0x1c00; /* 2^-8 or 2^-13 */

	if (f->scale == MOE_SCALE_F32_TILE) {
		fill_floats(plane, bytes, 0x1p-13f);
		return;
	}
	for (uint64_t at = 0; at < bytes; at += f->block_bytes) {
		uint8_t *block = plane + at;

		for (uint32_t i = 0; i < f->block_bytes; i++)
			block[i] = f->scale == MOE_SCALE_E8M0 ? (uint8_t)(118 + next_random(random) % 3)
							      : (uint8_t)(1 + next_random(random) % 8);
		for (uint32_t i = 0; i < 16 && f->scale != MOE_SCALE_E8M0; i++) {
			memcpy(block + 2 * i, &half, 2);
			if (f->zero == MOE_ZERO_F16 || f->zero == MOE_ZERO_K)
				memcpy(block + 32 + 2 * i, &half, 2);
		}
	}
}

static void fill_record(uint8_t *record, const struct moe_layout *layout, const struct moe_slice *slice,
			uint64_t *random)
{
	for (int part = 0; part < MOE_PARTS; part++) {
		const struct moe_format_spec *f = &moe_formats[layout->part[part].format];
		const struct moe_slice_plane *plane = slice->plane[part];

		fill_codes(record + plane[MOE_PLANE_CODES].offset,
			   plane[MOE_PLANE_CODES].rows * plane[MOE_PLANE_CODES].width, f->code, random);
		fill_scales(record + plane[MOE_PLANE_SCALES].offset,
			    plane[MOE_PLANE_SCALES].rows * plane[MOE_PLANE_SCALES].width, f, random);
		fill_floats(record + plane[MOE_PLANE_ROW_SCALES].offset, plane[MOE_PLANE_ROW_SCALES].rows * 4,
			    0x1p-12f);
		fill_floats(record + plane[MOE_PLANE_BIAS].offset, plane[MOE_PLANE_BIAS].rows * 4, 0x1p-6f);
	}
}

/* -- the model ---------------------------------------------------------------------------------------------------- */

static void fill_pool(struct ffn_model *m)
{
	const uint64_t record_bytes = m->layout.record_bytes;
	uint8_t *first = m->resident.pools[0].map;
	uint64_t random = 1;

	for (uint32_t i = 0; i < m->manifest.n_experts; i++) {
		m->records[i] = (struct moe_record){.offset = i * record_bytes};
		if (i < TEMPLATES)
			fill_record(first + i * record_bytes, &m->layout, &m->slice, &random);
		else
			memcpy(first + i * record_bytes, first + i % TEMPLATES * record_bytes, record_bytes);
	}
}

int ffn_model_make(struct ffn_model *ret, const struct ffn_shape *shape, uint32_t format, uint64_t bytes,
		   uint32_t experts_min, struct moe_error *err)
{
	const uint32_t formats[MOE_PARTS] = {format, format, format};
	const bool bias[MOE_PARTS] = {shape->bias, shape->bias, shape->bias};
	uint64_t experts;
	int r;

	*ret = (struct ffn_model){0};
	r = layout_place(&ret->layout, formats, bias, shape->hidden, shape->inter);
	if (r < 0)
		return moe_error_set(err, r,
				     "hidden %u and intermediate %u do not fit format %s: multiples of %u expected",
				     shape->hidden, shape->inter, moe_formats[format].name, moe_formats[format].block);
	experts = MAX(DIV_UP(bytes, ret->layout.record_bytes), (uint64_t)MAX(experts_min, shape->topk));
	moe_slice_of(&ret->slice, &ret->layout, 0, 1);
	ret->manifest = (struct moe_manifest){.layout = MOE_LAYOUT_VERSION,
					      .n_pools = 1,
					      .n_layers = 1,
					      .n_moe_layers = 1,
					      .n_experts = (uint32_t)experts,
					      .topk = shape->topk,
					      .hidden = shape->hidden,
					      .inter = shape->inter,
					      .activation = shape->activation,
					      .limit = shape->activation == MOE_ACTIVATION_SWIGLU_CLAMPED ? 0x40e00000u
													  : 0,
					      .n_layouts = 1,
					      .record_bytes = ret->layout.record_bytes};
	ret->bytes = experts * ret->layout.record_bytes;
	ret->records = calloc(experts, sizeof *ret->records);
	ret->resident = (struct resident){.manifest = &ret->manifest, .layouts = &ret->layout, .records = ret->records};
	ret->resident.pools[0].map = ret->records ? limit_memory(ret->bytes) : NULL;
	if (!ret->resident.pools[0].map) {
		ffn_model_free(ret);
		return moe_error_set(err, -ENOMEM, "no memory for %.1f GiB of weights: see --bytes",
				     (double)ret->bytes / (1u << 30));
	}
	fill_pool(ret);
	return 0;
}

void ffn_model_free(struct ffn_model *m)
{
	if (m->resident.pools[0].map)
		munmap(m->resident.pools[0].map, m->bytes);
	free(m->records);
	*m = (struct ffn_model){0};
}

/* -- published sizes ---------------------------------------------------------------------------------------------- */

/* Scales and zero points of 256 columns of a row, in bytes. */
static double published_scales(const struct moe_format_spec *f)
{
	const double groups = f->group ? 256.0 / f->group : 0;

	switch (f->scale) {
	case MOE_SCALE_F16:
	case MOE_SCALE_BF16:
		return groups * (f->zero == MOE_ZERO_U8 ? 2.5 : f->zero == MOE_ZERO_F16 ? 4 : 2);
	case MOE_SCALE_E8M0:
		return groups;
	case MOE_SCALE_F16_U8: /* 6 bits each for scales and minima */
		return 4 + groups * 1.5;
	case MOE_SCALE_F16_S8: /* Q6_K: a byte each; IQ4_XS: 6 bits */
		return 2 + groups * (f->group == 16 ? 1 : 0.75);
	case MOE_SCALE_F32_TILE:
		return groups * 4 / 128;
	default:
		return 0;
	}
}

double ffn_published_bytes(const struct ffn_shape *shape, uint32_t format)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const double weights = 3.0 * shape->hidden * shape->inter, rows = 2.0 * shape->inter + shape->hidden;

	return weights * (f->bits / 8.0 + published_scales(f) / 256) + (f->scale == MOE_SCALE_F32_ROW ? rows * 4 : 0) +
	       (shape->bias ? rows * 2 : 0);
}
