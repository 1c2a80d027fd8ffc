/* SPDX-License-Identifier: MIT */
/*
 * Whose turn it is: users take turns by entries, pay for what is copied and for sessions that nobody has looked at for
 * long, and alone pay nothing. The rings are the test's own: each has so many entries, and a bill for each of them.
 */
#include <stdlib.h>

#include "base/util.h"
#include "daemon/pollset.h"
#include "daemon/ringsrv.h"
#include "tests/tap.h"

#define MANY 1000
#define PAID_TURN 128 /* daemon/pollset.c */
#define COLD_TURNS 12
#define WARM_SESSIONS 32

struct ring {
	struct session session;
	uint64_t entries, served, bytes; /* bytes: that each entry copies */
	bool parked, late;               /* late: what it has came right after the next look */
};

struct user {
	struct account account;
	struct ring *rings;
	uint32_t n;
};

static struct ring *ring_of(const struct session *s)
{
	return container_of(s, struct ring, session);
}

bool ringsrv_poll(struct session *s, struct sched *sched, uint32_t entries, uint64_t *ret_copied)
{
	struct ring *r = ring_of(s);
	const uint64_t n = r->late ? 0 : MIN(r->entries, entries);

	(void)sched;
	r->late = false;
	r->entries -= n;
	r->served += n;
	*ret_copied += n * r->bytes;
	return n > 0;
}

bool ringsrv_pending(const struct session *s)
{
	return ring_of(s)->entries > 0;
}

bool ringsrv_await(const struct session *s, uint32_t polls)
{
	(void)polls;
	return ringsrv_pending(s);
}

struct session *ringsrv_seek(struct session **at, uint32_t *polls)
{
	struct session *found = NULL;

	for (; *polls > 0 && !found; --*polls) {
		found = ringsrv_pending(*at) ? *at : NULL;
		*at = (*at)->poll_next;
	}
	return found;
}

bool ringsrv_settle(struct session *s)
{
	return !s->broken;
}

void ringsrv_park(struct session *s, bool parked)
{
	ring_of(s)->parked = parked;
}

bool session_listen(struct session *s)
{
	s->doorbell.armed = true;
	return true;
}

static void user_init(struct user *u, struct pollset *set, uint32_t n)
{
	*u = (struct user){.rings = calloc(n, sizeof *u->rings), .n = n};
	require(u->rings != NULL, "memory for %u rings", n);
	for (uint32_t i = 0; i < n; i++) {
		u->rings[i].session.charge.account = &u->account;
		pollset_add(set, &u->rings[i].session, true);
	}
}

static void user_leave(struct user *u)
{
	for (uint32_t i = 0; i < u->n; i++)
		pollset_remove(&u->rings[i].session);
	free(u->rings);
}

static void ask(struct user *u, uint64_t entries, uint64_t bytes)
{
	for (uint32_t i = 0; i < u->n; i++) {
		u->rings[i].entries = entries;
		u->rings[i].bytes = bytes;
		u->rings[i].served = 0;
	}
}

static uint64_t served(const struct user *u)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < u->n; i++)
		n += u->rings[i].served;
	return n;
}

/* Turns of two users, both of whom always have work: how many entries of each. */
static void run(struct pollset *set, struct user *a, struct user *b, uint32_t turns, uint64_t bytes)
{
	ask(a, UINT64_MAX / 2, 0);
	ask(b, UINT64_MAX / 2, bytes);
	for (uint32_t i = 0; i < turns; i++)
		pollset_turn(set, NULL);
}

static void test_shared(void)
{
	struct pollset set = {0};
	struct user a, b, cold;
	uint64_t fewest = UINT64_MAX, most = 0;

	user_init(&a, &set, 1);
	user_init(&b, &set, WARM_SESSIONS);
	run(&set, &a, &b, 1000, 0);
	ok(served(&a) == 1000 && served(&b) == 1000,
	   "two users have an entry a turn each, however many sessions they have: %llu and %llu",
	   (unsigned long long)served(&a), (unsigned long long)served(&b));
	run(&set, &a, &b, 1000, 3 * PAID_TURN);
	ok(served(&a) == 1000 && served(&b) >= 333 && served(&b) <= 334,
	   "who has three turns' worth copied has one in three: %llu", (unsigned long long)served(&b));
	user_leave(&b);
	user_init(&cold, &set, MANY);
	run(&set, &a, &cold, COLD_TURNS * 2 * MANY, 0);
	for (uint32_t i = 0; i < MANY; i++) {
		fewest = MIN(fewest, cold.rings[i].served);
		most = MAX(most, cold.rings[i].served);
	}
	ok(served(&a) == COLD_TURNS * 2 * MANY && served(&cold) >= 2 * MANY &&
		   served(&cold) <= 2 * MANY + WARM_SESSIONS,
	   "who has a thousand that all ask has one in twelve: %llu of %d", (unsigned long long)served(&cold),
	   COLD_TURNS * 2 * MANY);
	ok(fewest >= 2 && most <= 3, "and all of these have their turns: %llu to %llu", (unsigned long long)fewest,
	   (unsigned long long)most);
	user_leave(&cold);
	user_leave(&a);
	ok(set.users == 0 && !set.at, "nobody is left");
}

static void test_alone(void)
{
	struct pollset set = {0};
	struct user u;
	uint32_t turns = 0;

	user_init(&u, &set, MANY);
	ask(&u, 1, 3 * PAID_TURN);
	while (served(&u) < MANY && turns < 2 * MANY) {
		pollset_turn(&set, NULL);
		turns++;
	}
	ok(turns == MANY, "who is alone pays nothing: %u turns for %d sessions", turns, MANY);
	ask(&u, 32, 0);
	pollset_turn(&set, NULL);
	ok(served(&u) == 32, "and has more than an entry a turn: %llu", (unsigned long long)served(&u));
	user_leave(&u);
}

/* The look before a sleep: the first that has work is enough to stay awake, and pays. */
static void test_last_look(void)
{
	struct pollset set = {0};
	struct user a;
	bool awake;

	user_init(&a, &set, MANY);
	for (uint32_t i = 0; i < MANY; i++)
		a.rings[i].session.doorbell.armed = true;
	ask(&a, 32, 1 << 20);
	awake = pollset_park(&set, NULL);
	ok(awake && served(&a) > 0 && served(&a) <= 32 && a.account.poll.debt == served(&a) << 20,
	   "a thousand sessions that publish as the reactor would sleep: %llu entries in the last look, paid for",
	   (unsigned long long)served(&a));
	for (uint32_t i = 0; i < 2 * MANY; i++)
		pollset_turn(&set, NULL);
	ok(served(&a) == 32 * MANY, "the others have their turns");
	user_leave(&a);
}

/* A client that publishes while its session is parked rings no doorbell. */
static void test_late(void)
{
	struct pollset set = {0};
	struct user a, b;

	user_init(&a, &set, 1);
	user_init(&b, &set, 1); /* which has nothing: no second look in one turn */
	set.now = 1u << 30;
	ask(&a, 1, 0);
	a.rings[0].late = true;
	ok(pollset_turn(&set, NULL) && !a.rings[0].parked, "what comes while a silent session is parked is work");
	ok(pollset_turn(&set, NULL) && served(&a) == 1, "and is served in the next turn");
	user_leave(&a);
	user_leave(&b);
}

int main(void)
{
	test_shared();
	test_alone();
	test_last_look();
	test_late();
	return tap_done();
}
