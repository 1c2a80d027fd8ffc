/* SPDX-License-Identifier: MIT */
#include "tools/worker/rope.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

double rope_mscale(double factor, double mscale)
{
	return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The dimension whose wave turns `turns` times within the original context. */
static double turning_dimension(const struct rope_config *c, double turns)
{
	return c->dim * log(c->original / (turns * 2.0 * M_PI)) / (2.0 * log(c->theta));
}

/* 0: the wave is kept (it turns often), 1: it is stretched by `factor`. */
static double yarn_ramp(const struct rope_config *c, uint32_t i)
{
	double low = turning_dimension(c, c->beta_fast), high = turning_dimension(c, c->beta_slow);

	if (c->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = MAX(low, 0.0);
	high = MIN(high, c->dim - 1.0);
	if (low == high)
		high += 0.001;
	return MIN(MAX((i - low) / (high - low), 0.0), 1.0);
}

double rope_frequency(const struct rope_config *c, uint32_t i)
{
	const double plain = pow(c->theta, -2.0 * i / c->dim);
	double ramp;

	if (!c->yarn)
		return plain / c->factor;
	ramp = yarn_ramp(c, i);
	return plain / c->factor * ramp + plain * (1.0 - ramp);
}

static int read_yarn(struct rope_config *c, const struct fields *scaling, uint32_t positions, struct moe_error *err)
{
	uint32_t original;
	double mscale, attention;
	int r;

	if ((r = fields_u32(scaling, "original_max_position_embeddings", 1, positions, &original, err)) < 0 ||
	    (r = fields_real(scaling, "beta_fast", 1e-3, 1e6, 32.0, &c->beta_fast, err)) < 0 ||
	    (r = fields_real(scaling, "beta_slow", 1e-3, 1e6, 1.0, &c->beta_slow, err)) < 0 ||
	    (r = fields_bool(scaling, "truncate", true, &c->truncate, err)) < 0 ||
	    (r = fields_real(scaling, "mscale", 0.0, 1e3, 1.0, &mscale, err)) < 0 ||
	    (r = fields_real(scaling, "mscale_all_dim", 0.0, 1e3, 0.0, &c->mscale_all_dim, err)) < 0)
		return r;
	c->yarn = true;
	c->original = original;
	r = fields_real(scaling, "attention_factor", 1e-3, 1e3,
			rope_mscale(c->factor, mscale) / rope_mscale(c->factor, c->mscale_all_dim), &attention, err);
	if (r < 0)
		return r;
	c->scale = attention;
	return 0;
}

static int read_scaling(struct rope_config *c, const struct fields *scaling, uint32_t positions, struct moe_error *err)
{
	const char *type = NULL;
	int r;

	r = fields_word(scaling, fields_has(scaling, "rope_type") ? "rope_type" : "type", &type, err);
	if (r < 0)
		return r;
	if (!type || strcmp(type, "default") == 0)
		return 0;
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
		return moe_error_set(err, -EINVAL,
				     "%s: rope type '%s' is not supported; supported are default, linear and yarn",
				     scaling->file, type);
	r = fields_real(scaling, "factor", 1e-3, 1e6, NAN, &c->factor, err);
	if (r < 0 || strcmp(type, "linear") == 0)
		return r;
	return read_yarn(c, scaling, positions, err);
}

int rope_read(struct rope_config *ret, const struct fields *config, uint32_t head, double theta, double partial,
	      uint32_t positions, struct moe_error *err)
{
	struct rope_config c = {.factor = 1.0, .scale = 1.0};
	struct fields scaling = *config;
	int r;

	/* Newer configs keep all of it in one object. */
	if (fields_has(config, "rope_parameters"))
		scaling.json = json_object_get(config->json, "rope_parameters");
	else if (fields_has(config, "rope_scaling"))
		scaling.json = json_object_get(config->json, "rope_scaling");
	if (!json_is_object(scaling.json))
		return moe_error_set(err, -EINVAL, "%s: rope_scaling, rope_parameters: expected an object or null",
				     config->file);

	if ((r = fields_real(fields_has(&scaling, "rope_theta") ? &scaling : config, "rope_theta", 1.001, 1e12, theta,
			     &c.theta, err)) < 0 ||
	    (r = fields_real(fields_has(&scaling, "partial_rotary_factor") ? &scaling : config, "partial_rotary_factor",
			     0.0, 1.0, partial, &partial, err)) < 0)
		return r;
	c.dim = (uint32_t)(head * partial);
	if (c.dim < 2 || c.dim % 2 != 0)
		return moe_error_set(
			err, -EINVAL,
			"%s: %u rotary dimensions (head of %u, partial_rotary_factor %g); expected an even "
			"number from 2",
			config->file, c.dim, head, partial);
	if (scaling.json != config->json) {
		r = read_scaling(&c, &scaling, positions, err);
		if (r < 0)
			return r;
	}
	*ret = c;
	return 0;
}

int rope_new(struct rope **ret, const struct rope_config *config, uint32_t positions, struct moe_error *err)
{
	const size_t half = config->dim / 2;
	struct rope *rope = calloc(1, sizeof(*rope));

	if (rope) {
		*rope = (struct rope){.dim = config->dim, .positions = positions, .interleaved = config->interleaved};
		rope->cos = malloc(positions * half * sizeof(float));
		rope->sin = malloc(positions * half * sizeof(float));
	}
	if (!rope || !rope->cos || !rope->sin) {
		rope_free(rope);
		return moe_error_set(err, -ENOMEM, "no memory for the rotary tables of %u positions", positions);
	}
	for (uint32_t p = 0; p < positions; p++) {
		for (uint32_t i = 0; i < half; i++) {
			const double angle = p * rope_frequency(config, i);

			rope->cos[p * half + i] = (float)(cos(angle) * config->scale);
			rope->sin[p * half + i] = (float)(sin(angle) * config->scale);
		}
	}
	*ret = rope;
	return 0;
}

struct rope *rope_free(struct rope *rope)
{
	if (rope) {
		free(rope->cos);
		free(rope->sin);
		free(rope);
	}
	return NULL;
}

void rope_apply(const struct rope *rope, float *x, uint32_t position)
{
	const uint32_t half = rope->dim / 2;
	const float *cosine = rope->cos + (size_t)position * half, *sine = rope->sin + (size_t)position * half;

	for (uint32_t i = 0; i < half; i++) {
		float *a = rope->interleaved ? x + 2 * i : x + i;
		float *b = rope->interleaved ? a + 1 : a + half;
		const float first = *a, second = *b;

		*a = first * cosine[i] - second * sine[i];
		*b = second * cosine[i] + first * sine[i];
	}
}
