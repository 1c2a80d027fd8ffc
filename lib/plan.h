/* SPDX-License-Identifier: MIT */
/*
 * plan - which (token, expert) pair of one layer's step is computed where, and what is copied for it. No I/O.
 *
 * Law: each pair with an id >= 0 is on exactly one path: a cache slot, a miss-buffer slot, the pool, or the CPU. The
 * device's map names exactly the requested experts that lie, or will lie once copy_map is done, in a slot, and those
 * that the device reads in the pool; cpu_topk_ids names exactly the others. A pair whose id is -1 is padding and on no
 * path.
 *
 * A plan may defer, which is approximate: of each token's experts the `defer` of least weight, but never the one of
 * most, wait if the CPU computes them. They leave cpu_topk_ids for those of `later`, a plan that has nothing else. Of
 * equal weights the later choice is the weaker one.
 *
 *   decode    the cache takes at most update_expert_num fills for this step; what it holds afterwards is the device's.
 *   prefetch  nobody leaves the cache. The n_copy missing experts with most pairs are copied: the hottest of them into
 *             cache slots that are still free, the others into the layer's miss buffer; what has no place stays with
 *             the CPU. Requested experts grow hot as in decode.
 *             With the cost model n_copy is at least update_expert_num while cache slots are free.
 *   full      prefetch with an n_copy that covers every expert.
 *
 * With zero_copy the device may read an expert where it lies in the pool (plan-reads.c): one of few pairs, in a step
 * whose experts have few, so that its weights are read once. By cost, or always:
 *
 *   decode    by cost: a missing expert that a slot would serve no better passes (reuse.h, ncopy_read_pays); of all
 *             that get no slot the hottest are read, so many that device and CPU end together. Always: nothing is
 *             filled that may be read, and all of that is read.
 *   prefetch, full  what would go to the miss buffer is read instead, since a place there serves one step: by cost
 *             where that pays. It needs no place. Always: nothing is copied that may be read, whatever n_copy is.
 *
 * A place in the miss buffer is the expert's miss_map number where the buffer has room for all that are not cached,
 * else its rank by heat. A frozen plan (a dummy step) copies nothing and changes nothing.
 *
 * plan.c knows neither session nor device: it works on one cache and its parameters.
 */
#ifndef LIB_PLAN_H
#define LIB_PLAN_H

#include "cache.h"
#include "moe-expert.h"
#include "ncopy.h"
#include "reuse.h"

struct plan_params {
	enum moe_mode mode; /* not MOE_MODE_AUTO */
	uint32_t layer, tokens, topk, max_tokens;
	const int32_t *ids;   /* [tokens][topk] */
	const float *weights; /* [tokens][topk] */
	uint32_t cache_topk, update_expert_num, miss_slots;
	bool frozen;
	enum moe_n_copy rule;
	uint32_t n_copy;           /* overrides the rule; UINT32_MAX: does not */
	const struct ncopy *costs; /* for MOE_N_COPY_COST */
	uint64_t slot_bytes;       /* the same */
	uint32_t defer;            /* of each token's experts, so many may wait */
	enum moe_zero_copy zero_copy;
	uint32_t read_pairs; /* an expert's weights are read once for so many pairs */
	struct reuse *reuse; /* for MOE_ZERO_COPY_COST; told of the step */
};

struct moe_plan {
	/* Called by moe_plan_free and never by moe_submit: a plan that was made and not used. May be NULL. */
	void (*discard)(struct moe_plan *plan);
	void *owner;    /* the engine that made it */
	uint64_t given; /* engine_row.given when it was made */
	enum moe_mode mode;
	uint32_t layer, tokens, topk, n_experts, cache_slots;
	uint32_t n_copy;
	uint32_t n_copies, n_cache_copies;    /* the copies into cache slots come first */
	uint32_t n_reads;                     /* read in the pool: copies[n_copies ...], whose slots ... */
	uint32_t first_read;                  /* ... begin here, behind those of the miss buffer */
	uint32_t n_requests, n_device, n_cpu; /* distinct experts: all, on the device, on the CPU ... */
	uint32_t n_resident;                  /* ... and in a cache slot before the step */
	uint64_t pairs_hit, pairs_miss_buffer, pairs_pool, pairs_cpu, pairs_resident;
	bool frozen;
	bool speculative;               /* its copies are: nobody may count on them before they have come */
	bool late;                      /* this is the `later` of another plan: its tokens are counted there */
	struct moe_plan *later;         /* ours; NULL: no pair waits */
	struct cache_request *requests; /* [n_requests], ascending */
	struct moe_copy *copies;        /* [n_copies + n_reads] */
	int32_t *expert_map;            /* [n_experts] */
	int32_t *ids, *cpu_topk_ids;    /* [tokens][topk] */
	float *weights;                 /* [tokens][topk] */
};

/* What a step needs of the daemon, if its device pulls: a lease for each copy and each expert that is read. */
static inline uint32_t plan_leases(const struct moe_plan *plan)
{
	return plan->n_copies + plan->n_reads;
}

/* `cache` NULL: a layer without slots, everything on the CPU. -EINVAL (ids, duplicates, topk, tokens), -ENOMEM. */
int plan_new(struct moe_plan **ret, struct cache *cache, uint32_t n_experts, const struct plan_params *params,
	     struct moe_error *err);

/* A plan without pairs that copies experts into cache slots; touches no cache. */
int plan_new_fill(struct moe_plan **ret, uint32_t layer, uint32_t n_experts, uint32_t cache_slots,
		  const struct moe_copy *copies, uint32_t n, struct moe_error *err);

#endif
