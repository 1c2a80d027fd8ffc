/* SPDX-License-Identifier: MIT */
/*
 * ebco-hard beside exact numbers: who of equal sums leaves is the lowest id, whenever their shares came.
 *
 * Times 8^t, W of event t consists of integers, and 128 bits hold it for EVENTS of them, twice as many as a binary64
 * does. A long run goes over the unit's turns (policy-ebco.c), beside a W that is decayed in each event.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "policy/policy.h"
#include "tests/tap.h"

#define EXPERTS_MAX 24
#define EVENTS 36
#define OLD_EVENTS 7400 /* W holds what is so old, wherever its unit is */
#define LONG_EVENTS 9000
#define PAIRS_MAX (8 * 4)

__extension__ typedef unsigned __int128 exact;

struct run {
	uint32_t experts, tokens, topk, event;
	bool wanted[EXPERTS_MAX];
	int32_t ids[PAIRS_MAX];
	exact w[EXPERTS_MAX][EXPERTS_MAX];
	double plain[EXPERTS_MAX][EXPERTS_MAX];
	uint32_t answers, ties, far; /* far: of those, whose rows differ */
	bool good;
};

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* The lower ids more often, or hardly anybody would have an equal. */
static void draw(struct run *r)
{
	memset(r->wanted, 0, sizeof r->wanted);
	for (uint32_t i = 0; i < r->tokens * r->topk; i++) {
		const uint32_t first = i - i % r->topk;
		bool again;

		do {
			r->ids[i] = (int32_t)below(1 + below(r->experts));
			again = false;
			for (uint32_t j = first; j < i; j++)
				again |= r->ids[j] == r->ids[i];
		} while (again);
		r->wanted[r->ids[i]] = true;
	}
}

static void take(struct run *r)
{
	const exact unit = r->event < EVENTS ? (exact)1 << 3 * r->event : 0;

	for (uint32_t i = 0; i < r->experts; i++)
		for (uint32_t j = 0; j < r->experts; j++) {
			r->w[i][j] *= 7;
			r->plain[i][j] *= 0.875;
		}
	for (uint32_t i = 0; i < r->tokens * r->topk; i++)
		for (uint32_t j = i - i % r->topk; j < i - i % r->topk + r->topk; j++) {
			r->w[r->ids[i]][r->ids[j]] += unit;
			r->plain[r->ids[i]][r->ids[j]] += 0.125 / r->tokens;
		}
	r->event++;
}

static exact exact_key(const struct run *r, uint32_t e)
{
	exact sum = 0;

	for (uint32_t a = 0; a < r->experts; a++)
		sum += r->wanted[a] ? r->w[a][e] : 0;
	return sum;
}

static double plain_key(const struct run *r, uint32_t e)
{
	double sum = 0;

	for (uint32_t a = 0; a < r->experts; a++)
		sum += r->wanted[a] ? r->plain[a][e] : 0;
	return sum;
}

static bool rows_differ(const struct run *r, uint32_t e, uint32_t f)
{
	for (uint32_t a = 0; a < r->experts; a++)
		if (r->wanted[a] && r->w[a][e] != r->w[a][f])
			return true;
	return false;
}

static void tell(struct run *r, const struct policy_ops *policy, void *state)
{
	policy->route(state, &(struct policy_tokens){r->tokens, r->topk, r->ids, NULL});
	for (uint32_t e = 0; e < r->experts; e++)
		if (r->wanted[e]) {
			policy->hold(state, &(int32_t){(int32_t)e}, 1);
			policy->request(state, &(int32_t){(int32_t)e}, NULL, 1);
		}
}

/* All who may leave do, one by one, and come back. */
static void compare_exact(struct run *r, const struct policy_ops *policy, void *state)
{
	bool gone[EXPERTS_MAX] = {false};

	for (;;) {
		const int32_t victim = policy->coldest(state);
		int32_t best = -1;

		for (uint32_t e = 0; e < r->experts; e++) {
			if (r->wanted[e] || gone[e])
				continue;
			if (best >= 0 && exact_key(r, e) == exact_key(r, (uint32_t)best) && exact_key(r, e) > 0) {
				r->ties++;
				r->far += rows_differ(r, e, (uint32_t)best);
			}
			if (best < 0 || exact_key(r, e) < exact_key(r, (uint32_t)best))
				best = (int32_t)e;
		}
		r->good &= victim == best;
		if (victim < 0)
			break;
		r->answers++;
		gone[victim] = true;
		policy->evict(state, victim);
	}
	for (uint32_t e = 0; e < r->experts; e++)
		if (gone[e])
			policy->admit(state, (int32_t)e);
}

static void end(struct run *r, const struct policy_ops *policy, void *state)
{
	for (uint32_t e = 0; e < r->experts; e++)
		policy->release(state, &(int32_t){(int32_t)e}, 1);
	policy->settle(state);
}

static void *begin(struct run *r, const struct policy_ops *policy)
{
	void *state = calloc(1, policy->bytes(r->experts, r->experts));

	if (!state)
		exit(1);
	policy->init(state, r->experts, r->experts);
	for (uint32_t e = 0; e < r->experts; e++) {
		policy->admit(state, (int32_t)e);
		policy->release(state, &(int32_t){(int32_t)e}, 1);
	}
	policy->settle(state);
	return state;
}

static void test_exact(void)
{
	uint32_t answers = 0, ties = 0, far = 0, wrong = 0;

	for (uint32_t round = 0; round < 400; round++) {
		const struct policy_ops *policy = &policy_ebco_hard;
		struct run r = {.experts = 6 + below(EXPERTS_MAX - 5), .topk = 2 + below(3), .good = true};
		int32_t order[EXPERTS_MAX], again[EXPERTS_MAX];
		void *state;

		r.tokens = 1 + below(8);
		state = begin(&r, policy);
		while (r.event < EVENTS) {
			draw(&r);
			take(&r);
			tell(&r, policy, state);
			compare_exact(&r, policy, state);
			end(&r, policy, state);
			/* Between events the order is what coldest() says, one after the other. */
			r.good &= policy->sort(state, order) == r.experts;
			for (uint32_t i = 0; i < r.experts; i++) {
				again[i] = policy->coldest(state);
				policy->hold(state, &again[i], 1);
			}
			r.good &= memcmp(order, again, r.experts * sizeof *order) == 0;
			end(&r, policy, state);
		}
		answers += r.answers;
		ties += r.ties;
		far += r.far;
		wrong += !r.good;
		free(state);
	}
	ok(wrong == 0 && far > 1000,
	   "ebco-hard: %u victims are those of exact numbers, %u ties among them, %u of unlike "
	   "rows; %u runs of 400 differ",
	   answers, ties, far, wrong);
}

/* Two are asked for seldom; sums that differ by less than 1e-9, or are hardly anything, are not compared. */
static void test_long(const struct policy_ops *policy)
{
	struct run r = {.experts = 12, .tokens = 2, .topk = 2, .good = true};
	void *state = begin(&r, policy);
	uint32_t apart = 0;

	while (r.event < LONG_EVENTS) {
		int32_t victim, best = -1;

		do
			draw(&r);
		while ((r.wanted[10] || r.wanted[11]) && r.event % 3000 > 4);
		take(&r);
		tell(&r, policy, state);
		victim = policy->coldest(state);
		for (uint32_t e = 0; e < r.experts; e++)
			if (!r.wanted[e] && (best < 0 || plain_key(&r, e) < plain_key(&r, (uint32_t)best)))
				best = (int32_t)e;
		apart += victim != best &&
			 plain_key(&r, (uint32_t)victim) > plain_key(&r, (uint32_t)best) * (1 + 1e-9) + 1e-290;
		end(&r, policy, state);
	}
	ok(apart == 0, "%s: %u events, and the unit's turns change no victim", policy->name, LONG_EVENTS);
	free(state);
}

/* One event: these experts in one token, all of them requested. */
static void together(const struct policy_ops *policy, void *state, uint32_t n, const int32_t *ids)
{
	policy->route(state, &(struct policy_tokens){1, n, ids, NULL});
	policy->hold(state, ids, n);
	policy->request(state, ids, NULL, n);
}

static void let_go(const struct policy_ops *policy, void *state, uint32_t n, const int32_t *ids)
{
	policy->release(state, ids, n);
	policy->settle(state);
}

/* Expert 0 met 6, a hundred events later 5, and then nobody for so many events. 6 leaves, as it was met first. */
static int32_t leaves_after(const struct policy_ops *policy, uint32_t events)
{
	static const int32_t first[] = {0, 6}, between[] = {6}, second[] = {0, 5}, later[] = {5, 6};
	static const int32_t at_last[] = {0, 1, 2, 3, 4, 7};
	void *state = calloc(1, policy->bytes(8, 8));
	int32_t victim;

	policy->init(state, 8, 8);
	for (int32_t e = 0; e < 8; e++) {
		policy->admit(state, e);
		policy->release(state, &e, 1);
	}
	policy->settle(state);
	together(policy, state, 2, first);
	let_go(policy, state, 2, first);
	for (uint32_t i = 0; i < 100; i++) {
		together(policy, state, 1, between);
		let_go(policy, state, 1, between);
	}
	together(policy, state, 2, second);
	let_go(policy, state, 2, second);
	for (uint32_t i = 0; i < events; i++) {
		together(policy, state, 2, later);
		let_go(policy, state, 2, later);
	}
	together(policy, state, ARRAY_LEN(at_last), at_last);
	victim = policy->coldest(state);
	free(state);
	return victim;
}

/* What is old is small, but none of it is nothing while W can hold it. */
static void test_old(const struct policy_ops *policy)
{
	uint32_t wrong = 0, events;

	for (events = 0; events < OLD_EVENTS && !wrong; events += events < 200 ? 1 : 117)
		wrong += leaves_after(policy, events) != 6;
	ok(!wrong, "%s: who was met first leaves, up to %u events later", policy->name, wrong ? events : OLD_EVENTS);
}

int main(void)
{
	seed = tap_seed();
	test_exact();
	test_long(&policy_ebco_hard);
	test_long(&policy_ebco_soft);
	test_old(&policy_ebco_hard);
	test_old(&policy_ebco_soft);
	return tap_done();
}
