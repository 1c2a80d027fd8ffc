/* SPDX-License-Identifier: MIT */
/* Ascend's policies: what they promise, on random placements; scores on the loads that upstream's own test has. */
#include <errno.h>

#include "placement/balance.h"
#include "placement/overlap.h"
#include "tests/placements.h"

static unsigned long long seed;

/* -- swift's guarantees ------------------------------------------------------------------------------------------- */

/* The rank of the first copy, slots outermost. */
static uint32_t home_of(const struct placement *p, uint32_t layer, int32_t expert)
{
	for (uint32_t s = 0; s < p->slots; s++)
		for (uint32_t r = 0; r < p->ranks; r++)
			if (p->at[placement_row(p, layer, r) + s] == expert)
				return r;
	return p->ranks;
}

/* From home to home at most one expert goes each way. */
static bool moves_are_bounded(const struct placement *from, const struct placement *to, uint32_t layer)
{
	uint32_t sent[16][16] = {0};
	bool good = true;

	for (uint32_t r = 0; r < to->ranks; r++)
		for (uint32_t s = 0; s < to->slots; s++) {
			const int32_t e = to->at[placement_row(to, layer, r) + s];

			if (!placement_holds(from->at + placement_row(from, layer, r), from->slots, e))
				good = good && ++sent[home_of(from, layer, e)][r] <= 1;
		}
	return good;
}

static bool is_on(const struct placement *to, uint32_t layer, uint32_t rank, int32_t expert)
{
	return placement_holds(to->at + placement_row(to, layer, rank), to->slots, expert);
}

static bool left_home(const struct placement *from, const struct placement *to, uint32_t layer, int32_t expert)
{
	return !is_on(to, layer, home_of(from, layer, expert), expert);
}

/* Who leaves home came to a rank whose own expert left its home for that one. */
static bool homes_are_swapped(const struct placement *from, const struct placement *to, uint32_t layer)
{
	bool good = true;

	for (int32_t e = 0; e < (int32_t)from->experts; e++) {
		bool found = !left_home(from, to, layer, e);

		for (int32_t f = 0; !found && f < (int32_t)from->experts; f++)
			found = left_home(from, to, layer, f) && is_on(to, layer, home_of(from, layer, f), e) &&
				is_on(to, layer, home_of(from, layer, e), f);
		good = good && found;
	}
	return good;
}

static bool is_moved(const struct placement *from, const struct placement *to, uint32_t layer)
{
	return memcmp(from->at + placement_row(from, layer, 0), to->at + placement_row(to, layer, 0),
		      (size_t)from->ranks * from->slots * sizeof *from->at) != 0;
}

static void test_swift(enum balance_policy policy, const char *name)
{
	uint32_t unsound = 0, unbounded = 0, worse = 0, changed = 0, filled = 0, unswapped = 0;

	for (uint32_t i = 0; i < 10000; i++) {
		struct placement from;
		struct balance_plan plan;
		struct balance_problem p = {.from = &from, .stages = 1};
		double *work, load[64];

		draw_placement(&seed, &from, i % 2);
		p.work = work = draw_work(&seed, &from, 1);
		must(work && balance_plan(&plan, policy, &p, NULL) == 0, "swift plans");
		for (uint32_t l = 0; l < from.layers; l++) {
			unsound += placement_check_step(&from, &plan.to, l, NULL) < 0;
			filled += plan.fillers[l] > 0;
			if (plan.fillers[l] == 0) {
				unbounded += !moves_are_bounded(&from, &plan.to, l);
				unswapped += !homes_are_swapped(&from, &plan.to, l);
			}
			balance_load(&p, l, load);
			worse += policy == BALANCE_SWIFT && is_moved(&from, &plan.to, l) &&
				 placement_imbalance(&plan.to, l, load, NULL) * (1 + 0x1p-41) >=
					 placement_imbalance(&from, l, load, NULL);
		}
		changed += placement_moved_in(&from, &plan.to) > 0;
		balance_plan_fini(&plan);
		placement_fini(&from);
		free(work);
	}
	ok(unsound == 0 && changed > 3000,
	   "%s: 10000 cases, %u changed: no expert lost or twice, who stays keeps its slot", name, changed);
	ok(unbounded == 0 && filled > 0,
	   "%s: one expert at most for each pair of ranks, but for %u layers with fillers", name, filled);
	ok(unswapped == 0, "%s: homes leave by swaps only", name);
	ok(worse == 0, "%s: no layer moves for nothing, however its loads are rounded", name);
}

/* The largest load is 2 before and after: 4 / 3 of the mean, which binary64 makes 6 and a little less than 6. */
static void test_swift_tie(void)
{
	int32_t at[4] = {0, 0, 1, 0};
	double work[4] = {1, 1, 2, 2};
	struct placement from = {1, 4, 1, 2, at};
	const struct balance_problem p = {.from = &from, .stages = 1, .work = work};
	struct balance_plan plan;

	require(balance_plan(&plan, BALANCE_SWIFT, &p, NULL) == 0, "swift plans");
	ok(placement_moved_in(&from, &plan.to) == 0, "swift: no move for a gain that only rounding has");
	balance_plan_fini(&plan);
}

/* -- the others --------------------------------------------------------------------------------------------------- */

static void test_sound(enum balance_policy policy, const char *name, uint32_t cases)
{
	uint32_t unsound = 0, changed = 0;

	for (uint32_t i = 0; i < cases; i++) {
		struct placement from;
		struct balance_plan plan;
		const uint32_t stages = policy == BALANCE_FLASHLB ? 1 + draw_below(&seed, 5) : 1;
		struct balance_problem p = {.from = &from, .stages = stages};
		double *work;

		draw_placement(&seed, &from, false);
		p.work = work = draw_work(&seed, &from, stages);
		must(work && balance_plan(&plan, policy, &p, NULL) == 0, name);
		for (uint32_t l = 0; l < from.layers; l++)
			unsound += placement_check_step(&from, &plan.to, l, NULL) < 0;
		changed += placement_moved_in(&from, &plan.to) > 0;
		balance_plan_fini(&plan);
		placement_fini(&from);
		free(work);
	}
	ok(unsound == 0 && changed > cases / 2, "%s: %u cases, %u changed, all sound, who stays keeps its slot", name,
	   cases, changed);
}

/* A slot of an expert that has another one becomes a second copy of its rank's neighbour. */
static void put_twice(struct placement *p, uint32_t layer)
{
	int32_t *at = p->at + placement_row(p, layer, 0);
	uint32_t copies[64];

	for (uint32_t tries = 0; tries < 4; tries++) {
		const uint32_t r = draw_below(&seed, p->ranks), s = draw_below(&seed, p->slots);
		int32_t *slot = &at[r * p->slots + s];

		placement_copies(p, layer, copies);
		if (copies[*slot] > 1)
			*slot = at[r * p->slots + (s + 1) % p->slots];
	}
}

static uint32_t count_twice(const struct placement *p)
{
	uint32_t n = 0;

	for (uint32_t l = 0; l < p->layers; l++)
		n += placement_check_layer(p, l, "", NULL) < 0;
	return n;
}

/* Published placements begin with an expert twice on a rank. */
static void test_twice(enum balance_policy policy, const char *name, uint32_t cases)
{
	uint32_t unsound = 0, kept = 0, before = 0, unbounded = 0;

	for (uint32_t i = 0; i < cases; i++) {
		struct placement from;
		struct balance_plan plan;
		struct balance_problem p = {.from = &from, .stages = 1};
		double *work;

		draw_placement(&seed, &from, false);
		for (uint32_t l = 0; l < from.layers; l++)
			put_twice(&from, l);
		before += count_twice(&from);
		p.work = work = draw_work(&seed, &from, 1);
		must(work && balance_plan(&plan, policy, &p, NULL) == 0, name);
		for (uint32_t l = 0; l < from.layers; l++) {
			const bool moved = is_moved(&from, &plan.to, l);

			unsound += moved && placement_check_step(&from, &plan.to, l, NULL) < 0;
			unbounded += moved && (policy == BALANCE_SWIFT || policy == BALANCE_SWIFT_UPSTREAM) &&
				     plan.fillers[l] == 0 && !moves_are_bounded(&from, &plan.to, l);
		}
		kept += count_twice(&plan.to);
		balance_plan_fini(&plan);
		placement_fini(&from);
		free(work);
	}
	ok(before > cases / 8 && unsound == 0 && unbounded == 0 && kept < before,
	   "%s: begun with an expert twice on a rank in %u layers: each new one is sound, %u are kept", name, before,
	   kept);
}

static void test_random(void)
{
	int32_t at[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	double work[8] = {0};
	struct placement from = {1, 4, 2, 8, at};
	const struct balance_problem p = {.from = &from, .stages = 1, .work = work};
	struct balance_plan plan;
	struct moe_error err;

	require(balance_plan(&plan, BALANCE_RANDOM, &p, NULL) == 0, "random plans");
	ok(plan.change && plan.to.at[3] == 7 && plan.to.at[7] == 3 && placement_moved_in(&from, &plan.to) == 2,
	   "the last slots of ranks 1 and 3 change places, and nothing else");
	balance_plan_fini(&plan);
	from.ranks = 2;
	from.slots = 4;
	ok(balance_plan(&plan, BALANCE_RANDOM, &p, &err) == -EINVAL && strstr(err.text, "2 ranks found"), "refused: %s",
	   err.text);
}

static void test_refused(void)
{
	int32_t at[8] = {0, 1, 2, 0, 1, 2, 0, 1};
	double work[8] = {0};
	struct placement from = {1, 2, 4, 3, at};
	const struct balance_problem p = {.from = &from, .stages = 1, .work = work};
	struct balance_plan plan;
	struct moe_error err;

	from = (struct placement){1, 4, 2, 3, at};
	ok(balance_plan(&plan, BALANCE_DYNAMIC, &p, &err) == -EINVAL && strstr(err.text, "5 copies besides the first"),
	   "refused: %s", err.text);
	work[3] = -1;
	ok(balance_plan(&plan, BALANCE_SWIFT, &p, &err) == -EINVAL && strstr(err.text, "rank 1, slot 1: -1 found"),
	   "refused: %s", err.text);
	work[3] = 0;
	from.experts = 4;
	ok(balance_plan(&plan, BALANCE_SWIFT, &p, &err) == -EINVAL && strstr(err.text, "expert 3 is on no rank"),
	   "refused: %s", err.text);
}

/* -- scores ------------------------------------------------------------------------------------------------------- */

#define LAYERS 58
#define RANKS 32
#define SLOTS 9
#define EXPERTS 256
#define STAGES 100

/* Matsumoto and Nishimura's mt19937 with their 2002 seeding, as torch's generator on a CPU has it. */
#define MT_WORDS 624
#define MT_AWAY 397

struct torch {
	uint32_t word[MT_WORDS];
	uint32_t at;
};

static void torch_seed(struct torch *t, uint32_t value)
{
	t->word[0] = value;
	for (uint32_t i = 1; i < MT_WORDS; i++)
		t->word[i] = 1812433253u * (t->word[i - 1] ^ t->word[i - 1] >> 30) + i;
	t->at = MT_WORDS;
}

static uint32_t torch_next(struct torch *t)
{
	uint32_t y;

	for (uint32_t i = 0; t->at == MT_WORDS && i < MT_WORDS; i++) {
		y = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % MT_WORDS] & 0x7fffffffu);
		t->word[i] = t->word[(i + MT_AWAY) % MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
	}
	if (t->at == MT_WORDS)
		t->at = 0;
	y = t->word[t->at++];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

/* torch.randint(256, 32) behind torch.arange(256), in the order of torch.randperm(288). */
static void torch_layer(struct torch *t, int32_t *at)
{
	const uint32_t all = RANKS * SLOTS;
	int32_t flat[RANKS * SLOTS], order[RANKS * SLOTS];

	for (uint32_t i = 0; i < all; i++) {
		flat[i] = (int32_t)(i < EXPERTS ? i : torch_next(t) % EXPERTS);
		order[i] = (int32_t)i;
	}
	for (uint32_t i = 0; i + 1 < all; i++) {
		const uint32_t k = i + torch_next(t) % (all - i);
		const int32_t was = order[i];

		order[i] = order[k];
		order[k] = was;
	}
	for (uint32_t i = 0; i < all; i++)
		at[i] = flat[order[i]];
}

/* The data of upstream's unit test, number for number: torch.manual_seed(42), the placement, then torch.rand() ** 10 *
 * 999 + 1 in binary32 for each slot and stage. With torch 1.13 it is the same. Some experts are twice on a rank. */
static double *upstream_loads(struct placement *ret)
{
	const size_t n = (size_t)STAGES * LAYERS * RANKS * SLOTS;
	double *work = calloc(n, sizeof *work), sum = 0;
	struct torch t;

	if (!work || placement_new(ret, LAYERS, RANKS, SLOTS, EXPERTS, NULL) < 0)
		abort();
	torch_seed(&t, 42);
	for (uint32_t l = 0; l < LAYERS; l++)
		torch_layer(&t, ret->at + placement_row(ret, l, 0));
	for (size_t i = 0; i < n; i++) {
		const float u = (float)(torch_next(&t) & 0xffffff) * 0x1p-24f;

		work[i] = floorf((float)pow(u, 10) * 999 + 1);
		sum += work[i];
	}
	ok(sum == 152457390, "upstream's data, with torch's numbers: %.0f tokens", sum);
	return work;
}

static double mean_imbalance(const struct balance_problem *p, const struct placement *placement, double *ret_worst)
{
	double load[EXPERTS], sum = 0;

	*ret_worst = 0;
	for (uint32_t l = 0; l < LAYERS; l++) {
		double found;

		balance_load(p, l, load);
		found = placement_imbalance(placement, l, load, NULL);
		sum += found / LAYERS;
		*ret_worst = fmax(*ret_worst, found);
	}
	return sum;
}

/* `published`: what upstream makes of it, to as many digits as it is known with; NULL: its map cannot be repeated. */
struct published {
	double mean, worst;
	uint32_t moved;
};

static void test_score(enum balance_policy policy, const char *name, const struct balance_problem *p, double limit,
		       const struct published *published)
{
	struct balance_plan plan;
	double found, worst;
	uint32_t moved, unsound = 0;

	require(balance_plan(&plan, policy, p, NULL) == 0, "%s plans", name);
	found = mean_imbalance(p, &plan.to, &worst);
	moved = (uint32_t)placement_moved_in(p->from, &plan.to);
	ok(found <= limit,
	   "%s: the largest load is %.4f of the mean, at worst %.4f, at most %.2f; %u of %u slots change", name, found,
	   worst, limit, moved, LAYERS * RANKS * SLOTS);
	for (uint32_t l = 0; l < LAYERS; l++)
		unsound += is_moved(p->from, &plan.to, l) && placement_check_step(p->from, &plan.to, l, NULL) < 0;
	ok(unsound == 0, "%s: no expert is twice on a rank in a layer that changes", name);
	if (published)
		ok(fabs(found - published->mean) < 5e-5 && fabs(worst - published->worst) < 5e-5 &&
			   moved == published->moved,
		   "%s: to the digit what upstream makes of it", name);
	balance_plan_fini(&plan);
}

static void test_scores(void)
{
	struct placement from;
	double *work = upstream_loads(&from), last[LAYERS] = {0};
	struct balance_problem p = {.from = &from, .stages = STAGES, .work = work};
	static const struct published swift = {1.0751, 1.1026, 3696};
	struct balance_plan plan;
	double before, worst;

	before = mean_imbalance(&p, &from, &worst);
	ok(fabs(before - 1.142) < 5e-4 && fabs(worst - 1.247) < 5e-4 && count_twice(&from) > 0,
	   "it begins with %.4f, at worst %.4f, and %u layers with an expert twice on a rank", before, worst,
	   count_twice(&from));
	test_score(BALANCE_SWIFT, "swift", &p, 1.08, NULL);
	test_score(BALANCE_SWIFT_UPSTREAM, "swift with upstream's averages", &p, 1.08, &swift);
	test_score(BALANCE_DYNAMIC, "dynamic", &p, 1.08, NULL);
	test_score(BALANCE_FLASHLB, "flashlb", &p, 1.10, NULL);
	p.last = last;
	p.stages = 3;
	require(balance_plan(&plan, BALANCE_FLASHLB, &p, NULL) == 0, "flashlb plans, and remembers");
	placement_fini(&from);
	from = plan.to;
	free(plan.fillers);
	for (size_t i = 0; i < (size_t)3 * LAYERS * RANKS * SLOTS; i++)
		work[i] = 100;
	require(balance_plan(&plan, BALANCE_FLASHLB, &p, NULL) == 0, "and again, on even loads");
	ok(placement_moved_in(&from, &plan.to) < LAYERS * RANKS, "layers that are as good as they were are kept");
	balance_plan_fini(&plan);
	placement_fini(&from);
	free(work);
}

/* -- overlap ------------------------------------------------------------------------------------------------------ */

static uint32_t overlap(const int32_t *a, const int32_t *b, uint32_t slots)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots; i++)
		n += placement_holds(a, slots, b[i]);
	return n;
}

/* The best of all orders. */
static uint32_t best_order(const int32_t *from, const int32_t *lists, uint32_t ranks, uint32_t slots, uint32_t rank,
			   uint32_t taken)
{
	uint32_t best = 0;

	for (uint32_t i = 0; rank < ranks && i < ranks; i++)
		if (!(taken >> i & 1)) {
			const uint32_t found = overlap(from + (size_t)rank * slots, lists + (size_t)i * slots, slots) +
					       best_order(from, lists, ranks, slots, rank + 1, taken | 1u << i);

			best = found > best ? found : best;
		}
	return best;
}

static void test_overlap(void)
{
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < 500; i++) {
		const uint32_t ranks = 1 + draw_below(&seed, 6), slots = 1 + draw_below(&seed, 4);
		int32_t from[24], lists[24], to[24];
		uint32_t found = 0;

		for (uint32_t k = 0; k < ranks * slots; k++) {
			from[k] = (int32_t)(draw_below(&seed, 3) * slots + k % slots);
			lists[k] = (int32_t)(draw_below(&seed, 3) * slots + k % slots);
		}
		must(overlap_permute(to, from, lists, ranks, slots, NULL) == 0, "matched");
		for (uint32_t r = 0; r < ranks; r++)
			found += overlap(from + (size_t)r * slots, to + (size_t)r * slots, slots);
		wrong += found != best_order(from, lists, ranks, slots, 0, 0);
	}
	ok(wrong == 0, "500 times new lists go to ranks as the best of all orders has them");
}

int main(void)
{
	seed = tap_seed();
	test_swift(BALANCE_SWIFT, "swift");
	test_swift_tie();
	test_swift(BALANCE_SWIFT_UPSTREAM, "swift with upstream's averages");
	test_sound(BALANCE_DYNAMIC, "dynamic", 5000);
	test_sound(BALANCE_FLASHLB, "flashlb", 500);
	test_twice(BALANCE_SWIFT, "swift", 4000);
	test_twice(BALANCE_SWIFT_UPSTREAM, "swift with upstream's averages", 4000);
	test_twice(BALANCE_DYNAMIC, "dynamic", 4000);
	test_twice(BALANCE_FLASHLB, "flashlb", 400);
	test_random();
	test_refused();
	test_overlap();
	test_scores();
	return tap_done();
}
