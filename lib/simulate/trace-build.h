/* SPDX-License-Identifier: MIT */
/*
 * trace-build - a trace that grows: place by place (a step's layer) in order, token by token within the place.
 *
 * Law: what has been built is a valid sim_trace at any time but for `steps`, which sim_build_finish() counts; every
 * token takes topk ids, -1 where it has fewer. After a failure sim_build_drop() frees it all.
 */
#ifndef LIB_TRACE_BUILD_H
#define LIB_TRACE_BUILD_H

#include "simulate/simulate.h"

#define SIM_LAYERS_MAX 4096
#define SIM_PLACES_MAX ((size_t)1 << 26) /* steps * layers */

struct sim_build {
	struct sim_trace trace;
	size_t places, n_ids, places_room, ids_room, sequences_room;
};

void sim_build_begin(struct sim_build *ret, uint32_t layers, uint32_t experts, uint32_t topk);

/* The next step is the first of another sequence. Its layers before are complete. -ENOMEM. */
int sim_build_sequence(struct sim_build *build, struct moe_error *err);

/* The next layer of the step, or the first of the next step, still without tokens. -ENOMEM, -E2BIG. */
int sim_build_place(struct sim_build *build, struct moe_error *err);

/* One more token of it: n ids, at most topk of them, -1 for none. weights: NULL, if no token has any. -ENOMEM. */
int sim_build_token(struct sim_build *build, const int32_t *ids, const float *weights, uint32_t n,
		    struct moe_error *err);

/* The trace is the caller's; places are a multiple of the layers. */
void sim_build_finish(struct sim_build *build, struct sim_trace *ret);
void sim_build_drop(struct sim_build *build);

#endif
