/* SPDX-License-Identifier: MIT */
/*
 * peer - another library that computes the same requests on the same weights in memory.
 *
 * A peer gets a request as the pool gets it: activations and results as floats, ids, weights. What it makes of them in
 * its own manner (packed activations, tokens gathered by expert) is timed with it; primitives and copies of weights in
 * a layout of its own are made before. It computes in as many threads as the pool has.
 *
 * The build chooses each peer's file: peer-NAME.c where the library is installed, else peer-NAME-absent.c.
 */
#ifndef TOOLS_BENCH_PEER_H
#define TOOLS_BENCH_PEER_H

#include "tools/bench/ffn-run.h"

struct peer {
	char name[48]; /* with the library's version */
	/* run->x, ids, weights -> run->y; 0 or -errno with one line in err. */
	int (*request)(struct peer *peer, struct moe_error *err);
	struct peer *(*free)(struct peer *peer); /* returns NULL */
};

/* -errno with the reason why this peer cannot take part. `packed`: with a copy of the weights in its own layout. */
int peer_onednn(struct peer **ret, const struct ffn_run *run, bool packed, struct moe_error *err);
int peer_ggml(struct peer **ret, const struct ffn_run *run, bool packed, struct moe_error *err);

#endif
