/* SPDX-License-Identifier: MIT */
#include "daemon/pool-wave.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* Bytes of a wave's buffers: with what scratch blocks are rounded up by, 64 MiB a job. */
#define WAVE_BYTES ((size_t)56 << 20)

/* A unit reads this many bytes of weights (it stays in the second-level cache while the tokens pass), or fewer so that
 * each thread gets several units, but not fewer rows than the kernels handle well at once. */
#define UNIT_BYTES ((uint64_t)256 << 10)
#define UNITS_PER_THREAD 4
#define BLOCK_ROWS_STEP 16

#define ROW_FLOATS (CACHE_LINE / sizeof(float))

static size_t row_stride(uint64_t floats)
{
	return ALIGN_UP((size_t)floats, ROW_FLOATS);
}

void wave_extent(const struct ffn_job *job, uint32_t *ret_tokens, uint32_t *ret_pairs)
{
	const struct pool_compute *c = job->compute;
	const size_t y_bytes = row_stride(c->model->manifest->hidden) * sizeof(float);
	const size_t pair_bytes = y_bytes + row_stride(c->slice.inter) * sizeof(float) + sizeof(float *);
	const size_t token_bytes = c->topk * sizeof(int32_t) + (c->x_type == MOE_TYPE_BF16 ? y_bytes : 0);
	const int32_t *ids = c->ids + (size_t)job->next_token * c->topk;
	uint32_t tokens = 0, pairs = 0;
	size_t bytes = 0;

	for (; tokens < c->tokens - job->next_token; tokens++, ids += c->topk) {
		uint32_t n = 0;

		for (uint32_t k = 0; k < c->topk; k++)
			n += ids[k] >= 0;
		bytes += token_bytes + n * pair_bytes;
		if (tokens && bytes > WAVE_BYTES)
			break;
		pairs += n;
	}
	*ret_tokens = tokens;
	*ret_pairs = pairs;
}

static uint32_t block_rows(const struct ffn_job *job, uint64_t rows, uint64_t row_bytes, uint64_t experts)
{
	const uint64_t by_bytes = UNIT_BYTES / MAX(row_bytes, 1);
	const uint64_t by_threads = rows * experts / (job->pool->n_workers * UNITS_PER_THREAD);
	const uint64_t n = ALIGN_UP(MIN(by_bytes, by_threads), BLOCK_ROWS_STEP);

	return (uint32_t)MIN(MAX(n, BLOCK_ROWS_STEP), BLOCK_ROWS_MAX);
}

/* Cuts the next `bytes` off the scratch memory, on a cache line. */
static void *carve(uintptr_t *at, size_t bytes)
{
	const uintptr_t here = *at;

	*at += ALIGN_UP(bytes, (size_t)CACHE_LINE);
	return (void *)here;
}

/* Lays the buffers out from `base` on and returns their bytes. */
static size_t wave_layout(struct wave *w, uintptr_t base)
{
	const struct pool_compute *c = w->job->compute;
	const uint32_t n_experts = c->model->manifest->n_experts;
	uintptr_t at = base;

	w->experts = carve(&at, MIN(w->pairs, n_experts) * sizeof(*w->experts));
	w->cursors = carve(&at, n_experts * sizeof(*w->cursors));
	w->x = carve(&at, w->pairs * sizeof(*w->x));
	w->pair_of = carve(&at, (size_t)w->tokens * c->topk * sizeof(*w->pair_of));
	w->down_left = carve(&at, DIV_UP((size_t)c->model->manifest->hidden, BLOCK_ROWS_STEP) * sizeof(*w->down_left));
	w->wide = carve(&at, c->x_type == MOE_TYPE_BF16 ? w->tokens * w->y_stride * sizeof(float) : 0);
	w->h = carve(&at, w->pairs * w->h_stride * sizeof(float));
	w->partial = carve(&at, w->pairs * w->y_stride * sizeof(float));
	return at - base;
}

static int wave_scratch(struct wave *w)
{
	struct ffn_job *job = w->job;
	struct scratch_cache *cache = &job->pool->scratch;
	const size_t bytes = wave_layout(w, 0);

	if (!job->scratch || job->scratch->bytes < bytes) {
		job->scratch = scratch_put(cache, job->scratch);
		job->scratch = scratch_get(cache, bytes, job->compute->priority);
	}
	if (!job->scratch)
		return -ENOMEM;
	wave_layout(w, (uintptr_t)job->scratch->base);
	return 0;
}

/* The experts that have pairs, by team, and in `cursors` where the pairs of each begin. */
static void wave_experts(struct wave *w)
{
	const struct ffn_job *job = w->job;
	const struct pool_compute *c = job->compute;
	const struct moe_manifest *m = c->model->manifest;
	const struct moe_record *records = c->model->records + (size_t)c->row * m->n_experts;
	const int32_t *ids = c->ids + (size_t)w->token * c->topk;
	uint32_t n = 0, pairs = 0;

	memset(w->cursors, 0, m->n_experts * sizeof(*w->cursors));
	for (size_t i = 0; i < (size_t)w->tokens * c->topk; i++)
		if (ids[i] >= 0)
			w->cursors[ids[i]]++;
	for (uint32_t t = 0; t < job->pool->queue.n_teams; t++) {
		w->team_experts[t] = n;
		for (uint32_t e = 0; e < m->n_experts; e++) {
			const uint32_t count = w->cursors[e];

			if (!count || job->pool->team_of[records[e].pool] != t)
				continue;
			w->experts[n].number = e;
			w->experts[n].record = resident_record(c->model, c->row, e);
			w->experts[n].first = pairs;
			w->experts[n++].pairs = count;
			pairs += count;
		}
		w->team_experts[t + 1] = n;
	}
	for (uint32_t i = 0; i < n; i++)
		w->cursors[w->experts[i].number] = w->experts[i].first;
}

/* Where token t of the job has its activations as FP32. */
static const float *wave_x(const struct wave *w, uint32_t t)
{
	const struct pool_compute *c = w->job->compute;

	if (c->x_type == MOE_TYPE_BF16)
		return w->wide + (t - w->token) * w->y_stride;
	return (const float *)c->x + (size_t)t * c->model->manifest->hidden;
}

/* Deals the pairs to their experts, in the order of tokens. */
static void wave_pairs(struct wave *w)
{
	const struct pool_compute *c = w->job->compute;
	const int32_t *ids = c->ids + (size_t)w->token * c->topk;

	for (uint32_t t = 0; t < w->tokens; t++)
		for (uint32_t k = 0; k < c->topk; k++) {
			const size_t i = (size_t)t * c->topk + k;
			uint32_t pair;

			if (ids[i] < 0) {
				w->pair_of[i] = -1;
				continue;
			}
			pair = w->cursors[ids[i]]++;
			w->x[pair] = wave_x(w, w->token + t);
			w->pair_of[i] = (int32_t)pair;
		}
}

static void wave_units(struct wave *w)
{
	const struct pool_compute *c = w->job->compute;
	const uint32_t hidden = c->model->manifest->hidden, n_teams = w->job->pool->queue.n_teams;
	const uint32_t n_experts = w->team_experts[n_teams];

	w->gate_rows = block_rows(w->job, c->slice.inter, 2 * c->slice.part[0].width, n_experts);
	w->gate_blocks = DIV_UP(c->slice.inter, w->gate_rows);
	w->down_rows = block_rows(w->job, hidden, c->slice.part[2].width, n_experts);
	w->down_blocks = DIV_UP(hidden, w->down_rows);
	for (uint32_t e = 0; e < n_experts; e++)
		atomic_init(&w->experts[e].gate_up_left, w->gate_blocks);
	for (uint32_t b = 0; b < w->down_blocks; b++)
		atomic_init(&w->down_left[b], n_experts);
	atomic_init(&w->blocks_left, w->down_blocks);
	atomic_init(&w->widen_next, 0);
	atomic_init(&w->widen_left, c->x_type == MOE_TYPE_BF16 ? DIV_UP(w->tokens, WIDEN_TOKENS) : 0);
	for (uint32_t t = 0; t < n_teams; t++)
		w->batch.views[t].units = (w->team_experts[t + 1] - w->team_experts[t]) *
					  (w->gate_blocks + w->down_blocks);
}

int wave_new(struct wave **ret, struct ffn_job *job, uint32_t tokens, uint32_t pairs,
	     void (*run)(struct pool_batch *batch, uint32_t team, uint32_t unit))
{
	const struct pool_compute *c = job->compute;
	struct wave *w = aligned_alloc(_Alignof(struct wave), sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	pool_batch_init(&w->batch, run, c->priority, job->seq);
	w->job = job;
	w->token = job->next_token;
	w->tokens = tokens;
	w->pairs = pairs;
	w->h_stride = row_stride(c->slice.inter);
	w->y_stride = row_stride(c->model->manifest->hidden);
	r = wave_scratch(w);
	if (r < 0) {
		free(w);
		return r;
	}
	wave_experts(w);
	wave_pairs(w);
	wave_units(w);
	*ret = w;
	return 0;
}
