/* SPDX-License-Identifier: MIT */
/*
 * Who leaves next, asked of the policies themselves: members are held and let go inside of events and outside, removed
 * while they are held or not, asked for and not evicted, and many events go by in which nobody asks. The answer is
 * compared with the rule said plainly. sort() is called once, at the end: a test that goes through the cache may have
 * it called after each event.
 */
#include <stdlib.h>

#include "base/util.h"
#include "tests/plain-policy.h"
#include "tests/plain-queue.h"
#include "tests/tap.h"

#define TOKENS_MAX 4
#define TOPK_MAX 8

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* One in n. */
static bool chance(uint32_t n)
{
	return below(n) == 0;
}

struct world {
	const struct policy_ops *policy;
	void *state;
	uint32_t experts, slots, n;
	bool skewed;
	bool member[PLAIN_EXPERTS], held[PLAIN_EXPERTS];
	bool wanted[PLAIN_EXPERTS];

	/* The event. */
	int32_t ids[TOKENS_MAX * TOPK_MAX];
	float weights[TOKENS_MAX * TOPK_MAX];
	struct policy_tokens tokens;
	bool begun; /* there was one */
	struct plain plain;
	struct plain_queues queues; /* instead of keys, if it has a rule */
	/* Equal for two experts that were always requested alike: their keys are equal, whatever rounding does. */
	uint64_t alike[PLAIN_EXPERTS];
	uint64_t released[PLAIN_EXPERTS], releases; /* of lru: to be let go is to be used */

	uint32_t compared, asked_again, evicted, removed, wrong;
};

/* -- the rule ----------------------------------------------------------------------------------------------------- */

static double key_of(const struct world *w, uint32_t e)
{
	return w->policy == &policy_lru ? (double)w->released[e] : plain_key(&w->plain, e, w->wanted);
}

/* What one in 10^12 tells apart rounding may have told apart; 0 is exact. */
static bool as_good(double key, double least)
{
	return fabs(key - least) <= 1e-12 * least;
}

static bool rounds(const struct world *w)
{
	return w->policy == &policy_ema || w->policy == &policy_mrs || w->policy->by_pairs;
}

static bool any_idle(const struct world *w)
{
	bool any = false;

	for (uint32_t e = 0; e < w->experts; e++)
		any |= w->member[e] && !w->held[e];
	return any;
}

static bool right(struct world *w, int32_t answer)
{
	double least = INFINITY;
	int32_t best = -1;

	if (w->queues.rule)
		return answer == plain_coldest(&w->queues) && (answer >= 0 || !any_idle(w));
	for (uint32_t e = 0; e < w->experts; e++) {
		if (!w->member[e] || w->held[e] || key_of(w, e) >= least)
			continue;
		least = key_of(w, e);
		best = (int32_t)e;
	}
	if (answer == best || answer < 0 || (uint32_t)answer >= w->experts || !rounds(w))
		return answer == best;
	if (!w->member[answer] || w->held[answer] || least == 0 || !as_good(key_of(w, (uint32_t)answer), least))
		return false;
	for (int32_t e = 0; e < answer; e++)
		if (w->member[e] && !w->held[e] && w->alike[e] == w->alike[answer])
			return false;
	return true;
}

static int32_t ask(struct world *w)
{
	const int32_t answer = w->policy->coldest(w->state);

	w->compared++;
	if (!right(w, answer) && w->wrong++ == 0)
		diag("%s: %d of %u experts, %u members, event %u, answer %u", w->policy->name, answer, w->experts, w->n,
		     w->plain.event, w->compared);
	return answer;
}

/* -- members ------------------------------------------------------------------------------------------------------ */

static void hold(struct world *w, uint32_t e)
{
	w->policy->hold(w->state, &(int32_t){(int32_t)e}, 1);
	plain_hold(&w->queues, (int32_t)e);
	w->held[e] = true;
}

static void release(struct world *w, uint32_t e)
{
	w->policy->release(w->state, &(int32_t){(int32_t)e}, 1);
	plain_release(&w->queues, (int32_t)e);
	w->held[e] = false;
	w->released[e] = ++w->releases;
}

static void gone(struct world *w, uint32_t e, bool evicted)
{
	(evicted ? w->policy->evict : w->policy->remove)(w->state, (int32_t)e);
	plain_gone(&w->queues, (int32_t)e, evicted);
	w->member[e] = w->held[e] = false;
	w->n--;
}

/* Makes room if it must; the newcomer is held. false: nobody may leave. */
static bool fill(struct world *w, uint32_t e)
{
	if (w->n == w->slots || (w->n > 0 && chance(8))) {
		const int32_t victim = ask(w);

		if (victim < 0 || w->wrong)
			return false;
		gone(w, (uint32_t)victim, true);
		w->evicted++;
	}
	w->policy->admit(w->state, (int32_t)e);
	plain_admit(&w->queues, (int32_t)e);
	w->member[e] = w->held[e] = true;
	w->n++;
	return true;
}

static void remove_any(struct world *w)
{
	const uint32_t e = below(w->experts);

	if (!w->member[e])
		return;
	gone(w, e, false);
	w->removed++;
}

/* Frames hold what is computed with, for as long as it takes. */
static void hold_or_release(struct world *w)
{
	const uint32_t e = below(w->experts);

	if (w->member[e] && w->held[e])
		release(w, e);
	else if (w->member[e] && !chance(3))
		hold(w, e);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static uint32_t any_expert(const struct world *w)
{
	uint32_t e = below(w->experts);

	for (int i = 0; w->skewed && i < 3; i++)
		e = MIN(e, below(w->experts));
	return e;
}

/* false: nothing is requested, so that it is no event. */
static bool route(struct world *w)
{
	bool any = false;
	const uint32_t topk = 1 + below(MIN(w->experts, TOPK_MAX));

	w->tokens = (struct policy_tokens){1 + below(TOKENS_MAX), topk, w->ids, w->weights};
	memset(w->wanted, 0, sizeof w->wanted);
	for (uint32_t i = 0; i < w->tokens.tokens * topk; i++) {
		bool taken;

		w->weights[i] = (float)(1 + below(64)) / 64;
		do {
			w->ids[i] = (int32_t)any_expert(w);
			taken = false;
			for (uint32_t j = i - i % topk; j < i; j++)
				taken |= w->ids[j] == w->ids[i];
		} while (taken && !w->skewed);
		if (taken || chance(50))
			w->ids[i] = -1;
		else
			any = w->wanted[w->ids[i]] = true;
	}
	return any;
}

static uint32_t pairs_of(const struct world *w, uint32_t e)
{
	uint32_t pairs = 0;

	for (uint32_t i = 0; i < w->tokens.tokens * w->tokens.topk; i++)
		pairs += w->ids[i] == (int32_t)e;
	return pairs;
}

static void mix(uint64_t *hash, uint64_t with)
{
	*hash = (*hash ^ with) * 0x9e3779b97f4a7c15ull;
	*hash ^= *hash >> 29;
}

/* When, how, and with whom. */
static void remember(struct world *w)
{
	const uint32_t topk = w->tokens.topk;

	for (uint32_t i = 0; i < w->tokens.tokens * topk; i++) {
		if (w->ids[i] < 0)
			continue;
		mix(&w->alike[w->ids[i]], w->plain.event);
		if (w->policy != &policy_ema)
			mix(&w->alike[w->ids[i]], (uint64_t)(w->weights[i] * 64));
		for (uint32_t j = i - i % topk; w->policy->by_pairs && j < i - i % topk + topk; j++)
			mix(&w->alike[w->ids[i]], (uint64_t)w->ids[j] << 32 | (uint64_t)(w->weights[j] * 64));
	}
}

/* frames: what is asked for is held for longer than the event, and the fills come when it is over. */
static void event(struct world *w, bool frames, bool fills)
{
	bool mine[PLAIN_EXPERTS] = {false};

	while (!route(w))
		;
	w->plain.event += w->begun;
	w->begun = true;
	if (w->policy->route)
		w->policy->route(w->state, &w->tokens);
	for (uint32_t e = 0; e < w->experts; e++) {
		if (!w->wanted[e])
			continue;
		mine[e] = !frames && (!w->member[e] || !w->held[e]);
		if (w->member[e] && !w->held[e])
			hold(w, e);
		w->policy->request(w->state, &(int32_t){(int32_t)e}, &(uint32_t){pairs_of(w, e)}, 1);
		plain_request(&w->queues, (int32_t)e);
	}
	plain_event(&w->plain, &w->tokens, w->wanted);
	remember(w);
	if (frames)
		w->policy->settle(w->state);
	for (uint32_t i = 0; fills && i < 3; i++) {
		w->asked_again += i > 0;
		ask(w);
	}
	for (uint32_t e = 0; fills && e < w->experts && !w->wrong; e++)
		if (w->wanted[e] && !w->member[e] && !chance(5) && !fill(w, e))
			break;
	for (uint32_t e = 0; e < w->experts; e++)
		if (mine[e] && w->member[e])
			release(w, e);
	if (!frames)
		w->policy->settle(w->state);
}

/* All members are let go, and asked for one by one: by keys, in the order that sort() says. */
static void compare_sorted(struct world *w)
{
	int32_t *order = calloc(w->slots, sizeof *order);

	for (uint32_t e = 0; e < w->experts; e++)
		if (w->member[e] && w->held[e])
			release(w, e);
	w->wrong += !order || w->policy->sort(w->state, order) != w->n;
	if (w->queues.rule && !w->wrong) {
		int32_t expected[PLAIN_QUEUE_MAX];

		w->wrong += plain_order(&w->queues, expected) != w->n ||
			    memcmp(order, expected, w->n * sizeof *order) != 0;
	}
	for (uint32_t i = 0; w->n > 0 && !w->wrong; i++) {
		const int32_t victim = ask(w);

		w->wrong += victim < 0 || (!w->queues.rule && victim != order[i]);
		if (!w->wrong)
			gone(w, (uint32_t)victim, true);
	}
	w->wrong += !w->wrong && ask(w) != -1;
	free(order);
}

static void run(struct world *w, const struct policy_ops *policy, uint32_t experts, uint32_t steps)
{
	uint32_t quiet = 0;

	*w = (struct world){.policy = policy, .experts = experts, .slots = 1 + below(experts), .skewed = chance(2)};
	w->plain.rule = policy->name;
	w->plain.experts = experts;
	w->queues.rule = policy == &policy_sieve     ? PLAIN_SIEVE
			 : policy == &policy_s3_fifo ? PLAIN_S3_FIFO
			 : policy == &policy_arc     ? PLAIN_ARC
						     : PLAIN_NONE;
	w->queues.slots = w->slots;
	w->queues.hand = -1;
	w->state = calloc(1, policy->bytes(experts, w->slots));
	if (!w->state)
		abort();
	policy->init(w->state, experts, w->slots);
	for (uint32_t step = 0; step < steps && !w->wrong; step++) {
		/* A hundred events that nobody asks in, now and then. */
		quiet = quiet ? quiet - 1 : chance(40) ? below(100) : 0;
		event(w, chance(2), !quiet);
		for (uint32_t i = below(4 + experts / 4); i > 0; i--)
			hold_or_release(w);
		if (chance(6))
			remove_any(w);
		if (!quiet && chance(3))
			ask(w);
	}
	compare_sorted(w);
	free(w->state);
}

static void test_policy(const char *name)
{
	static const struct {
		uint32_t experts, steps;
	} big[] = {{300, 400}, {256, 400}, {128, 1000}, {60, 11000}};
	static struct world w;
	uint32_t compared = 0, evicted = 0, again = 0, events = 0, removed = 0;
	bool good = true;

	for (uint32_t round = 0; round < 40 && good; round++) {
		const uint32_t experts = round < ARRAY_LEN(big) ? big[round].experts : 2 + below(round % 2 ? 6 : 60);
		const uint32_t steps = round < ARRAY_LEN(big) ? big[round].steps : 300 + below(300);

		run(&w, policy_find(name), experts, steps);
		good = !w.wrong;
		compared += w.compared;
		evicted += w.evicted;
		removed += w.removed;
		again += w.asked_again;
		events += steps;
	}
	ok(good && evicted > 2000 && again > 5000 && removed > 500,
	   "%s: %u answers, %u evictions and %u removals in %u events are the rule's", name, compared, evicted, removed,
	   events);
}

int main(void)
{
	static const char *const names[] = {"lru",       "lfu",       "lfu-decay", "lfru",    "ema", "mrs",
					    "ebco-hard", "ebco-soft", "sieve",     "s3-fifo", "arc"};

	seed = tap_seed();
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		test_policy(names[i]);
	return tap_done();
}
