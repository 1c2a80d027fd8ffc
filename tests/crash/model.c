/* SPDX-License-Identifier: MIT */
/*
 * The crash-order model: a daemon that can be killed between any two stores, and every schedule of it.
 *
 * A client posts four requests, each for a lease; the daemon claims them and completes what runs in any order; up to
 * three kills come anywhere, in recovery too. At the end each request must have been completed once, and the leases
 * that are held must be those that the client was told of, each another one. The order of the stores is data (order.h),
 * so a mutant is another order: each must spoil something in some schedule, or the model could not tell right from
 * wrong.
 */
#include <stdint.h>
#include <string.h>

#include "base/util.h"
#include "tests/crash/order.h"
#include "tests/tap.h"

#define REQUESTS 4
#define PLACES_MAX 4
#define SCHEDULES_MIN 100000
#define COMPLETIONS_MAX 32 /* a mutant that doubles endlessly ends here */
#define LEASES_MAX 16
#define NOBODY 0xff

struct slot {
	bool inflight;
	uint8_t counter, entry, lease;
};

struct completion {
	uint8_t request, lease, seq;
};

/* What happens in one schedule up to now. `entry` and `sq` hold the number of a request. */
struct machine {
	/* the client, and its region */
	uint8_t filled, sq_tail, cq_head;
	uint8_t sq[PLACES_MAX];
	uint8_t got[REQUESTS], told[REQUESTS]; /* told: the lease */
	bool garbage;                          /* a completion of nothing */
	/* the daemon's region */
	uint8_t sq_head, cq_tail;
	struct completion cq[PLACES_MAX], alone;
	/* the journal */
	uint16_t leases; /* a bit each: held */
	uint8_t next, used, last;
	struct slot slots[PLACES_MAX];
	/* what dies with the daemon: the requests that run by slot, and the sequence of stores that it is in */
	bool runs[PLACES_MAX];
	uint8_t asked[PLACES_MAX]; /* by slot: the private copy */
	const enum journal_step *at;
	uint8_t slot, number, lease; /* the sequence's: its slot; the claim's counter, or the completion's index */

	uint8_t crashes;
};

struct variant {
	const char *what;
	struct journal_order order;
	bool from_ring; /* what runs again is read from the submission queue */
};

struct verdict {
	uint64_t schedules, lost, doubled, leases; /* leases: that are held by nobody, or not held */
};

struct setting {
	uint8_t places; /* of the ring; fewer than requests: places are used again */
	bool eager;     /* the client looks after each store; else only when the daemon has nothing to do */
	uint8_t crashes;
};

static const struct variant *variant;
static struct setting setting;
static struct verdict verdict;

/* -- the client --------------------------------------------------------------------------------------------------- */

/* Takes what is completed, fills the places that sq_head has freed, publishes as many as may be in flight. */
static bool client_turn(struct machine *m)
{
	bool any = false;

	for (;; m->cq_head++, any = true) {
		const struct completion *c = &m->cq[m->cq_head % setting.places];

		if (c->seq != m->cq_head + 1)
			c = &m->alone;
		if (c->seq != m->cq_head + 1)
			break;
		if (c->request == NOBODY) {
			m->garbage = true;
			continue;
		}
		m->got[c->request]++;
		m->told[c->request] = c->lease;
	}
	for (; m->filled < REQUESTS && m->filled - m->sq_head < setting.places; m->filled++, any = true)
		m->sq[m->filled % setting.places] = m->filled;
	for (; m->sq_tail < m->filled && m->sq_tail - m->cq_head < setting.places; any = true)
		m->sq_tail++;
	return any;
}

/* -- the daemon --------------------------------------------------------------------------------------------------- */

static void reissue(struct machine *m)
{
	for (unsigned i = 0; i < setting.places; i++) {
		const struct slot *slot = &m->slots[i];

		m->runs[i] = slot->inflight;
		m->asked[i] = variant->from_ring ? m->sq[slot->counter % setting.places] : slot->entry;
	}
}

static uint8_t next_of_all(const struct machine *m)
{
	uint8_t next = m->next;

	for (unsigned i = 0; i < setting.places; i++)
		if (m->slots[i].inflight && m->slots[i].counter >= next)
			next = m->slots[i].counter + 1;
	return next;
}

/* One store. */
static void store(struct machine *m, enum journal_step step)
{
	struct slot *slot = &m->slots[m->slot];

	switch (step) {
	case STEP_COUNTER:
		slot->counter = m->number;
		break;
	case STEP_ENTRY:
		slot->entry = m->asked[m->slot];
		break;
	case STEP_INFLIGHT:
		slot->inflight = true;
		break;
	case STEP_NEXT:
		m->next = m->number + 1;
		break;
	case STEP_SQ_HEAD:
		m->sq_head = m->number + 1;
		break;
	case STEP_LAST:
		m->last = m->slot;
		break;
	case STEP_ALONE:
		m->alone.request = m->asked[m->slot];
		m->alone.lease = m->lease;
		break;
	case STEP_ALONE_SEQ:
		m->alone.seq = m->number + 1;
		break;
	case STEP_CQE:
		m->cq[m->number % setting.places].request = m->asked[m->slot];
		m->cq[m->number % setting.places].lease = m->lease;
		break;
	case STEP_SEQ:
		m->cq[m->number % setting.places].seq = m->number + 1;
		break;
	case STEP_CHOOSE:
		slot->lease = m->lease;
		break;
	case STEP_EFFECT:
		m->leases |= (uint16_t)(1u << slot->lease);
		break;
	case STEP_CQ_TAIL:
		m->cq_tail = m->number + 1;
		break;
	case STEP_CLEAR:
		slot->inflight = false;
		break;
	case STEP_USED:
		m->used = m->number + 1;
		break;
	case STEP_FIX_ALONE:
		if (m->alone.seq == m->cq_tail + 1) {
			m->cq[m->cq_tail % setting.places].request = m->alone.request;
			m->cq[m->cq_tail % setting.places].lease = m->alone.lease;
		}
		break;
	case STEP_FIX_ALONE_SEQ:
		if (m->alone.seq == m->cq_tail + 1)
			m->cq[m->cq_tail % setting.places].seq = m->alone.seq;
		break;
	case STEP_FIX_CQ_TAIL:
		if (m->cq[m->cq_tail % setting.places].seq == m->cq_tail + 1)
			m->cq_tail++;
		break;
	case STEP_FIX_EFFECT:
		if (m->used != m->cq_tail)
			m->leases |= (uint16_t)(1u << m->slots[m->last].lease);
		break;
	case STEP_FIX_CLEAR:
		if (m->used != m->cq_tail)
			m->slots[m->last].inflight = false;
		break;
	case STEP_FIX_USED:
		m->used = m->cq_tail;
		break;
	case STEP_FIX_NEXT:
		m->next = next_of_all(m);
		break;
	case STEP_FIX_SQ_HEAD:
		m->sq_head = m->next;
		break;
	case STEP_REISSUE:
		reissue(m);
		break;
	case STEP_END:
		break;
	}
}

static void explore(struct machine m);

/* Everything that the daemon had in its own memory is gone; the next one begins with recovery. */
static void crash(const struct machine *before)
{
	struct machine m = *before;

	memset(m.runs, 0, sizeof m.runs);
	memset(m.asked, NOBODY, sizeof m.asked);
	m.at = variant->order.recover;
	m.crashes++;
	explore(m);
}

static bool can_claim(const struct machine *m, uint8_t *ret_slot)
{
	if (m->next >= m->sq_tail)
		return false;
	for (uint8_t i = 0; i < setting.places; i++) {
		if (!m->slots[i].inflight && !m->runs[i]) {
			*ret_slot = i;
			return true;
		}
	}
	return false;
}

static void begin(const struct machine *before, const enum journal_step *sequence, uint8_t slot)
{
	struct machine m = *before;

	m.at = sequence;
	m.slot = slot;
	if (sequence == variant->order.claim) {
		m.asked[slot] = m.sq[m.next % setting.places];
		m.runs[slot] = true;
		m.number = m.next;
	} else {
		m.runs[slot] = false; /* from its first store on it is not run by this daemon again */
		m.number = m.cq_tail;
		m.lease = (uint8_t)__builtin_ctz(~(unsigned)m.leases) % LEASES_MAX;
	}
	explore(m);
}

static void judge(const struct machine *m)
{
	bool lost = m->garbage, doubled = false;
	uint16_t told = 0;

	for (unsigned i = 0; i < REQUESTS; i++) {
		lost |= m->got[i] == 0;
		doubled |= m->got[i] > 1;
		told |= (uint16_t)(1u << m->told[i]);
	}
	verdict.schedules++;
	verdict.lost += lost;
	verdict.doubled += doubled;
	verdict.leases += told != m->leases || __builtin_popcount(told) != REQUESTS;
}

/* Between two sequences: a crash, a claim, the completion of any that runs; or the client, who is late; or the end. */
static void choose(struct machine m)
{
	bool any = false;
	uint8_t slot;

	if (m.crashes < setting.crashes)
		crash(&m);
	if (can_claim(&m, &slot)) {
		begin(&m, variant->order.claim, slot);
		any = true;
	}
	for (uint8_t i = 0; i < setting.places && m.cq_tail < COMPLETIONS_MAX; i++) {
		if (m.runs[i]) {
			begin(&m, variant->order.complete, i);
			any = true;
		}
	}
	if (any)
		return;
	if (m.cq_tail < COMPLETIONS_MAX && client_turn(&m))
		explore(m);
	else
		judge(&m);
}

static bool is_first(const enum journal_step *at)
{
	return at == variant->order.claim || at == variant->order.complete || at == variant->order.recover;
}

/* A crash before a sequence's first store was tried where the sequence was chosen. */
static void explore(struct machine m)
{
	while (m.at && *m.at != STEP_END) {
		if (!is_first(m.at) && m.crashes < setting.crashes)
			crash(&m);
		store(&m, *m.at++);
		if (setting.eager)
			client_turn(&m);
	}
	m.at = NULL;
	choose(m);
}

static struct verdict try_all(const struct variant *v, struct setting with)
{
	struct machine m = {.last = 0};

	variant = v;
	setting = with;
	verdict = (struct verdict){0};
	memset(m.sq, NOBODY, sizeof m.sq);
	memset(m.cq, NOBODY, sizeof m.cq);
	m.alone = (struct completion){NOBODY, NOBODY, NOBODY};
	memset(m.asked, NOBODY, sizeof m.asked);
	for (unsigned i = 0; i < PLACES_MAX; i++)
		m.slots[i].entry = NOBODY;
	client_turn(&m);
	explore(m);
	return verdict;
}

/* -- the orders --------------------------------------------------------------------------------------------------- */

#define ORDER(...) .order = {__VA_ARGS__}
#define CLAIM(...) ORDER({__VA_ARGS__}, {ORDER_COMPLETE}, {ORDER_RECOVER})
#define COMPLETE(...) ORDER({ORDER_CLAIM}, {__VA_ARGS__}, {ORDER_RECOVER})
#define RECOVER(...) ORDER({ORDER_CLAIM}, {ORDER_COMPLETE}, {__VA_ARGS__})
#define RECOVER_LONE(...) ORDER({ORDER_CLAIM}, {ORDER_LONE}, {__VA_ARGS__})

static const struct variant right[] = {
	{"the right order", CLAIM(ORDER_CLAIM)},
	{"entry before counter", CLAIM(STEP_ENTRY, STEP_COUNTER, STEP_INFLIGHT, STEP_NEXT, STEP_SQ_HEAD)},
	{"completion before `last`",
	 COMPLETE(STEP_CQE, STEP_LAST, STEP_CHOOSE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"lone requests", COMPLETE(ORDER_LONE)},
	{"cq_tail at the end",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_SEQ, STEP_EFFECT, STEP_CLEAR, STEP_USED, STEP_CQ_TAIL)},
};

static const struct variant mutants[] = {
	{"journal late: sq_head first", CLAIM(STEP_SQ_HEAD, STEP_COUNTER, STEP_ENTRY, STEP_INFLIGHT, STEP_NEXT)},
	{"journal late: `next` first", CLAIM(STEP_COUNTER, STEP_ENTRY, STEP_NEXT, STEP_SQ_HEAD, STEP_INFLIGHT)},
	{"in flight before its counter", CLAIM(STEP_ENTRY, STEP_INFLIGHT, STEP_COUNTER, STEP_NEXT, STEP_SQ_HEAD)},
	{"in flight before its entry", CLAIM(STEP_COUNTER, STEP_INFLIGHT, STEP_ENTRY, STEP_NEXT, STEP_SQ_HEAD)},
	{"clear before the completion",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CLEAR, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_USED)},
	{"clear before the seq",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_CLEAR, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_USED)},
	{"no `last`", COMPLETE(STEP_CHOOSE, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"`last` after the seq",
	 COMPLETE(STEP_CHOOSE, STEP_CQE, STEP_SEQ, STEP_LAST, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"the seq before the completion",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_SEQ, STEP_CQE, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"cq_tail before the seq",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_CQ_TAIL, STEP_SEQ, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"used before clear",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_USED, STEP_CLEAR)},
	{"used before the seq",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_USED, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR)},
	{"lease chosen after the seq",
	 COMPLETE(STEP_LAST, STEP_CQE, STEP_SEQ, STEP_CHOOSE, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"effect before the seq",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_EFFECT, STEP_SEQ, STEP_CQ_TAIL, STEP_CLEAR, STEP_USED)},
	{"effect after used",
	 COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_CLEAR, STEP_USED, STEP_EFFECT)},
	{"lone: the seq before the completion", COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_ALONE_SEQ, STEP_ALONE, STEP_CQE,
							 STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"lone: given out before `last`", COMPLETE(STEP_CHOOSE, STEP_ALONE, STEP_ALONE_SEQ, STEP_LAST, STEP_CQE,
						   STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_CLEAR, STEP_USED)},
	{"lone: given out before its lease is chosen",
	 COMPLETE(STEP_LAST, STEP_ALONE, STEP_ALONE_SEQ, STEP_CHOOSE, STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT,
		  STEP_CLEAR, STEP_USED)},
	{"lone: clear before it is given out", COMPLETE(STEP_CHOOSE, STEP_LAST, STEP_CLEAR, STEP_ALONE, STEP_ALONE_SEQ,
							STEP_CQE, STEP_SEQ, STEP_CQ_TAIL, STEP_EFFECT, STEP_USED)},
	{"lone: recovery does not look beside the queue", RECOVER_LONE(STEP_FIX_CQ_TAIL, ORDER_FIX_REST)},
	{"lone: recovery gives it out before it is copied",
	 RECOVER_LONE(STEP_FIX_ALONE_SEQ, STEP_FIX_CQ_TAIL, STEP_FIX_ALONE, ORDER_FIX_REST)},
	{"lone: recovery brings cq_tail up to date first",
	 RECOVER_LONE(STEP_FIX_CQ_TAIL, STEP_FIX_ALONE, STEP_FIX_ALONE_SEQ, ORDER_FIX_REST)},
	{"recovery believes cq_tail alone", RECOVER(ORDER_FIX_REST)},
	{"recovery brings cq_tail up to date last", RECOVER(ORDER_FIX_REST, STEP_FIX_CQ_TAIL)},
	{"recovery without clear",
	 RECOVER(STEP_FIX_CQ_TAIL, STEP_FIX_EFFECT, STEP_FIX_USED, STEP_FIX_NEXT, STEP_FIX_SQ_HEAD, STEP_REISSUE)},
	{"recovery without effect",
	 RECOVER(STEP_FIX_CQ_TAIL, STEP_FIX_CLEAR, STEP_FIX_USED, STEP_FIX_NEXT, STEP_FIX_SQ_HEAD, STEP_REISSUE)},
	{"recovery: used before clear", RECOVER(STEP_FIX_CQ_TAIL, STEP_FIX_EFFECT, STEP_FIX_USED, STEP_FIX_CLEAR,
						STEP_FIX_NEXT, STEP_FIX_SQ_HEAD, STEP_REISSUE)},
	{"recovery: used before effect", RECOVER(STEP_FIX_CQ_TAIL, STEP_FIX_CLEAR, STEP_FIX_USED, STEP_FIX_EFFECT,
						 STEP_FIX_NEXT, STEP_FIX_SQ_HEAD, STEP_REISSUE)},
	{"recovery: what is in flight runs again first",
	 RECOVER(STEP_FIX_CQ_TAIL, STEP_REISSUE, STEP_FIX_EFFECT, STEP_FIX_CLEAR, STEP_FIX_USED, STEP_FIX_NEXT,
		 STEP_FIX_SQ_HEAD)},
	{"recovery believes `next` alone",
	 RECOVER(STEP_FIX_CQ_TAIL, STEP_FIX_EFFECT, STEP_FIX_CLEAR, STEP_FIX_USED, STEP_FIX_SQ_HEAD, STEP_REISSUE)},
	{"recovery reads the queue, not the copy", CLAIM(ORDER_CLAIM), .from_ring = true},
};

static struct verdict try_settings(const struct variant *v, uint8_t crashes)
{
	struct verdict sum = {0};

	for (uint8_t places = 2; places <= PLACES_MAX; places *= 2) {
		for (unsigned eager = 0; eager < 2; eager++) {
			const struct verdict one = try_all(v, (struct setting){places, eager, crashes});

			sum.schedules += one.schedules;
			sum.lost += one.lost;
			sum.doubled += one.doubled;
			sum.leases += one.leases;
		}
	}
	return sum;
}

static bool report(const struct variant *v, const struct verdict *of, bool good)
{
	return ok(good, "%s: %llu schedules, lost in %llu, doubled in %llu, wrong leases in %llu", v->what,
		  (unsigned long long)of->schedules, (unsigned long long)of->lost, (unsigned long long)of->doubled,
		  (unsigned long long)of->leases);
}

int main(void)
{
	for (size_t i = 0; i < ARRAY_LEN(right); i++) {
		const struct verdict v = try_settings(&right[i], i == 0 ? 3 : 2);

		report(&right[i], &v, v.schedules >= SCHEDULES_MIN && v.lost == 0 && v.doubled == 0 && v.leases == 0);
	}
	diag("mutants: each must be caught");
	for (size_t i = 0; i < ARRAY_LEN(mutants); i++) {
		const struct verdict v = try_settings(&mutants[i], 2);

		report(&mutants[i], &v, v.lost + v.doubled + v.leases > 0);
	}
	return tap_done();
}
