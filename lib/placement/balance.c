/* SPDX-License-Identifier: MIT */
#include "placement/balance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/balance-layer.h"

#define CHANGE 0.95

struct work {
	double *load;
	uint32_t *copies;
	int32_t *to, *scratch;
	double sum_before, sum_after;
};

static const double *row(const struct balance_problem *p, uint32_t stage, uint32_t layer)
{
	return p->work + ((size_t)stage * p->from->layers + layer) * p->from->ranks * p->from->slots;
}

void balance_load(const struct balance_problem *p, uint32_t layer, double *ret)
{
	const int32_t *at = p->from->at + placement_row(p->from, layer, 0);

	memset(ret, 0, p->from->experts * sizeof *ret);
	for (uint32_t stage = 0; stage < p->stages; stage++)
		for (size_t i = 0; i < (size_t)p->from->ranks * p->from->slots; i++)
			ret[at[i]] += row(p, stage, layer)[i];
}

/* The largest rank's, as measured. */
static double load_before(const struct balance_problem *p, uint32_t layer)
{
	const uint32_t slots = p->from->slots;
	double most = 0;

	for (uint32_t r = 0; r < p->from->ranks; r++) {
		double sum = 0;

		for (uint32_t stage = 0; stage < p->stages; stage++)
			for (uint32_t s = 0; s < slots; s++)
				sum += row(p, stage, layer)[(size_t)r * slots + s];
		most = fmax(most, sum);
	}
	return most;
}

static double sum_of(const double *load, uint32_t n)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += load[i];
	return sum;
}

/* -- one layer ---------------------------------------------------------------------------------------------------- */

/* A test aid: the last slots of ranks 1 and 3 change places. */
static void swap_last(struct balance_layer *l)
{
	const uint32_t slots = l->problem->from->slots;
	int32_t *a = l->to + (size_t)1 * slots + slots - 1, *b = l->to + (size_t)3 * slots + slots - 1;
	const int32_t was = *a;

	*a = *b;
	*b = was;
}

static int run_layer(struct balance_layer *l, enum balance_policy policy, struct moe_error *err)
{
	switch (policy) {
	case BALANCE_RANDOM:
		swap_last(l);
		return 1;
	case BALANCE_DYNAMIC:
		return balance_layer_dynamic(l, err);
	case BALANCE_FLASHLB:
		return balance_layer_flashlb(l, err);
	default:
		return balance_layer_swift(l, err);
	}
}

static int plan_layer(struct balance_plan *plan, struct work *w, enum balance_policy policy,
		      const struct balance_problem *p, uint32_t layer, double first_mean, struct moe_error *err)
{
	const struct placement *from = p->from;
	const size_t all = (size_t)from->ranks * from->slots;
	const double before = load_before(p, layer);
	struct balance_layer l = {
		.problem = p,
		.layer = layer,
		.from = from->at + layer * all,
		.load = w->load,
		.copies = w->copies,
		.upstream = policy == BALANCE_SWIFT_UPSTREAM,
		.to = w->to,
		.most = before,
	};
	int r;

	balance_load(p, layer, w->load);
	placement_copies(from, layer, w->copies);
	memcpy(w->to, l.from, all * sizeof *w->to);
	l.mean = l.upstream ? first_mean : sum_of(w->load, from->experts) / from->ranks;
	r = run_layer(&l, policy, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; r == 1 && policy != BALANCE_RANDOM && i < from->ranks; i++)
		placement_align(l.from + (size_t)i * from->slots, w->to + (size_t)i * from->slots, from->slots,
				w->scratch);
	memcpy(plan->to.at + layer * all, r == 1 ? w->to : l.from, all * sizeof *w->to);
	plan->fillers[layer] = r == 1 ? l.fillers : 0;
	w->sum_before += before;
	w->sum_after += l.most;
	return 0;
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

static int check_problem(enum balance_policy policy, const struct balance_problem *p, struct moe_error *err)
{
	const struct placement *from = p->from;
	const uint64_t all = (uint64_t)from->ranks * from->slots, extra = all - from->experts;
	int r = placement_check_start(from, "placement", err);

	if (r < 0)
		return r;
	if (from->ranks > BALANCE_RANKS_MAX)
		return moe_error_set(err, -EINVAL, "placement: %u ranks found, at most %u expected", from->ranks,
				     BALANCE_RANKS_MAX);
	if (policy == BALANCE_RANDOM && from->ranks < 4)
		return moe_error_set(err, -EINVAL, "random: %u ranks found, 4 at least expected", from->ranks);
	if (policy == BALANCE_DYNAMIC && from->ranks < extra)
		return moe_error_set(err, -EINVAL,
				     "dynamic: %llu copies besides the first found, at most one for each of %u ranks "
				     "expected",
				     (unsigned long long)extra, from->ranks);
	if (policy == BALANCE_FLASHLB && from->experts > BALANCE_FLASHLB_EXPERTS_MAX)
		return moe_error_set(err, -EINVAL, "flashlb: %u experts found, at most %u expected", from->experts,
				     BALANCE_FLASHLB_EXPERTS_MAX);
	for (size_t i = 0; i < (size_t)p->stages * from->layers * all; i++)
		if (!(p->work[i] >= 0 && p->work[i] <= 1e30))
			return moe_error_set(err, -EINVAL,
					     "workload: layer %zu, rank %zu, slot %zu: %g found, 0 to 1e30 expected",
					     (size_t)(i / all % from->layers), (size_t)(i % all / from->slots),
					     i % from->slots, p->work[i]);
	return 0;
}

static int plan_layers(struct balance_plan *plan, enum balance_policy policy, const struct balance_problem *p,
		       struct moe_error *err)
{
	const struct placement *from = p->from;
	_cleanup_free_ double *load = calloc(from->experts, sizeof *load);
	_cleanup_free_ uint32_t *copies = calloc(from->experts, sizeof *copies);
	_cleanup_free_ int32_t *to = calloc((size_t)from->ranks * from->slots, sizeof *to);
	_cleanup_free_ int32_t *scratch = calloc(from->slots, sizeof *scratch);
	struct work w = {.load = load, .copies = copies, .to = to, .scratch = scratch};
	double first_mean;
	int r = 0;

	if (!load || !copies || !to || !scratch)
		return moe_error_set(err, -ENOMEM, "no memory for a layer of %u experts", from->experts);
	balance_load(p, 0, load);
	first_mean = sum_of(load, from->experts) / from->ranks;
	for (uint32_t layer = 0; r == 0 && layer < from->layers; layer++)
		r = plan_layer(plan, &w, policy, p, layer, first_mean, err);
	plan->change = policy == BALANCE_RANDOM || w.sum_after < CHANGE * w.sum_before;
	return r;
}

int balance_plan(struct balance_plan *ret, enum balance_policy policy, const struct balance_problem *p,
		 struct moe_error *err)
{
	struct balance_plan plan = {0};
	int r = check_problem(policy, p, err);

	if (r == 0)
		r = placement_copy(&plan.to, p->from, err);
	if (r < 0)
		return r;
	plan.fillers = calloc(p->from->layers, sizeof *plan.fillers);
	r = plan.fillers ? plan_layers(&plan, policy, p, err)
			 : moe_error_set(err, -ENOMEM, "no memory for %u layers", p->from->layers);
	if (r < 0)
		balance_plan_fini(&plan);
	else
		*ret = plan;
	return r;
}

void balance_plan_fini(struct balance_plan *plan)
{
	placement_fini(&plan->to);
	free(plan->fillers);
	plan->fillers = NULL;
}
