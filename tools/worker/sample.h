/* SPDX-License-Identifier: MIT */
/*
 * sample - the next token out of logits: the likeliest, or drawn after the temperature from the likeliest ones that
 * together reach top_p. The same seed and logits give the same tokens.
 */
#ifndef WORKER_SAMPLE_H
#define WORKER_SAMPLE_H

#include <stdint.h>

#include "moe-error.h"

struct sampler {
	double temperature, top_p;
	uint64_t state;
	uint32_t vocab;
	uint32_t *order; /* scratch [vocab] */
};

int sampler_init(struct sampler *ret, double temperature, double top_p, uint64_t seed, uint32_t vocab,
		 struct moe_error *err);
void sampler_fini(struct sampler *sampler);

/* Changes the logits. */
int32_t sampler_next(struct sampler *sampler, float *logits);

#endif
