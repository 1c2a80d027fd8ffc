/* SPDX-License-Identifier: MIT */
/* The reactor's CPU: it is left when requests come behind yields that gave it away, and only then. */
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/host.h"
#include "base/util.h"
#include "daemon/seat.h"
#include "tests/tap.h"

#define MANY 64
#define GAVE_NS 10000            /* of a yield that gave the CPU to a client that polls */
#define STAY_MIN_NS 2000000u     /* between the first two moves, at least */
#define STAY_MAX_NS 20000000u    /* between any two */
#define FORGETS_US 50000         /* after which the last move counts no more */
#define GIVE_UP_NS 2000000000ull /* none is that far off */

static cpu_set_t ours;

/* So that only a move changes the CPU; the mask that a move has to leave as it is. */
static int stay_on_two(void)
{
	cpu_set_t two;
	int n = 0;

	CPU_ZERO(&two);
	for (size_t i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &ours)) {
			CPU_SET(i, &two);
			n++;
		}
	return sched_setaffinity(0, sizeof two, &two);
}

/* Whether one of so many requests, each `pause_us` behind a yield of `yield_ns`, made the thread move: the seat itself
 * says so, where it is now the kernel may have chosen. */
static bool moves(struct seat *seat, uint64_t yield_ns, useconds_t pause_us)
{
	const uint64_t before = seat->moved_ns;

	for (int i = 0; i < MANY && seat->moved_ns == before; i++) {
		for (const uint64_t end = now_ns() + pause_us * UINT64_C(1000); now_ns() < end;)
			;
		seat_yielded(seat, 0, yield_ns);
		seat_served(seat);
	}
	return seat->moved_ns != before;
}

static void test_seat(void)
{
	struct seat seat = {0};

	ok(!moves(&seat, 300, 0), "who yields to nobody stays");
	ok(!moves(&seat, 3000000, 3000), "who yields to threads that use their slices stays");
	ok(moves(&seat, GAVE_NS, 100), "who serves a client on its own CPU leaves it, where pauses are long too");
	ok(seat_settling(&seat, seat.moved_ns) == (CPU_COUNT(&ours) > 1), "who has moved does not sleep at once");
	ok(!seat_settling(&seat, seat.moved_ns + SEAT_SETTLE_NS), "but after a moment");
	for (int i = 0; i < MANY; i++) {
		seat_yielded(&seat, 0, GAVE_NS);
		seat_served(&seat);
		seat_slept(&seat);
	}
	ok(seat.shared == 0, "a sleep begins anew");
	seat = (struct seat){0};
	for (int i = 0; i < MANY; i++)
		seat_served(&seat);
	ok(!seat.moved_ns, "requests that no yield came before do not count");
}

static void test_moves(void)
{
	uint64_t least = STAY_MIN_NS;
	bool again = true, early = false;
	struct seat seat = {0};

	moves(&seat, GAVE_NS, 0);
	for (int i = 0; i < 6; i++) {
		const uint64_t last = seat.moved_ns;

		while (!moves(&seat, GAVE_NS, 0) && now_ns() - last < GIVE_UP_NS)
			;
		again &= seat.moved_ns != last;
		early |= seat.moved_ns - last < least;
		/* Who lost the CPU meanwhile has stayed for long. */
		least = seat.moved_ns - last > 2 * STAY_MAX_NS ? STAY_MIN_NS : MIN(2 * least, (uint64_t)STAY_MAX_NS);
	}
	ok(again, "who shares a CPU again moves again");
	ok(!early, "not at once, and each time later");
	usleep(FORGETS_US);
	moves(&seat, GAVE_NS, 0);
	ok(seat.stay_ns == STAY_MIN_NS, "who has stayed for long moves again soon");
}

static void test_leave(void)
{
	cpu_set_t before, after;
	int from = 0, to = 0, r = 0;

	if (CPU_COUNT(&ours) < 2) {
		ok(host_leave_cpu() == -ENOENT, "nowhere to go with one CPU");
		return;
	}
	require(stay_on_two() == 0 && sched_getaffinity(0, sizeof before, &before) == 0, "two CPUs are ours");
	/* The kernel may put it back at once, but not each time. */
	for (int i = 0; i < 1000 && r == 0 && from == to; i++) {
		from = sched_getcpu();
		r = host_leave_cpu();
		to = sched_getcpu();
	}
	sched_getaffinity(0, sizeof after, &after);
	ok(r == 0 && from != to, "moved from CPU %d to %d", from, to);
	ok(CPU_EQUAL(&before, &after), "may run where it could before");
	CPU_ZERO(&before);
	CPU_SET((size_t)to, &before);
	require(sched_setaffinity(0, sizeof before, &before) == 0, "one CPU is ours");
	ok(host_leave_cpu() == -ENOENT && sched_getcpu() == to, "nowhere to go with one CPU");
	require(sched_setaffinity(0, sizeof ours, &ours) == 0, "all CPUs are ours");
}

int main(void)
{
	sched_getaffinity(0, sizeof ours, &ours);
	test_seat();
	test_moves();
	test_leave();
	return tap_done();
}
