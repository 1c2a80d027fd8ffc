/* SPDX-License-Identifier: MIT */
#include "daemon/pool-wave.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* Bytes of a wave's buffers: with what scratch blocks are rounded up by, 256 MiB a job. Weights are read once per wave,
 * so this is what a long prefill of a large model is bounded by. */
#define WAVE_BYTES ((size_t)224 << 20)

/* With many tokens an expert a unit reads this many bytes of weights, or fewer so that each thread gets several units:
 * what a kernel does once for a call, and activations from the third-level cache, are shared by its rows (0022).
 * With few tokens units are small, so that no thread waits long for another one's last, and a thread takes several
 * neighbours at once: a stream of weights takes 10 KiB until it is read at full speed (docs/decisions/0032). */
#define UNIT_BYTES_MANY ((uint64_t)8192 << 10)
#define UNIT_BYTES_FEW ((uint64_t)128 << 10)
#define TAKE_BYTES_MOST ((uint64_t)2048 << 10)
#define TAKES_PER_THREAD 2 /* of what is left, if all were of that size */
#define MANY_TOKENS 8
/* Each unit of groups reads the expert's activations once: it has so many rows for each of its tokens. */
#define GROUPS_ROWS 4
#define UNIT_BYTES_GROUPS ((uint64_t)1024 << 10)
#define UNITS_PER_THREAD 4
/* A unit multiplies so often at most: what is more urgent waits for its end, milliseconds. Tiles multiply
 * about eight times as fast; the plain kernels take seconds, which is less than a service manager's patience. */
#define UNIT_PRODUCTS ((uint64_t)1 << 29)
#define UNIT_PRODUCTS_GROUPS ((uint64_t)1 << 32)
#define UNIT_PRODUCTS_REF ((uint64_t)1 << 26)
#define BLOCK_ROWS_STEP 16
#define BLOCK_ROWS_FEW 64 /* what units of few tokens are multiples of: four streams of panels (docs/decisions/0021) */
/* And those of many tokens: rows of panels, and of tiles with a lane for each token (docs/decisions/0104). */
#define BLOCK_ROWS_MANY 48

#define ROW_FLOATS (CACHE_LINE / sizeof(float))

/* An odd number of lines, as a packed row has: rows do not meet in the same sets of the caches. */
static size_t row_stride(uint64_t floats)
{
	return ALIGN_UP((size_t)floats, ROW_FLOATS) | ROW_FLOATS;
}

static const struct kernel_ops *ops_of(const struct ffn_job *job, enum moe_part_name part)
{
	return job->pool->kernels->of[job->compute->layout->part[part].format];
}

/* Bytes of a group of an expert's tokens as the operations take them; 0: never in groups. */
static size_t group_bytes(const struct kernel_ops *ops, uint32_t cols)
{
	return ops->groups && cols <= KERNEL_GROUP_COLS ? kernel_group_bytes(ops, cols) : 0;
}

/* A pair's share of the groups, where experts have tokens enough on average. With a few busy experts in a layer of many
 * idle ones a wave takes more than was counted. */
static size_t pair_groups(const struct ffn_job *job, const struct kernel_ops *ops, uint32_t cols)
{
	const struct pool_compute *c = job->compute;
	const size_t bytes = group_bytes(ops, cols);

	return bytes && (size_t)c->tokens * c->topk >= ops->groups->least * c->model->manifest->n_experts
		       ? bytes / KERNEL_GROUP
		       : 0;
}

/* Groups of a wave at most: each expert's last one may be short. */
static size_t groups_most(const struct wave *w, const struct kernel_ops *ops)
{
	return w->pairs / KERNEL_GROUP +
	       MIN(w->pairs / ops->groups->least, w->job->compute->model->manifest->n_experts);
}

void wave_extent(const struct ffn_job *job, uint32_t *ret_tokens, uint32_t *ret_pairs)
{
	const struct pool_compute *c = job->compute;
	const struct kernel_ops *gate = ops_of(job, MOE_PART_GATE), *down = ops_of(job, MOE_PART_DOWN);
	const uint32_t hidden = c->model->manifest->hidden, inter = c->slice->inter;
	const size_t pair_bytes = (row_stride(hidden) + row_stride(inter)) * sizeof(float) +
				  (wave_packs_h(down) ? kernel_packed_bytes(down, inter) : 0) + sizeof(void *) +
				  pair_groups(job, gate, hidden) + pair_groups(job, down, inter);
	const size_t token_bytes = c->topk * sizeof(int32_t) +
				   (wave_packs_x(c, gate) ? kernel_packed_bytes(gate, hidden) : 0) +
				   (wave_widens_x(c, gate) ? row_stride(hidden) * sizeof(float) : 0);
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

static bool many_tokens(const struct wave *w)
{
	return w->pairs > MANY_TOKENS * w->n_experts;
}

static uint64_t unit_products(const struct wave *w, bool groups)
{
	if (w->job->pool->kernels == kernels_get(ISA_REF))
		return UNIT_PRODUCTS_REF;
	return groups ? UNIT_PRODUCTS_GROUPS : UNIT_PRODUCTS;
}

/* Of gate and up, or of down. */
static uint32_t block_rows(const struct wave *w, bool down, uint64_t row_bytes)
{
	const struct kernel_ops *ops = down ? w->down_ops : w->gate_ops;
	const uint64_t hidden = w->job->compute->model->manifest->hidden, inter = w->job->compute->slice->inter;
	const uint64_t rows = down ? hidden : inter, cols = down ? inter : 2 * hidden;
	const uint64_t threads = w->job->pool->n_workers, experts = w->n_experts;
	const bool groups = ops->groups && w->pairs >= ops->groups->least * experts, many = many_tokens(w);
	const uint64_t bytes = groups ? UNIT_BYTES_GROUPS : many ? UNIT_BYTES_MANY : UNIT_BYTES_FEW;
	const uint64_t by_bytes = MAX(bytes / MAX(row_bytes, 1), many ? 1 : BLOCK_ROWS_FEW);
	const uint64_t by_tokens = groups ? GROUPS_ROWS * w->pairs / experts : 0;
	/* Where arithmetic is what takes time, the fullest expert's units do: if all are equal that is the same. */
	const uint64_t equals = many ? w->pairs : experts, each = many ? w->pairs_most : 1;
	const uint64_t by_threads = rows * equals / (each * threads * UNITS_PER_THREAD);
	const uint64_t by_products = unit_products(w, groups) / MAX(cols * w->pairs_most, 1);
	const uint64_t most = MIN(MIN(MAX(by_bytes, by_tokens), by_threads), by_products);
	uint64_t n = ALIGN_UP(most, !many && most >= BLOCK_ROWS_FEW ? BLOCK_ROWS_FEW : BLOCK_ROWS_STEP);

	if (many && !groups && most >= BLOCK_ROWS_MANY)
		n = MIN(most, BLOCK_ROWS_MAX) / BLOCK_ROWS_MANY * BLOCK_ROWS_MANY;
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
	const uint32_t n_experts = c->model->manifest->n_experts, shares = w->n_shares;
	/* Of each share the first and the last block may be short. */
	const size_t gates = DIV_UP((size_t)c->slice->inter, BLOCK_ROWS_STEP) + 2 * shares;
	const size_t downs = DIV_UP((size_t)c->model->manifest->hidden, BLOCK_ROWS_STEP) + 2 * shares;
	uintptr_t at = base;

	w->shares = carve(&at, shares * sizeof(*w->shares));
	w->gate_blocks = carve(&at, gates * sizeof(*w->gate_blocks));
	w->down_blocks = carve(&at, downs * sizeof(*w->down_blocks));
	w->experts = carve(&at, MIN(w->pairs, n_experts) * sizeof(*w->experts));
	w->ready = carve(&at, MIN(w->pairs, n_experts) * sizeof(*w->ready));
	w->matrices = carve(&at, MIN(w->pairs, n_experts) * shares * sizeof(*w->matrices));
	w->cursors = carve(&at, n_experts * sizeof(*w->cursors));
	w->home = carve(&at, n_experts * sizeof(*w->home));
	w->deal = carve(&at, w->job->replicas ? MIN(w->pairs, n_experts) * sizeof(*w->deal) : 0);
	w->x = carve(&at, w->pairs * sizeof(*w->x));
	w->pair_of = carve(&at, (size_t)w->tokens * c->topk * sizeof(*w->pair_of));
	w->down_left = carve(&at, downs * sizeof(*w->down_left));
	w->x_packed = carve(&at, wave_packs_x(c, w->gate_ops) ? w->tokens * w->x_bytes : 0);
	w->wide = carve(&at, wave_widens_x(c, w->gate_ops) ? w->tokens * w->y_stride * sizeof(float) : 0);
	w->h = carve(&at, w->pairs * w->h_stride * sizeof(float));
	w->h_packed = carve(&at, wave_packs_h(w->down_ops) ? w->pairs * w->h_bytes : 0);
	w->x_groups = carve(&at, w->x_group ? groups_most(w, w->gate_ops) * w->x_group : 0);
	w->h_groups = carve(&at, w->h_group ? groups_most(w, w->down_ops) * w->h_group : 0);
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

/* What each share has of the slice. */
static void wave_shares(struct wave *w)
{
	const struct pool_compute *c = w->job->compute;

	for (uint32_t i = 0; i < w->n_shares; i++)
		moe_slice_share(&w->shares[i], c->slice, c->layout, i);
}

static void wave_expert(struct wave *w, struct wave_expert *ret, uint32_t number, uint32_t first, uint32_t pairs)
{
	const struct pool_compute *c = w->job->compute;
	const uint32_t home = w->home[number];
	const uint32_t node = home == DEAL_ROWS ? 0 : w->job->pool->node_of[home];

	ret->lane = home == DEAL_ROWS ? &w->rows : w->whole[home];
	ret->number = number;
	ret->first = first;
	ret->pairs = pairs;
	for (uint32_t i = 0; i < w->n_shares; i++) {
		const uint8_t *record = home == DEAL_ROWS || i == node
						? resident_share(c->model, c->row, number, i)
						: replicas_share(c->model->replicas, w->job->replicas, number, node, i);
		struct wave_matrices *m = wave_matrices(w, ret, i);

		m->gate = record_matrix(record, c->layout, &w->shares[i], MOE_PART_GATE, RECORD_IN_POOL);
		m->up = record_matrix(record, c->layout, &w->shares[i], MOE_PART_UP, RECORD_IN_POOL);
		m->down = record_matrix(record, c->layout, &w->shares[i], MOE_PART_DOWN, RECORD_IN_POOL);
	}
}

/* Which experts that have pairs are whole, by the copies that there are. */
static void wave_deal(struct wave *w)
{
	const struct pool *pool = w->job->pool;
	const struct pool_compute *c = w->job->compute;
	const uint32_t n_experts = c->model->manifest->n_experts;
	uint64_t cost = 0;
	uint32_t n = 0;

	for (uint32_t e = 0; e < n_experts; e++) {
		struct deal_expert d = {.number = e, .pairs = w->cursors[e]};

		w->home[e] = DEAL_ROWS;
		if (!d.pairs || !w->job->replicas)
			continue;
		cost += deal_cost(d.pairs);
		for (uint32_t t = 0; t < pool->queue.n_teams; t++)
			if (pool->node_of[t] < w->n_shares &&
			    replicas_has(w->job->replicas, e, c->model->manifest->n_pools, pool->node_of[t]))
				d.teams |= 1u << t;
		if (d.teams)
			w->deal[n++] = d;
	}
	if (n == 0 || pool->queue.n_teams < 2)
		return;
	deal_whole(w->deal, n, pool->queue.n_teams, cost);
	for (uint32_t i = 0; i < n; i++)
		w->home[w->deal[i].number] = w->deal[i].team;
}

/* Those of one lane, from `experts` on; their pairs begin where `cursors` says afterwards. */
static void lane_experts(struct wave *w, struct wave_lane *lane, uint32_t home, uint32_t *pairs)
{
	lane->experts = w->experts + w->n_experts;
	lane->ready = w->ready + w->n_experts;
	for (uint32_t e = 0; e < w->job->compute->model->manifest->n_experts; e++) {
		const uint32_t count = w->cursors[e];

		if (!count || w->home[e] != home)
			continue;
		wave_expert(w, &w->experts[w->n_experts++], e, *pairs, count);
		*pairs += count;
	}
	lane->n_experts = (uint32_t)(w->experts + w->n_experts - lane->experts);
}

static struct wave_lane *lane_new(struct wave *w, pool_run *run)
{
	struct wave_lane *lane = aligned_alloc(_Alignof(struct wave_lane), sizeof(*lane));

	if (lane) {
		pool_batch_init(&lane->batch, run, w->job->compute->priority, w->job->place);
		lane->wave = w;
	}
	return lane;
}

/* A team whose lane cannot be made has its experts cut by rows. */
static void wave_lanes(struct wave *w, pool_run *run)
{
	const uint32_t n_experts = w->job->compute->model->manifest->n_experts;

	for (uint32_t e = 0; w->job->replicas && e < n_experts; e++) {
		const uint32_t home = w->home[e];

		if (home == DEAL_ROWS || w->whole[home])
			continue;
		w->whole[home] = lane_new(w, run);
		if (!w->whole[home])
			w->home[e] = DEAL_ROWS;
	}
}

/* The experts that have pairs, and in `cursors` where the pairs of each begin. */
static void wave_experts(struct wave *w, pool_run *run)
{
	const struct pool_compute *c = w->job->compute;
	const uint32_t n_experts = c->model->manifest->n_experts;
	const int32_t *ids = c->ids + (size_t)w->token * c->topk;
	uint32_t pairs = 0;

	memset(w->cursors, 0, n_experts * sizeof(*w->cursors));
	w->pairs_most = 0;
	for (size_t i = 0; i < (size_t)w->tokens * c->topk; i++)
		if (ids[i] >= 0)
			w->cursors[ids[i]]++;
	for (uint32_t e = 0; e < n_experts; e++)
		w->pairs_most = MAX(w->pairs_most, w->cursors[e]);
	wave_deal(w);
	wave_lanes(w, run);
	w->n_experts = 0;
	lane_experts(w, &w->rows, DEAL_ROWS, &pairs);
	for (uint32_t t = 0; t < w->job->pool->queue.n_teams; t++)
		if (w->whole[t])
			lane_experts(w, w->whole[t], t, &pairs);
	for (uint32_t i = 0; i < w->n_experts; i++)
		w->cursors[w->experts[i].number] = w->experts[i].first;
}

/* Where token t of the wave has its activations as gate and up take them. */
static const void *wave_x(const struct wave *w, uint32_t t)
{
	const struct pool_compute *c = w->job->compute;

	if (wave_packs_x(c, w->gate_ops))
		return w->x_packed + t * w->x_bytes;
	return (const float *)c->x + (size_t)(w->token + t) * c->model->manifest->hidden;
}

/* Which experts' tokens go in groups, and where. */
static void wave_groups(struct wave *w)
{
	uint8_t *x = w->x_groups, *h = w->h_groups;

	for (uint32_t i = 0; i < w->n_experts; i++) {
		struct wave_expert *e = &w->experts[i];

		e->x_groups = w->x_group && e->pairs >= w->gate_ops->groups->least ? x : NULL;
		e->h_groups = w->h_group && e->pairs >= w->down_ops->groups->least ? h : NULL;
		if (e->x_groups)
			x += DIV_UP(e->pairs, KERNEL_GROUP) * w->x_group;
		if (e->h_groups)
			h += DIV_UP(e->pairs, KERNEL_GROUP) * w->h_group;
	}
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
			w->x[pair] = wave_x(w, t);
			w->pair_of[i] = (int32_t)pair;
		}
}

static void pack_init(struct wave_pack *pack, bool needed, uint32_t rows, uint32_t each)
{
	atomic_init(&pack->next, 0);
	atomic_init(&pack->left, needed ? DIV_UP(rows, each) : 0);
}

/* Bytes of the codes of one row of a slice's part. */
static uint64_t row_bytes(const struct pool_compute *c, enum moe_part_name part)
{
	return c->slice->plane[part][MOE_PLANE_CODES].width /
	       moe_band_rows(c->layout->part[part].format, MOE_PLANE_CODES);
}

/* Cuts rows first .. first + rows of what a share has into blocks. */
static uint32_t cut_share(struct wave_block *blocks, uint32_t share, uint32_t out, uint32_t rows, uint32_t step)
{
	uint32_t n = 0;

	for (uint32_t row = 0; row < rows; row += step)
		blocks[n++] = (struct wave_block){
			.share = share, .row = row, .rows = MIN(step, rows - row), .out = out + row};
	return n;
}

/* Blocks of rows of gate and up, or of down, of each team's shares. */
static void cut_blocks(const struct wave *w, struct wave_cut *ret, struct wave_block *blocks, bool down)
{
	const struct pool_compute *c = w->job->compute;
	const struct pool *pool = w->job->pool;
	const uint32_t hidden = c->model->manifest->hidden;
	const uint64_t width = down ? row_bytes(c, MOE_PART_DOWN) : 2 * row_bytes(c, MOE_PART_GATE);
	const uint32_t step = block_rows(w, down, width);
	uint32_t n = 0;

	ret->bytes = MAX(step * width, 1);
	for (uint32_t t = 0; t < pool->queue.n_teams; t++) {
		ret->team[t] = n;
		for (uint32_t i = 0; i < w->n_shares; i++) {
			const struct moe_slice *share = &w->shares[i];
			const uint32_t row = moe_share_row(hidden, i, w->n_shares);

			if (pool->team_of[i] != t)
				continue;
			n += down ? cut_share(blocks + n, i, row, moe_share_row(hidden, i + 1, w->n_shares) - row, step)
				  : cut_share(blocks + n, i, share->first - c->slice->first, share->inter, step);
		}
		ret->team[t + 1] = n;
	}
}

/* The same blocks, all of them one team's. */
static void cut_whole(struct wave_cut *ret, const struct wave_cut *rows, uint32_t team, uint32_t n_teams)
{
	ret->bytes = rows->bytes;
	for (uint32_t t = 0; t <= n_teams; t++)
		ret->team[t] = t > team ? rows->team[n_teams] : 0;
}

static void lane_begin(struct wave_lane *lane)
{
	lane->threads = DIV_UP(lane->wave->job->pool->n_workers, lane->wave->job->pool->queue.n_teams);
	pthread_mutex_init(&lane->ready_lock, NULL);
	lane->n_ready = 0;
}

static void wave_units(struct wave *w)
{
	const struct pool_compute *c = w->job->compute;
	const uint32_t n_teams = w->job->pool->queue.n_teams;
	struct wave_lane *rows = &w->rows;

	cut_blocks(w, &rows->gate, w->gate_blocks, false);
	cut_blocks(w, &rows->down, w->down_blocks, true);
	lane_begin(rows);
	for (uint32_t t = 0; t < n_teams; t++)
		if (w->whole[t]) {
			cut_whole(&w->whole[t]->gate, &rows->gate, t, n_teams);
			cut_whole(&w->whole[t]->down, &rows->down, t, n_teams);
			lane_begin(w->whole[t]);
		}
	for (uint32_t e = 0; e < w->n_experts; e++) {
		struct wave_expert *expert = &w->experts[e];

		atomic_init(&expert->gate_up_left, rows->gate.team[n_teams]);
		pack_init(&expert->x_pack, expert->x_groups, expert->pairs, KERNEL_GROUP);
		pack_init(&expert->h_pack, wave_packs_h(w->down_ops), expert->pairs,
			  expert->h_groups ? KERNEL_GROUP : PACK_ROWS);
	}
	for (uint32_t b = 0; b < rows->down.team[n_teams]; b++)
		atomic_init(&w->down_left[b], w->n_experts);
	atomic_init(&w->blocks_left, rows->down.team[n_teams]);
	pack_init(&w->x_pack, wave_packs_x(c, w->gate_ops), w->tokens, PACK_ROWS);
}

struct wave_place lane_place(const struct wave_lane *lane, uint32_t team, uint32_t number)
{
	const uint32_t gate_units = lane_gate_units(lane, team);
	const bool down = number >= gate_units;
	const struct wave_cut *cut = down ? &lane->down : &lane->gate;
	const uint32_t first = cut->team[team], each = cut->team[team + 1] - first;
	const uint32_t in = down ? number - gate_units : number;

	return (struct wave_place){down, in / each, first + in % each, each - in % each};
}

/* As many as there are of the expert's, while enough is left that the other threads can do meanwhile. That is what
 * comes after them, but for the expert's own down rows. Only the lane itself is read: the job may be gone. */
static uint32_t lane_several(const struct pool_batch *batch, uint32_t team, uint32_t number, uint32_t left)
{
	const struct wave_lane *lane = container_of(batch, const struct wave_lane, batch);
	const struct wave_place place = lane_place(lane, team, number);
	const uint64_t downs = (lane->down.team[team + 1] - lane->down.team[team]) * lane->down.bytes;
	const uint32_t gates = lane_gate_units(lane, team);
	const uint64_t rest = place.down ? downs * lane->n_experts - (number - gates) * lane->down.bytes
					 : (gates - number) * lane->gate.bytes + place.expert * downs;
	const uint64_t bytes = MIN(rest / (lane->threads * TAKES_PER_THREAD), TAKE_BYTES_MOST);

	return (uint32_t)MIN(MAX(bytes / (place.down ? &lane->down : &lane->gate)->bytes, 1), MIN(place.n, left));
}

int wave_new(struct wave **ret, struct ffn_job *job, uint32_t tokens, uint32_t pairs, pool_run *run)
{
	const struct pool_compute *c = job->compute;
	struct wave *w = aligned_alloc(_Alignof(struct wave), sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	pool_batch_init(&w->rows.batch, run, c->priority, job->place);
	w->rows.wave = w;
	memset(w->whole, 0, sizeof(w->whole));
	w->job = job;
	w->token = job->next_token;
	w->tokens = tokens;
	w->pairs = pairs;
	w->n_shares = c->layout->shares;
	w->gate_ops = ops_of(job, MOE_PART_GATE);
	w->down_ops = ops_of(job, MOE_PART_DOWN);
	w->act = record_act(c->model->manifest->activation, c->model->manifest->limit);
	w->h_stride = row_stride(c->slice->inter);
	w->y_stride = row_stride(c->model->manifest->hidden);
	w->x_bytes = kernel_packed_bytes(w->gate_ops, c->model->manifest->hidden);
	w->h_bytes = kernel_packed_bytes(w->down_ops, c->slice->inter);
	w->x_group = group_bytes(w->gate_ops, c->model->manifest->hidden);
	w->h_group = group_bytes(w->down_ops, c->slice->inter);
	r = wave_scratch(w);
	if (r < 0) {
		free(w);
		return r;
	}
	wave_shares(w);
	wave_experts(w, run);
	wave_groups(w);
	wave_pairs(w);
	wave_units(w);
	w->rows.batch.several = many_tokens(w) || job->pool->kernels == kernels_get(ISA_REF) ? NULL : lane_several;
	for (uint32_t t = 0; t < job->pool->queue.n_teams; t++)
		if (w->whole[t])
			w->whole[t]->batch.several = w->rows.batch.several;
	*ret = w;
	return 0;
}
