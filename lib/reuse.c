/* SPDX-License-Identifier: MIT */
#include "reuse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"

#define FORGETS (1.0 / 64)

int reuse_init(struct reuse *ret, uint32_t n_experts, struct moe_error *err)
{
	*ret = (struct reuse){.step = 1, .seen = calloc(n_experts, sizeof *ret->seen)};
	return ret->seen ? 0 : moe_error_set(err, -ENOMEM, "moe_attach: no memory for %u experts", n_experts);
}

void reuse_fini(struct reuse *reuse)
{
	free(reuse->seen);
	reuse->seen = NULL;
}

/* Reads to come while one slot has its expert. */
static double reads_to_come(const struct reuse *reuse, int32_t expert, uint32_t n_slots)
{
	const double gap = (double)(reuse->step - reuse->seen[expert]);

	return (double)n_slots / (reuse->fills_per_step * fmax(gap, 1));
}

double reuse_expect(const struct reuse *reuse, int32_t expert, int32_t coldest, uint32_t n_slots)
{
	double more;

	if (coldest < 0 || reuse->fills_per_step <= 0)
		return INFINITY;
	more = reads_to_come(reuse, expert, n_slots) - reads_to_come(reuse, coldest, n_slots);
	return 1 + fmax(more, 0);
}

void reuse_note(struct reuse *reuse, int32_t expert)
{
	reuse->seen[expert] = reuse->step;
}

void reuse_end_step(struct reuse *reuse, uint32_t fills)
{
	reuse->step++;
	reuse->fills_per_step += FORGETS * ((double)fills - reuse->fills_per_step);
}
