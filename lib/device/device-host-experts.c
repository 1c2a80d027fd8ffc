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

static bool is_ours(const struct device_experts *w, size_t pair)
{
	return w->ids[pair] >= 0 && w->map[w->ids[pair]] >= 0;
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

static void run_batch(const struct kernels *k, const struct work_ops *ops, struct work_area *a,
		      const struct device_experts *w, const uint8_t *slot, const uint32_t *pairs, uint32_t n)
{
	const struct kernel_matrix gate = record_matrix(slot, w->layout, w->slice, MOE_PART_GATE, RECORD_IN_SLOT);
	const struct kernel_matrix up = record_matrix(slot, w->layout, w->slice, MOE_PART_UP, RECORD_IN_SLOT);
	const struct kernel_matrix down = record_matrix(slot, w->layout, w->slice, MOE_PART_DOWN, RECORD_IN_SLOT);
	const uint32_t inter = w->slice->inter;
	uint32_t i;

	for (i = 0; i < n; i++)
		a->x[i] = packed(ops->gate, w->hidden,
				 (const float *)(uintptr_t)w->x + (size_t)(pairs[i] / w->topk) * w->hidden,
				 a->x_packed[i]);
	ops->gate->gate_up(&gate, &up, inter, w->hidden, &ops->act, n, a->x, a->h);
	for (i = 0; i < n; i++)
		a->h_in[i] = packed(ops->down, inter, a->h[i], a->h_packed[i]);
	ops->down->matmul(&down, w->hidden, inter, n, a->h_in, a->y);
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
		uint32_t at;

		for (at = area.first[e]; at < end; at += BATCH)
			run_batch(kernels, &ops, &area, work,
				  (const uint8_t *)(uintptr_t)(work->slots + (uint64_t)work->map[e] * work->slot_bytes),
				  area.pairs + at, MIN(end - at, BATCH));
	}
	return 0;
}
