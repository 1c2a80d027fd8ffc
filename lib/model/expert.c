/* SPDX-License-Identifier: MIT */
#include "model/expert.h"

#include <assert.h>
#include <errno.h>

#include "base/checked.h"
#include "base/util.h"
#include "model/gguf.h"
#include "model/packing.h"
#include "model/repack.h"

static bool place_plane(uint64_t *at, struct moe_part *part, enum moe_plane plane, uint32_t shares, uint64_t *ret_end)
{
	const uint64_t band = moe_band_rows(part->format, plane), rows = moe_share_room(part->rows, shares);
	uint64_t bytes;

	if (!checked_mul(&bytes, DIV_UP(rows, band), moe_band_bytes(part->format, plane, part->cols)))
		return false;
	part->plane[plane] = *at;
	return checked_add(ret_end, *at, bytes) && checked_align(at, *ret_end, MOE_PART_ALIGN);
}

static int place(struct moe_layout *ret, const uint32_t format[3], const bool bias[3], uint32_t hidden, uint32_t inter,
		 uint32_t shares)
{
	struct moe_layout layout = {.shares = shares};
	uint64_t at = 0, end = 0, bytes;

	for (int i = 0; i < MOE_PARTS; i++) {
		struct moe_part *part = &layout.part[i];

		if (format[i] == MOE_FORMAT_NONE || format[i] >= MOE_FORMAT_COUNT || hidden == 0 || inter == 0)
			return -EINVAL;
		part->format = format[i];
		part->rows = i == MOE_PART_DOWN ? hidden : inter;
		part->cols = i == MOE_PART_DOWN ? inter : hidden;
		if (moe_formats[format[i]].panel && part->cols % moe_formats[format[i]].block != 0)
			return -EINVAL;
		for (int plane = 0; plane < MOE_PLANES; plane++) {
			if (!moe_format_has(format[i], (enum moe_plane)plane) && !(plane == MOE_PLANE_BIAS && bias[i]))
				continue;
			if (!place_plane(&at, part, (enum moe_plane)plane, shares, &end))
				return -EOVERFLOW;
		}
	}
	if (format[MOE_PART_GATE] != format[MOE_PART_UP])
		return -EINVAL;
	if (!checked_align(&bytes, end, MOE_RECORD_ALIGN))
		return -EOVERFLOW;
	layout.record_bytes = bytes;
	*ret = layout;
	return 0;
}

int layout_place(struct moe_layout *ret, const uint32_t format[3], const bool bias[3], uint32_t hidden, uint32_t inter)
{
	return place(ret, format, bias, hidden, inter, 1);
}

void layout_spread(struct moe_layout *ret, const struct moe_layout *layout, uint32_t shares)
{
	uint32_t format[MOE_PARTS];
	bool bias[MOE_PARTS];
	int r;

	for (int i = 0; i < MOE_PARTS; i++) {
		format[i] = layout->part[i].format;
		bias[i] = layout->part[i].plane[MOE_PLANE_BIAS] != 0;
	}
	r = place(ret, format, bias, layout->part[MOE_PART_DOWN].rows, layout->part[MOE_PART_DOWN].cols, shares);
	assert(r == 0); /* no share has more rows than the whole */
	(void)r;
}

uint32_t layout_shares_max(const struct moe_layout *layout)
{
	uint32_t rows = layout->part[0].rows;

	for (int i = 1; i < MOE_PARTS; i++)
		rows = MIN(rows, layout->part[i].rows);
	return DIV_UP(rows, MOE_PANEL_ROWS);
}

/* What model_open has checked is still so. */
static struct packed_part must_find(const struct model *model, uint32_t layer, uint32_t expert, enum expert_part part)
{
	struct packed_part p = {0};
	const int r = packing_find(model, layer, expert, part, &p, NULL);

	assert(r == 0);
	(void)r;
	return p;
}

void expert_layout(const struct model *model, uint32_t layer, struct moe_layout *ret)
{
	uint32_t format[PARTS];
	bool bias[PARTS];
	int r;

	if (model->gguf) {
		gguf_expert_layout(model, layer, ret);
		return;
	}
	for (int i = 0; i < PARTS; i++) {
		const struct packed_part p = must_find(model, layer, 0, (enum expert_part)i);

		format[i] = p.format;
		bias[i] = p.bias;
	}
	r = layout_place(ret, format, bias, model->config.hidden, model->config.inter);
	assert(r == 0);
	(void)r;
}

/* -- sources ------------------------------------------------------------------------------------------------------ */

struct list {
	const struct model *model;
	struct expert_source *sources;
	uint32_t n, expert;
	enum expert_part part;
	struct packed_part packed;
};

/* The whole tensor, or this expert's share of one that holds them all. */
static struct repack *add(struct list *l, const struct tensor *t, enum repack_kind kind, uint64_t granule)
{
	const struct model_config *c = &l->model->config;
	const uint64_t bytes = l->packed.packing == PACKING_FUSED ? t->bytes / c->n_experts : t->bytes;
	struct expert_source *s = &l->sources[l->n++];

	assert(l->n <= EXPERT_SOURCES_MAX);
	*s = (struct expert_source){.offset = t->offset + (bytes == t->bytes ? 0 : l->expert * bytes),
				    .shard = t->shard,
				    .repack = {.kind = kind,
					       .part = (uint32_t)l->part,
					       .granule_bytes = granule,
					       .bytes = bytes,
					       .rows = packing_rows(c, l->part),
					       .cols = packing_cols(c, l->part)}};
	return &s->repack;
}

static void add_plain(struct list *l)
{
	const struct tensor *scales = l->packed.scales;
	const uint64_t tiles = DIV_UP(packing_cols(&l->model->config, l->part),
				      moe_formats[MOE_FORMAT_FP8_BLOCK].block);
	uint64_t number;
	struct repack *r;

	add(l, l->packed.codes, REPACK_COPY, 1)->parameter[0] = MOE_PLANE_CODES;
	if (!scales)
		return;
	number = tensor_type_bytes(scales->type);
	if (l->packed.format == MOE_FORMAT_FP8_BLOCK)
		r = add(l, scales, REPACK_TILES, tiles * number);
	else if (scales->bytes == number)
		r = add(l, scales, REPACK_FLOAT_FOR_ALL, number);
	else
		r = add(l, scales, REPACK_FLOATS, number);
	r->parameter[0] = MOE_PLANE_ROW_SCALES;
	r->parameter[1] = scales->type;
}

/* Elements of `size` bytes, `n` in a row; granules are powers of two of rows, so that whole ones make up the source. */
static void add_rows(struct list *l, const struct tensor *t, uint32_t size, uint64_t n, bool paired)
{
	const uint32_t rows = packing_rows(&l->model->config, l->part) * (paired ? 2 : 1);
	const uint32_t most = MOE_PANEL_ROWS * (paired ? 2 : 1), even = rows & -rows;
	struct repack *r = add(l, t, REPACK_ROWS, MIN(even, most) * n * size);

	r->rows = rows;
	r->parameter[0] = size;
	r->parameter[1] = paired;
}

static void add_panels(struct list *l)
{
	const struct packed_part *p = &l->packed;
	const uint64_t rows = packing_rows(&l->model->config, l->part), cols = packing_cols(&l->model->config, l->part);
	const uint64_t groups = cols / moe_formats[p->format].block;
	struct repack *r;

	switch (p->packing) {
	case PACKING_ROWS:
		add_rows(l, p->codes, 4, cols / 8, false);
		add_rows(l, p->scales, 2, groups, false);
		if (p->zeros)
			add(l, p->zeros, REPACK_ROWS_ZEROS, groups * 4);
		break;
	case PACKING_GPTQ:
	case PACKING_AWQ:
		add(l, p->codes, p->packing == PACKING_AWQ ? REPACK_AWQ : REPACK_GPTQ, rows * 4);
		add(l, p->scales, REPACK_GROUP_SCALES, rows * 2);
		if (!p->zeros)
			break;
		r = add(l, p->zeros, REPACK_GROUP_ZEROS, DIV_UP(rows, 8) * 4);
		r->parameter[0] = p->packing == PACKING_AWQ;
		r->parameter[1] = l->model->config.quant.zeros_less_one;
		break;
	default:
		break;
	}
}

static void add_fused(struct list *l)
{
	const bool paired = l->part == PART_GATE;
	const struct packed_part *p = &l->packed;
	const uint64_t cols = packing_cols(&l->model->config, l->part), bias = tensor_type_bytes(p->bias->type);
	struct repack *r;

	if (l->part == PART_UP)
		return; /* its rows came with gate's */
	add_rows(l, p->codes, 4, cols / 8, paired);
	add_rows(l, p->scales, 1, cols / moe_formats[p->format].block, paired);
	r = add(l, p->bias, paired ? REPACK_FLOATS_PAIRED : REPACK_FLOATS, paired ? 2 * bias : bias);
	r->parameter[0] = MOE_PLANE_BIAS;
	r->parameter[1] = p->bias->type;
}

uint32_t expert_sources(const struct model *model, uint32_t layer, uint32_t expert,
			struct expert_source ret[EXPERT_SOURCES_MAX])
{
	struct list l = {.model = model, .sources = ret, .expert = expert};

	if (model->gguf)
		return gguf_expert_sources(model, layer, expert, ret);
	for (int part = 0; part < PARTS; part++) {
		l.part = (enum expert_part)part;
		l.packed = must_find(model, layer, expert, l.part);
		if (l.packed.packing == PACKING_FUSED)
			add_fused(&l);
		else if (l.packed.packing == PACKING_PLAIN)
			add_plain(&l);
		else
			add_panels(&l);
	}
	return l.n;
}
