/* SPDX-License-Identifier: MIT */
/* The timeline against a list of all numbers: in any order, with gaps, at the window's end, across 2^32. */
#include "daemon/timeline.h"

#include <string.h>

#include "tests/tap.h"

#define NUMBERS 100000

/* -- the same, slowly --------------------------------------------------------------------------------------------- */

static bool came[NUMBERS + 1];

static uint32_t reached_of(uint32_t from)
{
	while (from < NUMBERS && came[from + 1])
		from++;
	return from;
}

/* -- any order ---------------------------------------------------------------------------------------------------- */

/* `base`: the number that all begin behind. */
static void test_order(uint32_t base, uint32_t spread)
{
	unsigned long long state = base + spread;
	struct timeline t = {.reached = base};
	uint32_t reached = 0, given = 0, tries = 0;
	bool good = true;

	memset(came, 0, sizeof came);
	while (reached < NUMBERS && good && tries++ < 100 * NUMBERS) {
		const uint32_t n = reached + 1 + (uint32_t)(tap_random(&state) % spread);
		const bool fits = n <= NUMBERS && !came[n] && n - reached <= MOE_TIMELINE_WINDOW;
		uint32_t now;

		if (n > NUMBERS)
			continue;
		good = timeline_awaits(&t, base + n) == fits;
		if (!fits)
			continue;
		came[n] = true;
		given++;
		now = reached_of(reached);
		good = good && timeline_come(&t, base + n) == (now != reached) && t.reached == base + now;
		reached = now;
	}
	ok(good && reached == NUMBERS && given == NUMBERS, "%u numbers behind %u, up to %u ahead: as the list says",
	   NUMBERS, base, spread);
}

/* -- a gap -------------------------------------------------------------------------------------------------------- */

static void test_gap(void)
{
	struct timeline t = {0};
	bool good = true;

	for (uint32_t n = 2; n <= MOE_TIMELINE_WINDOW; n++)
		good = good && timeline_awaits(&t, n) && !timeline_come(&t, n);
	ok(good && t.reached == 0, "a number that does not come holds all others");
	ok(!timeline_awaits(&t, MOE_TIMELINE_WINDOW + 1) && !timeline_awaits(&t, MOE_TIMELINE_WINDOW + 2),
	   "which may not come from too far");
	ok(!timeline_awaits(&t, 2) && !timeline_awaits(&t, 0) && !timeline_awaits(&t, UINT32_MAX),
	   "or twice, or from before the beginning");
	ok(timeline_awaits(&t, 1) && timeline_come(&t, 1) && t.reached == MOE_TIMELINE_WINDOW,
	   "it comes: all of them have");
	ok(timeline_awaits(&t, MOE_TIMELINE_WINDOW + 1), "and others may");
}

int main(void)
{
	test_order(0, 1);
	test_order(0, 64);
	test_order(UINT32_MAX - NUMBERS / 2, 1000);
	test_order(7, MOE_TIMELINE_WINDOW + 100);
	test_gap();
	return tap_done();
}
