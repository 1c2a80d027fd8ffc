/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "plan-reads.h"
#include "policy/heat.h"
#include "uapi/moe_ring.h"

/* What is only needed while a plan is made. */
struct plan_work {
	const struct plan_params *params;
	struct cache *cache;
	uint64_t *keys; /* [n_experts] heat of the missing experts, hottest first */
	uint32_t n_missing;
	uint32_t *pairs;    /* [n_experts] */
	uint32_t *seen;     /* [n_experts] the last token that named the expert, plus 1 */
	int32_t *admit;     /* [n_experts] experts that take free cache slots */
	int32_t *reads;     /* [n_experts] experts that are read in the pool */
	bool *touched;      /* [n_experts] */
	uint64_t all_pairs; /* with an id >= 0 */
};

/* The plan and its tables in one block of memory, all zero; the tables' room is that of n_experts. */
static struct moe_plan *plan_alloc(uint32_t n_experts, uint32_t tokens, uint32_t topk)
{
	const size_t pairs = (size_t)tokens * topk;
	struct moe_plan *plan;

	plan = calloc(1,
		      sizeof *plan +
			      n_experts * (sizeof *plan->copies + sizeof *plan->requests + sizeof *plan->expert_map) +
			      pairs * (2 * sizeof(int32_t) + sizeof(float)));
	if (!plan)
		return NULL;
	plan->tokens = tokens;
	plan->topk = topk;
	plan->n_experts = n_experts;
	plan->copies = (struct moe_copy *)(plan + 1);
	plan->requests = (struct cache_request *)(plan->copies + n_experts);
	plan->expert_map = (int32_t *)(plan->requests + n_experts);
	plan->ids = plan->expert_map + n_experts;
	plan->cpu_topk_ids = plan->ids + pairs;
	plan->weights = (float *)(plan->cpu_topk_ids + pairs);
	memset(plan->expert_map, -1, n_experts * sizeof *plan->expert_map);
	return plan;
}

static int work_init(struct plan_work *ret, uint32_t n_experts, struct moe_error *err)
{
	ret->keys = calloc(n_experts, sizeof *ret->keys + 4 * sizeof(uint32_t) + sizeof(bool));
	if (!ret->keys)
		return moe_error_set(err, -ENOMEM, "moe_plan: no memory");
	ret->pairs = (uint32_t *)(ret->keys + n_experts);
	ret->seen = ret->pairs + n_experts;
	ret->admit = (int32_t *)(ret->seen + n_experts);
	ret->reads = ret->admit + n_experts;
	ret->touched = (bool *)(ret->reads + n_experts);
	return 0;
}

static void work_fini(struct plan_work *work)
{
	free(work->keys);
}

static int check_shape(const struct plan_params *p, struct moe_error *err)
{
	if (p->tokens == 0 || p->tokens > p->max_tokens)
		return moe_error_set(err, -EINVAL, "moe_plan: tokens %u found, 1 to %u (max_tokens) expected",
				     p->tokens, p->max_tokens);
	if (p->topk == 0 || p->topk > MOE_TOPK_MAX)
		return moe_error_set(err, -EINVAL, "moe_plan: topk %u found, 1 to %u expected", p->topk, MOE_TOPK_MAX);
	if ((uint64_t)p->tokens * p->topk > MOE_PAIRS_MAX)
		return moe_error_set(err, -EINVAL,
				     "moe_plan: %u tokens with topk %u are more than %u pairs: plan fewer tokens",
				     p->tokens, p->topk, MOE_PAIRS_MAX);
	if (p->mode != MOE_MODE_DECODE && p->mode != MOE_MODE_PREFETCH && p->mode != MOE_MODE_FULL)
		return moe_error_set(err, -EINVAL, "moe_plan: no such mode: %d", (int)p->mode);
	if (!p->ids || !p->weights)
		return moe_error_set(err, -EINVAL, "moe_plan: ids and weights must be given");
	return 0;
}

/* Takes the ids over once, checks them, and counts each expert's pairs. */
static int read_ids(struct plan_work *work, struct moe_plan *plan, struct moe_error *err)
{
	const struct plan_params *p = work->params;
	const bool first_choices = work->cache && work->cache->policy->first_choices;
	uint32_t t, k;

	for (t = 0; t < p->tokens; t++) {
		for (k = 0; k < p->topk; k++) {
			const size_t at = (size_t)t * p->topk + k;
			const int32_t id = p->ids[at];

			plan->ids[at] = id;
			plan->weights[at] = p->weights[at];
			if (id == -1)
				continue;
			if (id < 0 || (uint32_t)id >= plan->n_experts)
				return moe_error_set(err, -EINVAL, "moe_plan: ids[%u][%u]: %d found, -1 to %u expected",
						     t, k, id, plan->n_experts - 1);
			if (work->seen[id] == t + 1)
				return moe_error_set(err, -EINVAL,
						     "moe_plan: ids[%u][%u]: expert %d stands twice in one token", t, k,
						     id);
			work->seen[id] = t + 1;
			work->pairs[id]++;
			work->touched[id] |= !first_choices || k < p->cache_topk;
			work->all_pairs++;
		}
	}
	return 0;
}

static int32_t slot_of(const struct cache *cache, int32_t expert)
{
	return cache ? cache->cache_map[expert] : -1;
}

static void list_requests(struct plan_work *work, struct moe_plan *plan)
{
	uint32_t e;

	for (e = 0; e < plan->n_experts; e++) {
		if (work->pairs[e] == 0)
			continue;
		plan->requests[plan->n_requests++] = (struct cache_request){(int32_t)e, work->pairs[e],
									    work->touched[e], false};
		if (slot_of(work->cache, (int32_t)e) >= 0) {
			plan->pairs_resident += work->pairs[e];
			plan->n_resident++;
		} else {
			work->keys[work->n_missing++] = heat_key(work->pairs[e], (int32_t)e);
		}
	}
}

static void tell_tokens(const struct plan_work *work, const struct moe_plan *plan)
{
	const struct plan_params *p = work->params;

	cache_route(work->cache, &(struct policy_tokens){p->tokens, p->topk, plan->ids, plan->weights});
}

static void plan_decode(struct plan_work *work, struct moe_plan *plan)
{
	const struct plan_params *p = work->params;

	tell_tokens(work, plan);
	if (p->zero_copy != MOE_ZERO_COPY_OFF)
		plan_pass_slots(p, work->cache, plan);
	plan->n_copies = plan->n_cache_copies = cache_update(work->cache, plan->requests, plan->n_requests,
							     MIN(p->update_expert_num, plan->n_experts), plan->copies);
	if (p->zero_copy != MOE_ZERO_COPY_OFF)
		plan_read_rest(p, work->cache, plan, work->keys);
}

static uint32_t choose_n_copy(const struct plan_work *work, const struct moe_plan *plan)
{
	const struct plan_params *p = work->params;
	const uint32_t n_free = work->cache->n_free;
	const uint32_t room = plan_reads_once(p, plan->n_experts, 1) ? work->n_missing : n_free + p->miss_slots;
	uint32_t n;

	if (p->mode == MOE_MODE_FULL)
		return UINT32_MAX;
	if (p->n_copy != UINT32_MAX)
		return p->n_copy;
	if (p->rule == MOE_N_COPY_STAIRS)
		return moe_ncopy_staircase(p->tokens);
	n = ncopy_choose(p->costs, work->keys, work->n_missing, room, p->slot_bytes, plan->n_requests - work->n_missing,
			 plan->pairs_resident);
	/* The model knows this step alone; what a free cache slot gets serves later ones too. */
	return MAX(n, MIN(n_free, p->update_expert_num));
}

/* From the expert of rank `first` on: into the layer's miss buffer, or read in the pool. */
static void plan_for_once(struct plan_work *work, struct moe_plan *plan, uint32_t first)
{
	const struct plan_params *p = work->params;
	const struct cache *cache = work->cache;
	const bool room_for_all = plan->n_experts - cache->n_cached <= p->miss_slots;
	const uint32_t end = p->zero_copy == MOE_ZERO_COPY_ALWAYS ? work->n_missing : plan->n_copy;
	uint32_t i, n = 0, n_reads = 0;

	for (i = first; i < end; i++) {
		const int32_t expert = heat_expert(work->keys[i]);

		if (plan_reads_once(p, plan->n_experts, heat_pairs(work->keys[i]))) {
			work->reads[n_reads++] = expert;
		} else if (i < plan->n_copy && n < p->miss_slots) {
			const uint32_t place = room_for_all ? (uint32_t)cache->miss_map[expert] : n;

			plan->copies[plan->n_copies++] = (struct moe_copy){expert,
									   (int32_t)(plan->cache_slots + place)};
			plan->expert_map[expert] = (int32_t)(plan->cache_slots + place);
			n++;
		}
	}
	for (i = 0; i < n_reads; i++)
		plan_add_read(plan, work->reads[i]);
}

/* How many of the hottest the device may not read in the pool. */
static uint32_t count_hot(const struct plan_work *work, const struct moe_plan *plan)
{
	uint32_t n = 0;

	while (n < work->n_missing && !plan_may_read(work->params, plan->n_experts, heat_pairs(work->keys[n])))
		n++;
	return n;
}

/* The hottest missing experts go to the device; the first of them into cache slots that are free. */
static void plan_prefetch(struct plan_work *work, struct moe_plan *plan)
{
	struct cache *cache = work->cache;
	uint32_t i, n_admit, admitted = 0;

	heat_sort(work->keys, work->n_missing);
	plan->n_copy = MIN(choose_n_copy(work, plan), work->n_missing);
	n_admit = MIN(plan->n_copy, cache->n_free);
	if (work->params->zero_copy == MOE_ZERO_COPY_ALWAYS)
		n_admit = MIN(n_admit, count_hot(work, plan));
	for (i = 0; i < plan->n_requests && admitted < n_admit; i++) {
		const struct cache_request *r = &plan->requests[i];

		if (cache->cache_map[r->expert] < 0 && heat_key(r->pairs, r->expert) >= work->keys[n_admit - 1])
			work->admit[admitted++] = r->expert;
	}
	tell_tokens(work, plan);
	cache_prefetch(cache, plan->requests, plan->n_requests, work->admit, n_admit, plan->copies);
	plan->n_copies = plan->n_cache_copies = n_admit;
	plan_for_once(work, plan, n_admit);
}

/* Completes the device's map from the cache and gives the CPU what is not in it. */
static void split_pairs(const struct plan_work *work, struct moe_plan *plan)
{
	const size_t pairs = (size_t)plan->tokens * plan->topk;
	size_t i;

	for (i = 0; i < plan->n_requests; i++) {
		const struct cache_request *r = &plan->requests[i];
		int32_t slot = plan->expert_map[r->expert];

		if (slot < 0)
			slot = plan->expert_map[r->expert] = slot_of(work->cache, r->expert);
		if (slot < 0)
			plan->pairs_cpu += r->pairs;
		else if ((uint32_t)slot < plan->cache_slots)
			plan->pairs_hit += r->pairs;
		else if ((uint32_t)slot < plan->first_read)
			plan->pairs_miss_buffer += r->pairs;
		else
			plan->pairs_pool += r->pairs;
		plan->n_device += slot >= 0;
		plan->n_cpu += slot < 0;
	}
	for (i = 0; i < pairs; i++) {
		const int32_t id = plan->ids[i];

		plan->cpu_topk_ids[i] = id >= 0 && plan->expert_map[id] < 0 ? id : -1;
	}
	assert(plan->pairs_hit + plan->pairs_miss_buffer + plan->pairs_pool + plan->pairs_cpu == work->all_pairs);
}

static uint32_t count_cpu_experts(struct plan_work *work, const struct moe_plan *plan)
{
	const size_t pairs = (size_t)plan->tokens * plan->topk;
	uint32_t n = 0;
	size_t i;

	memset(work->seen, 0, plan->n_experts * sizeof *work->seen);
	for (i = 0; i < pairs; i++)
		if (plan->cpu_topk_ids[i] >= 0)
			n += work->seen[plan->cpu_topk_ids[i]]++ == 0;
	return n;
}

/* Whether choice k of a token is one of its `defer` weakest and not its strongest. */
static bool may_wait(const int32_t *ids, const float *weights, uint32_t topk, uint32_t k, uint32_t defer)
{
	uint32_t i, stronger = 0, weaker = 0;

	for (i = 0; i < topk; i++) {
		if (ids[i] < 0 || i == k)
			continue;
		if (weights[i] > weights[k] || (weights[i] == weights[k] && i < k))
			stronger++;
		else
			weaker++;
	}
	return stronger > 0 && weaker < defer;
}

/* Moves the pairs that wait from the plan to `later`, which becomes the plan's if there are any. */
static void defer_pairs(struct plan_work *work, struct moe_plan *plan, struct moe_plan *later)
{
	const size_t pairs = (size_t)plan->tokens * plan->topk;
	size_t i;

	for (i = 0; i < pairs; i++) {
		const size_t token = i - i % plan->topk;

		later->cpu_topk_ids[i] = -1;
		if (plan->cpu_topk_ids[i] < 0 || !may_wait(plan->ids + token, plan->weights + token, plan->topk,
							   (uint32_t)(i - token), work->params->defer))
			continue;
		later->cpu_topk_ids[i] = plan->cpu_topk_ids[i];
		plan->cpu_topk_ids[i] = -1;
		later->pairs_cpu++;
	}
	if (later->pairs_cpu == 0) {
		free(later);
		return;
	}
	memcpy(later->ids, later->cpu_topk_ids, pairs * sizeof *later->ids);
	memcpy(later->weights, plan->weights, pairs * sizeof *later->weights);
	later->mode = plan->mode;
	later->layer = plan->layer;
	later->frozen = plan->frozen;
	later->late = true;
	later->n_cpu = count_cpu_experts(work, later);
	plan->n_cpu = count_cpu_experts(work, plan);
	plan->pairs_cpu -= later->pairs_cpu;
	plan->later = later;
}

int plan_new(struct moe_plan **ret, struct cache *cache, uint32_t n_experts, const struct plan_params *params,
	     struct moe_error *err)
{
	struct plan_work work = {.params = params, .cache = cache};
	struct moe_plan *plan, *later = NULL;
	int r = check_shape(params, err);

	if (r == 0)
		r = work_init(&work, n_experts, err);
	if (r < 0)
		return r;
	plan = plan_alloc(n_experts, params->tokens, params->topk);
	if (params->defer)
		later = plan_alloc(n_experts, params->tokens, params->topk);
	if (plan && (later || !params->defer))
		r = read_ids(&work, plan, err);
	else
		r = moe_error_set(err, -ENOMEM, "moe_plan: no memory for %u tokens", params->tokens);
	if (r < 0) {
		free(plan);
		free(later);
		work_fini(&work);
		return r;
	}
	plan->mode = params->mode;
	plan->layer = params->layer;
	plan->frozen = params->frozen;
	plan->cache_slots = cache ? cache->n_slots : 0;
	plan->first_read = plan->cache_slots + params->miss_slots;
	list_requests(&work, plan);
	if (cache && !params->frozen) {
		if (params->mode == MOE_MODE_DECODE)
			plan_decode(&work, plan);
		else
			plan_prefetch(&work, plan);
		if (params->reuse)
			plan_note_reuse(params, plan);
	}
	split_pairs(&work, plan);
	if (later)
		defer_pairs(&work, plan, later);
	work_fini(&work);
	*ret = plan;
	return 0;
}

int plan_new_fill(struct moe_plan **ret, uint32_t layer, uint32_t n_experts, uint32_t cache_slots,
		  const struct moe_copy *copies, uint32_t n, struct moe_error *err)
{
	struct moe_plan *plan = plan_alloc(n_experts, 0, 0);

	if (!plan)
		return moe_error_set(err, -ENOMEM, "no memory for the copies of %u experts", n);
	plan->mode = MOE_MODE_DECODE;
	plan->layer = layer;
	plan->cache_slots = cache_slots;
	memcpy(plan->copies, copies, n * sizeof *copies);
	plan->n_copies = plan->n_cache_copies = n;
	*ret = plan;
	return 0;
}

void moe_plan_view(const struct moe_plan *plan, struct moe_plan_view *ret)
{
	*ret = (struct moe_plan_view){
		.mode = plan->mode,
		.layer = plan->layer,
		.tokens = plan->tokens,
		.topk = plan->topk,
		.n_copy = plan->n_copy,
		.cpu_topk_ids = plan->cpu_topk_ids,
		.expert_map = plan->expert_map,
		.copy_map = plan->copies,
		.n_copies = plan->n_copies,
		.pairs_hit = plan->pairs_hit,
		.pairs_miss_buffer = plan->pairs_miss_buffer,
		.pairs_cpu = plan->pairs_cpu,
		.pairs_resident = plan->pairs_resident,
		.deferred_topk_ids = plan->later ? plan->later->cpu_topk_ids : NULL,
		.pairs_deferred = plan->later ? plan->later->pairs_cpu : 0,
		.pairs_pool = plan->pairs_pool,
		.n_reads = plan->n_reads,
	};
}

struct moe_plan *moe_plan_free(struct moe_plan *plan)
{
	if (plan && plan->discard)
		plan->discard(plan);
	if (plan)
		free(plan->later);
	free(plan);
	return NULL;
}
