/* SPDX-License-Identifier: MIT */
#include "daemon/documents-ghosts.h"

#include <string.h>

#include "advice/advice.h"
#include "base/util.h"
#include "daemon/ringsrv.h"
#include "policy/policy.h"

/* What a client says may be any number. */
static double rate(uint64_t hits, uint64_t asked)
{
	return asked ? MIN((double)hits / (double)asked, 1) : 0;
}

/* NULL: there is no such cache, no such policy, or one before has the same words: a metric's samples must differ. */
static const struct policy_ops *policy_of(const struct moe_ghost_stats *g, int i)
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

static json_t *ghosts_json(const struct moe_ghost_stats *g)
{
	json_t *caches = json_array();

	for (int i = 0; i < MOE_GHOST_CACHES; i++) {
		const struct moe_ghost_cache *c = &g->caches[i];

		if (policy_of(g, i))
			json_array_append_new(caches, json_pack("{s:s, s:I, s:f, s:f}", "policy", policy_of(g, i)->name,
								"slots", (json_int_t)c->slots, "hit_rate",
								rate(c->hits, g->asked), "hit_rate_pairs",
								rate(c->hits_pairs, g->asked_pairs)));
	}
	return json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:o}", "layers", (json_int_t)g->layers, "steps",
			 (json_int_t)g->steps, "asked", (json_int_t)g->asked, "asked_pairs", (json_int_t)g->asked_pairs,
			 "caches", caches, "bound_slots", (json_int_t)g->bound_slots, "bound_hit_rate",
			 g->bound_asked ? json_real(rate(g->bound_hits, g->bound_asked)) : json_null());
}

static void list_caches(struct advice_facts *f, const struct moe_ghost_stats *g)
{
	for (int i = 0; i < MOE_GHOST_CACHES && g->steps >= ADVICE_STEPS_MIN; i++) {
		const struct policy_ops *policy = policy_of(g, i);

		/* The first is the session's own: without it there is nothing to compare with. */
		if (!policy && i == 0)
			return;
		if (policy)
			f->caches[f->n_caches++] = (struct advice_cache){policy->name,
									 (uint32_t)MIN(g->caches[i].slots, f->experts),
									 rate(g->caches[i].hits, g->asked)};
	}
}

static json_t *advice_json(const struct session *s, const struct moe_layer_stats *t, const struct moe_ghost_stats *g)
{
	const double steps = (double)MAX(t->steps, 1);
	const uint32_t experts = s->entry->model->manifest->n_experts;
	struct advice_facts facts = {
		.steps = t->steps,
		.experts = experts,
		.slots = (uint32_t)MIN(t->slots, experts),
		.active_mean = (double)t->active_sum / steps,
		.tokens_mean = (double)t->tokens / steps,
		.bound = g->bound_asked ? rate(g->bound_hits, g->bound_asked) : -1,
		.wait_ns = (double)t->copy_ns,
		.compute_ns = (double)t->cpu_ns + (double)t->device_ns,
	};
	json_t *lines = json_array();
	struct advice advice;

	list_caches(&facts, g);
	advise(&facts, &advice);
	for (uint32_t i = 0; i < advice.n; i++)
		json_array_append_new(lines, json_string(advice.lines[i]));
	return lines;
}

void documents_add_ghosts(json_t *o, const struct session *s, const struct moe_layer_stats *total)
{
	struct moe_ghost_stats ghosts;

	ringsrv_read_ghosts(s, &ghosts);
	json_object_set_new(o, "ghosts", ghosts.layers ? ghosts_json(&ghosts) : json_null());
	json_object_set_new(o, "advice", advice_json(s, total, &ghosts));
}
