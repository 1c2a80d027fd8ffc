/* SPDX-License-Identifier: MIT */
#include "ghost/ghost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "cache.h"

#define NEVER UINT16_MAX

/* A window's steps: bits of what they asked for, and how many of it the first cache had. */
struct window {
	uint64_t *asked; /* [GHOST_WINDOW][words] */
	uint32_t *own;   /* [GHOST_WINDOW] */
	uint32_t n;
};

/* The bound's look at the window before. */
struct replay {
	uint32_t at, n;
	uint16_t *next; /* [GHOST_WINDOW + 1][experts]: the first step from that one on that asks for it */
	uint64_t *held; /* [words] */
	uint32_t n_held;
	struct ghost_bound now, last; /* of this window so far, of the one that was looked at before */
};

struct ghost {
	uint32_t experts, words, n_caches, bound_slots;
	struct cache *caches[GHOST_CACHES_MAX];
	uint32_t *pairs;                /* [experts] of this step */
	struct cache_request *requests; /* the same, ascending */
	struct moe_copy *fills;         /* [experts] */
	struct window now, before;
	struct replay replay;
};

int ghost_new(struct ghost **ret, uint32_t experts, const struct ghost_cache *caches, uint32_t n_caches,
	      uint32_t bound_slots, struct moe_error *err)
{
	const size_t words = DIV_UP((size_t)experts, 64);
	struct ghost *g;
	int r = 0;

	if (experts == 0 || experts > CACHE_EXPERTS_MAX || n_caches > GHOST_CACHES_MAX || bound_slots > experts)
		return moe_error_set(err, -EINVAL,
				     "ghost: %u experts, %u caches, %u slots for the bound found; 1 to %d, at most %d, "
				     "and at most the experts expected",
				     experts, n_caches, bound_slots, CACHE_EXPERTS_MAX, GHOST_CACHES_MAX);
	g = calloc(1, sizeof *g);
	if (!g)
		return moe_error_set(err, -ENOMEM, "ghost: no memory");
	*g = (struct ghost){.experts = experts, .words = (uint32_t)words, .bound_slots = bound_slots};
	g->pairs = calloc(experts, sizeof *g->pairs);
	g->requests = calloc(experts, sizeof *g->requests);
	g->fills = calloc(experts, sizeof *g->fills);
	g->now.asked = calloc(GHOST_WINDOW * words, sizeof(uint64_t));
	g->before.asked = calloc(GHOST_WINDOW * words, sizeof(uint64_t));
	g->now.own = calloc(GHOST_WINDOW, sizeof(uint32_t));
	g->before.own = calloc(GHOST_WINDOW, sizeof(uint32_t));
	g->replay.next = calloc((GHOST_WINDOW + 1) * (size_t)experts, sizeof(uint16_t));
	g->replay.held = calloc(words, sizeof(uint64_t));
	if (!g->pairs || !g->requests || !g->fills || !g->now.asked || !g->before.asked || !g->now.own ||
	    !g->before.own || !g->replay.next || !g->replay.held)
		r = moe_error_set(err, -ENOMEM, "ghost: no memory for %u experts", experts);
	for (; r == 0 && g->n_caches < n_caches; g->n_caches += r == 0)
		r = cache_new(&g->caches[g->n_caches], experts, caches[g->n_caches].slots, caches[g->n_caches].policy,
			      err);
	if (r < 0) {
		ghost_free(g);
		return r;
	}
	*ret = g;
	return 0;
}

struct ghost *ghost_free(struct ghost *g)
{
	if (!g)
		return NULL;
	for (uint32_t i = 0; i < g->n_caches; i++)
		cache_free(g->caches[i]);
	free(g->pairs);
	free(g->requests);
	free(g->fills);
	free(g->now.asked);
	free(g->before.asked);
	free(g->now.own);
	free(g->before.own);
	free(g->replay.next);
	free(g->replay.held);
	free(g);
	return NULL;
}

/* -- the bound ---------------------------------------------------------------------------------------------------- */

static bool has(const uint64_t *bits, uint32_t e)
{
	return bits[e / 64] >> e % 64 & 1;
}

/* At first those are held that are asked for first. */
static void begin_held(struct ghost *g)
{
	struct replay *p = &g->replay;

	memset(p->held, 0, g->words * sizeof *p->held);
	p->n_held = 0;
	for (uint32_t i = 0; i < p->n; i++)
		for (uint32_t e = 0; e < g->experts && p->n_held < g->bound_slots; e++)
			if (has(g->before.asked + (size_t)i * g->words, e) && !has(p->held, e)) {
				p->held[e / 64] |= (uint64_t)1 << e % 64;
				p->n_held++;
			}
}

/* The window is full: the replay goes on with it. */
static void turn_window(struct ghost *g)
{
	struct replay *p = &g->replay;
	const struct window full = g->now;

	g->now = (struct window){.asked = g->before.asked, .own = g->before.own};
	g->before = full;
	p->at = 0;
	p->n = full.n;
	p->now = (struct ghost_bound){0};
	for (uint32_t e = 0; e < g->experts; e++)
		p->next[(size_t)p->n * g->experts + e] = NEVER;
	for (uint32_t i = p->n; i-- > 0;) {
		uint16_t *here = p->next + (size_t)i * g->experts;

		for (uint32_t e = 0; e < g->experts; e++)
			here[e] = has(full.asked + (size_t)i * g->words, e) ? (uint16_t)i : here[g->experts + e];
	}
	begin_held(g);
}

static void drop_farthest(const struct ghost *g, struct replay *p)
{
	const uint16_t *next = p->next + (size_t)(p->at + 1) * g->experts;
	uint32_t worst = UINT32_MAX;

	for (uint32_t e = 0; e < g->experts; e++)
		if (has(p->held, e) && (worst == UINT32_MAX || next[e] > next[worst]))
			worst = e;
	p->held[worst / 64] &= ~((uint64_t)1 << worst % 64);
	p->n_held--;
}

static void add(struct ghost_bound *to, const struct ghost_bound *from)
{
	to->asked += from->asked;
	to->hits += from->hits;
	to->own += from->own;
}

/* A window has been looked at whole: it takes the place of the one before in what all layers' are together. */
static void end_replay(struct replay *p, struct ghost_bound *recent)
{
	recent->asked -= p->last.asked;
	recent->hits -= p->last.hits;
	recent->own -= p->last.own;
	add(recent, &p->now);
	p->last = p->now;
}

/* One step of the window before. */
static void replay_step(struct ghost *g, struct ghost_counts *counts)
{
	struct replay *p = &g->replay;
	const uint64_t *asked = g->before.asked + (size_t)p->at * g->words;
	struct ghost_bound step = {0};

	if (p->at == p->n)
		return;
	step.own = g->before.own[p->at];
	for (uint32_t i = 0; i < g->words; i++) {
		const uint32_t found = (uint32_t)__builtin_popcountll(asked[i] & p->held[i]);
		const uint32_t all = (uint32_t)__builtin_popcountll(asked[i]);

		step.asked += all;
		step.hits += found;
		p->n_held += all - found;
		p->held[i] |= asked[i];
	}
	while (p->n_held > g->bound_slots)
		drop_farthest(g, p);
	add(&counts->bound, &step);
	add(&p->now, &step);
	if (++p->at == p->n)
		end_replay(p, &counts->recent);
}

static void keep_step(struct ghost *g, uint32_t n, uint64_t own, struct ghost_counts *counts)
{
	uint64_t *asked = g->now.asked + (size_t)g->now.n * g->words;

	replay_step(g, counts);
	memset(asked, 0, g->words * sizeof *asked);
	for (uint32_t i = 0; i < n; i++)
		asked[g->requests[i].expert / 64] |= (uint64_t)1 << g->requests[i].expert % 64;
	g->now.own[g->now.n] = (uint32_t)own;
	if (++g->now.n == GHOST_WINDOW)
		turn_window(g);
}

/* -- the caches --------------------------------------------------------------------------------------------------- */

static uint32_t list_requests(struct ghost *g, const struct policy_tokens *tokens)
{
	uint32_t n = 0;

	memset(g->pairs, 0, g->experts * sizeof *g->pairs);
	for (size_t i = 0; i < (size_t)tokens->tokens * tokens->topk; i++)
		if (tokens->ids[i] >= 0)
			g->pairs[tokens->ids[i]]++;
	for (uint32_t e = 0; e < g->experts; e++)
		if (g->pairs[e])
			g->requests[n++] = (struct cache_request){(int32_t)e, g->pairs[e], true, false};
	return n;
}

void ghost_step(struct ghost *g, const struct policy_tokens *tokens, struct ghost_counts *counts)
{
	const uint32_t n = list_requests(g, tokens);
	const uint64_t own = counts->hits[0];

	if (n == 0)
		return;
	counts->steps++;
	for (uint32_t i = 0; i < n; i++) {
		counts->asked++;
		counts->asked_pairs += g->requests[i].pairs;
	}
	for (uint32_t c = 0; c < g->n_caches; c++) {
		for (uint32_t i = 0; i < n; i++) {
			const bool hit = g->caches[c]->cache_map[g->requests[i].expert] >= 0;

			counts->hits[c] += hit;
			counts->hits_pairs[c] += hit ? g->requests[i].pairs : 0;
		}
		cache_route(g->caches[c], tokens);
		cache_update(g->caches[c], g->requests, n, UINT32_MAX, g->fills);
	}
	keep_step(g, n, counts->hits[0] - own, counts);
}
