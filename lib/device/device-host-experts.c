/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "device/device-host.h"
#include "kernels/record.h"

#define BATCH 32 /* tokens that one pass over an expert's weights serves */

/* The scratch memory of one launch, cut up. Rows begin on cache lines. */
struct work_area {
	uint32_t *first;                    /* [n_experts + 1] of an expert's pairs in `pairs` */
	uint32_t *pairs;                    /* [tokens * topk] positions in ids, grouped by expert */
	const void *x[BATCH], *h_in[BATCH]; /* packed rows of the batch */
	void *x_packed[BATCH], *h_packed[BATCH];
	float *h[BATCH], *y[BATCH]; /* [slice.inter] and [hidden] for each */
};

/* How the layer's matrices are computed with. */
struct work_ops {
	const struct kernel_ops *gate, *down;
	struct kernel_act act;
};

static void *cut(uint8_t **at, size_t bytes)
{
	void *here = *at;

	*at += ALIGN_UP(bytes, CACHE_LINE);
	return here;
}

/* Lays the area out from `at` on and returns where it ends. */
static uint8_t *area_lay_out(struct work_area *ret, uint8_t *at, const struct work_ops *ops,
			     const struct device_experts *w)
{
	int i;

	ret->first = cut(&at, (w->n_experts + 1) * sizeof(uint32_t));
	ret->pairs = cut(&at, (size_t)w->tokens * w->topk * sizeof(uint32_t));
	for (i = 0; i < BATCH; i++) {
		ret->x_packed[i] = cut(&at, kernel_packed_bytes(ops->gate, w->hidden));
		ret->h_packed[i] = cut(&at, kernel_packed_bytes(ops->down, w->slice->inter));
		ret->h[i] = cut(&at, w->slice->inter * sizeof(float));
		ret->y[i] = cut(&at, w->hidden * sizeof(float));
	}
	return at;
}

static int area_make(struct work_area *ret, struct host_scratch *scratch, const struct work_ops *ops,
		     const struct device_experts *w)
{
	const size_t bytes = (size_t)(area_lay_out(ret, NULL, ops, w) - (uint8_t *)NULL);

	if (bytes > scratch->bytes) {
		void *memory = aligned_alloc(CACHE_LINE, ALIGN_UP(bytes, CACHE_LINE));

		if (!memory)
			return -ENOMEM;
		free(scratch->memory);
		*scratch = (struct host_scratch){memory, bytes};
	}
	area_lay_out(ret, scratch->memory, ops, w);
	return 0;
}

/* A lane's ids are whatever its stream has written: one out of range is nobody's, and told of by who checks them. */
static bool is_ours(const struct device_experts *w, size_t pair)
{
	const int32_t id = w->ids[pair];

	return id >= 0 && (uint32_t)id < w->n_experts && w->map[id] >= 0;
}

/* Counting sort of the device's pairs by expert; within an expert in the tokens' order. */
static void group_pairs(struct work_area *a, const struct device_experts *w)
{
	const size_t pairs = (size_t)w->tokens * w->topk;
	size_t i;
	uint32_t e;

	memset(a->first, 0, (w->n_experts + 1) * sizeof *a->first);
	for (i = 0; i < pairs; i++)
		if (is_ours(w, i))
			a->first[w->ids[i] + 1]++;
	for (e = 0; e < w->n_experts; e++)
		a->first[e + 1] += a->first[e];
	for (i = 0; i < pairs; i++)
		if (is_ours(w, i))
			a->pairs[a->first[w->ids[i]]++] = (uint32_t)i;
	/* Each `first` has moved on to where the next expert's began. */
	memmove(a->first + 1, a->first, w->n_experts * sizeof *a->first);
	a->first[0] = 0;
}

/* The row as the operations take it: packed into `room`, or as it is. */
static const void *packed(const struct kernel_ops *ops, size_t cols, const float *row, void *room)
{
	if (ops->pack == PACK_F32)
		return row;
	ops->pack_row(cols, ops->block, row, room);
	return room;
}

/* Some rows of an expert: a slot has all of them, each pool file a share. */
struct rows {
	struct kernel_matrix part[MOE_PARTS];
	uint32_t inter_first, inter_rows; /* of gate and up, counted from the slice's first */
	uint32_t hidden_first, hidden_rows;
};

static void rows_in_slot(struct rows *ret, const struct device_experts *w, uint32_t slot)
{
	const uint8_t *at = (const uint8_t *)(uintptr_t)(w->slots + (uint64_t)slot * w->slot_bytes);
	int i;

	for (i = 0; i < MOE_PARTS; i++)
		ret->part[i] = record_matrix(at, w->layout, w->slice, (enum moe_part_name)i, RECORD_IN_SLOT);
	ret->inter_first = ret->hidden_first = 0;
	ret->inter_rows = w->slice->inter;
	ret->hidden_rows = w->hidden;
}

static void rows_in_pool(struct rows *ret, const struct device_experts *w, uint32_t read, uint32_t share)
{
	const uint8_t *at = w->records[(uint64_t)read * w->n_shares + share];
	struct moe_slice slice;
	int i;

	moe_slice_share(&slice, w->slice, w->layout, share);
	for (i = 0; i < MOE_PARTS; i++)
		ret->part[i] = record_matrix(at, w->layout, &slice, (enum moe_part_name)i, RECORD_IN_POOL);
	ret->inter_first = slice.first - w->slice->first;
	ret->inter_rows = slice.inter;
	ret->hidden_first = moe_share_row(w->hidden, share, w->n_shares);
	ret->hidden_rows = moe_share_row(w->hidden, share + 1, w->n_shares) - ret->hidden_first;
}

/* How many pieces an expert is in. */
static uint32_t find_rows(struct rows ret[MOE_POOLS_MAX], const struct device_experts *w, uint32_t place)
{
	uint32_t i;

	if (w->n_reads == 0 || place < w->n_slots) {
		rows_in_slot(&ret[0], w, place);
		return 1;
	}
	for (i = 0; i < w->n_shares; i++)
		rows_in_pool(&ret[i], w, place - w->n_slots, i);
	return w->n_shares;
}

static void run_batch(const struct kernels *k, const struct work_ops *ops, struct work_area *a,
		      const struct device_experts *w, const struct rows *rows, uint32_t n_rows, const uint32_t *pairs,
		      uint32_t n)
{
	const uint32_t inter = w->slice->inter;
	float *to[BATCH];
	uint32_t i, r;

	for (i = 0; i < n; i++)
		a->x[i] = packed(ops->gate, w->hidden,
				 (const float *)(uintptr_t)w->x + (size_t)(pairs[i] / w->topk) * w->hidden,
				 a->x_packed[i]);
	for (r = 0; r < n_rows; r++) {
		for (i = 0; i < n; i++)
			to[i] = a->h[i] + rows[r].inter_first;
		if (rows[r].inter_rows)
			ops->gate->gate_up(&rows[r].part[MOE_PART_GATE], &rows[r].part[MOE_PART_UP], rows[r].inter_rows,
					   w->hidden, &ops->act, n, a->x, to);
	}
	for (i = 0; i < n; i++)
		a->h_in[i] = packed(ops->down, inter, a->h[i], a->h_packed[i]);
	for (r = 0; r < n_rows; r++) {
		for (i = 0; i < n; i++)
			to[i] = a->y[i] + rows[r].hidden_first;
		if (rows[r].hidden_rows)
			ops->down->matmul(&rows[r].part[MOE_PART_DOWN], rows[r].hidden_rows, inter, n, a->h_in, to);
	}
	for (i = 0; i < n; i++)
		k->axpy(w->hidden, w->weights[pairs[i]], a->y[i],
			(float *)(uintptr_t)w->y + (size_t)(pairs[i] / w->topk) * w->hidden);
}

int host_experts(const struct kernels *kernels, struct host_scratch *scratch, const struct device_experts *work)
{
	const struct work_ops ops = {
		.gate = kernels->of[work->layout->part[MOE_PART_GATE].format],
		.down = kernels->of[work->layout->part[MOE_PART_DOWN].format],
		.act = {(enum kernel_activation)work->activation, work->limit},
	};
	struct rows rows[MOE_POOLS_MAX];
	struct work_area area;
	uint32_t e;
	int r;

	r = area_make(&area, scratch, &ops, work);
	if (r < 0)
		return r;
	memset((void *)(uintptr_t)work->y, 0, (size_t)work->tokens * work->hidden * sizeof(float));
	group_pairs(&area, work);
	for (e = 0; e < work->n_experts; e++) {
		const uint32_t end = area.first[e + 1];
		uint32_t at, n_rows;

		if (area.first[e] == end)
			continue;
		n_rows = find_rows(rows, work, (uint32_t)work->map[e]);
		for (at = area.first[e]; at < end; at += BATCH)
			run_batch(kernels, &ops, &area, work, rows, n_rows, area.pairs + at, MIN(end - at, BATCH));
	}
	return 0;
}
