/* SPDX-License-Identifier: MIT */
#include "placement/transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

#define NOWHERE UINT32_MAX

/* One layer. Slots are counted over all ranks. */
struct layer {
	const struct placement *from, *to;
	uint32_t layer;
	const int32_t *old, *new;
	uint32_t *holders;   /* of the expert that is looked at: ranks that have it, ascending */
	uint32_t *receivers; /* and ranks that are to get it from elsewhere, ascending */
	uint32_t n_holders, n_receivers;
	struct transfer *list; /* this layer's */
	size_t n;
};

/* The slot of the rank that has it; NOWHERE. */
static uint32_t slot_of(const int32_t *at, const struct placement *p, uint32_t rank, int32_t expert)
{
	for (uint32_t s = 0; s < p->slots; s++)
		if (at[(size_t)rank * p->slots + s] == expert)
			return s;
	return NOWHERE;
}

static void add(struct layer *l, struct transfer t)
{
	t.layer = l->layer;
	l->list[l->n++] = t;
}

/* -- Ascend's ----------------------------------------------------------------------------------------------------- */

/* The lowest rank that gives it up, else the lowest that holds it; NOWHERE. */
static uint32_t giver(const struct layer *l, int32_t expert)
{
	uint32_t holder = NOWHERE;

	for (uint32_t r = 0; r < l->from->ranks; r++) {
		if (slot_of(l->old, l->from, r, expert) == NOWHERE)
			continue;
		if (slot_of(l->new, l->to, r, expert) == NOWHERE)
			return r;
		holder = holder == NOWHERE ? r : holder;
	}
	return holder;
}

/* The lowest expert above `after` that comes to the rank; -1. */
static int32_t next_arrival(const struct layer *l, uint32_t rank, int32_t after)
{
	const int32_t *new = l->new + (size_t)rank * l->to->slots;
	int32_t next = -1;

	for (uint32_t s = 0; s < l->to->slots; s++)
		if (new[s] > after && (next < 0 || new[s] < next) && slot_of(l->old, l->from, rank, new[s]) == NOWHERE)
			next = new[s];
	return next;
}

static void plan_ascend(struct layer *l)
{
	for (uint32_t rank = 0; rank < l->to->ranks; rank++) {
		uint32_t buffer = 0;

		for (int32_t e = next_arrival(l, rank, -1); e >= 0; e = next_arrival(l, rank, e)) {
			const uint32_t sender = giver(l, e);

			add(l, (struct transfer){.expert = (uint32_t)e,
						 .from_rank = sender,
						 .from_slot = slot_of(l->old, l->from, sender, e),
						 .to_rank = rank,
						 .to_slot = slot_of(l->new, l->to, rank, e),
						 .buffer = buffer++});
		}
	}
}

/* -- vLLM's ------------------------------------------------------------------------------------------------------- */

static void find_ranks(struct layer *l, int32_t expert)
{
	l->n_holders = l->n_receivers = 0;
	for (uint32_t r = 0; r < l->from->ranks; r++) {
		if (slot_of(l->old, l->from, r, expert) != NOWHERE)
			l->holders[l->n_holders++] = r;
		else if (slot_of(l->new, l->to, r, expert) != NOWHERE)
			l->receivers[l->n_receivers++] = r;
	}
}

/* Who serves the i-th receiver: each holder as many in a row, then one each of what is left. */
static uint32_t server(const struct layer *l, uint32_t i)
{
	const uint32_t each = l->n_receivers / l->n_holders;

	return i < each * l->n_holders ? l->holders[i / each] : l->holders[i - each * l->n_holders];
}

static void plan_expert(struct layer *l, int32_t expert)
{
	find_ranks(l, expert);
	for (uint32_t i = 0; i < l->n_receivers; i++) {
		const uint32_t sender = server(l, i);

		add(l, (struct transfer){.expert = (uint32_t)expert,
					 .from_rank = sender,
					 .from_slot = slot_of(l->old, l->from, sender, expert),
					 .to_rank = l->receivers[i],
					 .to_slot = slot_of(l->new, l->to, l->receivers[i], expert)});
	}
}

/* What a rank copies for itself: of what it had, or of what it has received. */
static void plan_copies(struct layer *l, uint32_t rank)
{
	const size_t first = (size_t)rank * l->to->slots;

	for (uint32_t s = 0; s < l->to->slots; s++) {
		const int32_t e = l->new[first + s];
		const uint32_t had = slot_of(l->old, l->from, rank, e), received = slot_of(l->new, l->to, rank, e);

		if (l->old[first + s] == e || (had == NOWHERE && received == s))
			continue;
		add(l, (struct transfer){.expert = (uint32_t)e,
					 .from_rank = rank,
					 .from_slot = had != NOWHERE ? had : received,
					 .to_rank = rank,
					 .to_slot = s,
					 .of_new = had == NOWHERE});
	}
}

/* The round of the pair's first transfer, or the first in which neither rank is in a pair. */
static uint32_t round_of(const struct layer *l, size_t at)
{
	const struct transfer *t = &l->list[at];
	uint32_t round = 0;

	for (size_t i = 0; i < at; i++)
		if (l->list[i].from_rank == t->from_rank && l->list[i].to_rank == t->to_rank)
			return l->list[i].round;
	for (size_t i = 0; i < at; i++) {
		const struct transfer *x = &l->list[i];

		if (x->round != round || (x->from_rank != t->from_rank && x->from_rank != t->to_rank &&
					  x->to_rank != t->from_rank && x->to_rank != t->to_rank))
			continue;
		round++;
		i = (size_t)-1; /* from the beginning, for the next round */
	}
	return round;
}

static void plan_vllm(struct layer *l)
{
	if (memcmp(l->old, l->new, (size_t)l->to->ranks * l->to->slots * sizeof *l->new) == 0)
		return;
	for (uint32_t e = 0; e < l->to->experts; e++)
		plan_expert(l, (int32_t)e);
	for (size_t i = 0; i < l->n; i++)
		l->list[i].round = round_of(l, i);
	for (uint32_t rank = 0; rank < l->to->ranks; rank++)
		plan_copies(l, rank);
}

/* -- both --------------------------------------------------------------------------------------------------------- */

static int check_shapes(const struct placement *from, const struct placement *to, struct moe_error *err)
{
	if (from->layers != to->layers || from->ranks != to->ranks || from->slots != to->slots ||
	    from->experts != to->experts)
		return moe_error_set(err, -EINVAL,
				     "transfers: %u layers of %u ranks of %u slots and %u experts found, %u of %u of "
				     "%u and %u expected as they are now",
				     to->layers, to->ranks, to->slots, to->experts, from->layers, from->ranks,
				     from->slots, from->experts);
	return 0;
}

static int check_source(const struct layer *l, struct moe_error *err)
{
	for (uint32_t e = 0; e < l->to->experts; e++)
		if (giver(l, (int32_t)e) == NOWHERE)
			return moe_error_set(err, -EINVAL,
					     "transfers: layer %u: expert %u is on no rank now, one at "
					     "least expected",
					     l->layer, e);
	return 0;
}

static int plan_layer(struct transfer_plan *plan, struct layer *l, enum transfer_rule rule, struct moe_error *err)
{
	struct transfer *longer;
	int r = check_source(l, err);

	if (r < 0)
		return r;
	l->n = 0;
	if (rule == TRANSFER_ASCEND)
		plan_ascend(l);
	else
		plan_vllm(l);
	if (l->n == 0)
		return 0;
	longer = realloc(plan->list, (plan->n + l->n) * sizeof *longer);
	if (!longer)
		return moe_error_set(err, -ENOMEM, "no memory for %zu transfers", plan->n + l->n);
	memcpy(longer + plan->n, l->list, l->n * sizeof *longer);
	plan->list = longer;
	plan->n += l->n;
	return 0;
}

int transfer_plan(struct transfer_plan *ret, enum transfer_rule rule, const struct placement *from,
		  const struct placement *to, struct moe_error *err)
{
	const size_t all = (size_t)to->ranks * to->slots;
	_cleanup_free_ struct transfer *list = calloc(all, sizeof *list);
	_cleanup_free_ uint32_t *ranks = calloc(2 * (size_t)to->ranks, sizeof *ranks);
	struct transfer_plan plan = {0};
	int r = check_shapes(from, to, err);

	if (r == 0 && (!list || !ranks))
		r = moe_error_set(err, -ENOMEM, "no memory for a layer of %zu slots", all);
	for (uint32_t i = 0; r == 0 && i < to->layers; i++) {
		struct layer l = {
			.from = from,
			.to = to,
			.layer = i,
			.old = from->at + i * all,
			.new = to->at + i *all,
			.holders = ranks,
			.receivers = ranks + to->ranks,
			.list = list,
		};

		r = plan_layer(&plan, &l, rule, err);
	}
	if (r < 0)
		transfer_plan_fini(&plan);
	else
		*ret = plan;
	return r;
}

void transfer_plan_fini(struct transfer_plan *plan)
{
	free(plan->list);
	*plan = (struct transfer_plan){0};
}

int transfer_preserve(const struct placement *from, struct placement *to, struct moe_error *err)
{
	_cleanup_free_ int32_t *scratch = calloc(to->slots, sizeof *scratch);

	if (!scratch)
		return moe_error_set(err, -ENOMEM, "no memory for %u slots", to->slots);
	if (from->layers != to->layers || from->ranks != to->ranks || from->slots != to->slots)
		return 0;
	for (uint32_t l = 0; l < to->layers; l++)
		for (uint32_t r = 0; r < to->ranks; r++)
			placement_align(from->at + placement_row(from, l, r), to->at + placement_row(to, l, r),
					to->slots, scratch);
	return 0;
}
