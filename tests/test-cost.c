/* SPDX-License-Identifier: MIT */
/*
 * The step-cost model: cases worked out by hand, every split of small events tried one by one, the chunked schedule
 * against another that goes through time in ticks, each number as its law says it, and what must hold between designs
 * on random traces.
 */
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "simulate/cost.h"
#include "simulate/moetrc.h"
#include "simulate/trace-build.h"
#include "tests/tap.h"

#define EXPERTS 12

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static bool near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * MAX(1, fabs(b));
}

/* Bytes are 1, so that a copy takes `copy`. */
static struct cost_rates rates_of(double copy, double device, double cpu, double layer)
{
	return (struct cost_rates){
		.ncopy = {.copy_ns_per_byte = copy, .device.per_expert = device, .cpu.per_expert = cpu},
		.bytes = 1,
		.layer_ns = layer};
}

/* -- by hand ------------------------------------------------------------------------------------------------------ */

/* Two layers; two tokens of one expert each. Layer 0: 0 is missing, 1 is there. Layer 1: both are missing. */
static void test_by_hand(void)
{
	uint32_t tokens[] = {2, 2};
	size_t first[] = {0, 2};
	int32_t ids[] = {0, 1, 2, 3};
	const bool missed[] = {true, false, true, true};
	const struct sim_trace t = {
		.layers = 2, .experts = 4, .topk = 1, .steps = 1, .tokens = tokens, .first = first, .ids = ids};
	const struct cost_rates rates = rates_of(10, 3, 8, 1);
	struct cost c;

	require(cost_run(&t, missed, &rates, &c, NULL) == 0, "a step of two layers");
	ok(near(c.wait, 10 + 20) && near(c.compute, 1 + 6 + 1 + 6), "wait %g, compute %g", c.wait, c.compute);
	ok(near(c.design[COST_SERIAL], 44), "serial: copies, then all experts: %g", c.design[COST_SERIAL]);
	/* 1 + max(3, 10) + 3; then 1 + 10 + (20 against 13) + 3 */
	ok(near(c.design[COST_OVERLAPPED], 14 + 24), "overlapped: computing while copies run: %g",
	   c.design[COST_OVERLAPPED]);
	/* 1 + max(3, 8); then 1 + max(13, 8) or 1 + max(0, 16): one copied */
	ok(near(c.design[COST_SPLIT], 9 + 14), "split: the CPU takes its share: %g", c.design[COST_SPLIT]);
	ok(near(c.design[COST_BOTH], 9 + 14), "both: %g", c.design[COST_BOTH]);
	ok(near(c.ideal, 10 + 20), "ideal: the link is never idle: %g", c.ideal);
	/* Device: layer of a 0-1, of b 1-2; link: 1-11. a 11-14, its next layer -15, link 15-25; b, there at 11 as its
	 * link was free, 15-18, layer -19, link 25-35; a 25-28, b 35-38. */
	ok(near(c.design[COST_CHUNKED_2], 38), "two micro-batches: %g", c.design[COST_CHUNKED_2]);
	ok(cost_best(&c) == COST_SPLIT && strcmp(cost_design_name(COST_SPLIT), "split") == 0, "the best is split");
}

/* -- random traces ------------------------------------------------------------------------------------------------ */

static bool *random_trace(struct sim_trace *t, uint32_t layers, uint32_t steps, uint32_t tokens)
{
	struct sim_build b;
	bool *missed, gone[EXPERTS];
	int32_t ids[3];

	sim_build_begin(&b, layers, EXPERTS, 3);
	for (uint32_t place = 0; place < layers * steps; place++) {
		sim_build_place(&b, NULL);
		for (uint32_t i = 0; i < tokens; i++) {
			ids[0] = (int32_t)below(EXPERTS);
			ids[1] = (ids[0] + 1 + (int32_t)below(3)) % EXPERTS;
			ids[2] = (ids[0] + 4 + (int32_t)below(3)) % EXPERTS;
			sim_build_token(&b, ids, NULL, 1 + below(3), NULL);
		}
	}
	sim_build_finish(&b, t);
	missed = calloc((size_t)layers * steps * tokens * 3, sizeof *missed);
	for (uint32_t place = 0; place < layers * steps; place++) {
		for (uint32_t e = 0; e < EXPERTS; e++)
			gone[e] = below(2);
		for (size_t i = 0; i < (size_t)tokens * 3; i++)
			missed[t->first[place] + i] = t->ids[t->first[place] + i] >= 0 &&
						      gone[t->ids[t->first[place] + i]];
	}
	return missed;
}

static struct cost_rates random_rates(void)
{
	struct cost_rates r = rates_of(1 + below(20), 1 + below(8), 1 + below(20), below(5));

	r.ncopy.device.per_pair = below(3);
	r.ncopy.cpu.per_pair = below(6);
	return r;
}

/* Of one event the best of all sets of missing experts that could be copied, in all their orders by heat. */
static double try_all(const struct sim_trace *t, const bool *missed, const struct cost_rates *r, bool overlap)
{
	uint32_t pairs[EXPERTS] = {0}, list[EXPERTS], n = 0, hits = 0, hit_pairs = 0;
	bool gone[EXPERTS] = {false};
	double best = INFINITY;

	for (uint32_t i = 0; i < t->tokens[0] * t->topk; i++)
		if (t->ids[i] >= 0) {
			pairs[t->ids[i]]++;
			gone[t->ids[i]] = missed[i];
		}
	for (uint32_t e = 0; e < EXPERTS; e++) {
		if (pairs[e] && gone[e])
			list[n++] = e;
		hits += pairs[e] && !gone[e];
		hit_pairs += pairs[e] && !gone[e] ? pairs[e] : 0;
	}
	/* Hottest first: then a set's order is that of the list. */
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i + 1; j < n; j++)
			if (pairs[list[j]] > pairs[list[i]]) {
				const uint32_t moved = list[i];

				list[i] = list[j];
				list[j] = moved;
			}
	for (uint32_t set = 0; set < 1u << n; set++) {
		double device = r->ncopy.device.per_expert * hits + r->ncopy.device.per_pair * hit_pairs;
		double cpu = 0, link = 0, sum = device;

		for (uint32_t i = 0; i < n; i++) {
			const uint32_t p = pairs[list[i]];
			const double one = r->ncopy.device.per_expert + r->ncopy.device.per_pair * p;

			if (!(set >> i & 1)) {
				cpu += r->ncopy.cpu.per_expert + r->ncopy.cpu.per_pair * p;
				continue;
			}
			link += r->ncopy.copy_ns_per_byte;
			device = (link > device ? link : device) + one;
			sum += one;
		}
		best = MIN(best, MAX(overlap ? device : link + sum, cpu));
	}
	return best + r->layer_ns;
}

static void test_splits(void)
{
	bool fewest = true, above = true;
	uint32_t same = 0;

	for (uint32_t round = 0; round < 400; round++) {
		struct cost_rates rates = random_rates();
		struct sim_trace t;
		bool *missed = random_trace(&t, 1, 1, 1 + below(3));
		struct cost c;

		/* With pairs for nothing on the device, the hottest are the best to copy: then nothing is better. */
		rates.ncopy.device.per_pair = 0;
		cost_run(&t, missed, &rates, &c, NULL);
		fewest &= near(c.design[COST_SPLIT], try_all(&t, missed, &rates, false)) &&
			  near(c.design[COST_BOTH], try_all(&t, missed, &rates, true));
		rates.ncopy.device.per_pair = 2;
		cost_run(&t, missed, &rates, &c, NULL);
		above &= c.design[COST_SPLIT] >= try_all(&t, missed, &rates, false) - 1e-9 &&
			 c.design[COST_BOTH] >= try_all(&t, missed, &rates, true) - 1e-9;
		same += near(c.design[COST_BOTH], try_all(&t, missed, &rates, true));
		sim_trace_fini(&t);
		free(missed);
	}
	ok(fewest, "split and both are the best of all sets that could be copied, tried one by one");
	ok(above && same > 200, "with pairs that cost, never better than that, and mostly (%u of 400) as good", same);
}

/* -- the chunked schedule, tick by tick --------------------------------------------------------------------------- */

static uint32_t count_part(const struct sim_trace *t, const bool *missed, uint32_t layer, uint32_t part, uint32_t n,
			   bool *copied, uint32_t *ret_experts)
{
	const uint32_t from = t->tokens[layer] * part / n * t->topk, to = t->tokens[layer] * (part + 1) / n * t->topk;
	bool seen[EXPERTS] = {false};
	uint32_t copies = 0;

	*ret_experts = 0;
	for (uint32_t i = from; i < to; i++) {
		const int32_t e = t->ids[t->first[layer] + i];

		if (e < 0 || seen[e])
			continue;
		seen[e] = true;
		++*ret_experts;
		copies += missed[t->first[layer] + i] && !copied[e];
		copied[e] |= missed[t->first[layer] + i];
	}
	return copies;
}

/* Both machines serve in turn: micro-batch 0 to m - 1 at one layer, then at the next. */
static double by_ticks(const struct sim_trace *t, const bool *missed, const struct cost_rates *r, uint32_t m)
{
	uint32_t experts[8][8], copies[8][8], now = 0;
	const uint32_t copy = (uint32_t)r->ncopy.copy_ns_per_byte, layer_ns = (uint32_t)r->layer_ns;
	const uint32_t each = (uint32_t)r->ncopy.device.per_expert, all = t->layers * m;
	/* The i-th turn of either machine is micro-batch i % m at layer i / m. */
	uint32_t device_turn = 0, device_left = 0, link_turn = 0, link_left = 0, routed = 0;
	bool device_busy = false, link_busy = false;

	for (uint32_t l = 0; l < t->layers; l++) {
		bool copied[EXPERTS] = {false};

		for (uint32_t j = 0; j < m; j++)
			copies[l][j] = count_part(t, missed, l, j, m, copied, &experts[l][j]);
	}
	/* A turn of the device: experts of (l, j), then the layer's rest of (l + 1, j), which routes it. */
	for (device_turn = 0; device_turn < all + m; now++) {
		for (bool again = true; again;) {
			const uint32_t turn = device_turn;

			again = false;
			if (!link_busy && link_turn < routed) {
				link_left = copies[link_turn / m][link_turn % m] * copy;
				link_busy = true;
				again = true;
			}
			if (link_busy && link_left == 0) {
				link_busy = false;
				link_turn++;
				again = true;
			}
			/* The first m turns have no experts, the last m no rest. */
			if (!device_busy && turn < all + m && (turn < m || link_turn > turn - m)) {
				device_left = turn < m ? 0 : each * experts[turn / m - 1][turn % m];
				device_left += turn < all ? layer_ns : 0;
				device_busy = true;
				again = true;
			}
			if (device_busy && device_left == 0) {
				device_busy = false;
				device_turn++;
				routed = MIN(device_turn, all);
				again = true;
			}
		}
		if (device_turn == all + m)
			break;
		link_left -= link_busy;
		device_left -= device_busy;
	}
	return now;
}

static void test_chunks(void)
{
	bool same = true;

	for (uint32_t round = 0; round < 300; round++) {
		struct cost_rates rates = random_rates();
		struct sim_trace t;
		bool *missed = random_trace(&t, 1 + below(4), 1, 8);
		struct cost c;

		rates.ncopy.device.per_pair = 0;
		cost_run(&t, missed, &rates, &c, NULL);
		for (uint32_t i = 0; i < 3; i++)
			same &= near(c.design[COST_CHUNKED_2 + i], by_ticks(&t, missed, &rates, 2u << i));
		sim_trace_fini(&t);
		free(missed);
	}
	ok(same, "2, 4 and 8 micro-batches take as long as they do tick by tick");
}

/* -- each number as the law says it ------------------------------------------------------------------------------- */

/* What some of an event's tokens want; an expert's number is its pairs. */
struct wish {
	uint32_t hit[EXPERTS], missing[EXPERTS];
};

static struct wish wish_of(const struct sim_trace *t, const bool *missed, size_t place, uint32_t from, uint32_t to,
			   bool *copied)
{
	struct wish w = {{0}, {0}};

	for (uint32_t i = from * t->topk; i < to * t->topk; i++) {
		const size_t at = t->first[place] + i;

		if (t->ids[at] < 0)
			continue;
		(missed[at] && !copied[t->ids[at]] ? w.missing : w.hit)[t->ids[at]]++;
	}
	for (uint32_t e = 0; e < EXPERTS; e++)
		copied[e] |= w.missing[e] > 0;
	return w;
}

static double line_of(const struct ncopy_line *l, const uint32_t *pairs)
{
	double sum = 0;

	for (uint32_t e = 0; e < EXPERTS; e++)
		sum += pairs[e] ? l->per_expert + l->per_pair * pairs[e] : 0;
	return sum;
}

/* The hottest of the missing; of equal ones the lower id. EXPERTS: none is left. */
static uint32_t take_hottest(uint32_t *missing)
{
	uint32_t best = EXPERTS;

	for (uint32_t e = 0; e < EXPERTS; e++)
		if (missing[e] && (best == EXPERTS || missing[e] > missing[best]))
			best = e;
	return best;
}

static void add_plain_event(struct cost *to, const struct wish *w, const struct cost_rates *r, double copy)
{
	const double layer = r->layer_ns, hits = line_of(&r->ncopy.device, w->hit);
	double split = INFINITY, both = INFINITY, overlapped = hits, serial = hits;
	struct wish left = *w;

	for (uint32_t n = 0;; n++) {
		const double cpu = line_of(&r->ncopy.cpu, left.missing);
		const uint32_t e = take_hottest(left.missing);

		split = MIN(split, MAX(n * copy + serial, cpu));
		both = MIN(both, MAX(overlapped, cpu));
		if (e == EXPERTS) {
			to->wait += n * copy;
			to->compute += layer + serial;
			to->ideal += MAX(n * copy, layer + serial);
			to->design[COST_SERIAL] += layer + n * copy + serial;
			to->design[COST_OVERLAPPED] += layer + overlapped;
			break;
		}
		serial += r->ncopy.device.per_expert + r->ncopy.device.per_pair * left.missing[e];
		overlapped = MAX(overlapped, (n + 1) * copy) + r->ncopy.device.per_expert +
			     r->ncopy.device.per_pair * left.missing[e];
		left.missing[e] = 0;
	}
	to->design[COST_SPLIT] += layer + split;
	to->design[COST_BOTH] += layer + both;
}

/* D and L of the law, and C[j]; who has no tokens at a layer has no turn there. */
static double plain_chunks(const struct sim_trace *t, const bool *missed, uint32_t step, const struct cost_rates *r,
			   double copy, uint32_t m)
{
	double d = 0, l = 0, c[8] = {0};
	struct wish wish[8][8]; /* layer, micro-batch */

	for (uint32_t layer = 0; layer < t->layers; layer++) {
		const size_t place = (size_t)step * t->layers + layer;
		const uint32_t tokens = t->tokens[place];
		bool copied[EXPERTS] = {false};

		for (uint32_t j = 0; j < m; j++)
			wish[layer][j] = wish_of(t, missed, place, tokens * j / m, tokens * (j + 1) / m, copied);
	}
	for (uint32_t layer = 0; layer <= t->layers; layer++)
		for (uint32_t j = 0; j < m; j++) {
			const struct wish *was = layer ? &wish[layer - 1][j] : NULL;
			const struct wish *next = layer < t->layers ? &wish[layer][j] : NULL;
			uint32_t any = 0, missing = 0;

			if (was && line_of(&r->ncopy.device, was->hit) + line_of(&r->ncopy.device, was->missing) > 0)
				d = MAX(d, c[j]) + line_of(&r->ncopy.device, was->hit) +
				    line_of(&r->ncopy.device, was->missing);
			for (uint32_t e = 0; next && e < EXPERTS; e++) {
				any += next->hit[e] + next->missing[e];
				missing += next->missing[e] > 0;
			}
			if (!any)
				continue;
			d += r->layer_ns;
			l = MAX(l, d) + missing * copy;
			c[j] = l;
		}
	return d;
}

static bool same_cost(const struct sim_trace *t, const bool *missed, const struct cost_rates *r)
{
	const double copy = r->ncopy.copy_ns_per_byte * (double)r->bytes;
	struct cost found, want = {0};
	double *a = &found.wait, *b = &want.wait;
	bool same = true;

	for (uint32_t step = 0; step < t->steps; step++) {
		for (uint32_t layer = 0; layer < t->layers; layer++) {
			const size_t place = (size_t)step * t->layers + layer;
			bool copied[EXPERTS] = {false};
			const struct wish w = wish_of(t, missed, place, 0, t->tokens[place], copied);

			if (t->tokens[place])
				add_plain_event(&want, &w, r, copy);
		}
		for (uint32_t i = 0; i < 3; i++)
			want.design[COST_CHUNKED_2 + i] += plain_chunks(t, missed, step, r, copy, 2u << i);
	}
	cost_run(t, missed, r, &found, NULL);
	for (size_t i = 0; i < sizeof found / sizeof *a; i++)
		same &= near(a[i], t->steps ? b[i] / t->steps : 0);
	return same;
}

/* Steps and layers of unlike size, some without tokens. */
static void test_law(void)
{
	uint32_t wrong = 0;

	for (uint32_t round = 0; round < 2000; round++) {
		struct cost_rates rates = random_rates();
		const uint32_t layers = 1 + below(5), steps = below(5), most = 1 + below(11);
		struct sim_trace t;
		bool *missed = random_trace(&t, layers, steps, most);

		rates.bytes = 1 + below(3);
		rates.ncopy.copy_ns_per_byte += below(100) / 100.;
		for (uint32_t place = 0; place < layers * steps; place++)
			t.tokens[place] = below(most + 1);
		wrong += !same_cost(&t, missed, &rates);
		sim_trace_fini(&t);
		free(missed);
	}
	ok(wrong == 0, "2000 traces, steps and layers of unlike size: each number is the law's, %u are not", wrong);
}

static void test_between_designs(void)
{
	bool good = true, one = true;

	for (uint32_t round = 0; round < 200; round++) {
		const struct cost_rates rates = random_rates();
		const uint32_t tokens = 1 + below(2) * below(9);
		struct sim_trace t;
		bool *missed = random_trace(&t, 3, 5, tokens);
		struct cost c;

		cost_run(&t, missed, &rates, &c, NULL);
		good &= c.design[COST_OVERLAPPED] <= c.design[COST_SERIAL] + 1e-9 &&
			c.design[COST_BOTH] <= c.design[COST_OVERLAPPED] + 1e-9 &&
			c.design[COST_SPLIT] <= c.design[COST_SERIAL] + 1e-9 &&
			c.design[COST_BOTH] <= c.design[COST_SPLIT] + 1e-9 &&
			c.ideal <= c.design[COST_OVERLAPPED] + 1e-9 &&
			near(c.wait + c.compute, c.design[COST_SERIAL]) &&
			c.ideal >= c.design[COST_SERIAL] - MIN(c.wait, c.compute) - 1e-9;
		if (tokens == 1)
			one &= near(c.design[COST_CHUNKED_2], c.design[COST_SERIAL]) &&
			       near(c.design[COST_CHUNKED_8], c.design[COST_SERIAL]);
		sim_trace_fini(&t);
		free(missed);
	}
	ok(good, "overlapping and splitting never cost, and gain at most min(wait, compute)");
	ok(one, "one token cannot be chunked");
}

int main(void)
{
	seed = tap_seed();
	test_by_hand();
	test_splits();
	test_chunks();
	test_law();
	test_between_designs();
	return tap_done();
}
