/* SPDX-License-Identifier: MIT */
/*
 * Policies that are no key, against twins that have no queue: each expert has a place (small, main, once, again, a
 * ghost) and the number of the moment in which it came there. The oldest is found by looking at all.
 *
 * sieve, s3-fifo and arc are said for one request after another; here a step asks for several at once. What is there
 * is told first, then misses come in ascending id, and nothing that the step wants is passed by the hand, put back, or
 * evicted. original is the exception, as its rule says: it may evict what the step wants, when nothing else is left.
 */
#include <math.h>

#define EXPERTS 50 /* so that a tenth of the slots is more than one */
#include "tests/twin-trace.h"

enum rule { SIEVE, S3_FIFO, ARC, ORIGINAL, STATIC, CALIBRATED, RULES };
static const char *const names[RULES] = {"sieve", "s3-fifo", "arc", "original", "static", "static"};

/* NONE: neither here nor remembered. HERE and MORE: sieve's, static's and original's; small and main; once and again.
 * The ghosts are those of HERE and of MORE. */
enum place { NONE, HERE, MORE, GHOST_HERE, GHOST_MORE };

struct twin {
	enum rule rule;
	uint32_t experts, capacity, moment;
	const uint32_t *pairs; /* of the event */
	enum place place[EXPERTS];
	uint32_t since[EXPERTS]; /* the moment in which it came to its place */
	uint32_t count[EXPERTS]; /* sieve's mark; s3-fifo's number */
	bool mine[EXPERTS];      /* the event wants it, or it has come in this event */
	bool again[EXPERTS];     /* of arc: it was a ghost when it was asked for */
	uint32_t hand;           /* of sieve: nobody who came before this moment is looked at next */
	double target;           /* of arc */
};

static bool is_here(const struct twin *w, uint32_t e)
{
	return w->place[e] == HERE || w->place[e] == MORE;
}

static uint32_t count_in(const struct twin *w, enum place place)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < w->experts; e++)
		n += w->place[e] == place;
	return n;
}

static void put(struct twin *w, uint32_t e, enum place place)
{
	w->place[e] = place;
	w->since[e] = ++w->moment;
}

/* The one who is longest in this place, since `from` or later; of members, of those who are not the event's. `experts`:
 * none. */
static uint32_t oldest(const struct twin *w, enum place place, uint32_t from)
{
	uint32_t found = w->experts;

	for (uint32_t e = 0; e < w->experts; e++)
		if (w->place[e] == place && !(w->mine[e] && is_here(w, e)) && w->since[e] >= from &&
		    (found == w->experts || w->since[e] < w->since[found]))
			found = e;
	return found;
}

/* -- sieve -------------------------------------------------------------------------------------------------------- */

/* Whoever has a mark loses it when the hand comes by. From the youngest the hand goes to the oldest. */
static uint32_t evict_sieve(struct twin *w)
{
	uint32_t e = oldest(w, HERE, w->hand);

	if (oldest(w, HERE, 0) == w->experts)
		return w->experts;
	for (;;) {
		if (e == w->experts)
			e = oldest(w, HERE, 0);
		if (w->count[e] == 0)
			break;
		w->count[e] = 0;
		e = oldest(w, HERE, w->since[e] + 1);
	}
	w->hand = 0;
	for (uint32_t i = 0; i < w->experts; i++)
		if (w->place[i] == HERE && w->since[i] > w->since[e])
			w->hand = w->since[e] + 1;
	w->place[e] = NONE;
	return e;
}

/* -- s3-fifo ------------------------------------------------------------------------------------------------------ */

static uint32_t small_size(const struct twin *w)
{
	return MAX(w->capacity / 10, 1u);
}

/* Of small: who was asked for more than once since it came goes to main instead. */
static uint32_t evict_small(struct twin *w)
{
	for (;;) {
		const uint32_t e = oldest(w, HERE, 0);

		if (e == w->experts)
			return e;
		if (w->count[e] <= 1) {
			put(w, e, GHOST_HERE);
			if (count_in(w, GHOST_HERE) > w->capacity - small_size(w))
				w->place[oldest(w, GHOST_HERE, 0)] = NONE;
			return e;
		}
		w->count[e] = 0;
		put(w, e, MORE);
	}
}

static uint32_t evict_main(struct twin *w)
{
	for (;;) {
		const uint32_t e = oldest(w, MORE, 0);

		if (e == w->experts)
			return e;
		if (w->count[e] == 0) {
			w->place[e] = NONE;
			return e;
		}
		w->count[e]--;
		put(w, e, MORE);
	}
}

static uint32_t evict_s3_fifo(struct twin *w)
{
	uint32_t e = count_in(w, HERE) >= small_size(w) ? evict_small(w) : w->experts;

	if (e == w->experts)
		e = evict_main(w);
	if (e == w->experts)
		e = evict_small(w);
	return e < w->experts ? e : evict_main(w);
}

/* -- arc ---------------------------------------------------------------------------------------------------------- */

static void tell_arc(struct twin *w, uint32_t e)
{
	const double once = count_in(w, GHOST_HERE), again = count_in(w, GHOST_MORE);

	if (w->place[e] == HERE)
		w->place[e] = MORE;
	if (w->place[e] == GHOST_HERE)
		w->target = fmin(w->target + fmax(1, again / once), w->capacity);
	else if (w->place[e] == GHOST_MORE)
		w->target = fmax(w->target - fmax(1, once / again), 0);
	else
		return;
	w->place[e] = NONE;
	w->again[e] = true;
}

static uint32_t evict_arc(struct twin *w)
{
	const uint32_t once = oldest(w, HERE, 0), again = oldest(w, MORE, 0);
	const bool first = once < w->experts && (again == w->experts || count_in(w, HERE) > w->target);
	const uint32_t e = first ? once : again;

	if (e < w->experts)
		put(w, e, first ? GHOST_HERE : GHOST_MORE);
	return e;
}

static void bound_ghosts(struct twin *w)
{
	while (count_in(w, GHOST_HERE) && count_in(w, HERE) + count_in(w, GHOST_HERE) > w->capacity)
		w->place[oldest(w, GHOST_HERE, 0)] = NONE;
	while (count_in(w, GHOST_MORE) && w->experts - count_in(w, NONE) > 2 * w->capacity)
		w->place[oldest(w, GHOST_MORE, 0)] = NONE;
}

/* -- original ----------------------------------------------------------------------------------------------------- */

/* The coldest: of those whom the event did not want, then of those it wanted, but never who has just come. `since`
 * counts from cold to hot. */
static uint32_t evict_original(struct twin *w, const bool *before)
{
	uint32_t found = oldest(w, HERE, 0);

	for (uint32_t e = 0, none = found == w->experts; none && e < w->experts; e++)
		if (w->place[e] == HERE && before[e] && (found == w->experts || w->since[e] < w->since[found]))
			found = e;
	if (found < w->experts)
		w->place[found] = NONE;
	return found;
}

/* Hits go behind all others and keep their order; fills go behind them, in the order in which they came. */
static void sort_original(struct twin *w, const bool *before)
{
	const uint32_t moment = w->moment;

	for (int fills = 0; fills < 2; fills++)
		for (uint32_t at = 1; at <= moment; at++)
			for (uint32_t e = 0; e < w->experts; e++)
				if (w->place[e] == HERE && w->pairs[e] && before[e] == !fills && w->since[e] == at)
					put(w, e, HERE);
}

/* -- an event ----------------------------------------------------------------------------------------------------- */

static void tell(struct twin *w, uint32_t e)
{
	w->mine[e] = w->pairs[e] > 0;
	if (w->pairs[e] && w->rule == ARC)
		tell_arc(w, e);
	else if (w->pairs[e] && is_here(w, e))
		w->count[e] = MIN(w->count[e] + 1, w->rule == SIEVE ? 1u : 3u);
}

static uint32_t evict(struct twin *w, const bool *before)
{
	switch (w->rule) {
	case SIEVE:
		return evict_sieve(w);
	case S3_FIFO:
		return evict_s3_fifo(w);
	case ARC:
		return evict_arc(w);
	case ORIGINAL:
		return evict_original(w, before);
	default:
		return w->experts;
	}
}

static void admit(struct twin *w, uint32_t e)
{
	const bool known = w->rule == ARC ? w->again[e] : w->place[e] == GHOST_HERE;

	w->count[e] = 0;
	w->again[e] = false;
	put(w, e, known ? MORE : HERE);
	if (w->rule == ARC)
		bound_ghosts(w);
}

static void step(struct twin *w, struct result *r, uint32_t now)
{
	bool before[EXPERTS];

	for (uint32_t e = 0; e < w->experts; e++)
		before[e] = is_here(w, e);
	for (uint32_t e = 0; e < w->experts; e++)
		tell(w, e);
	for (uint32_t e = 0; e < w->experts; e++) {
		uint32_t victim;

		if (!w->pairs[e] || before[e])
			continue;
		if (count_in(w, HERE) + count_in(w, MORE) == w->capacity) {
			victim = evict(w, before);
			if (victim == w->experts)
				break;
			add_eviction(r, now, victim, e);
		}
		admit(w, e);
	}
	if (w->rule == ORIGINAL)
		sort_original(w, before);
	/* arc's lists are of last use, and who is used in the same event stands by id. */
	for (uint32_t e = 0; e < w->experts; e++) {
		if (w->rule == ARC && w->pairs[e] && is_here(w, e))
			w->since[e] = ++w->moment;
		w->mine[e] = false;
		r->final[e] = is_here(w, e);
	}
}

/* Who has most counts; of equal ones the lower id: fewer than C are better. */
static void calibrate(struct twin *w, struct result *r, const uint64_t *counts)
{
	for (uint32_t e = 0; e < w->experts; e++) {
		uint32_t better = 0;

		for (uint32_t i = 0; i < w->experts; i++)
			better += counts[i] > counts[e] || (counts[i] == counts[e] && i < e);
		if (better < w->capacity)
			put(w, e, HERE);
		r->final[e] = better < w->capacity;
	}
}

static void twin(struct result *r, const struct events *v, enum rule rule, uint32_t capacity, const uint64_t *counts)
{
	struct twin w = {.rule = rule, .experts = v->experts, .capacity = capacity};

	*r = (struct result){0};
	if (rule == CALIBRATED)
		calibrate(&w, r, counts);
	for (uint32_t now = 0; now < v->n; now++) {
		bool before[EXPERTS];

		memcpy(before, r->final, sizeof before);
		w.pairs = v->pairs[now];
		step(&w, r, now);
		count_event(r, v, now, before);
	}
}

static void test_rule(enum rule rule, uint32_t traces)
{
	static struct result found, wanted;
	static struct events v;
	uint64_t hits = 0, evictions = 0;
	uint32_t wrong = 0, runs = 0;

	for (uint32_t i = 0; i < traces; i++) {
		const struct sim_trace t = draw_trace();
		uint64_t calibration[LAYERS * EXPERTS];
		const struct sim_params p = {.policy = names[rule],
					     .capacity = draw_capacity(&t),
					     .calibration = rule == CALIBRATED ? calibration : NULL,
					     .evicted = log_eviction,
					     .userdata = &found};

		for (uint32_t k = 0; k < t.layers * t.experts; k++)
			calibration[k] = below(4) ? below(5) : tap_random(&seed);
		for (uint32_t layer = 0; layer < t.layers; layer++, runs++) {
			found.n = 0;
			find_events(&v, &t, layer);
			twin(&wanted, &v, rule, p.capacity, calibration + (size_t)layer * t.experts);
			if ((sim_layer(&t, layer, &p, &found.counts, found.final, NULL) < 0 ||
			     !same(&found, &wanted, &v)) &&
			    wrong++ == 0)
				diag("trace %u, layer %u: %u experts, %u slots, %u events, %u and %u evictions", i,
				     layer, t.experts, p.capacity, v.n, found.n, wanted.n);
			evictions += wanted.counts.evictions;
			hits += wanted.counts.hits_unique;
		}
	}
	ok(wrong == 0 && hits > traces && (evictions > traces) == (rule < STATIC),
	   "%s%s: %u layers, %llu hits and %llu evictions are the twin's, %u not", names[rule],
	   rule == CALIBRATED ? ", calibrated" : "", runs, (unsigned long long)hits, (unsigned long long)evictions,
	   wrong);
}

int main(void)
{
	const char *more = getenv("TWIN_TRACES");
	const uint32_t traces = more ? (uint32_t)strtoul(more, NULL, 10) : 2000;

	seed = tap_seed();
	for (enum rule rule = 0; rule < RULES; rule++)
		test_rule(rule, traces);
	return tap_done();
}
