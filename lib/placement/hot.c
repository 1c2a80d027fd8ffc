/* SPDX-License-Identifier: MIT */
#include "placement/hot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "placement/eplb.h"

/* So many of the slots on all nodes have distinct experts, the others are second copies: by measurement (0056). */
#define HOT_DISTINCT 7
#define HOT_OF 8

/* Expert `experts` of a placement is the empty slot. Ranks beyond the nodes stand for the rows, which have all. */
struct ranks {
	uint32_t n, experts;
};

static struct ranks ranks_of(const struct hot_problem *p)
{
	return (struct ranks){p->nodes + DIV_UP(p->experts + 1, p->slots), p->experts + 1};
}

static int make_placement(struct placement *ret, const struct hot_problem *p, const int32_t *at, struct moe_error *err)
{
	const struct ranks ranks = ranks_of(p);
	const size_t own = (size_t)p->nodes * p->slots;
	int r = placement_new(ret, 1, ranks.n, p->slots, ranks.experts, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < own; i++)
		ret->at[i] = at[i] == HOT_NONE ? (int32_t)p->experts : at[i];
	for (size_t i = own; i < (size_t)ranks.n * p->slots; i++)
		ret->at[i] = (int32_t)((i - own) % ranks.experts);
	return 0;
}

/* -- what a placement is worth ------------------------------------------------------------------------------------ */

static int worth(struct hot_worth *ret, const struct hot_problem *p, const int32_t *at, struct moe_error *err)
{
	_cleanup_free_ uint32_t *copies = calloc(p->experts, sizeof *copies);
	double all = 0, covered = 0, most = 0;

	if (!copies)
		return moe_error_set(err, -ENOMEM, "no memory for %u experts", p->experts);
	for (size_t i = 0; i < (size_t)p->nodes * p->slots; i++)
		if (at[i] != HOT_NONE)
			copies[at[i]]++;
	for (uint32_t e = 0; e < p->experts; e++) {
		all += p->weight[e];
		covered += copies[e] ? p->weight[e] : 0;
	}
	for (uint32_t n = 0; n < p->nodes; n++) {
		double load = 0;

		for (uint32_t s = 0; s < p->slots; s++) {
			const int32_t e = at[(size_t)n * p->slots + s];

			load += e == HOT_NONE ? 0 : p->weight[e] / copies[e];
		}
		most = MAX(most, load);
	}
	ret->covered = all > 0 ? covered / all : 0;
	ret->balance = covered > 0 ? most * p->nodes / covered : 1;
	return 0;
}

/* -- where they should lie ---------------------------------------------------------------------------------------- */

struct ranked {
	double weight;
	int32_t expert;
};

static int hotter(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	return x->expert < y->expert ? -1 : 1;
}

/* EPLB may put two copies on one node: in the later's place comes the hottest that the node lacks. */
static void no_twice(const struct hot_problem *p, const struct ranked *order, int32_t *node)
{
	for (uint32_t s = 1; s < p->slots; s++) {
		if (!placement_holds(node, s, node[s]))
			continue;
		for (uint32_t i = 0; i < p->experts; i++)
			if (!placement_holds(node, p->slots, order[i].expert)) {
				node[s] = order[i].expert;
				break;
			}
	}
}

static int pack(int32_t *at, const struct hot_problem *p, const struct ranked *order, struct moe_error *err)
{
	const uint32_t replicas = p->nodes * p->slots;
	const uint32_t hot = MIN(MAX(replicas * HOT_DISTINCT / HOT_OF, p->slots), p->experts);
	_cleanup_free_ double *weight = calloc(hot, sizeof *weight);
	struct eplb_problem problem = {.layers = 1,
				       .experts = hot,
				       .replicas = replicas,
				       .groups = 1,
				       .nodes = 1,
				       .gpus = p->nodes,
				       .weight = weight};
	struct eplb_plan plan;
	int r;

	if (!weight)
		return moe_error_set(err, -ENOMEM, "no memory for %u experts", hot);
	for (uint32_t i = 0; i < hot; i++)
		weight[i] = order[i].weight;
	r = eplb_plan(&plan, &problem, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < replicas; i++)
		at[i] = order[plan.phy2log[i]].expert;
	eplb_plan_fini(&plan);
	for (uint32_t n = 0; n < p->nodes; n++)
		no_twice(p, order, at + (size_t)n * p->slots);
	return 0;
}

static int place(int32_t *at, const struct hot_problem *p, struct moe_error *err)
{
	_cleanup_free_ struct ranked *order = calloc(p->experts, sizeof *order);
	_cleanup_free_ int32_t *scratch = calloc(p->slots, sizeof *scratch);
	int r;

	if (!order || !scratch)
		return moe_error_set(err, -ENOMEM, "no memory for %u experts", p->experts);
	for (uint32_t e = 0; e < p->experts; e++)
		order[e] = (struct ranked){p->weight[e], (int32_t)e};
	qsort(order, p->experts, sizeof *order, hotter);
	r = pack(at, p, order, err);
	for (uint32_t n = 0; r == 0 && n < p->nodes; n++)
		placement_align(p->now + (size_t)n * p->slots, at + (size_t)n * p->slots, p->slots, scratch);
	return r;
}

static int plan_moves(struct hot_plan *plan, const struct hot_problem *p, struct moe_error *err)
{
	_cleanup_(placement_fini) struct placement from = {0}, to = {0};
	int r = make_placement(&from, p, p->now, err);

	if (r == 0)
		r = make_placement(&to, p, plan->at, err);
	return r < 0 ? r : transfer_plan(&plan->moves, TRANSFER_ASCEND, &from, &to, err);
}

static int check(const struct hot_problem *p, struct moe_error *err)
{
	if (!p->experts || !p->nodes || !p->slots || p->slots > p->experts)
		return moe_error_set(err, -EINVAL,
				     "%u experts and %u nodes of %u slots found, none of them 0 and no more slots than "
				     "experts expected",
				     p->experts, p->nodes, p->slots);
	return 0;
}

int hot_plan(struct hot_plan *ret, const struct hot_problem *p, struct moe_error *err)
{
	const size_t bytes = (size_t)p->nodes * p->slots * sizeof(int32_t);
	struct hot_plan plan = {0};
	int r = check(p, err);

	if (r < 0)
		return r;
	plan.at = malloc(bytes);
	r = plan.at ? worth(&plan.before, p, p->now, err) : moe_error_set(err, -ENOMEM, "no memory for a plan");
	if (r == 0)
		r = place(plan.at, p, err);
	if (r == 0)
		r = worth(&plan.after, p, plan.at, err);
	plan.change = r == 0 && (plan.after.covered >= plan.before.covered + HOT_GAIN ||
				 (plan.after.covered >= plan.before.covered &&
				  plan.after.balance <= plan.before.balance - HOT_GAIN));
	if (r == 0 && plan.change) {
		r = plan_moves(&plan, p, err);
	} else if (r == 0) {
		memcpy(plan.at, p->now, bytes);
		plan.after = plan.before;
	}
	if (r < 0)
		hot_plan_fini(&plan);
	else
		*ret = plan;
	return r;
}

void hot_plan_fini(struct hot_plan *plan)
{
	transfer_plan_fini(&plan->moves);
	free(plan->at);
	*plan = (struct hot_plan){0};
}
