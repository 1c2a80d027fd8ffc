/* SPDX-License-Identifier: MIT */
/*
 * cost - how long the steps of a trace would take with a cache and given rates, by a model: which design pays.
 *
 * A model, not a measurement: it knows copies over one link, experts on a device and on the CPU, and a fixed time of a
 * layer for the rest. Nothing else is busy, nothing varies, launching is free. One event has U, its experts, of which
 * M are missing, hottest first, and H = U - M; copy is what one expert takes on the link; device() and cpu() are the
 * lines of ncopy.h, of experts and their pairs. For one event:
 *
 *   serial      layer + |M| copy + device(U)
 *   overlapped  layer + t: t = device(H), then for the i-th of M: t = max(t, i copy) + device(that one)
 *   split       layer + max(n copy + device(H and n of M), cpu(the rest)), n as ncopy_choose() says: the engine's rule
 *   both        the same with the overlapped device, and the n that is best for that
 *
 * A step is the sum of its layers. Chunked, its tokens are m micro-batches of as many each, which take turns layer by
 * layer, so that one's copies run while another computes; what one has had copied the later ones find. D is when the
 * device is free, L when the link is; of micro-batch j at layer l, whose copies are there at C[j]:
 *
 *   D = max(D, C[j]) + device(U[l][j]);  D = D + layer;  L = max(L, D) + |M[l+1][j]| copy;  C[j] = L
 *
 * and each one's weights are read anew, which is its price. This is the interleaving of CGOPipe (MoE-Lightning,
 * arXiv:2411.11217, section 4.1) for copies on demand: there all weights of the next layer come, in pages between the
 * micro-batches, whatever is asked for. Its law for a layer where nobody waits, max(link, device), is `ideal`, the sum
 * of max(|M| copy, layer + device(U)): what copies begun before they are asked for could reach.
 *
 * Pure: no clock, no files.
 */
#ifndef LIB_COST_H
#define LIB_COST_H

#include "ncopy.h"
#include "simulate/simulate.h"

enum cost_design {
	COST_SERIAL,
	COST_OVERLAPPED,
	COST_SPLIT,
	COST_BOTH,
	COST_CHUNKED_2,
	COST_CHUNKED_4,
	COST_CHUNKED_8,
	COST_DESIGNS
};

struct cost_rates {
	struct ncopy ncopy; /* of which copy_ns_per_byte and the two lines count */
	uint64_t bytes;     /* of one expert, that a copy moves */
	double layer_ns;
};

/* Means of a step, in ns. wait and compute: what `serial` waits for copies, and all the rest of it. */
struct cost {
	double wait, compute, ideal, design[COST_DESIGNS];
};

const char *cost_design_name(enum cost_design design);
enum cost_design cost_best(const struct cost *cost); /* of equal ones the first */

/* missed: of each of the trace's ids, sim_params' `missed`. -ENOMEM. */
int cost_run(const struct sim_trace *trace, const bool *missed, const struct cost_rates *rates, struct cost *ret,
	     struct moe_error *err);

#endif
