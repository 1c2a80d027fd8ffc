/* SPDX-License-Identifier: MIT */
/* What is advised in which case, and with which numbers. */
#include <string.h>

#include "advice/advice.h"
#include "base/util.h"
#include "tests/tap.h"

#define STEPS ADVICE_STEPS_MIN

static const struct {
	const char *name;
	struct advice_facts facts;
	uint32_t n;           /* lines */
	const char *words[4]; /* that stand in the lines, in their order */
} cases[] = {
	{"too few steps", {.steps = STEPS - 1, .experts = 32, .slots = 4, .active_mean = 9, .bound = -1}, 0, {NULL}},
	{"nothing to say",
	 {.steps = STEPS, .experts = 32, .slots = 16, .active_mean = 4, .bound = -1, .wait_ns = 1, .compute_ns = 2},
	 0,
	 {NULL}},
	{"no slots at all", {.steps = STEPS, .experts = 32, .active_mean = 4, .bound = -1}, 0, {NULL}},
	{"deadlock",
	 {.steps = STEPS, .experts = 32, .slots = 16, .active_mean = 17.3, .tokens_mean = 8, .bound = -1},
	 1,
	 {"capacity deadlock: a step asks for 17.3 experts a layer, the cache has 16 slots", "18 slots or more",
	  "fewer than 8.0 tokens"}},
	{"|U| = C is one too",
	 {.steps = STEPS, .experts = 8, .slots = 4, .active_mean = 4, .tokens_mean = 1, .bound = -1},
	 1,
	 {"5 slots or more\n"}},
	{"a larger batch would ask for still more than there are slots",
	 {.steps = STEPS,
	  .experts = 32,
	  .slots = 16,
	  .active_mean = 17.3,
	  .tokens_mean = 8,
	  .bound = -1,
	  .wait_ns = 3e9,
	  .compute_ns = 1e9},
	 3,
	 {"capacity deadlock", "fewer than 8.0 tokens", "what helps is to copy less\nlower bits"}},
	{"all experts have a slot",
	 {.steps = STEPS, .experts = 8, .slots = 8, .active_mean = 8, .tokens_mean = 9, .bound = -1},
	 0,
	 {NULL}},
	{"more slots, as long as they bring something",
	 {.steps = STEPS,
	  .experts = 256,
	  .slots = 16,
	  .active_mean = 8,
	  .n_caches = 5,
	  .caches = {{"lru", 16, .40}, {"lru", 104, .84}, {"lru", 64, .80}, {"lru", 32, .60}, {"ema", 64, .99}},
	  .bound = .7},
	 1,
	 {"more slots: 64 a layer instead of 16 would find 80.0% of the experts asked for instead of 40.0%"}},
	{"another policy",
	 {.steps = STEPS,
	  .experts = 32,
	  .slots = 8,
	  .active_mean = 4,
	  .n_caches = 4,
	  .caches = {{"lru", 8, .667}, {"ema", 8, .714}, {"lfu-decay", 8, .706}, {"lru", 4, .46}},
	  .bound = .82},
	 1,
	 {"another policy: ema would find 71.4% in the same 8 slots, lru finds 66.7%"}},
	{"near the bound",
	 {.steps = STEPS,
	  .experts = 32,
	  .slots = 8,
	  .active_mean = 4,
	  .n_caches = 2,
	  .caches = {{"ema", 8, .814}, {"lru", 8, .81}},
	  .bound = .821,
	  .bound_own = .813},
	 1,
	 {"no policy helps: of the steps looked at ema found 81.3%, and no rule for 8 slots could find more than "
	  "82.1%"}},
	{"below the bound of cold steps, which the rate of all steps exceeds",
	 {.steps = STEPS,
	  .experts = 32,
	  .slots = 6,
	  .active_mean = 4,
	  .n_caches = 2,
	  .caches = {{"lru", 6, .699}, {"ema", 6, .7}},
	  .bound = .45,
	  .bound_own = .31},
	 0,
	 {NULL}},
	{"the wall",
	 {.steps = STEPS,
	  .experts = 32,
	  .slots = 8,
	  .active_mean = 4,
	  .tokens_mean = 2,
	  .bound = -1,
	  .wait_ns = 3e9,
	  .compute_ns = 1e9},
	 3,
	 {"I/O wall: copies take 3.0 times as long as computation, so overlapping them hides at most 25% of the sum "
	  "(min of 3.000 s "
	  "and 1.000 s)",
	  "larger batch: a step has 2.0 tokens",
	  "lower bits: with half the bits a weight the copies would take 1.500 s"}},
};

int main(void)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct advice a;
		char all[ADVICE_LINES * (ADVICE_TEXT + 1)] = "";
		const char *at = all;

		advise(&cases[i].facts, &a);
		for (uint32_t k = 0; k < a.n; k++) {
			strcat(all, a.lines[k]);
			strcat(all, "\n");
		}
		for (size_t k = 0; k < ARRAY_LEN(cases[i].words) && cases[i].words[k] && at; k++)
			at = strstr(at, cases[i].words[k]);
		if (!ok(a.n == cases[i].n && at, "%s", cases[i].name))
			diag("%u lines: %s", a.n, all);
		for (uint32_t k = 0; k < a.n; k++)
			if (strlen(a.lines[k]) + 1 == ADVICE_TEXT)
				ok(false, "%s: line %u is cut off", cases[i].name, k);
	}
	return tap_done();
}
