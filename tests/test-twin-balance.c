/* SPDX-License-Identifier: MIT */
/*
 * Ascend's dynamic and swift against twins that say the rules again: experts of a rank are a set, each choice looks at
 * all, and nothing is kept that can be counted. Placements and loads are random, with ties and zeros, on two to eight
 * ranks, and with more copies of an expert than there are ranks to take them; some are on so many ranks that swift
 * comes to the end of its swaps.
 */
#include "placement/balance.h"
#include "tests/placements.h"

#define RANKS 40
#define SLOTS 16
#define ALL (RANKS * SLOTS)

static unsigned long long seed;
static uint32_t longest; /* plans of a layer that came to an end at 100 swaps */

/* One layer: what is on each rank, in a list by slot; -1: free. */
struct layer {
	uint32_t ranks, slots, experts;
	int32_t at[RANKS][SLOTS];
	double load[ALL];
};

static bool on(const struct layer *l, uint32_t rank, uint32_t expert)
{
	for (uint32_t s = 0; s < l->slots; s++)
		if (l->at[rank][s] == (int32_t)expert)
			return true;
	return false;
}

static uint32_t copies_of(const struct layer *l, uint32_t expert)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < l->ranks; r++)
		n += on(l, r, expert);
	return n;
}

/* -- dynamic ------------------------------------------------------------------------------------------------------ */

struct pair {
	uint32_t expert;
	double load;
};

/* Descending; of equal loads what was later comes first: an ascending sort that is stable, turned around. */
static void sort_turned(struct pair *list, uint32_t n)
{
	struct pair turned[ALL];

	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && list[k - 1].load > list[k].load; k--) {
			const struct pair was = list[k];

			list[k] = list[k - 1];
			list[k - 1] = was;
		}
	for (uint32_t i = 0; i < n; i++)
		turned[i] = list[n - 1 - i];
	memcpy(list, turned, n * sizeof *list);
}

/* The layer's new lists, not aligned, and the largest load; false: an expert found no rank. */
static bool twin_dynamic(struct layer *l, double *ret_most)
{
	struct layer new = *l;
	struct pair list[ALL];
	uint32_t extra[ALL] = {0}, filled[RANKS] = {0}, next = 0;
	double total[RANKS] = {0};

	for (uint32_t e = 0; e < l->experts; e++)
		list[e] = (struct pair){e, l->load[e]};
	for (uint32_t i = 0; i < l->ranks * l->slots - l->experts; i++) {
		uint32_t c;

		sort_turned(list, l->experts);
		c = extra[list[0].expert]++;
		list[0].load = list[0].load * (c + 1) / (c + 2);
	}
	memset(new.at, 0xff, sizeof new.at);
	for (uint32_t e = 0; e < l->experts; e++)
		for (uint32_t k = 0; k < extra[e]; k++, next++)
			for (uint32_t i = 0; i < l->experts; i++)
				if (list[i].expert == e) {
					new.at[next][filled[next]++] = (int32_t)e;
					total[next] += list[i].load;
				}
	sort_turned(list, l->experts);
	for (uint32_t i = 0; i < l->experts; i++) {
		uint32_t to = l->ranks;

		for (uint32_t r = l->ranks; r-- > 0;)
			if (filled[r] < l->slots && !on(&new, r, list[i].expert) &&
			    (to == l->ranks || total[r] <= total[to]))
				to = r;
		if (to == l->ranks)
			return false;
		new.at[to][filled[to]++] = (int32_t)list[i].expert;
		total[to] += list[i].load;
	}
	*l = new;
	*ret_most = 0;
	for (uint32_t r = 0; r < l->ranks; r++)
		*ret_most = fmax(*ret_most, total[r]);
	return true;
}

/* -- swift -------------------------------------------------------------------------------------------------------- */

struct swift {
	struct layer l;
	uint32_t home[ALL], extra[ALL];
	double load[ALL], total[RANKS]; /* of a copy; of a rank */
	bool upstream;                  /* which rounds to binary32, and takes whatever differs for different */
	uint32_t com[RANKS][RANKS];
	bool received[RANKS][ALL];
	bool filled;
};

static double rounded(const struct swift *w, double x)
{
	return w->upstream ? (double)(float)x : x;
}

/* -1, 0, 1: a is less, the same, more. */
static int compare(const struct swift *w, double a, double b)
{
	if (!w->upstream && fabs(a - b) <= 0x1p-40 * fmin(a, b))
		return 0;
	return (a > b) - (a < b);
}

static double imbalance(const struct layer *l)
{
	double sum = 0, most = 0;

	for (uint32_t r = 0; r < l->ranks; r++) {
		double of_rank = 0;

		for (uint32_t s = 0; s < l->slots; s++)
			of_rank += l->load[l->at[r][s]] / copies_of(l, (uint32_t)l->at[r][s]);
		sum += of_rank;
		most = fmax(most, of_rank);
	}
	return sum / l->ranks < 1e-9 ? 1 : most / (sum / l->ranks);
}

static void sum_totals(struct swift *w)
{
	for (uint32_t r = 0; r < w->l.ranks; r++) {
		w->total[r] = 0;
		for (uint32_t s = 0; s < w->l.slots; s++)
			if (w->l.at[r][s] >= 0)
				w->total[r] = rounded(w, w->total[r] + w->load[w->l.at[r][s]]);
	}
}

/* Rule 2: homes stay, all other slots are free. Returns how many. */
static uint32_t free_slots(struct swift *w)
{
	bool found[ALL] = {false};
	uint32_t n = 0;

	for (uint32_t s = 0; s < w->l.slots; s++)
		for (uint32_t r = 0; r < w->l.ranks; r++) {
			int32_t *e = &w->l.at[r][s];

			if (found[*e]) {
				*e = -1;
				n++;
				continue;
			}
			found[*e] = true;
			w->home[*e] = r;
		}
	return n;
}

/* Rule 2a. */
static void choose_copies(struct swift *w, uint32_t n)
{
	double now[ALL];

	memcpy(now, w->l.load, sizeof now);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t best = ALL, c;

		for (uint32_t e = 0; e < w->l.experts; e++)
			if (w->extra[e] + 1 < w->l.ranks && (best == ALL || compare(w, now[e], now[best]) >= 0))
				best = e;
		if (best == ALL)
			break;
		c = ++w->extra[best];
		now[best] = w->upstream ? now[best] * (c + 1) / (c + 2) : w->l.load[best] / (c + 1);
	}
	for (uint32_t e = 0; e < w->l.experts; e++)
		w->load[e] = rounded(w, now[e]);
}

static void put(struct swift *w, uint32_t rank, uint32_t slot, uint32_t e)
{
	w->l.at[rank][slot] = (int32_t)e;
	w->com[w->home[e]][rank]++;
	w->received[rank][e] = true;
}

/* Rule 2b: the heaviest that has copies left, of equal ones the lowest id. */
static void deal_copies(struct swift *w)
{
	for (;;) {
		uint32_t best = ALL, to = RANKS, slot = 0;

		for (uint32_t e = 0; e < w->l.experts; e++)
			if (w->extra[e] && (best == ALL || compare(w, w->load[e], w->load[best]) > 0))
				best = e;
		if (best == ALL)
			return;
		w->extra[best]--;
		for (uint32_t r = 0; r < w->l.ranks; r++)
			for (uint32_t s = 0; s < w->l.slots; s++)
				if (w->l.at[r][s] < 0 && !on(&w->l, r, best) && w->com[w->home[best]][r] < 1 &&
				    (to == RANKS || to == r || compare(w, w->total[r], w->total[to]) < 0)) {
					to = r;
					slot = s;
				}
		if (to == RANKS)
			continue;
		put(w, to, slot, best);
		w->total[to] = rounded(w, w->total[to] + w->load[best]);
	}
}

/* Rule 2c. */
static void fill_up(struct swift *w)
{
	for (uint32_t e = 0; e < w->l.experts; e++)
		w->load[e] = rounded(w, w->l.load[e] / copies_of(&w->l, e));
	for (uint32_t r = 0; r < w->l.ranks; r++)
		for (uint32_t s = 0; s < w->l.slots; s++) {
			uint32_t best = ALL, c;

			for (uint32_t e = 0; e < w->l.experts; e++)
				if (!on(&w->l, r, e) && (best == ALL || compare(w, w->load[e], w->load[best]) >= 0))
					best = e;
			if (w->l.at[r][s] >= 0 || best == ALL)
				continue;
			c = copies_of(&w->l, best);
			put(w, r, s, best);
			w->load[best] = w->upstream ? rounded(w, w->load[best] * ((double)c / (c + 1)))
						    : w->l.load[best] / (c + 1);
			w->filled = true;
		}
	sum_totals(w);
}

/* Rule 3: the best pair of two ranks, ids ascending. */
static double best_pair(const struct swift *w, uint32_t h, uint32_t x, uint32_t *ret_a, uint32_t *ret_b)
{
	double best = w->total[h];

	*ret_a = ALL;
	for (uint32_t a = 0; a < w->l.experts; a++)
		for (uint32_t b = 0; on(&w->l, h, a) && !on(&w->l, x, a) && b < w->l.experts; b++) {
			const double la = w->load[a], lb = w->load[b];
			const double most = fmax(w->total[h] - la + lb, w->total[x] - lb + la);

			if (on(&w->l, x, b) && !on(&w->l, h, b) && !w->received[h][a] && !w->received[x][b] &&
			    compare(w, most, best) < 0) {
				best = most;
				*ret_a = a;
				*ret_b = b;
			}
		}
	return best;
}

static void swap(struct swift *w, uint32_t h, uint32_t x, uint32_t a, uint32_t b)
{
	for (uint32_t s = 0; s < w->l.slots; s++) {
		if (w->l.at[h][s] == (int32_t)a)
			w->l.at[h][s] = (int32_t)b;
		else if (w->l.at[x][s] == (int32_t)b)
			w->l.at[x][s] = (int32_t)a;
	}
	for (uint32_t s = 0; s < w->l.slots; s++)
		if (w->l.at[x][s] == (int32_t)b)
			w->l.at[x][s] = (int32_t)a;
	w->total[h] = rounded(w, w->total[h] + rounded(w, w->load[b] - w->load[a]));
	w->total[x] = rounded(w, w->total[x] + rounded(w, w->load[a] - w->load[b]));
	w->received[h][b] = w->received[x][a] = true;
	w->com[h][x]++;
	w->com[x][h]++;
}

static bool swap_one(struct swift *w, double threshold)
{
	bool seen[RANKS] = {false};
	uint32_t h = 0;

	for (uint32_t r = 0; r < w->l.ranks; r++)
		h = compare(w, w->total[r], w->total[h]) >= 0 ? r : h;
	seen[h] = true;
	for (uint32_t i = 1; i < w->l.ranks; i++) {
		uint32_t x = RANKS, a, b;
		double most;

		for (uint32_t r = 0; r < w->l.ranks; r++)
			if (!seen[r] && (x == RANKS || compare(w, w->total[r], w->total[x]) < 0))
				x = r;
		seen[x] = true;
		if (w->com[x][h] || w->com[h][x])
			continue;
		most = best_pair(w, h, x, &a, &b);
		if (a == ALL || compare(w, w->total[h] - most, threshold) < 0)
			continue;
		swap(w, h, x, a, b);
		return true;
	}
	return false;
}

static int by_id(const void *a, const void *b)
{
	return *(const int32_t *)a - *(const int32_t *)b;
}

/* The new lists by id, not aligned. *ret_most: untouched where nothing was tried. */
static bool twin_swift(struct layer *l, double mean, bool upstream, double *ret_most)
{
	static struct swift w;
	const double before = imbalance(l);
	double most = 0;

	w = (struct swift){.l = *l, .upstream = upstream};
	if (compare(&w, before, 1.01) < 0)
		return false;
	choose_copies(&w, free_slots(&w));
	sum_totals(&w);
	deal_copies(&w);
	for (uint32_t r = 0; r < l->ranks; r++)
		for (uint32_t s = 0; s < l->slots; s++)
			if (w.l.at[r][s] < 0)
				fill_up(&w);
	for (uint32_t i = 0; i < 100 && swap_one(&w, 0.01 * mean); i++)
		longest += i == 99;
	for (uint32_t r = 0; r < l->ranks; r++) {
		most = fmax(most, w.total[r]);
		qsort(w.l.at[r], l->slots, sizeof w.l.at[r][0], by_id);
	}
	if (upstream || compare(&w, most / mean, before) < 0)
		*ret_most = most;
	if (compare(&w, most / mean, before) >= 0)
		return false;
	*l = w.l;
	return true;
}

/* -- both --------------------------------------------------------------------------------------------------------- */

/* Who stays keeps its slot, the others fill free ones in the order of the list. */
static void align(struct layer *new, const struct layer *old)
{
	for (uint32_t r = 0; r < new->ranks; r++) {
		const struct layer was = *new;
		uint32_t next = 0;

		for (uint32_t s = 0; s < new->slots; s++) {
			if (on(&was, r, (uint32_t)old->at[r][s])) {
				new->at[r][s] = old->at[r][s];
				continue;
			}
			while (on(old, r, (uint32_t)was.at[r][next]))
				next++;
			new->at[r][s] = was.at[r][next++];
		}
	}
}

static struct layer layer_of(const struct balance_problem *p, uint32_t layer)
{
	struct layer l = {p->from->ranks, p->from->slots, p->from->experts, {{0}}, {0}};

	for (uint32_t r = 0; r < l.ranks; r++)
		for (uint32_t s = 0; s < l.slots; s++) {
			const size_t at = placement_row(p->from, layer, r) + s;

			l.at[r][s] = p->from->at[at];
			l.load[l.at[r][s]] += p->work[at];
		}
	return l;
}

static double mean_of(const struct layer *l)
{
	double sum = 0;

	for (uint32_t e = 0; e < l->experts; e++)
		sum += l->load[e];
	return sum / l->ranks;
}

static bool same(const struct balance_problem *p, const struct balance_plan *plan, enum balance_policy policy)
{
	const struct layer first = layer_of(p, 0);
	double before = 0, after = 0;
	bool good = true;

	for (uint32_t i = 0; i < p->from->layers; i++) {
		const struct layer old = layer_of(p, i);
		struct layer l = old;
		double most = 0;
		bool new;

		for (uint32_t r = 0; r < l.ranks; r++) {
			double sum = 0;

			for (uint32_t s = 0; s < l.slots; s++)
				sum += p->work[placement_row(p->from, i, r) + s];
			most = fmax(most, sum);
		}
		before += most;
		if (policy == BALANCE_DYNAMIC)
			new = twin_dynamic(&l, &most);
		else
			new = twin_swift(&l, mean_of(policy == BALANCE_SWIFT_UPSTREAM ? &first : &l),
					 policy == BALANCE_SWIFT_UPSTREAM, &most);
		after += most;
		if (new)
			align(&l, &old);
		for (uint32_t r = 0; r < l.ranks; r++)
			good = good && memcmp(l.at[r], plan->to.at + placement_row(&plan->to, i, r),
					      l.slots * sizeof l.at[r][0]) == 0;
	}
	return good && plan->change == (after < 0.95 * before);
}

/* One layer of many ranks, half of them with more to do, each expert by a little: it takes many swaps. */
static double *draw_large(struct placement *ret)
{
	const uint32_t ranks = 20 + draw_below(&seed, RANKS - 19), slots = 4 + draw_below(&seed, SLOTS - 3);
	const bool even = draw_below(&seed, 2);
	double *work;

	if (placement_new(ret, 1, ranks, slots, ranks * slots - draw_below(&seed, ranks + 1), NULL) < 0)
		abort();
	draw_layer(&seed, ret, 0);
	work = draw_work(&seed, ret, 1);
	for (uint32_t i = 0; work && even && i < ranks * slots; i++)
		work[i] = (i / slots < ranks / 2 ? 1300 : 700) + draw_below(&seed, 50);
	return work;
}

static void test_policy(enum balance_policy policy, const char *name, uint32_t cases)
{
	uint32_t wrong = 0, changed = 0, worth = 0, filled = 0;

	for (uint32_t i = 0; i < cases; i++) {
		struct placement from;
		struct balance_problem p = {.from = &from, .stages = 1};
		struct balance_plan plan;
		double *work;

		if (i % 100 == 0) {
			work = draw_large(&from);
		} else {
			draw_placement(&seed, &from, policy != BALANCE_DYNAMIC && i % 2);
			work = draw_work(&seed, &from, 1);
		}
		p.work = work;
		must(work && balance_plan(&plan, policy, &p, NULL) == 0, name);
		if (!same(&p, &plan, policy) && wrong++ == 0)
			diag("%s: case %u: %u layers, %u ranks of %u slots, %u experts", name, i, from.layers,
			     from.ranks, from.slots, from.experts);
		changed += placement_moved_in(&from, &plan.to) > 0;
		worth += plan.change;
		filled += plan.fillers[0] > 0;
		balance_plan_fini(&plan);
		placement_fini(&from);
		free(work);
	}
	ok(wrong == 0 && changed > cases / 4 && worth > cases / 20 && (longest > 0) == (policy != BALANCE_DYNAMIC),
	   "%s: %u cases are the twin's, %u changed, %u worth it, %u with fillers, %u with all swaps; %u are not", name,
	   cases, changed, worth, filled, longest, wrong);
	longest = 0;
}

int main(void)
{
	seed = tap_seed();
	test_policy(BALANCE_DYNAMIC, "dynamic", 20000);
	test_policy(BALANCE_SWIFT_UPSTREAM, "swift as upstream", 20000);
	test_policy(BALANCE_SWIFT, "swift with right averages", 20000);
	return tap_done();
}
