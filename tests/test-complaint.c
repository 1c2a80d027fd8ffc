/* SPDX-License-Identifier: MIT */
/* complaint - which of many equal lines are said: a new cause at once, the same one once a second, and each that was
 * left unsaid is counted in a later line. The clock is the test's. */
#include "daemon/complaint.h"

#include <errno.h>

#include "tests/tap.h"

#define SECOND ((uint64_t)COMPLAINT_NS)
#define ROUNDS 100000u

static struct complaint c;
static uint64_t unsaid;

static void test_causes(void)
{
	const uint64_t t = 5 * SECOND;
	uint64_t told = 0;
	uint32_t said = 0;

	ok(complaint_due(&c, EIO, t, &unsaid) && unsaid == 0, "the first one is said");
	ok(!complaint_due(&c, EIO, t, &unsaid) && !complaint_due(&c, EIO, t + SECOND - 1, &unsaid),
	   "the same cause is not, for a second");
	ok(complaint_due(&c, EBADMSG, t + SECOND - 1, &unsaid) && unsaid == 0, "another cause is said at once");
	ok(complaint_due(&c, EIO, t + SECOND, &unsaid) && unsaid == 2,
	   "after its second the first one is said, with the two that were left out");
	for (int i = 0; i < 1000; i++)
		said += complaint_due(&c, i % 2 ? EIO : EBADMSG, t + SECOND, &unsaid);
	ok(said == 0, "two that take turns are not said again before their time");
	for (int i = 1; i <= COMPLAINT_CAUSES; i++, told += unsaid)
		said += complaint_due(&c, 1000 + (uint32_t)i, t + SECOND + (uint64_t)i, &unsaid);
	ok(said == COMPLAINT_CAUSES, "of more causes than are told apart each is said at once");
	ok(told + complaint_left(&c, UINT64_MAX) == 1000, "with what was left out of those that made room");
}

static void test_lines(void)
{
	ok(complaint_cause("a: offset 17: layer 4") == complaint_cause("a: offset 9: layer 12"),
	   "lines that differ in numbers are of one cause");
	ok(complaint_cause("a: offset 17: layer 4") != complaint_cause("b: offset 17: layer 4"), "others are not");
	ok(complaint_cause("") != 0 && complaint_cause("12") != 0, "each has one");
}

static void test_left(void)
{
	const uint64_t t = 100 * SECOND;

	c = (struct complaint){0};
	ok(complaint_left(&c, t) == 0 && complaint_left(&c, UINT64_MAX) == 0, "of nothing nothing is left");
	complaint_due(&c, EIO, t, &unsaid);
	ok(complaint_left(&c, t + 9 * SECOND) == 0, "nor of what was said");
	complaint_due(&c, EIO, t + 9 * SECOND, &unsaid);
	complaint_due(&c, EIO, t + 9 * SECOND, &unsaid);
	complaint_due(&c, EIO, t + 9 * SECOND, &unsaid);
	ok(complaint_left(&c, t + 10 * SECOND - 1) == 0, "what was left unsaid is not said before its time");
	ok(complaint_left(&c, t + 10 * SECOND) == 2, "but then, though no other comes");
	ok(complaint_left(&c, t + 11 * SECOND) == 0, "once");
	complaint_due(&c, EIO, t + 10 * SECOND, &unsaid);
	ok(complaint_left(&c, UINT64_MAX) == 1, "at the end all is said, whatever the time");
}

/* Whatever comes when: each is said, or in the number of a later line. */
static void test_none_lost(void)
{
	unsigned long long state = 7;
	uint64_t now = 0, told = 0, lines = 0;

	c = (struct complaint){0};
	for (uint32_t i = 0; i < ROUNDS; i++) {
		now += tap_random(&state) % (SECOND / 50);
		if (complaint_due(&c,
				  tap_random(&state) % 64 ? (uint32_t)EIO : 1000 + (uint32_t)(tap_random(&state) % 12),
				  now, &unsaid)) {
			told += 1 + unsaid;
			lines++;
		}
		if (tap_random(&state) % 128 == 0)
			told += complaint_left(&c, now);
	}
	told += complaint_left(&c, UINT64_MAX);
	ok(told == ROUNDS && lines < ROUNDS / 4, "of %u failures %llu are told, in %llu lines", ROUNDS,
	   (unsigned long long)told, (unsigned long long)lines);
}

int main(void)
{
	test_causes();
	test_lines();
	test_left();
	test_none_lost();
	return tap_done();
}
