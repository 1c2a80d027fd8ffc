/* SPDX-License-Identifier: MIT */
/*
 * advice - what the statistics of a session's caches suggest, in sentences with the numbers that they come from.
 *
 * Pure: no clock, no I/O, and nothing is said without ADVICE_STEPS_MIN steps of layers. Hit rates are of distinct
 * experts. What is said in each case stands in advice.c beside its rule.
 */
#ifndef LIB_ADVICE_H
#define LIB_ADVICE_H

#include <stdint.h>

#define ADVICE_STEPS_MIN 256
#define ADVICE_LINES 8
#define ADVICE_TEXT 256

struct advice_cache {
	const char *policy;
	uint32_t slots;
	double hit_rate;
};

struct advice_facts {
	uint64_t steps;          /* of layers */
	uint32_t experts, slots; /* of a layer */
	double active_mean;      /* distinct experts of a step */
	double tokens_mean;      /* of a step */
	uint32_t n_caches;       /* 0: nobody looked; else caches[0] is the session's own */
	struct advice_cache caches[8];
	double bound;     /* the hit rate that no cache of `slots` exceeds, of some steps; negative: not known */
	double bound_own; /* of the same steps, what the session's cache found */
	double wait_ns, compute_ns; /* all copies; all computation on CPU and device */
};

struct advice {
	uint32_t n;
	char lines[ADVICE_LINES][ADVICE_TEXT];
};

void advise(const struct advice_facts *facts, struct advice *ret);

#endif
