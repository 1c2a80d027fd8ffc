/* SPDX-License-Identifier: MIT */
/* placements - random placements and loads for the tests of planners. */
#ifndef TESTS_PLACEMENTS_H
#define TESTS_PLACEMENTS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "placement/placement.h"
#include "tests/tap.h"

static inline uint32_t draw_below(unsigned long long *seed, uint32_t n)
{
	return (uint32_t)(tap_random(seed) % n);
}

static inline double draw_unit(unsigned long long *seed)
{
	return (double)(tap_random(seed) >> 11) / 9007199254740992.0;
}

/* What must be so each of many times, without a line each time. */
#define must(condition, what)                                                                                          \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			require(false, "%s", what);                                                                    \
	} while (0)

/* The rank with most room that does not hold it; of equal ones any. */
static inline uint32_t draw_rank(unsigned long long *seed, const struct placement *p, const int32_t *at,
				 const uint32_t *filled, int32_t expert)
{
	const uint32_t first = draw_below(seed, p->ranks);
	uint32_t best = p->ranks;

	for (uint32_t i = 0; i < p->ranks; i++) {
		const uint32_t r = (first + i) % p->ranks;

		if (filled[r] < p->slots && (best == p->ranks || filled[r] < filled[best]) &&
		    !placement_holds(at + (size_t)r * p->slots, filled[r], expert))
			best = r;
	}
	return best;
}

/* A sound layer: every expert somewhere, more copies of any, none twice on a rank. Experts with most copies come first,
 * each copy to a rank with most room, which always works out; then the slots of a rank are shuffled. */
static inline void draw_layer(unsigned long long *seed, const struct placement *p, uint32_t layer)
{
	int32_t *at = p->at + placement_row(p, layer, 0);
	uint32_t *copies = calloc(p->experts + p->ranks, sizeof *copies), *filled = copies + p->experts;

	must(copies, "there is memory");
	for (uint32_t i = 0; i < p->ranks * p->slots; i++) {
		uint32_t e = i < p->experts ? i : draw_below(seed, p->experts);

		while (copies[e] == p->ranks)
			e = (e + 1) % p->experts;
		copies[e]++;
	}
	for (uint32_t n = p->ranks; n > 0; n--)
		for (uint32_t k = 0, first = draw_below(seed, p->experts); k < p->experts; k++) {
			const uint32_t e = (first + k) % p->experts;

			for (uint32_t i = 0; copies[e] == n && i < n; i++) {
				const uint32_t r = draw_rank(seed, p, at, filled, (int32_t)e);

				must(r < p->ranks, "each copy has a rank");
				at[r * p->slots + filled[r]++] = (int32_t)e;
			}
		}
	for (uint32_t i = 0; i < p->ranks * p->slots; i++) {
		const uint32_t k = i / p->slots * p->slots + draw_below(seed, p->slots);
		const int32_t was = at[i];

		at[i] = at[k];
		at[k] = was;
	}
	free(copies);
}

/* A sound placement of random shape; with more copies than ranks when `dense`. */
static inline void draw_placement(unsigned long long *seed, struct placement *ret, bool dense)
{
	const uint32_t ranks = 2 + draw_below(seed, 7), slots = 2 + draw_below(seed, 5);
	const uint32_t most = dense ? ranks * slots / 2 : ranks;
	const uint32_t extra = draw_below(seed, most + 1);
	uint32_t experts = ranks * slots - extra;

	if (experts < slots)
		experts = slots;
	if (placement_new(ret, 1 + draw_below(seed, 3), ranks, slots, experts, NULL) < 0)
		abort();
	for (uint32_t l = 0; l < ret->layers; l++)
		draw_layer(seed, ret, l);
}

/* Tokens of each slot: even, steep, with ties, or zeros. */
static inline double *draw_work(unsigned long long *seed, const struct placement *p, uint32_t stages)
{
	const size_t n = (size_t)stages * p->layers * p->ranks * p->slots;
	const uint32_t kind = draw_below(seed, 5);
	double *work = calloc(n, sizeof *work);

	for (size_t i = 0; work && i < n; i++) {
		const double u = draw_unit(seed);

		work[i] = kind == 0   ? floor(pow(u, 10) * 99900) + 1
			  : kind == 1 ? draw_below(seed, 4)
			  : kind == 2 ? floor(exp(3 * u + 4))
			  : kind == 3 ? 9000 + draw_below(seed, 2000)
				      : draw_below(seed, 3) * u * 1e7;
	}
	return work;
}

#endif
