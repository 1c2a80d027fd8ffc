/* SPDX-License-Identifier: MIT */
/* sim-layers - a policy, or one of Belady's bounds, on all layers of a trace together. */
#ifndef TESTS_SIM_LAYERS_H
#define TESTS_SIM_LAYERS_H

#include <stdlib.h>
#include <string.h>

#include "simulate/simulate.h"

static void run_all(const struct sim_trace *t, const char *policy, uint32_t capacity, struct sim_counts *ret)
{
	struct sim_params p = {.policy = policy, .capacity = capacity};
	struct sim_counts counts;
	bool *final = calloc(t->experts, sizeof *final);

	p.mode = strcmp(policy, "belady") == 0          ? SIM_BELADY
		 : strcmp(policy, "belady-pinned") == 0 ? SIM_BELADY_PINNED
							: SIM_PINNED;
	*ret = (struct sim_counts){0};
	for (uint32_t layer = 0; layer < t->layers; layer++) {
		if (!final || sim_layer(t, layer, &p, &counts, final, NULL) < 0)
			abort();
		sim_add(ret, &counts);
	}
	free(final);
}

#endif
