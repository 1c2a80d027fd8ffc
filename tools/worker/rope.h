/* SPDX-License-Identifier: MIT */
/*
 * rope - rotary position embedding: plain, with linearly scaled positions, or YaRN (arXiv:2309.00071).
 *
 * The first `dim` elements of a head are rotated in pairs; element i is paired with i + dim/2, or, `interleaved`
 * (DeepSeek's latent attention), 2i with 2i+1. Angles are computed in double. Other kinds of scaling are refused by
 * name.
 */
#ifndef WORKER_ROPE_H
#define WORKER_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "tools/worker/fields.h"

struct rope_config {
	uint32_t dim;
	bool interleaved;
	bool yarn, truncate; /* truncate: the ramp's ends are whole dimensions */
	double theta, factor, beta_fast, beta_slow;
	double original;       /* positions that the model was trained on before scaling */
	double scale;          /* of cosine and sine */
	double mscale_all_dim; /* 0: none; the attention's own scale is rope_mscale(factor, mscale_all_dim) squared */
};

struct rope {
	uint32_t dim, positions;
	bool interleaved;
	float *cos, *sin; /* [positions][dim / 2] */
};

/* Reads rope_theta with rope_scaling, or rope_parameters; `head` is the head's width that partial_rotary_factor counts
 * from. `theta` and `partial` are the family's defaults. */
int rope_read(struct rope_config *ret, const struct fields *config, uint32_t head, double theta, double partial,
	      uint32_t positions, struct moe_error *err);

/* YaRN's temperature for a context stretched by `factor`. */
double rope_mscale(double factor, double mscale);

/* The angle per position of pair i. */
double rope_frequency(const struct rope_config *config, uint32_t i);

int rope_new(struct rope **ret, const struct rope_config *config, uint32_t positions, struct moe_error *err);
struct rope *rope_free(struct rope *rope); /* takes NULL, returns NULL */

/* Rotates the first dim elements of x. position < positions. */
void rope_apply(const struct rope *rope, float *x, uint32_t position);

#endif
