/* SPDX-License-Identifier: MIT */
/* run - what both commands work with, once everything is open. */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "tools/worker/forward.h"
#include "tools/worker/tokens.h"

struct run {
	const struct options *options;
	const struct arch *arch;
	struct experts *experts;
	struct group *group;
	struct forward *forward;
	const struct tokens *input;
	uint32_t window; /* score */
	bool speaks;     /* rank 0: this process writes the output */
};

/* A signal asked the worker to end. */
bool run_interrupted(void);

int run_generate(struct run *run, struct moe_error *err);
int run_score(struct run *run, struct moe_error *err);

#endif
