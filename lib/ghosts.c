/* SPDX-License-Identifier: MIT */
#include "ghosts.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "ghost/ghost.h"
#include "moe-expert.h"
#include "plan.h"

_Static_assert(GHOST_CACHES_MAX == MOE_GHOST_CACHES, "what is counted has room in the client page");

struct ghosts {
	struct engine *engine;
	pthread_mutex_t lock;
	struct ghost **rows; /* [n_rows]; NULL: not sampled */
	uint32_t n_caches;
	struct ghost_counts counts; /* of all sampled rows */
};

static void add_cache(struct ghost_cache *list, uint32_t *n, const struct policy_ops *policy, uint32_t slots)
{
	for (uint32_t i = 0; i < *n; i++)
		if (list[i].policy == policy && list[i].slots == slots)
			return;
	if (policy && slots > 0 && *n < GHOST_CACHES_MAX)
		list[(*n)++] = (struct ghost_cache){policy, slots};
}

/* The session's own first: what the others are compared with. */
static uint32_t choose_caches(const struct engine *e, struct ghost_cache *ret)
{
	static const uint32_t sizes[] = {16, 32, 64, 104};
	const struct policy_ops *policy = policy_find(e->session->params.policy);
	uint32_t n = 0;

	add_cache(ret, &n, policy, e->n_slots);
	for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++)
		if (e->n_experts > 104)
			add_cache(ret, &n, policy, sizes[i]);
		else /* an eighth, a quarter, a half and three quarters of a small model's */
			add_cache(ret, &n, policy, e->n_experts * (i == 3 ? 6 : 1u << i) / 8);
	add_cache(ret, &n, policy_find("ema"), e->n_slots);
	add_cache(ret, &n, policy_find("lfu-decay"), e->n_slots);
	add_cache(ret, &n, policy_find("lru"), e->n_slots);
	return n;
}

static void tell_caches(const struct engine *e, const struct ghost_cache *caches, uint32_t n, uint32_t layers)
{
	struct moe_ghost_stats *stats = &e->session->queue.client->ghosts;

	for (uint32_t i = 0; i < n; i++) {
		snprintf((char *)stats->caches[i].policy, sizeof stats->caches[i].policy, "%s", caches[i].policy->name);
		stats->caches[i].slots = caches[i].slots;
	}
	stats->bound_slots = e->n_slots;
	__atomic_store_n(&stats->layers, layers, __ATOMIC_RELAXED);
}

int ghosts_new(struct ghosts **ret, struct engine *e, struct moe_error *err)
{
	const uint32_t layers = e->session->params.tp_rank == 0 ? MIN(e->session->params.ghost_layers, e->n_rows) : 0;
	struct ghost_cache caches[GHOST_CACHES_MAX];
	struct ghosts *g;
	int r = 0;

	*ret = NULL;
	if (layers == 0 || e->n_slots == 0) /* without a cache of its own there is nothing to compare with */
		return 0;
	g = calloc(1, sizeof *g);
	if (!g)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for ghost caches");
	g->engine = e;
	pthread_mutex_init(&g->lock, NULL);
	g->n_caches = choose_caches(e, caches);
	g->rows = calloc(e->n_rows, sizeof *g->rows);
	if (!g->rows)
		r = moe_error_set(err, -ENOMEM, "moe_attach: no memory for ghost caches");
	for (uint32_t i = 0; r == 0 && i < layers; i++)
		r = ghost_new(&g->rows[(uint64_t)(2 * i + 1) * e->n_rows / (2 * layers)], e->n_experts, caches,
			      g->n_caches, e->n_slots, err);
	if (r < 0) {
		ghosts_free(g);
		return r;
	}
	tell_caches(e, caches, g->n_caches, layers);
	*ret = g;
	return 0;
}

struct ghosts *ghosts_free(struct ghosts *g)
{
	if (!g)
		return NULL;
	for (uint32_t i = 0; g->rows && i < g->engine->n_rows; i++)
		ghost_free(g->rows[i]);
	free(g->rows);
	pthread_mutex_destroy(&g->lock);
	free(g);
	return NULL;
}

static void publish(const struct ghosts *g)
{
	struct moe_ghost_stats *stats = &g->engine->session->queue.client->ghosts;
	const struct ghost_counts *c = &g->counts;

	__atomic_store_n(&stats->steps, c->steps, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->asked, c->asked, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->asked_pairs, c->asked_pairs, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->bound_asked, c->bound.asked, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->bound_hits, c->bound.hits, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->bound_own, c->bound.own, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->recent_asked, c->recent.asked, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->recent_hits, c->recent.hits, __ATOMIC_RELAXED);
	__atomic_store_n(&stats->recent_own, c->recent.own, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < g->n_caches; i++) {
		__atomic_store_n(&stats->caches[i].hits, c->hits[i], __ATOMIC_RELAXED);
		__atomic_store_n(&stats->caches[i].hits_pairs, c->hits_pairs[i], __ATOMIC_RELAXED);
	}
}

void ghosts_step(struct ghosts *g, uint32_t row, const struct moe_plan *plan)
{
	if (!g || !g->rows[row] || plan->tokens == 0 || plan->frozen || plan->late || plan->speculative)
		return;
	pthread_mutex_lock(&g->lock);
	ghost_step(g->rows[row], &(struct policy_tokens){plan->tokens, plan->topk, plan->ids, plan->weights},
		   &g->counts);
	publish(g);
	pthread_mutex_unlock(&g->lock);
}
