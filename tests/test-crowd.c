/* SPDX-License-Identifier: MIT */
/* Crowds: who polls stops only where strangers took yields, more than once, and tries again ever less often. */
#include "base/crowd.h"
#include "tests/tap.h"

#define MS 1000000ull

/* At `at` a yield of `taken`; what was waited for came after `came` of it. */
static void yields(struct crowd *crowd, uint64_t at, uint64_t taken, uint64_t came)
{
	crowd_yielded(crowd, at, at + taken);
	crowd_found(crowd, at + came);
}

static void test_who_is_no_crowd(void)
{
	struct crowd crowd = {0};

	for (uint64_t i = 1; i < 100; i++)
		yields(&crowd, i * MS, 20000, 0);
	ok(!crowd_is(&crowd, 100 * MS), "who waits as well, and gives the CPU back");
	for (uint64_t i = 1; i < 100; i++)
		yields(&crowd, (100 + 5 * i) * MS, 4 * MS, 4 * MS - 20000);
	ok(!crowd_is(&crowd, 600 * MS), "who computes what is waited for");
	for (uint64_t i = 1; i < 100; i++)
		yields(&crowd, (600 + 5 * i) * MS, 4 * MS, 5 * MS);
	ok(!crowd_is(&crowd, 1100 * MS), "a stranger, while nothing comes");
	for (uint64_t i = 1; i < 100; i++) {
		yields(&crowd, 1100 * MS + i * (CROWD_SOON_NS + 5 * MS), 4 * MS, MS);
		crowd_found(&crowd, 0); /* behind the same yield */
	}
	ok(!crowd_is(&crowd, crowd.lost_ns + 1), "a stranger now and then, such as a hypervisor's");
}

static void test_a_crowd(void)
{
	struct crowd crowd = {0};
	uint64_t at = MS, length = CROWD_LEAST_NS;

	yields(&crowd, at, 3 * MS, 0);
	ok(!crowd_is(&crowd, at + 3 * MS), "one loss is none");
	at += 10 * MS;
	yields(&crowd, at, 3 * MS, 2 * MS);
	for (int i = 0; i < 9; i++) {
		at += 3 * MS;
		if (!crowd_is(&crowd, at) || !crowd_is(&crowd, at + length - 1) || crowd_is(&crowd, at + length))
			break;
		at += length + length / 2;
		length = MIN(2 * length, CROWD_MOST_NS);
		yields(&crowd, at, 3 * MS, 0);
	}
	ok(length == CROWD_MOST_NS && crowd_is(&crowd, at + CROWD_MOST_NS),
	   "two are a crowd; while one loss more follows soon each while is twice as long, a second at most");
	at += 3 * CROWD_MOST_NS;
	yields(&crowd, at, 3 * MS, 0);
	yields(&crowd, at + 4 * MS, 3 * MS, 0);
	ok(crowd_is(&crowd, at + 7 * MS + CROWD_LEAST_NS - 1) && !crowd_is(&crowd, at + 7 * MS + CROWD_LEAST_NS),
	   "long after it two are asked for again, and the while is short");
}

static void test_the_yield(void)
{
	struct crowd crowd = {0};
	const uint64_t before = now_ns(), after = crowd_yield(&crowd);

	ok(before <= after && after <= now_ns(), "a yield says how late it is");
}

int main(void)
{
	test_who_is_no_crowd();
	test_a_crowd();
	test_the_yield();
	return tap_done();
}
