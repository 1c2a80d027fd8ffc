/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "device/device-host.h"
#include "uapi/moe_ring.h"

#define BATCH 32 /* tokens that one pass over an expert's weights serves */

/* The scratch memory of one launch, cut up. */
struct work_area {
	uint32_t *first;            /* [n_experts + 1] of an expert's pairs in `pairs` */
	uint32_t *pairs;            /* [tokens * topk] positions in ids, grouped by expert */
	const float *x[BATCH];      /* rows of the batch */
	float *h[BATCH], *y[BATCH]; /* [slice.inter] and [hidden] for each */
};

static int area_make(struct work_area *ret, struct host_scratch *scratch, const struct device_experts *w)
{
	const size_t pairs = (size_t)w->tokens * w->topk, row = (size_t)w->slice.inter + w->hidden;
	const size_t numbers = ALIGN_UP((w->n_experts + 1 + pairs) * sizeof(uint32_t), CACHE_LINE);
	const size_t bytes = numbers + BATCH * row * sizeof(float);
	float *rows;
	int i;

	if (bytes > scratch->bytes) {
		void *memory = aligned_alloc(CACHE_LINE, ALIGN_UP(bytes, CACHE_LINE));

		if (!memory)
			return -ENOMEM;
		free(scratch->memory);
		*scratch = (struct host_scratch){memory, bytes};
	}
	ret->first = scratch->memory;
	ret->pairs = ret->first + w->n_experts + 1;
	rows = (float *)((uint8_t *)scratch->memory + numbers);
	for (i = 0; i < BATCH; i++, rows += row) {
		ret->h[i] = rows;
		ret->y[i] = rows + w->slice.inter;
	}
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

static void run_batch(const struct kernels *k, enum kernel_type type, struct work_area *a,
		      const struct device_experts *w, const uint8_t *slot, const uint32_t *pairs, uint32_t n)
{
	const struct moe_slice_part *part = w->slice.part;
	const struct kernel_matrix gate = {slot + part[0].slot_offset, part[0].width};
	const struct kernel_matrix up = {slot + part[1].slot_offset, part[1].width};
	const struct kernel_matrix down = {slot + part[2].slot_offset, part[2].width};
	uint32_t i;

	for (i = 0; i < n; i++)
		a->x[i] = (const float *)(uintptr_t)w->x + (size_t)(pairs[i] / w->topk) * w->hidden;
	k->gate_up[type](&gate, &up, w->slice.inter, w->hidden, (enum kernel_activation)w->activation, n, a->x, a->h);
	k->matmul[type](&down, w->hidden, w->slice.inter, n, (const float *const *)a->h, a->y);
	for (i = 0; i < n; i++)
		k->axpy(w->hidden, w->weights[pairs[i]], a->y[i],
			(float *)(uintptr_t)w->y + (size_t)(pairs[i] / w->topk) * w->hidden);
}

int host_experts(const struct kernels *kernels, struct host_scratch *scratch, const struct device_experts *work)
{
	const enum kernel_type type = work->type == MOE_TYPE_F16 ? KERNEL_F16 : KERNEL_BF16;
	struct work_area area;
	uint32_t e;
	int r;

	if (work->type != MOE_TYPE_BF16 && work->type != MOE_TYPE_F16)
		return -EINVAL;
	r = area_make(&area, scratch, work);
	if (r < 0)
		return r;
	memset((void *)(uintptr_t)work->y, 0, (size_t)work->tokens * work->hidden * sizeof(float));
	group_pairs(&area, work);
	for (e = 0; e < work->n_experts; e++) {
		const uint32_t end = area.first[e + 1];
		uint32_t at;

		for (at = area.first[e]; at < end; at += BATCH)
			run_batch(kernels, type, &area, work,
				  (const uint8_t *)(uintptr_t)(work->slots + (uint64_t)work->map[e] * work->slot_bytes),
				  area.pairs + at, MIN(end - at, BATCH));
	}
	return 0;
}
