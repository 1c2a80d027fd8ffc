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

	ok(balance_plan(&plan, BALANCE_SWIFT, &p, &err) == -EINVAL && strstr(err.text, "expert 0 is on rank 0 twice"),
	   "refused: %s", err.text);
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

/* The distribution of upstream's unit test, u^10 * 999 + 1 for each slot and stage; the numbers are our own. */
static double *upstream_loads(struct placement *ret)
{
	unsigned long long fixed = 42;
	const size_t n = (size_t)STAGES * LAYERS * RANKS * SLOTS;
	double *work = calloc(n, sizeof *work);

	if (!work || placement_new(ret, LAYERS, RANKS, SLOTS, EXPERTS, NULL) < 0)
		abort();
	for (uint32_t l = 0; l < LAYERS; l++)
		draw_layer(&fixed, ret, l);
	for (size_t i = 0; i < n; i++)
		work[i] = floor(pow(draw_unit(&fixed), 10) * 999) + 1;
	return work;
}

static double mean_imbalance(const struct balance_problem *p, const struct placement *placement)
{
	double load[EXPERTS], sum = 0;

	for (uint32_t l = 0; l < LAYERS; l++) {
		balance_load(p, l, load);
		sum += placement_imbalance(placement, l, load, NULL) / LAYERS;
	}
	return sum;
}

static void test_score(enum balance_policy policy, const char *name, const struct balance_problem *p, double limit)
{
	struct balance_plan plan;
	double found;

	require(balance_plan(&plan, policy, p, NULL) == 0, "%s plans", name);
	found = mean_imbalance(p, &plan.to);
	ok(found <= limit, "%s: the largest load is %.4f of the mean, %.4f before, at most %.2f; %u of %u slots change",
	   name, found, mean_imbalance(p, p->from), limit, (uint32_t)placement_moved_in(p->from, &plan.to),
	   LAYERS * RANKS * SLOTS);
	balance_plan_fini(&plan);
}

static void test_scores(void)
{
	struct placement from;
	double *work = upstream_loads(&from), last[LAYERS] = {0};
	struct balance_problem p = {.from = &from, .stages = STAGES, .work = work};
	struct balance_plan plan;

	test_score(BALANCE_SWIFT, "swift", &p, 1.08);
	test_score(BALANCE_SWIFT_UPSTREAM, "swift with upstream's averages", &p, 1.08);
	test_score(BALANCE_FLASHLB, "flashlb", &p, 1.10);
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
	test_random();
	test_refused();
	test_overlap();
	test_scores();
	return tap_done();
}
