/* SPDX-License-Identifier: MIT */
/* balance-layer - one layer of a plan, as each policy gets it. */
#ifndef BALANCE_LAYER_H
#define BALANCE_LAYER_H

#include "placement/balance.h"

struct balance_layer {
	const struct balance_problem *problem;
	uint32_t layer;
	const int32_t *from;    /* [ranks][slots] */
	const double *load;     /* [experts] */
	const uint32_t *copies; /* [experts], of `from` */
	double mean;            /* of a rank: swift's measure */
	bool upstream;          /* swift: upstream's averages */
	int32_t *to;            /* [ranks][slots]: is `from` when the policy begins */
	double most;            /* the largest load of a rank: as it was, until the policy has an estimate of its own */
	uint32_t fillers;
};

/* 1: `to` and `most` are the plan, not yet aligned; 0: the layer is kept, whatever `to` says; -EINVAL, -ENOMEM. */
int balance_layer_dynamic(struct balance_layer *l, struct moe_error *err);
int balance_layer_swift(struct balance_layer *l, struct moe_error *err);
int balance_layer_flashlb(struct balance_layer *l, struct moe_error *err);

#endif
