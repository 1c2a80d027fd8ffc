/* SPDX-License-Identifier: MIT */
#include "daemon/model-ghosts.h"

#include <string.h>

#include "base/util.h"

const struct policy_ops *session_ghost_policy(const struct moe_ghost_stats *g, int i)
{
	const struct moe_ghost_cache *c = &g->caches[i];
	char name[sizeof c->policy + 1] = {0};

	for (int k = 0; k < i; k++)
		if (g->caches[k].slots == c->slots &&
		    strncmp((const char *)g->caches[k].policy, (const char *)c->policy, sizeof c->policy) == 0)
			return NULL;
	memcpy(name, c->policy, sizeof c->policy);
	return name[0] ? policy_find(name) : NULL;
}

static struct model_ghost *find_cache(struct model_ghosts *g, uint64_t policy, uint64_t slots)
{
	for (uint32_t i = 0; i < g->n_caches; i++)
		if (g->caches[i].policy == policy && g->caches[i].slots == slots)
			return &g->caches[i];
	if (g->n_caches == MODEL_GHOSTS_CACHES)
		return NULL;
	g->caches[g->n_caches] = (struct model_ghost){.policy = policy, .slots = slots};
	return &g->caches[g->n_caches++];
}

bool model_ghosts_good(const struct model_ghosts *g)
{
	bool good = g->n_caches <= MODEL_GHOSTS_CACHES && g->n_bounds <= MODEL_GHOSTS_BOUNDS;

	for (uint32_t i = 0; good && i < g->n_caches; i++)
		good = policy_at(g->caches[i].policy) != NULL;
	return good;
}

static void add_bound(struct model_ghosts *g, const struct moe_ghost_stats *from)
{
	uint32_t i = 0;

	while (i < g->n_bounds && g->bounds[i].slots != from->bound_slots)
		i++;
	if (i == MODEL_GHOSTS_BOUNDS) {
		g->left_out++;
		return;
	}
	if (i == g->n_bounds)
		g->bounds[g->n_bounds++] = (struct model_bound){.slots = from->bound_slots};
	g->bounds[i].asked += from->bound_asked;
	g->bounds[i].hits += from->bound_hits;
	g->bounds[i].own += from->bound_own;
}

void model_ghosts_add(struct model_ghosts *to, const struct moe_ghost_stats *from)
{
	if (from->layers == 0)
		return;
	to->sessions++;
	to->layers = MAX(to->layers, from->layers);
	to->steps += from->steps;
	to->asked += from->asked;
	to->asked_pairs += from->asked_pairs;
	for (int i = 0; i < MOE_GHOST_CACHES; i++) {
		const struct policy_ops *policy = session_ghost_policy(from, i);
		struct model_ghost *cache = policy ? find_cache(to, policy_index(policy), from->caches[i].slots) : NULL;

		to->left_out += policy && !cache;
		if (!cache)
			continue;
		cache->asked += from->asked;
		cache->asked_pairs += from->asked_pairs;
		cache->hits += from->caches[i].hits;
		cache->hits_pairs += from->caches[i].hits_pairs;
		cache->own += i == 0 ? from->asked : 0;
	}
	add_bound(to, from);
}

const struct model_ghost *model_ghosts_own(const struct model_ghosts *g)
{
	const struct model_ghost *own = NULL;

	for (uint32_t i = 0; i < g->n_caches; i++)
		if (g->caches[i].own > (own ? own->own : 0))
			own = &g->caches[i];
	return own;
}
