/* SPDX-License-Identifier: MIT */
/* What steps took, on a clock that the test moves: shares of known times, and random ones against their union. */
#include "base/util.h"
#include "overlap.h"
#include "tests/tap.h"

static void test_known(void)
{
	struct overlap o = {0};
	uint64_t a, b, c;

	a = overlap_enter(&o, 1000);
	ok(overlap_leave(&o, a, 1600) == 600, "alone: all of its time");
	a = overlap_enter(&o, 5000);
	b = overlap_enter(&o, 5100);
	ok(overlap_leave(&o, a, 5500) == 100 + 400 / 2, "two: half of what they share");
	c = overlap_enter(&o, 5700);
	ok(overlap_leave(&o, c, 5700) == 0, "no time: nothing");
	ok(overlap_leave(&o, b, 5800) == 400 / 2 + 300, "the other half, and what it had alone");
	a = overlap_enter(&o, 9000);
	b = overlap_enter(&o, 8000);
	ok(overlap_leave(&o, b, 8500) == 0 && overlap_leave(&o, a, 9100) == 100,
	   "a clock that runs back gives nothing");
	ok(o.n == 0, "nobody is in flight");
}

/* All of them enter and leave at random; the clock's unit is divisible by all numbers of steps that there are. */
static void test_union(void)
{
	const uint64_t unit = 5354228880; /* lcm of 1 to 24 */
	uint64_t entered[24], now = 0, busy = 0, sum = 0;
	bool flies[24] = {false};
	unsigned long long seed = 11;
	struct overlap o = {0};
	uint32_t n = 0;
	size_t i;

	for (i = 0; i < 4000 || n > 0; i++) {
		const uint64_t pause = tap_random(&seed) % 3 * unit;
		const size_t k = tap_random(&seed) % ARRAY_LEN(flies);

		busy += n ? pause : 0;
		now += pause;
		if (!flies[k] && i >= 4000)
			continue;
		if (flies[k])
			sum += overlap_leave(&o, entered[k], now);
		else
			entered[k] = overlap_enter(&o, now);
		flies[k] = !flies[k];
		n += flies[k] ? 1 : -1u;
	}
	ok(busy > 0 && sum == busy, "what %zu steps took adds up to the time with any in flight", i);
}

int main(void)
{
	test_known();
	test_union();
	return tap_done();
}
