/* SPDX-License-Identifier: MIT */
#include "tools/worker/router.h"

#include <math.h>

#include "tools/worker/vector.h"

/* The first of the greatest; -1 when all are -infinity. */
static int32_t best_of(const float *x, uint32_t n)
{
	float best = -INFINITY;
	int32_t at = -1;

	for (uint32_t i = 0; i < n; i++) {
		if (x[i] > best) {
			best = x[i];
			at = (int32_t)i;
		}
	}
	return at;
}

static float group_worth(enum router_group rule, const float *choice, uint32_t n)
{
	float first = -INFINITY, second = -INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		if (choice[i] > first) {
			second = first;
			first = choice[i];
		} else if (choice[i] > second) {
			second = choice[i];
		}
	}
	return rule == ROUTER_GROUP_MAX ? first : first + second;
}

/* Takes the experts of all but the best groups out of the choice. */
static void keep_groups(const struct router_config *router, float *choice)
{
	const uint32_t size = router->n_experts / router->n_groups;

	for (uint32_t dropped = router->n_groups; dropped > router->topk_groups; dropped--) {
		uint32_t worst = 0;
		float least = INFINITY;

		/* Of equal groups the last goes first. A dropped group's worth is -infinity: skip it. */
		for (uint32_t g = 0; g < router->n_groups; g++) {
			const float worth = group_worth(router->group, choice + g * size, size);

			if (worth != -INFINITY && worth <= least) {
				least = worth;
				worst = g;
			}
		}
		for (uint32_t i = 0; i < size; i++)
			choice[worst * size + i] = -INFINITY;
	}
}

void router_route(const struct router_config *router, float *scores, float *choice, const float *bias, int32_t *ids,
		  float *weights)
{
	const uint32_t n = router->n_experts;
	float sum = 0;

	if (router->score == ROUTER_SOFTMAX) {
		vector_softmax(scores, n);
	} else {
		for (uint32_t i = 0; i < n; i++)
			scores[i] = sigmoid(scores[i]);
	}
	for (uint32_t i = 0; i < n; i++)
		choice[i] = bias ? scores[i] + bias[i] : scores[i];
	if (router->group != ROUTER_GROUP_NONE)
		keep_groups(router, choice);

	for (uint32_t k = 0; k < router->topk; k++) {
		const int32_t expert = best_of(choice, n);

		ids[k] = expert;
		weights[k] = expert < 0 ? 0 : scores[expert];
		sum += weights[k];
		if (expert >= 0)
			choice[expert] = -INFINITY;
	}
	if (router->renormalise)
		for (uint32_t k = 0; k < router->topk; k++)
			weights[k] /= sum + router->renormalise_epsilon;
	for (uint32_t k = 0; k < router->topk; k++)
		weights[k] *= router->scale;
}
