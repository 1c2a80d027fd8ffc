/* SPDX-License-Identifier: MIT */
#include "daemon/pollset.h"

#include <assert.h>

#include "base/util.h"
#include "daemon/ringsrv.h"

/* How long a session is polled without work. Waking a parked one costs microseconds, so a client that comes back sooner
 * or later loses next to nothing; one that generates text comes back each layer and stays polled. */
#define QUIET_NS 20000000u
#define CLOCK_TURNS 64 /* between two readings of the clock */
/* What counts of the time between them: when the reactor lost its CPU meanwhile, no client was silent. */
#define CLOCK_STEP_NS 100000u
/* Polls of one user's sessions a turn, to the first that has work: alone, and beside other users. */
#define POLLS_ALONE 64
#define POLLS_SHARED 8
/* Entries claimed from one session before the next one has its turn. */
#define ENTRIES_ALONE 32
#define ENTRIES_SHARED 1
/* Bytes of ids and weights that a user may have copied a turn: to copy and check that many takes less than a turn does,
 * in fresh memory as well. */
#define PAID_TURN 128
/* Whoever was not among its user's last so many visits has left the first cache, by reasoning, and takes as long as so
 * many turns in which another user is only looked at (docs/decisions/0088). */
#define WARM_SESSIONS 32
#define COLD_BYTES (12 * PAID_TURN)
/* Looks at the only session's tail in one turn, a pause behind each: nobody else waits for the reactor but the pool and
 * a client that shares its CPU, which gets it after some turns (SPINS_TURN of the loop). */
#define AWAIT_ONLY 5
/* Doorbells armed at once before a sleep: each is a system call and a half. */
#define ARMED_ONCE 16

/* -- the two rings of links --------------------------------------------------------------------------------------- */

static struct pollset_user *user_of(const struct session *s)
{
	return &s->charge.account->poll;
}

static void link_user(struct pollset *set, struct pollset_user *user)
{
	if (set->at) {
		user->next = set->at;
		user->prev = set->at->prev;
		user->prev->next = user->next->prev = user;
	} else {
		set->at = user->next = user->prev = user;
	}
	set->users++;
}

static void unlink_user(struct pollset *set, struct pollset_user *user)
{
	if (set->at == user)
		set->at = user->next != user ? user->next : NULL;
	user->prev->next = user->next;
	user->next->prev = user->prev;
	user->debt = 0;
	set->users--;
}

/* In front of the one that came before it: clients that take turns in the order in which they came are polled the other
 * way about, which meets the next request after half a round, not a whole one. */
static void link_session(struct pollset *set, struct session *s)
{
	struct pollset_user *user = user_of(s);

	if (user->at) {
		s->poll_next = user->newest ? user->newest : user->at;
		s->poll_prev = s->poll_next->poll_prev;
		s->poll_prev->poll_next = s->poll_next->poll_prev = s;
	} else {
		user->at = s->poll_next = s->poll_prev = s;
		link_user(set, user);
	}
	user->newest = s;
	user->polled++;
	s->polled = true;
}

static void unlink_session(struct pollset *set, struct session *s)
{
	struct pollset_user *user = user_of(s);

	if (user->at == s)
		user->at = s->poll_next != s ? s->poll_next : NULL;
	if (user->newest == s)
		user->newest = user->at;
	s->poll_prev->poll_next = s->poll_next;
	s->poll_next->poll_prev = s->poll_prev;
	s->polled = false;
	if (--user->polled == 0)
		unlink_user(set, user);
}

static void read_clock(struct pollset *set, uint64_t most)
{
	const uint64_t now = now_ns();

	set->now += MIN(now - set->read_ns, most);
	set->read_ns = now;
}

/* -- in and out --------------------------------------------------------------------------------------------------- */

static void poll_from_now(struct pollset *set, struct session *s)
{
	s->worked_ns = set->now;
	ringsrv_park(s, false);
	link_session(set, s);
}

void pollset_add(struct pollset *set, struct session *s, bool polled)
{
	s->pollset = set;
	if (polled)
		poll_from_now(set, s);
	else
		ringsrv_park(s, true);
}

void pollset_wake(struct session *s)
{
	if (s->pollset && !s->polled && !s->broken)
		poll_from_now(s->pollset, s);
}

void pollset_remove(struct session *s)
{
	struct session **at = s->pollset ? &s->pollset->broken : NULL;

	if (s->polled)
		unlink_session(s->pollset, s);
	while (at && *at && *at != s)
		at = &(*at)->poll_next;
	if (at && *at)
		*at = s->poll_next;
	s->pollset = NULL;
}

struct session *pollset_next_broken(struct pollset *set)
{
	return set->broken;
}

static void take_out_broken(struct pollset *set, struct session *s)
{
	unlink_session(set, s);
	s->poll_next = set->broken;
	set->broken = s;
}

/* One of a user's sessions each time the clock is read: whoever lets a thousand fall silent at once pays for it, and
 * nobody else. True: something came meanwhile, and no doorbell rings for it: the loop must not sleep. */
static bool park_session(struct pollset *set, struct session *s)
{
	struct pollset_user *user = user_of(s);

	if (user->parked_ns == set->now || !ringsrv_settle(s) || !session_listen(s))
		return false;
	user->parked_ns = set->now;
	ringsrv_park(s, true);
	/* Partner: the fence between the client's sq_tail store and its look at sq_wait. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (ringsrv_pending(s)) {
		ringsrv_park(s, false);
		s->worked_ns = set->now;
		return true;
	}
	unlink_session(set, s);
	return false;
}

/* -- a turn ------------------------------------------------------------------------------------------------------- */

static bool visit(struct pollset *set, struct session *s, struct sched *sched, uint32_t entries)
{
	uint64_t copied = 0;

	if (ringsrv_poll(s, sched, entries, &copied)) {
		s->worked_ns = set->now;
		user_of(s)->debt += copied;
		return true;
	}
	if (s->broken)
		take_out_broken(set, s);
	else if (set->now - s->worked_ns > QUIET_NS)
		return park_session(set, s);
	return false;
}

static void charge_visit(struct pollset_user *user, struct session *s)
{
	if (++user->visits - s->visited > WARM_SESSIONS)
		user->debt += COLD_BYTES;
	s->visited = user->visits;
}

static bool user_turn(struct pollset *set, struct pollset_user *user, struct sched *sched, bool shared)
{
	uint32_t polls = MIN(shared ? POLLS_SHARED : POLLS_ALONE, user->polled);

	if (shared && user->debt > PAID_TURN) {
		user->debt -= PAID_TURN;
		return true;
	}
	user->debt = 0;
	while (polls > 0 && user->at) {
		struct session *s = ringsrv_seek(&user->at, &polls);

		if (s && visit(set, s, sched, shared ? ENTRIES_SHARED : ENTRIES_ALONE)) {
			if (shared)
				charge_visit(user, s);
			return true;
		}
	}
	return false;
}

/* The only session of all, whose tail has just been seen: nobody else's turn is put off, so it is served where it is
 * seen, and its user owes nothing to anybody. */
static bool only_turn(struct pollset *set, struct sched *sched)
{
	struct pollset_user *user = set->at;

	if (!ringsrv_await(user->at, AWAIT_ONLY))
		return false;
	user->debt = 0;
	user->at->polls++; /* as the search for one counts them */
	return visit(set, user->at, sched, ENTRIES_ALONE);
}

bool pollset_turn(struct pollset *set, struct sched *sched)
{
	const uint32_t users = set->users;
	bool any = users == 1 && set->at->polled == 1 && only_turn(set, sched);

	if (++set->turns % CLOCK_TURNS == 0)
		read_clock(set, CLOCK_STEP_NS);
	if (any)
		return true;
	for (uint32_t i = 0; i < users && set->at; i++) {
		struct pollset_user *user = set->at;

		set->at = user->next;
		any |= user_turn(set, user, sched, users > 1);
	}
	return any;
}

/* -- sleep -------------------------------------------------------------------------------------------------------- */

/* True when all doorbells are armed. Some at a time: there may be a thousand. */
static bool arm_doorbells(struct pollset *set)
{
	struct pollset_user *user = set->at;
	uint32_t armed = 0;

	for (uint32_t i = 0; i < set->users; i++, user = user->next) {
		struct session *s = user->at;

		for (uint32_t j = 0; j < user->polled; j++, s = s->poll_next) {
			if (s->doorbell.armed)
				continue;
			if (armed++ == ARMED_ONCE || !session_listen(s))
				return false;
		}
	}
	return true;
}

static void raise_flags(struct pollset *set)
{
	struct pollset_user *user = set->at;

	for (uint32_t i = 0; i < set->users; i++, user = user->next) {
		struct session *s = user->at;

		for (uint32_t j = 0; j < user->polled; j++, s = s->poll_next)
			ringsrv_park(s, true);
	}
}

/* The first that has any, which pays for it as in a turn; the others have theirs. Where there is none all may be left
 * parked. */
static bool find_work(struct pollset *set, struct sched *sched)
{
	struct pollset_user *user = set->at;

	for (uint32_t i = 0; i < set->users; i++, user = user->next) {
		struct session *s = user->at;

		for (uint32_t j = 0; j < user->polled; j++, s = s->poll_next) {
			uint64_t copied = 0;

			if (ringsrv_poll(s, sched, ENTRIES_ALONE, &copied)) {
				s->worked_ns = set->now;
				user->debt += copied;
				return true;
			}
			if (s->broken)
				return true;
		}
	}
	return false;
}

bool pollset_park(struct pollset *set, struct sched *sched)
{
	if (!arm_doorbells(set))
		return true;
	read_clock(set, CLOCK_STEP_NS);
	set->parked = true;
	raise_flags(set);
	/* Partner: the fence between each client's sq_tail store and its look at sq_wait. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return find_work(set, sched);
}

/* One that is silent for long stays as it is, unless it waits for room: then no doorbell will ring. */
static void unpark_user(struct pollset *set, struct pollset_user *user)
{
	struct session *s = user->at;

	for (uint32_t left = user->polled; left > 0; left--) {
		struct session *next = s->poll_next;

		if (set->now - s->worked_ns > QUIET_NS && !s->broken && !ringsrv_pending(s))
			unlink_session(set, s);
		else
			ringsrv_park(s, false);
		s = next;
	}
}

void pollset_unpark(struct pollset *set)
{
	struct pollset_user *user = set->at;

	if (!set->parked)
		return;
	set->parked = false;
	read_clock(set, UINT64_MAX);
	for (uint32_t left = set->users; left > 0; left--) {
		struct pollset_user *next = user->next;

		unpark_user(set, user);
		user = next;
	}
}
