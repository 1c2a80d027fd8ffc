/* SPDX-License-Identifier: MIT */
#include "plan-reads.h"

#include "policy/heat.h"

bool plan_may_read(const struct plan_params *params, uint32_t n_experts, uint32_t pairs)
{
	/* Steps of more pairs go through the device's other path, which reads weights more than once. */
	return params->zero_copy != MOE_ZERO_COPY_OFF && pairs <= params->read_pairs &&
	       (uint64_t)params->tokens * params->topk < (uint64_t)n_experts * params->read_pairs;
}

bool plan_reads_once(const struct plan_params *params, uint32_t n_experts, uint32_t pairs)
{
	return plan_may_read(params, n_experts, pairs) &&
	       (params->zero_copy == MOE_ZERO_COPY_ALWAYS || ncopy_read_pays(params->costs, 1, params->slot_bytes));
}

static bool is_missing(const struct cache *cache, const struct cache_request *r)
{
	return cache->cache_map[r->expert] < 0;
}

void plan_pass_slots(const struct plan_params *params, struct cache *cache, struct moe_plan *plan)
{
	const int32_t coldest = cache->n_free == 0 && cache->n_cached > 0 ? cache_sort(cache)[0] : -1;
	uint32_t i;

	for (i = 0; i < plan->n_requests; i++) {
		struct cache_request *r = &plan->requests[i];

		if (!is_missing(cache, r) || !plan_may_read(params, plan->n_experts, r->pairs))
			continue;
		r->passes = params->zero_copy == MOE_ZERO_COPY_ALWAYS ||
			    ncopy_read_pays(params->costs,
					    reuse_expect(params->reuse, r->expert, coldest, cache->n_slots),
					    params->slot_bytes);
	}
}

void plan_add_read(struct moe_plan *plan, int32_t expert)
{
	const int32_t slot = (int32_t)(plan->first_read + plan->n_reads);

	plan->copies[plan->n_copies + plan->n_reads++] = (struct moe_copy){expert, slot};
	plan->expert_map[expert] = slot;
}

void plan_read_rest(const struct plan_params *params, const struct cache *cache, struct moe_plan *plan, uint64_t *keys)
{
	struct ncopy_rest rest = {.bytes = params->slot_bytes, .copies = plan->n_copies};
	uint32_t i, n = 0;

	for (i = 0; i < plan->n_requests; i++) {
		const struct cache_request *r = &plan->requests[i];

		if (!is_missing(cache, r)) {
			rest.device_experts++;
			rest.device_pairs += r->pairs;
			continue;
		}
		rest.cpu_experts++;
		rest.cpu_pairs += r->pairs;
		if (plan_may_read(params, plan->n_experts, r->pairs))
			keys[n++] = heat_key(r->pairs, r->expert);
	}
	heat_sort(keys, n);
	if (params->zero_copy == MOE_ZERO_COPY_COST)
		n = ncopy_choose_reads(params->costs, keys, n, &rest);
	for (i = 0; i < n; i++)
		plan_add_read(plan, heat_expert(keys[i]));
}

void plan_note_reuse(const struct plan_params *params, const struct moe_plan *plan)
{
	uint32_t i;

	for (i = 0; i < plan->n_requests; i++)
		reuse_note(params->reuse, plan->requests[i].expert);
	reuse_end_step(params->reuse, plan->n_cache_copies);
}
