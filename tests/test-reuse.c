/* SPDX-License-Identifier: MIT */
/* How often an expert will be read from a slot: what is asked for often keeps the slot, what comes by once does not. */
#include <math.h>
#include <stdlib.h>

#include "reuse.h"
#include "tests/tap.h"

#define EXPERTS 8

int main(void)
{
	struct reuse reuse;
	double fresh, again;
	int step;

	if (reuse_init(&reuse, EXPERTS, NULL) < 0)
		abort();
	ok(isinf(reuse_expect(&reuse, 0, -1, 4)), "a free slot costs nobody anything");
	ok(isinf(reuse_expect(&reuse, 0, 1, 4)), "nor does one of a cache that nothing was filled in yet");
	/* 0 is asked for in each step, 1 in every 10th, 2 once at the beginning; one fill a step, 4 slots. */
	reuse_note(&reuse, 2);
	for (step = 0; step < 1000; step++) {
		reuse_note(&reuse, 0);
		if (step % 10 == 5)
			reuse_note(&reuse, 1);
		reuse_end_step(&reuse, 1);
	}
	ok(fabs(reuse.fills_per_step - 1) < 1e-6, "a fill in each step");
	again = reuse_expect(&reuse, 0, 2, 4);
	ok(again > 4.9 && again <= 5, "asked for in each step, four slots that stay for four: %.3f reads", again);
	fresh = reuse_expect(&reuse, 3, 1, 4);
	ok(fresh <= 1, "never asked for, in place of one that will be: %.3f", fresh);
	fresh = reuse_expect(&reuse, 3, 2, 4);
	ok(fresh >= 1 && fresh < 1.01, "in place of one that will not be either: %.3f", fresh);
	ok(reuse_expect(&reuse, 1, 2, 4) > reuse_expect(&reuse, 1, 0, 4), "the coldest takes its own reads along");
	ok(reuse_expect(&reuse, 1, 2, 8) > reuse_expect(&reuse, 1, 2, 4), "more slots, longer stays");
	for (step = 0; step < 1000; step++)
		reuse_end_step(&reuse, 2);
	ok(fabs(reuse.fills_per_step - 2) < 1e-6, "more fills are noticed");
	reuse_fini(&reuse);
	return tap_done();
}
