/* SPDX-License-Identifier: MIT */
/*
 * swift - bounded movement: copies are dealt anew, experts themselves only change places pair by pair.
 *
 * Law: between two ranks at most one expert goes each way; only fillers, for which no free pair was left, go beyond.
 * An expert's home is its first copy, slots outermost; every other copy's slot is dealt anew. A layer that was even
 * enough, or gets no better, is kept.
 *
 * Numbers are kept in binary64, and those that are nearer than 2^-40 of them are one number: what would be equal but
 * for rounding is equal, and no gain. As upstream has it, loads of copies and ranks are kept in binary32, in the order
 * in which they come, swaps are weighed in binary64, and whatever differs does; and what it tells of a layer that it
 * tried and kept is what it would have got.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/balance-layer.h"

#define EVEN_ENOUGH 1.01
#define GAIN 0.01
#define SWAPS_MAX 100
#define SENT_MAX 1 /* experts from one rank to another */
#define SAME (1 + 0x1p-40)
#define FREE (-1)

struct swift {
	struct balance_layer *layer;
	uint32_t ranks, slots, experts;
	int32_t *at;      /* the layer's `to`; FREE: to be dealt */
	bool *received;   /* [ranks][slots]: in this plan */
	uint8_t *sent;    /* [ranks][ranks]: from, to */
	uint32_t *home;   /* [experts]: rank */
	uint32_t *copies; /* [experts]: wanted, then placed */
	double *exact;    /* [experts]: load of a copy */
	double *load;     /* the same, as it is kept */
	uint32_t *order;  /* of experts or ranks */
	double *total;    /* of ranks */
	double same;      /* times which a number has to be less to be another */
};

static double kept(const struct swift *w, double number)
{
	return w->layer->upstream ? (double)(float)number : number;
}

static bool less(const struct swift *w, double a, double b)
{
	return a * w->same < b;
}

static int32_t *rank_of(const struct swift *w, uint32_t rank)
{
	return w->at + (size_t)rank * w->slots;
}

static bool may_send(const struct swift *w, uint32_t from, uint32_t to)
{
	return w->sent[(size_t)from * w->ranks + to] < SENT_MAX;
}

static void send(const struct swift *w, uint32_t from, uint32_t to)
{
	uint8_t *n = &w->sent[(size_t)from * w->ranks + to];

	*n += *n < UINT8_MAX;
}

static void receive(const struct swift *w, uint32_t rank, uint32_t slot, uint32_t expert)
{
	rank_of(w, rank)[slot] = (int32_t)expert;
	w->received[(size_t)rank * w->slots + slot] = true;
}

static void sum_ranks(const struct swift *w)
{
	for (uint32_t r = 0; r < w->ranks; r++) {
		w->total[r] = 0;
		for (uint32_t s = 0; s < w->slots; s++)
			if (rank_of(w, r)[s] != FREE)
				w->total[r] = kept(w, w->total[r] + w->load[rank_of(w, r)[s]]);
	}
}

/* -- copies ------------------------------------------------------------------------------------------------------- */

/* Frees the slots of all copies but the homes; how many. */
static uint32_t find_homes(const struct swift *w)
{
	uint32_t freed = 0;

	for (uint32_t s = 0; s < w->slots; s++)
		for (uint32_t r = 0; r < w->ranks; r++) {
			int32_t *at = &rank_of(w, r)[s];

			if (w->copies[*at]) {
				*at = FREE;
				freed++;
			} else {
				w->home[*at] = r;
				w->copies[*at] = 1;
			}
		}
	return freed;
}

/* Of one of its copies. Upstream multiplies what there was, and by one copy more than there are. */
static double load_of(const struct swift *w, uint32_t expert)
{
	const uint32_t n = w->copies[expert];

	return w->layer->upstream ? w->exact[expert] * n / (n + 1) : w->layer->load[expert] / n;
}

/* So many copies more, each to the expert with the heaviest ones; of equal ones to the last. */
static void want_copies(const struct swift *w, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t best = w->experts;

		for (uint32_t e = w->experts; e-- > 0;)
			if (w->copies[e] < w->ranks && (best == w->experts || less(w, w->exact[best], w->exact[e])))
				best = e;
		if (best == w->experts)
			break;
		w->copies[best]++;
		w->exact[best] = load_of(w, best);
	}
	for (uint32_t e = 0; e < w->experts; e++)
		w->load[e] = kept(w, w->exact[e]);
}

/* Its last free slot; as many as a rank has: none. */
static uint32_t last_free(const struct swift *w, uint32_t rank)
{
	for (uint32_t s = w->slots; s-- > 0;)
		if (rank_of(w, rank)[s] == FREE)
			return s;
	return w->slots;
}

/* The lightest rank that may take a copy, of equal ones the first; `ranks`: none. */
static uint32_t taker(const struct swift *w, uint32_t expert)
{
	uint32_t best = w->ranks;

	for (uint32_t r = 0; r < w->ranks; r++)
		if ((best == w->ranks || less(w, w->total[r], w->total[best])) && may_send(w, w->home[expert], r) &&
		    last_free(w, r) < w->slots && !placement_holds(rank_of(w, r), w->slots, (int32_t)expert))
			best = r;
	return best;
}

/* Experts by the load of a copy, heaviest first, of equal ones the first. */
static void sort_by_load(const struct swift *w)
{
	for (uint32_t e = 0; e < w->experts; e++) {
		uint32_t i = e;

		for (; i > 0 && less(w, w->load[w->order[i - 1]], w->load[e]); i--)
			w->order[i] = w->order[i - 1];
		w->order[i] = e;
	}
}

/* How many slots are still free: a copy that no rank may take is dropped. */
static uint32_t deal_copies(const struct swift *w, uint32_t freed)
{
	sort_by_load(w);
	for (uint32_t i = 0; i < w->experts; i++) {
		const uint32_t e = w->order[i], wanted = w->copies[e];

		w->copies[e] = 1;
		for (uint32_t k = 1; k < wanted; k++) {
			const uint32_t rank = taker(w, e);

			if (rank == w->ranks)
				break;
			receive(w, rank, last_free(w, rank), e);
			send(w, w->home[e], rank);
			w->total[rank] = kept(w, w->total[rank] + w->load[e]);
			w->copies[e]++;
			freed--;
		}
	}
	return freed;
}

/* The heaviest expert that the rank does not hold, of equal ones the last; `experts`: it holds all. */
static uint32_t filler(const struct swift *w, uint32_t rank)
{
	uint32_t best = w->experts;

	for (uint32_t e = w->experts; e-- > 0;)
		if ((best == w->experts || less(w, w->load[best], w->load[e])) &&
		    !placement_holds(rank_of(w, rank), w->slots, (int32_t)e))
			best = e;
	return best;
}

/* A copy more of it. */
static void thin(const struct swift *w, uint32_t expert)
{
	const double n = w->copies[expert]++;

	w->load[expert] = w->layer->upstream ? kept(w, w->load[expert] * (n / (n + 1)))
					     : w->layer->load[expert] / w->copies[expert];
}

/* Whatever may be sent. false: a rank has more slots than there are experts. */
static bool fill_up(const struct swift *w)
{
	for (uint32_t e = 0; e < w->experts; e++)
		w->load[e] = kept(w, w->layer->load[e] / w->copies[e]);
	for (uint32_t r = 0; r < w->ranks; r++)
		for (uint32_t s = 0; s < w->slots; s++) {
			uint32_t e;

			if (rank_of(w, r)[s] != FREE)
				continue;
			e = filler(w, r);
			if (e == w->experts)
				return false;
			receive(w, r, s, e);
			send(w, w->home[e], r);
			thin(w, e);
		}
	sum_ranks(w);
	return true;
}

/* -- swaps -------------------------------------------------------------------------------------------------------- */

struct swap {
	uint32_t heavy, light; /* ranks */
	uint32_t a, b;         /* their slots */
	double most;           /* of the two, afterwards */
};

/* Of all pairs that may change places the one that leaves least; of equal ones the lowest ids. */
static bool best_swap(const struct swift *w, struct swap *ret)
{
	const int32_t *heavy = rank_of(w, ret->heavy), *light = rank_of(w, ret->light);
	const bool *heavy_new = w->received + (size_t)ret->heavy * w->slots;
	const bool *light_new = w->received + (size_t)ret->light * w->slots;
	bool found = false;

	ret->most = w->total[ret->heavy];
	for (uint32_t a = 0; a < w->slots; a++) {
		if (heavy_new[a] || placement_holds(light, w->slots, heavy[a]))
			continue;
		for (uint32_t b = 0; b < w->slots; b++) {
			const double heavier = w->load[heavy[a]], lighter = w->load[light[b]];
			const double left = w->total[ret->heavy] - heavier + lighter;
			const double right = w->total[ret->light] - lighter + heavier;
			const double most = left > right ? left : right;
			bool better = less(w, most, ret->most);

			if (light_new[b] || less(w, ret->most, most) || placement_holds(heavy, w->slots, light[b]))
				continue;
			if (found && !better)
				better = heavy[a] < heavy[ret->a] ||
					 (heavy[a] == heavy[ret->a] && light[b] < light[ret->b]);
			if (!better)
				continue;
			ret->a = a;
			ret->b = b;
			ret->most = most;
			found = true;
		}
	}
	return found;
}

static void do_swap(const struct swift *w, const struct swap *x)
{
	const int32_t a = rank_of(w, x->heavy)[x->a], b = rank_of(w, x->light)[x->b];

	w->total[x->heavy] = kept(w, w->total[x->heavy] + kept(w, w->load[b] - w->load[a]));
	w->total[x->light] = kept(w, w->total[x->light] + kept(w, w->load[a] - w->load[b]));
	receive(w, x->heavy, x->a, (uint32_t)b);
	receive(w, x->light, x->b, (uint32_t)a);
	send(w, x->heavy, x->light);
	send(w, x->light, x->heavy);
}

/* Ranks from the lightest up, of equal ones the first. */
static void sort_ranks(const struct swift *w)
{
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint32_t i = r;

		for (; i > 0 && less(w, w->total[r], w->total[w->order[i - 1]]); i--)
			w->order[i] = w->order[i - 1];
		w->order[i] = r;
	}
}

static bool swap_once(const struct swift *w)
{
	struct swap x = {0};

	for (uint32_t r = 1; r < w->ranks; r++)
		if (!less(w, w->total[r], w->total[x.heavy]))
			x.heavy = r;
	sort_ranks(w);
	for (uint32_t i = 0; i < w->ranks; i++) {
		x.light = w->order[i];
		if (x.light == x.heavy || !may_send(w, x.light, x.heavy) || !may_send(w, x.heavy, x.light))
			continue;
		if (!best_swap(w, &x) || less(w, w->total[x.heavy] - x.most, GAIN * w->layer->mean))
			continue;
		do_swap(w, &x);
		return true;
	}
	return false;
}

/* -- a layer ------------------------------------------------------------------------------------------------------ */

static int plan(struct swift *w)
{
	const double before = placement_imbalance(w->layer->problem->from, w->layer->layer, w->layer->load, NULL);
	uint32_t freed;
	double most = 0;
	bool better;

	if (before < 0)
		return -ENOMEM;
	if (less(w, before, EVEN_ENOUGH))
		return 0;
	memcpy(w->exact, w->layer->load, w->experts * sizeof *w->exact);
	freed = find_homes(w);
	want_copies(w, freed);
	sum_ranks(w);
	w->layer->fillers = deal_copies(w, freed);
	if (w->layer->fillers && !fill_up(w))
		return 0;
	for (uint32_t i = 0; i < SWAPS_MAX && swap_once(w); i++)
		continue;
	for (uint32_t r = 0; r < w->ranks; r++)
		most = w->total[r] > most ? w->total[r] : most;
	better = less(w, most / w->layer->mean, before);
	if (w->layer->upstream || better)
		w->layer->most = most;
	return better;
}

/* Who comes to a rank takes its free slots by id. */
static void sort_lists(const struct swift *w)
{
	for (uint32_t r = 0; r < w->ranks; r++) {
		int32_t *at = rank_of(w, r);

		for (uint32_t i = 1; i < w->slots; i++) {
			const int32_t e = at[i];
			uint32_t k = i;

			for (; k > 0 && at[k - 1] > e; k--)
				at[k] = at[k - 1];
			at[k] = e;
		}
	}
}

int balance_layer_swift(struct balance_layer *l, struct moe_error *err)
{
	const struct placement *from = l->problem->from;
	const uint32_t most = from->experts > from->ranks ? from->experts : from->ranks;
	_cleanup_free_ bool *received = calloc((size_t)from->ranks * from->slots, sizeof *received);
	_cleanup_free_ uint8_t *sent = calloc((size_t)from->ranks * from->ranks, sizeof *sent);
	_cleanup_free_ uint32_t *home = calloc(from->experts, sizeof *home);
	_cleanup_free_ uint32_t *copies = calloc(from->experts, sizeof *copies);
	_cleanup_free_ double *exact = calloc(from->experts, sizeof *exact);
	_cleanup_free_ double *load = calloc(from->experts, sizeof *load);
	_cleanup_free_ uint32_t *order = calloc(most, sizeof *order);
	_cleanup_free_ double *total = calloc(from->ranks, sizeof *total);
	struct swift w = {l,    from->ranks, from->slots, from->experts, l->to, received, sent,
			  home, copies,      exact,       load,          order, total,    l->upstream ? 1 : SAME};
	int r = -ENOMEM;

	if (received && sent && home && copies && exact && load && order && total)
		r = plan(&w);
	if (r < 0)
		return moe_error_set(err, r, "swift: no memory for %u ranks", from->ranks);
	sort_lists(&w);
	return r;
}
