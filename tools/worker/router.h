/* SPDX-License-Identifier: MIT */
/*
 * router - which experts a token goes to, and with what weights: the families' published rules.
 *
 * Scores are the softmax or the sigmoid of the router's logits. Experts are chosen by score, plus the correction bias
 * where the model has one; first whole groups may be chosen, then experts within them only. Weights are the scores
 * without the bias, divided by their sum where the model says so, times a constant. Experts come out best first; equal
 * ones in the order of their numbers.
 */
#ifndef WORKER_ROUTER_H
#define WORKER_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID };
enum router_group { ROUTER_GROUP_NONE, ROUTER_GROUP_MAX, ROUTER_GROUP_TOP2 }; /* a group's worth: best, or best two */

struct router_config {
	enum router_score score;
	enum router_group group;
	uint32_t n_experts, topk;
	uint32_t n_groups, topk_groups; /* with a group rule; n_experts % n_groups == 0 */
	bool bias;                      /* e_score_correction_bias */
	bool renormalise;
	float renormalise_epsilon; /* added to the sum */
	float scale;
};

/* One token. `scores` holds the logits on entry; `choice` is scratch; both [n_experts]. `bias` may be NULL. */
void router_route(const struct router_config *router, float *scores, float *choice, const float *bias, int32_t *ids,
		  float *weights);

#endif
