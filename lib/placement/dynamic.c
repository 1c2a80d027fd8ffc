/* SPDX-License-Identifier: MIT */
/*
 * dynamic - each layer from nothing: copies of the hottest first, one a rank, then the experts themselves.
 *
 * Law: loads are binary64. The list of experts is carried from one copy to the next, sorted by load, of equal loads the
 * later one first; so ties turn around each time, as they do upstream.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/balance-layer.h"

struct carried {
	double load;
	uint32_t expert, at; /* at: its place in the list before */
};

static int by_load_later_first(const void *a, const void *b)
{
	const struct carried *x = a, *y = b;

	if (x->load != y->load)
		return x->load > y->load ? -1 : 1;
	return (x->at < y->at) - (x->at > y->at);
}

static void sort(struct carried *list, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		list[i].at = i;
	qsort(list, n, sizeof *list, by_load_later_first);
}

/* Who gets the copies besides the first: their number, by expert. */
static void replicate(struct carried *list, uint32_t experts, uint32_t copies, uint32_t *extra)
{
	for (uint32_t i = 0; i < copies; i++) {
		uint32_t *of;

		sort(list, experts);
		of = &extra[list[0].expert];
		list[0].load = list[0].load * (*of + 1) / (*of + 2);
		*of += 1;
	}
}

/* The lightest rank with room that does not hold it; of equal ones the first. */
static uint32_t choose(const struct balance_layer *l, const uint32_t *filled, const double *total, int32_t expert)
{
	const uint32_t ranks = l->problem->from->ranks, slots = l->problem->from->slots;
	uint32_t best = ranks;

	for (uint32_t r = 0; r < ranks; r++)
		if (filled[r] < slots && (best == ranks || total[r] < total[best]) &&
		    !placement_holds(l->to + (size_t)r * slots, filled[r], expert))
			best = r;
	return best;
}

static void put(const struct balance_layer *l, uint32_t rank, const struct carried *c, uint32_t *filled, double *total)
{
	l->to[(size_t)rank * l->problem->from->slots + filled[rank]++] = (int32_t)c->expert;
	total[rank] += c->load;
}

/* The copies, expert by expert, on rank after rank. */
static void put_copies(const struct balance_layer *l, const struct carried *list, const uint32_t *extra,
		       uint32_t *filled, double *total)
{
	const uint32_t experts = l->problem->from->experts;
	uint32_t rank = 0;

	for (uint32_t e = 0; e < experts; e++) {
		uint32_t i = 0;

		while (extra[e] && list[i].expert != e)
			i++;
		for (uint32_t k = 0; k < extra[e]; k++)
			put(l, rank++, &list[i], filled, total);
	}
}

int balance_layer_dynamic(struct balance_layer *l, struct moe_error *err)
{
	const struct placement *from = l->problem->from;
	_cleanup_free_ struct carried *list = calloc(from->experts, sizeof *list);
	_cleanup_free_ uint32_t *extra = calloc(from->experts, sizeof *extra);
	_cleanup_free_ uint32_t *filled = calloc(from->ranks, sizeof *filled);
	_cleanup_free_ double *total = calloc(from->ranks, sizeof *total);

	if (!list || !extra || !filled || !total)
		return moe_error_set(err, -ENOMEM, "dynamic: no memory for %u experts", from->experts);
	for (uint32_t e = 0; e < from->experts; e++)
		list[e] = (struct carried){l->load[e], e, e};
	replicate(list, from->experts, from->ranks * from->slots - from->experts, extra);
	put_copies(l, list, extra, filled, total);
	sort(list, from->experts);
	for (uint32_t i = 0; i < from->experts; i++) {
		const uint32_t rank = choose(l, filled, total, (int32_t)list[i].expert);

		if (rank == from->ranks)
			return 0;
		put(l, rank, &list[i], filled, total);
	}
	l->most = 0;
	for (uint32_t r = 0; r < from->ranks; r++)
		l->most = total[r] > l->most ? total[r] : l->most;
	return 1;
}
