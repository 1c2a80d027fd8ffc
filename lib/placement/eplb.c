/* SPDX-License-Identifier: MIT */
#include "placement/eplb.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/transfer.h"

#define LOG2PHY_MAX (1ull << 28) /* numbers in it */

/* What is packed: n loads into packs, each getting as many. */
struct packing {
	uint32_t *pack, *rank; /* of each item */
	struct item {
		float load;
		uint32_t index;
	} * order;
	float *totals;
	uint32_t *filled; /* of each pack */
};

/* Room for one layer, and its sizes: of the whole, and of one node. */
struct work {
	uint32_t groups, nodes;                                    /* as used: 1 and 1 when global */
	uint32_t node_groups, node_experts, node_slots, node_gpus; /* of one node */
	struct packing packing;
	float *load, *sums;              /* of experts in the order in which they lie on nodes; of groups or slots */
	int32_t *expert;                 /* of each of those: its id */
	uint32_t *held, *number, *count; /* of a node's slots: expert and copy; of its experts: copies */
	int32_t *ranks;                  /* [layers][replicas]: each slot's copy */
};

/* -- packing ------------------------------------------------------------------------------------------------------ */

static int by_load(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->load != y->load)
		return x->load > y->load ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

/* The pack with room and the smallest total; of equal ones the first. */
static uint32_t lightest(const struct packing *k, uint32_t packs, uint32_t room)
{
	uint32_t best = packs;

	for (uint32_t i = 0; i < packs; i++)
		if (k->filled[i] < room && (best == packs || k->totals[i] < k->totals[best]))
			best = i;
	return best;
}

static void pack(struct packing *k, const float *load, uint32_t n, uint32_t packs)
{
	for (uint32_t i = 0; i < n; i++) {
		k->order[i] = (struct item){load[i], i};
		k->pack[i] = i;
		k->rank[i] = 0;
	}
	if (n == packs)
		return;
	qsort(k->order, n, sizeof *k->order, by_load);
	memset(k->totals, 0, packs * sizeof *k->totals);
	memset(k->filled, 0, packs * sizeof *k->filled);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t at = k->order[i].index, to = lightest(k, packs, n / packs);

		k->pack[at] = to;
		k->rank[at] = k->filled[to]++;
		k->totals[to] += load[at];
	}
}

/* -- one layer ---------------------------------------------------------------------------------------------------- */

/* Experts in the order in which their groups lie on nodes. */
static void deal_groups(struct work *w, const struct eplb_problem *p, const double *weight)
{
	const uint32_t size = p->experts / w->groups;

	for (uint32_t g = 0; g < w->groups; g++) {
		w->sums[g] = 0;
		for (uint32_t i = 0; i < size; i++)
			w->sums[g] += (float)weight[g * size + i];
	}
	pack(&w->packing, w->sums, w->groups, w->nodes);
	for (uint32_t g = 0; g < w->groups; g++) {
		const uint32_t first = (w->packing.pack[g] * w->node_groups + w->packing.rank[g]) * size;

		for (uint32_t i = 0; i < size; i++) {
			w->expert[first + i] = (int32_t)(g * size + i);
			w->load[first + i] = (float)weight[g * size + i];
		}
	}
}

/* Each slot beyond the first of each expert goes to the one with the most load a copy. */
static void replicate(struct work *w, const float *load)
{
	for (uint32_t e = 0; e < w->node_experts; e++) {
		w->held[e] = e;
		w->number[e] = 0;
		w->count[e] = 1;
	}
	for (uint32_t slot = w->node_experts; slot < w->node_slots; slot++) {
		uint32_t best = 0;

		for (uint32_t e = 1; e < w->node_experts; e++)
			if (load[e] / (float)w->count[e] > load[best] / (float)w->count[best])
				best = e;
		w->held[slot] = best;
		w->number[slot] = w->count[best]++;
	}
}

static void plan_node(struct work *w, const struct eplb_plan *plan, const struct eplb_problem *p, uint32_t layer,
		      uint32_t node)
{
	const uint32_t first = node * w->node_experts, per_gpu = p->replicas / p->gpus;
	const size_t base = (size_t)layer * p->replicas + (size_t)node * w->node_slots;

	replicate(w, w->load + first);
	for (uint32_t i = 0; i < w->node_slots; i++)
		w->sums[i] = w->load[first + w->held[i]] / (float)w->count[w->held[i]];
	pack(&w->packing, w->sums, w->node_slots, w->node_gpus);
	for (uint32_t i = 0; i < w->node_slots; i++) {
		const size_t at = base + w->packing.pack[i] * per_gpu + w->packing.rank[i];

		plan->phy2log[at] = w->expert[first + w->held[i]];
		w->ranks[at] = (int32_t)w->number[i];
	}
	for (uint32_t e = 0; e < w->node_experts; e++)
		plan->logcnt[(size_t)layer * p->experts + (uint32_t)w->expert[first + e]] = (int32_t)w->count[e];
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

static int check_divides(uint32_t part, const char *part_name, uint32_t whole, const char *whole_name,
			 struct moe_error *err)
{
	if (whole % part == 0)
		return 0;
	return moe_error_set(err, -EINVAL, "%s: %u found, a multiple of the %u %s expected", whole_name, whole, part,
			     part_name);
}

static int check_weights(const struct eplb_problem *p, struct moe_error *err)
{
	for (size_t i = 0; i < (size_t)p->layers * p->experts; i++)
		if (!(p->weight[i] >= 0 && p->weight[i] <= (double)1e30f))
			return moe_error_set(err, -EINVAL,
					     "weight: layer %zu, expert %zu: %g found, 0 to 1e30 expected",
					     i / p->experts, i % p->experts, p->weight[i]);
	return 0;
}

static bool is_global(const struct eplb_problem *p)
{
	return p->groups % p->nodes != 0;
}

int eplb_check(const struct eplb_problem *p, struct moe_error *err)
{
	int r = 0;

	if (p->layers < 1 || p->layers > PLACEMENT_LAYERS_MAX)
		return moe_error_set(err, -EINVAL, "layers: %u found, 1 to %u expected", p->layers,
				     PLACEMENT_LAYERS_MAX);
	if (p->experts < 1 || p->experts > PLACEMENT_EXPERTS_MAX)
		return moe_error_set(err, -EINVAL, "experts: %u found, 1 to %u expected", p->experts,
				     PLACEMENT_EXPERTS_MAX);
	if (!p->groups || !p->nodes || !p->gpus)
		return moe_error_set(err, -EINVAL, "%s: 0 found, 1 at least expected",
				     !p->groups  ? "groups"
				     : !p->nodes ? "nodes"
						 : "gpus");
	if (p->replicas < p->experts || p->replicas > PLACEMENT_SLOTS_MAX)
		return moe_error_set(err, -EINVAL, "replicas: %u found, %u (one for each expert) to %u expected",
				     p->replicas, p->experts, PLACEMENT_SLOTS_MAX);
	if (!is_global(p)) {
		r = check_divides(p->groups, "groups", p->experts, "experts", err);
		if (r == 0)
			r = check_divides(p->nodes, "nodes", p->gpus, "gpus", err);
	}
	if (r == 0)
		r = check_divides(p->gpus, "gpus", p->replicas, "replicas", err);
	return r < 0 ? r : check_weights(p, err);
}

static void work_fini(struct work *w)
{
	free(w->packing.pack);
	free(w->packing.rank);
	free(w->packing.order);
	free(w->packing.totals);
	free(w->packing.filled);
	free(w->load);
	free(w->sums);
	free(w->expert);
	free(w->held);
	free(w->number);
	free(w->count);
	free(w->ranks);
}

static int work_init(struct work *w, const struct eplb_problem *p, struct moe_error *err)
{
	const bool global = is_global(p);
	const uint32_t groups = global ? 1 : p->groups, nodes = global ? 1 : p->nodes;
	const size_t n = p->replicas; /* at least the experts, the groups, the nodes, the GPUs */

	*w = (struct work){
		.groups = groups,
		.nodes = nodes,
		.node_groups = groups / nodes,
		.node_experts = p->experts / nodes,
		.node_slots = p->replicas / nodes,
		.node_gpus = p->gpus / nodes,
		.packing = {calloc(n, sizeof(uint32_t)), calloc(n, sizeof(uint32_t)), calloc(n, sizeof(struct item)),
			    calloc(n, sizeof(float)), calloc(n, sizeof(uint32_t))},
		.load = calloc(n, sizeof(float)),
		.sums = calloc(n, sizeof(float)),
		.expert = calloc(n, sizeof(int32_t)),
		.held = calloc(n, sizeof(uint32_t)),
		.number = calloc(n, sizeof(uint32_t)),
		.count = calloc(n, sizeof(uint32_t)),
		.ranks = calloc(n * p->layers, sizeof(int32_t)),
	};
	if (w->packing.pack && w->packing.rank && w->packing.order && w->packing.totals && w->packing.filled &&
	    w->load && w->sums && w->expert && w->held && w->number && w->count && w->ranks)
		return 0;
	work_fini(w);
	return moe_error_set(err, -ENOMEM, "no memory for %u layers of %u slots", p->layers, p->replicas);
}

/* The table from experts to slots, once the most copies of all layers are known. */
static int list_slots(struct eplb_plan *plan, const struct eplb_problem *p, const struct work *w, struct moe_error *err)
{
	const size_t experts = (size_t)p->layers * p->experts;

	plan->columns = 1;
	for (size_t i = 0; i < experts; i++)
		if ((uint32_t)plan->logcnt[i] > plan->columns)
			plan->columns = (uint32_t)plan->logcnt[i];
	if (experts * plan->columns > LOG2PHY_MAX)
		return moe_error_set(err, -E2BIG,
				     "replicas: an expert has %u copies: log2phy would have %zu rows of so many; take "
				     "fewer replicas",
				     plan->columns, experts);
	plan->log2phy = malloc(experts * plan->columns * sizeof *plan->log2phy);
	if (!plan->log2phy)
		return moe_error_set(err, -ENOMEM, "no memory for %zu rows of %u copies", experts, plan->columns);
	memset(plan->log2phy, 0xff, experts * plan->columns * sizeof *plan->log2phy);
	for (uint32_t l = 0; l < p->layers; l++)
		for (uint32_t i = 0; i < p->replicas; i++) {
			const size_t at = (size_t)l * p->replicas + i;
			const size_t row = (size_t)l * p->experts + (uint32_t)plan->phy2log[at];

			plan->log2phy[row * plan->columns + (uint32_t)w->ranks[at]] = (int32_t)i;
		}
	return 0;
}

int eplb_plan(struct eplb_plan *ret, const struct eplb_problem *p, struct moe_error *err)
{
	struct eplb_plan plan = {0};
	struct work w;
	int r = eplb_check(p, err);

	if (r == 0)
		r = work_init(&w, p, err);
	if (r < 0)
		return r;
	plan.global = is_global(p);
	plan.phy2log = calloc((size_t)p->layers * p->replicas, sizeof *plan.phy2log);
	plan.logcnt = calloc((size_t)p->layers * p->experts, sizeof *plan.logcnt);
	if (!plan.phy2log || !plan.logcnt)
		r = moe_error_set(err, -ENOMEM, "no memory for %u layers of %u slots", p->layers, p->replicas);
	for (uint32_t l = 0; r == 0 && l < p->layers; l++) {
		deal_groups(&w, p, p->weight + (size_t)l * p->experts);
		for (uint32_t node = 0; node < w.nodes; node++)
			plan_node(&w, &plan, p, l, node);
	}
	if (r == 0)
		r = list_slots(&plan, p, &w, err);
	work_fini(&w);
	if (r < 0)
		eplb_plan_fini(&plan);
	else
		*ret = plan;
	return r;
}

void eplb_plan_fini(struct eplb_plan *plan)
{
	free(plan->phy2log);
	free(plan->log2phy);
	free(plan->logcnt);
	*plan = (struct eplb_plan){0};
}

double eplb_balance(const struct eplb_problem *p, const struct eplb_plan *plan, uint32_t layer, double *ret_max)
{
	const double *weight = p->weight + (size_t)layer * p->experts;
	const int32_t *count = plan->logcnt + (size_t)layer * p->experts;
	const int32_t *slot = plan->phy2log + (size_t)layer * p->replicas;
	const uint32_t per_gpu = p->replicas / p->gpus;
	long double most = 0, sum = 0;

	for (uint32_t e = 0; e < p->experts; e++)
		sum += weight[e];
	for (uint32_t g = 0; g < p->gpus; g++) {
		long double load = 0;

		for (uint32_t i = g * per_gpu; i < (g + 1) * per_gpu; i++)
			load += (long double)weight[slot[i]] / count[slot[i]];
		most = load > most ? load : most;
	}
	*ret_max = (double)most;
	return sum > 0 ? (double)(most * p->gpus / sum) : 1;
}

/* -- as vLLM installs it ------------------------------------------------------------------------------------------ */

int eplb_placement(struct placement *ret, const struct eplb_plan *plan, const struct eplb_problem *p,
		   struct moe_error *err)
{
	const int r = placement_new(ret, p->layers, p->gpus, p->replicas / p->gpus, p->experts, err);

	if (r == 0)
		memcpy(ret->at, plan->phy2log, (size_t)p->layers * p->replicas * sizeof *ret->at);
	return r;
}

int eplb_keep_slots(struct eplb_plan *plan, const struct eplb_problem *p, const struct placement *from,
		    struct moe_error *err)
{
	_cleanup_free_ int32_t *next = calloc(p->experts, sizeof *next);
	struct placement to;
	int r = next ? eplb_placement(&to, plan, p, err) : moe_error_set(err, -ENOMEM, "no memory");

	if (r < 0)
		return r;
	r = transfer_preserve(from, &to, err);
	for (uint32_t l = 0; r == 0 && l < p->layers; l++) {
		const size_t first = (size_t)l * p->replicas;

		memset(next, 0, p->experts * sizeof *next);
		for (uint32_t i = 0; i < p->replicas; i++) {
			const int32_t e = to.at[first + i];

			plan->phy2log[first + i] = e;
			plan->log2phy[((size_t)l * p->experts + (uint32_t)e) * plan->columns + (uint32_t)next[e]++] =
				(int32_t)i;
		}
	}
	placement_fini(&to);
	return r;
}
