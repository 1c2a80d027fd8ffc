/* SPDX-License-Identifier: MIT */
/* What the ghost caches of sessions found, added up for their model: against sums made plainly, in any order. */
#include <string.h>

#include "base/util.h"
#include "daemon/model-ghosts.h"
#include "tests/tap.h"

#define SESSIONS 12

static const char *const names[] = {"lru", "ema", "lfu-decay", "nobody", ""};
static const uint64_t sizes[] = {4, 16, 32};

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static void random_session(struct moe_ghost_stats *g)
{
	*g = (struct moe_ghost_stats){.layers = below(4),
				      .steps = below(1000),
				      .asked = below(1000),
				      .asked_pairs = below(9000),
				      .bound_slots = sizes[below(ARRAY_LEN(sizes))],
				      .bound_asked = below(500),
				      .bound_hits = below(500)};
	for (int i = 0; i < MOE_GHOST_CACHES; i++) {
		struct moe_ghost_cache *c = &g->caches[i];

		*c = (struct moe_ghost_cache){
			.slots = sizes[below(ARRAY_LEN(sizes))], .hits = below(900), .hits_pairs = below(8000)};
		snprintf((char *)c->policy, sizeof c->policy, "%s", names[below(ARRAY_LEN(names))]);
	}
}

/* The first of its words in a session counts. */
static struct model_ghost plain_sum(const struct moe_ghost_stats *of, const char *policy, uint64_t slots)
{
	struct model_ghost sum = {.policy = policy_index(policy_find(policy)), .slots = slots};

	for (int s = 0; s < SESSIONS; s++)
		for (int i = 0; i < MOE_GHOST_CACHES && of[s].layers; i++) {
			const struct moe_ghost_cache *c = &of[s].caches[i];

			if (strcmp((const char *)c->policy, policy) != 0 || c->slots != slots)
				continue;
			sum.asked += of[s].asked;
			sum.asked_pairs += of[s].asked_pairs;
			sum.hits += c->hits;
			sum.hits_pairs += c->hits_pairs;
			sum.own += i == 0 ? of[s].asked : 0;
			break;
		}
	return sum;
}

static const struct model_ghost *find(const struct model_ghosts *g, const struct model_ghost *like)
{
	for (uint32_t i = 0; i < g->n_caches; i++)
		if (g->caches[i].policy == like->policy && g->caches[i].slots == like->slots)
			return &g->caches[i];
	return NULL;
}

static bool sums_agree(void)
{
	struct moe_ghost_stats of[SESSIONS];
	struct model_ghosts one = {0}, other = {0};
	uint64_t asked = 0, bound = 0, found = 0;
	bool good = true;

	for (int s = 0; s < SESSIONS; s++)
		random_session(&of[s]);
	for (int s = 0; s < SESSIONS; s++) {
		model_ghosts_add(&one, &of[s]);
		model_ghosts_add(&other, &of[SESSIONS - 1 - s]);
		asked += of[s].layers ? of[s].asked : 0;
		bound += of[s].layers ? of[s].bound_asked : 0;
	}
	for (size_t p = 0; p < ARRAY_LEN(names) && policy_find(names[p]) && names[p][0]; p++)
		for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
			const struct model_ghost sum = plain_sum(of, names[p], sizes[k]);
			const struct model_ghost *a = find(&one, &sum), *b = find(&other, &sum);

			good &= !a == !b && (a ? memcmp(a, &sum, sizeof sum) == 0 && memcmp(b, &sum, sizeof sum) == 0
					       : sum.asked == 0 && sum.hits == 0);
			found += a != NULL;
		}
	for (uint32_t i = 0; i < one.n_bounds; i++)
		bound -= one.bounds[i].asked;
	return good && one.asked == asked && bound == 0 && one.n_caches == found && one.left_out == 0;
}

/* More kinds than there is room for. */
static void test_full(void)
{
	struct model_ghosts all = {0};

	for (uint32_t i = 0; i < MODEL_GHOSTS_CACHES + 3; i++) {
		struct moe_ghost_stats g = {.layers = 1, .asked = 10, .bound_slots = i, .bound_asked = 1};

		memcpy(g.caches[0].policy, "lru", 3);
		g.caches[0].slots = i;
		g.caches[0].hits = UINT64_MAX;
		model_ghosts_add(&all, &g);
	}
	ok(all.n_caches == MODEL_GHOSTS_CACHES && all.n_bounds == MODEL_GHOSTS_BOUNDS &&
		   all.left_out == 3 + MODEL_GHOSTS_CACHES + 3 - MODEL_GHOSTS_BOUNDS,
	   "what has no room is counted: %llu", (unsigned long long)all.left_out);
}

static void test_own(void)
{
	struct model_ghosts all = {0};
	struct moe_ghost_stats g = {.layers = 1, .asked = 10, .bound_slots = 4};

	ok(model_ghosts_own(&all) == NULL, "no sessions have no cache of their own");
	memcpy(g.caches[0].policy, "lru", 3);
	g.caches[0].slots = 4;
	model_ghosts_add(&all, &g);
	memcpy(g.caches[0].policy, "ema", 3);
	g.asked = 30;
	model_ghosts_add(&all, &g);
	ok(model_ghosts_own(&all) && model_ghosts_own(&all)->policy == policy_index(policy_find("ema")),
	   "a model's own is the one that most was asked of");
	memset(g.caches[0].policy, 'x', sizeof g.caches[0].policy);
	model_ghosts_add(&all, &g);
	ok(all.n_caches == 2 && all.asked == 70, "a name that fills its room and is none is passed over");
}

int main(void)
{
	bool good = true;

	seed = tap_seed();
	for (int i = 0; i < 300 && good; i++)
		good = sums_agree();
	ok(good, "caches and bounds of a kind are added up, in any order");
	test_full();
	test_own();
	return tap_done();
}
