/* SPDX-License-Identifier: MIT */
/*
 * The simulator against a twin that keeps nothing: each key is made anew from all events so far, as the rules are
 * written, and each choice looks at all experts. Layers differ, steps are empty, capacities go from none to all
 * experts, and a token may have fewer experts than others.
 */
#include "tests/twin-trace.h"

/* -- keys --------------------------------------------------------------------------------------------------------- */

static uint32_t count_until(const struct events *v, uint32_t now, uint32_t e)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t <= now; t++)
		n += v->pairs[t][e] > 0;
	return n;
}

/* Of one that was requested. */
static uint32_t last_until(const struct events *v, uint32_t now, uint32_t e)
{
	while (v->pairs[now][e] == 0)
		now--;
	return now;
}

static uint32_t decayed(const struct events *v, uint32_t now, uint32_t e)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t <= now; t++) {
		if (t > 0 && t % 16 == 0)
			n /= 2;
		n += v->pairs[t][e] > 0;
	}
	return n;
}

static long double averaged(const struct events *v, uint32_t now, uint32_t e)
{
	long double sum = 0;

	for (uint32_t t = 0; t <= now; t++)
		sum = sum * 0.95L + (v->pairs[t][e] > 0);
	return sum;
}

/* The mean of an event's tokens, who does not want it has 0 for it. */
static long double scored(const struct events *v, uint32_t now, uint32_t e)
{
	long double sum = 0;

	for (uint32_t t = 0; t <= now; t++)
		sum = sum * 0.95L + 0.05L * v->weight[t][e] / v->tokens[t];
	return sum;
}

/* sum of W[e][a] over the active; W = sum over t of n / (8 B) (7/8)^(now - t). n: tokens, or products of weights. */
static long double together(const struct events *v, bool soft, uint32_t now, uint32_t e)
{
	long double sum = 0;

	for (uint32_t t = 0; t <= now; t++) {
		long double n = 0;

		for (uint32_t a = 0; a < v->experts; a++)
			if (v->pairs[now][a])
				n += soft ? v->product[t][e][a] : v->both[t][e][a];
		sum = sum * 0.875L + n / (8.0L * v->tokens[t]);
	}
	return sum;
}

enum key { LRU, LFU, DECAY, LFRU, EMA, MRS, HARD, SOFT, KEYS };
static const char *const names[KEYS] = {"lru", "lfu", "lfu-decay", "lfru", "ema", "mrs", "ebco-hard", "ebco-soft"};

static long double key(const struct events *v, enum key rule, uint32_t now, uint32_t e)
{
	switch (rule) {
	case LRU:
		return last_until(v, now, e);
	case LFU:
		return count_until(v, now, e);
	case DECAY:
		return decayed(v, now, e);
	case LFRU:
		return (long double)count_until(v, now, e) / (now - last_until(v, now, e) + 1);
	case EMA:
		return averaged(v, now, e);
	case MRS:
		return scored(v, now, e);
	default:
		return together(v, rule == SOFT, now, e);
	}
}

/* Two sums that differ by less are one number that was rounded twice. */
static bool smaller(long double a, long double b)
{
	return a < b && b - a > 1e-13L * b;
}

static uint32_t next_request(const struct events *v, uint32_t now, uint32_t e)
{
	uint32_t t = now + 1;

	while (t < v->n && v->pairs[t][e] == 0)
		t++;
	return t < v->n ? t : UINT32_MAX;
}

/* The idle one of the least key; of equal ones the lowest. `experts`: none. */
static uint32_t victim_of(const struct events *v, enum key rule, uint32_t now, const bool *here)
{
	uint32_t victim = v->experts;

	for (uint32_t e = 0; e < v->experts; e++)
		if (here[e] && v->pairs[now][e] == 0 &&
		    (victim == v->experts || smaller(key(v, rule, now, e), key(v, rule, now, victim))))
			victim = e;
	return victim;
}

static void pinned_event(struct result *r, const struct events *v, enum key rule, uint32_t now, uint32_t capacity)
{
	bool before[EXPERTS];

	memcpy(before, r->final, sizeof before);
	for (uint32_t e = 0; e < v->experts; e++) {
		uint32_t n = 0, victim;

		if (v->pairs[now][e] == 0 || before[e])
			continue;
		for (uint32_t i = 0; i < v->experts; i++)
			n += r->final[i];
		if (n < capacity) {
			r->final[e] = true;
			continue;
		}
		victim = victim_of(v, rule, now, r->final);
		if (victim == v->experts)
			break;
		r->final[victim] = false;
		r->final[e] = true;
		add_eviction(r, now, victim, e);
	}
}

/* Is a the worse to keep? Of equal ones the lowest goes. */
static bool worse(const struct events *v, enum sim_mode mode, enum key rule, uint32_t now, uint32_t a, uint32_t b)
{
	long double x, y;

	if (mode != SIM_ATOMIC)
		return next_request(v, now, a) > next_request(v, now, b);
	x = key(v, rule, now, a);
	y = key(v, rule, now, b);
	if (rule == LFU && x == y)
		return last_until(v, now, a) < last_until(v, now, b);
	return smaller(x, y);
}

/* Of R and U the best; with belady-pinned none that is not requested while there is too little room for those. */
static void chosen_event(struct result *r, const struct events *v, enum sim_mode mode, enum key rule, uint32_t now,
			 uint32_t capacity)
{
	for (uint32_t e = 0; e < v->experts; e++)
		r->final[e] |= v->pairs[now][e] > 0;
	for (;;) {
		uint32_t n = 0, idle = 0, out = v->experts;

		for (uint32_t e = 0; e < v->experts; e++) {
			n += r->final[e];
			idle += r->final[e] && v->pairs[now][e] == 0;
		}
		if (n <= capacity)
			return;
		for (uint32_t e = 0; e < v->experts; e++)
			if (r->final[e] && !(mode == SIM_BELADY_PINNED && idle && v->pairs[now][e]) &&
			    (out == v->experts || worse(v, mode, rule, now, e, out)))
				out = e;
		r->final[out] = false;
	}
}

static void twin(struct result *r, const struct events *v, enum sim_mode mode, enum key rule, uint32_t capacity)
{
	*r = (struct result){0};
	for (uint32_t now = 0; now < v->n; now++) {
		bool before[EXPERTS];

		memcpy(before, r->final, sizeof before);
		if (mode == SIM_PINNED)
			pinned_event(r, v, rule, now, capacity);
		else
			chosen_event(r, v, mode, rule, now, capacity);
		count_event(r, v, now, before);
	}
}

/* -- both --------------------------------------------------------------------------------------------------------- */

static void test_mode(enum sim_mode mode, enum key rule, uint32_t traces)
{
	static struct result found, wanted;
	static struct events v;
	uint32_t wrong = 0, runs = 0, evictions = 0;

	for (uint32_t i = 0; i < traces; i++) {
		const struct sim_trace t = draw_trace();
		const uint32_t capacity = draw_capacity(&t);
		const struct sim_params p = {.mode = mode,
					     .policy = names[rule],
					     .capacity = capacity,
					     .evicted = log_eviction,
					     .userdata = &found};

		for (uint32_t layer = 0; layer < t.layers; layer++, runs++) {
			found.n = 0;
			find_events(&v, &t, layer);
			twin(&wanted, &v, mode, rule, capacity);
			if (sim_layer(&t, layer, &p, &found.counts, found.final, NULL) < 0 ||
			    !same(&found, &wanted, &v)) {
				if (wrong++ == 0)
					diag("trace %u, layer %u: %u experts, %u slots, %u events, %llu and %llu "
					     "copies",
					     i, layer, t.experts, capacity, v.n,
					     (unsigned long long)found.counts.copies,
					     (unsigned long long)wanted.counts.copies);
			}
			evictions += (uint32_t)wanted.counts.evictions;
		}
	}
	ok(wrong == 0 && evictions > traces, "%s%s%s: %u layers, %u evictions are the twin's, %u not",
	   sim_mode_name(mode), mode >= SIM_BELADY ? "" : ", ", mode >= SIM_BELADY ? "" : names[rule], runs, evictions,
	   wrong);
}

int main(void)
{
	const char *more = getenv("TWIN_TRACES");
	const uint32_t traces = more ? (uint32_t)strtoul(more, NULL, 10) : 1000;

	seed = tap_seed();
	for (enum key rule = 0; rule < KEYS; rule++)
		test_mode(SIM_PINNED, rule, traces);
	test_mode(SIM_ATOMIC, LRU, traces);
	test_mode(SIM_ATOMIC, LFU, traces);
	test_mode(SIM_ATOMIC, DECAY, traces);
	test_mode(SIM_ATOMIC, LFRU, traces);
	test_mode(SIM_ATOMIC, HARD, traces);
	test_mode(SIM_BELADY, LRU, traces);
	test_mode(SIM_BELADY_PINNED, LRU, traces);
	return tap_done();
}
