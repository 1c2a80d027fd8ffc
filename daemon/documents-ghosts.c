/* SPDX-License-Identifier: MIT */
#include "daemon/documents-ghosts.h"

#include "advice/advice.h"
#include "base/util.h"
#include "daemon/model-ghosts.h"
#include "daemon/ringsrv.h"

/* What a client says may be any number. */
static double rate(uint64_t hits, uint64_t asked)
{
	return asked ? MIN((double)hits / (double)asked, 1) : 0;
}

static json_t *rate_json(uint64_t hits, uint64_t asked)
{
	return asked ? json_real(rate(hits, asked)) : json_null();
}

static json_t *ghosts_json(const struct moe_ghost_stats *g)
{
	json_t *caches = json_array();

	for (int i = 0; i < MOE_GHOST_CACHES; i++) {
		const struct moe_ghost_cache *c = &g->caches[i];
		const struct policy_ops *policy = session_ghost_policy(g, i);

		if (policy)
			json_array_append_new(caches,
					      json_pack("{s:s, s:I, s:f, s:f}", "policy", policy->name, "slots",
							(json_int_t)c->slots, "hit_rate", rate(c->hits, g->asked),
							"hit_rate_pairs", rate(c->hits_pairs, g->asked_pairs)));
	}
	return json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:o}", "layers", (json_int_t)g->layers, "steps",
			 (json_int_t)g->steps, "asked", (json_int_t)g->asked, "asked_pairs", (json_int_t)g->asked_pairs,
			 "caches", caches, "bound_slots", (json_int_t)g->bound_slots, "bound_hit_rate",
			 rate_json(g->recent_hits, g->recent_asked), "bound_own_hit_rate",
			 rate_json(g->recent_own, g->recent_asked));
}

static void list_caches(struct advice_facts *f, const struct moe_ghost_stats *g)
{
	for (int i = 0; i < MOE_GHOST_CACHES && g->steps >= ADVICE_STEPS_MIN; i++) {
		const struct policy_ops *policy = session_ghost_policy(g, i);

		/* The first is the session's own: without it there is nothing to compare with. */
		if (!policy && i == 0)
			return;
		if (policy)
			f->caches[f->n_caches++] = (struct advice_cache){policy->name,
									 (uint32_t)MIN(g->caches[i].slots, f->experts),
									 rate(g->caches[i].hits, g->asked)};
	}
}

/* All but what ghosts say. */
static struct advice_facts facts_of(const struct entry *e, const struct moe_layer_stats *t)
{
	const double steps = (double)MAX(t->steps, 1);
	const uint32_t experts = e->model->manifest->n_experts;

	return (struct advice_facts){
		.steps = t->steps,
		.experts = experts,
		.slots = (uint32_t)MIN(t->slots, experts),
		.active_mean = (double)t->active_sum / steps,
		.tokens_mean = (double)t->tokens / steps,
		.bound = -1,
		.wait_ns = (double)t->copy_ns,
		.compute_ns = (double)t->cpu_ns + (double)t->device_ns,
	};
}

static json_t *advice_json(const struct advice_facts *facts)
{
	json_t *lines = json_array();
	struct advice advice;

	advise(facts, &advice);
	for (uint32_t i = 0; i < advice.n; i++)
		json_array_append_new(lines, json_string(advice.lines[i]));
	return lines;
}

void documents_add_ghosts(json_t *o, const struct session *s, const struct moe_layer_stats *total)
{
	struct advice_facts facts = facts_of(s->entry, total);
	struct moe_ghost_stats ghosts;

	ringsrv_read_ghosts(s, &ghosts);
	if (ghosts.recent_asked) {
		facts.bound = rate(ghosts.recent_hits, ghosts.recent_asked);
		facts.bound_own = rate(ghosts.recent_own, ghosts.recent_asked);
	}
	list_caches(&facts, &ghosts);
	json_object_set_new(o, "ghosts", ghosts.layers ? ghosts_json(&ghosts) : json_null());
	json_object_set_new(o, "advice", advice_json(&facts));
}

/* -- of a model --------------------------------------------------------------------------------------------------- */

static json_t *model_ghosts_json(const struct model_ghosts *g)
{
	json_t *caches = json_array(), *bounds = json_array();

	for (uint32_t i = 0; i < g->n_caches; i++) {
		const struct model_ghost *c = &g->caches[i];

		json_array_append_new(caches,
				      json_pack("{s:s, s:I, s:I, s:f, s:f}", "policy", policy_at(c->policy)->name,
						"slots", (json_int_t)c->slots, "asked", (json_int_t)c->asked,
						"hit_rate", rate(c->hits, c->asked), "hit_rate_pairs",
						rate(c->hits_pairs, c->asked_pairs)));
	}
	for (uint32_t i = 0; i < g->n_bounds; i++) {
		const struct model_bound *b = &g->bounds[i];

		json_array_append_new(bounds, json_pack("{s:I, s:I, s:o, s:o}", "slots", (json_int_t)b->slots, "asked",
							(json_int_t)b->asked, "hit_rate", rate_json(b->hits, b->asked),
							"own_hit_rate", rate_json(b->own, b->asked)));
	}
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "sessions", (json_int_t)g->sessions, "layers",
			 (json_int_t)g->layers, "steps", (json_int_t)g->steps, "asked", (json_int_t)g->asked,
			 "asked_pairs", (json_int_t)g->asked_pairs, "left_out", (json_int_t)g->left_out, "caches",
			 caches, "bounds", bounds);
}

/* Only caches that have seen the same steps as the one that most sessions have can be compared with it. */
static void list_model_caches(struct advice_facts *f, const struct model_ghosts *g)
{
	const struct model_ghost *own = model_ghosts_own(g);

	if (!own || g->steps < ADVICE_STEPS_MIN)
		return;
	f->slots = (uint32_t)MIN(own->slots, f->experts);
	f->caches[f->n_caches++] = (struct advice_cache){policy_at(own->policy)->name, f->slots,
							 rate(own->hits, own->asked)};
	for (uint32_t i = 0; i < g->n_caches && f->n_caches < ARRAY_LEN(f->caches); i++) {
		const struct model_ghost *c = &g->caches[i];

		if (c != own && c->asked == own->asked)
			f->caches[f->n_caches++] = (struct advice_cache){policy_at(c->policy)->name,
									 (uint32_t)MIN(c->slots, f->experts),
									 rate(c->hits, c->asked)};
	}
	for (uint32_t i = 0; i < g->n_bounds; i++) {
		const struct model_bound *b = &g->bounds[i];

		if (b->slots != own->slots || b->asked == 0 || own->own != own->asked)
			continue;
		f->bound = rate(b->hits, b->asked);
		f->bound_own = rate(b->own, b->asked);
	}
}

void documents_add_model_ghosts(json_t *o, const struct entry *e, const struct model_ghosts *all,
				const struct moe_layer_stats *total)
{
	struct advice_facts facts = facts_of(e, total);

	list_model_caches(&facts, all);
	json_object_set_new(o, "ghosts", all->sessions ? model_ghosts_json(all) : json_null());
	json_object_set_new(o, "advice", advice_json(&facts));
}
