/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/normal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "tools/mkmodel/number.h"

#define LEVELS 65536u
#define TABLES 16u

/* The quantiles in one type, mean and deviation. */
struct table {
	bool used;
	enum tensor_type type;
	float mean, deviation;
	union {
		uint16_t half[LEVELS]; /* BF16 or F16 */
		float full[LEVELS];
	} level;
};

struct normal {
	float quantile[LEVELS]; /* of mean 0, deviation 1 */
	const struct table *now;
	unsigned next; /* table to be given up next */
	struct table tables[TABLES];
};

/* Solves P(x) = p by Newton's steps from a point nearby; P(x) = erfc(-x / sqrt 2) / 2. p <= 1/2. */
static double quantile_near(double x, double p)
{
	for (int i = 0; i < 50; i++) {
		double error = 0.5 * erfc(-x * M_SQRT1_2) - p;
		double step = error / (exp(-0.5 * x * x) / sqrt(2 * M_PI));

		x -= step;
		if (fabs(step) < 1e-12)
			break;
	}
	return x;
}

int normal_new(struct normal **ret, struct moe_error *err)
{
	struct normal *normal = calloc(1, sizeof *normal);
	double x = 0;

	if (!normal)
		return moe_error_sys(err, -ENOMEM, "random numbers");
	for (unsigned i = LEVELS / 2; i-- > 0;) { /* from the middle outwards: each is a good start for the next */
		x = quantile_near(x, (i + 0.5) / LEVELS);
		normal->quantile[i] = (float)x;
		normal->quantile[LEVELS - 1 - i] = (float)-x;
	}
	*ret = normal;
	return 0;
}

struct normal *normal_free(struct normal *normal)
{
	free(normal);
	return NULL;
}

/* SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t normal_state(uint64_t seed, const char *name)
{
	uint64_t state = seed;

	for (const char *c = name; *c; c++) {
		state ^= (unsigned char)*c;
		state = random_next(&state);
	}
	return state;
}

static void fill_table(const struct normal *normal, struct table *t)
{
	for (unsigned i = 0; i < LEVELS; i++) {
		float value = t->mean + t->deviation * normal->quantile[i];

		if (t->type == TENSOR_F32)
			t->level.full[i] = value;
		else
			t->level.half[i] = t->type == TENSOR_BF16 ? number_to_bf16(value) : number_to_f16(value);
	}
}

void normal_select(struct normal *normal, enum tensor_type type, float mean, float deviation)
{
	struct table *t;

	assert(type == TENSOR_BF16 || type == TENSOR_F16 || type == TENSOR_F32);
	for (unsigned i = 0; i < TABLES; i++) {
		t = &normal->tables[i];
		if (t->used && t->type == type && t->mean == mean && t->deviation == deviation) {
			normal->now = t;
			return;
		}
	}
	t = &normal->tables[normal->next++ % TABLES];
	t->used = true;
	t->type = type;
	t->mean = mean;
	t->deviation = deviation;
	fill_table(normal, t);
	normal->now = t;
}

void normal_fill(struct normal *normal, uint64_t *state, void *to, size_t count)
{
	const struct table *t = normal->now;
	uint16_t *half = to;
	float *full = to;
	uint64_t bits;

	for (size_t i = 0; i < count; i += 4) {
		bits = random_next(state);
		for (size_t j = i; j < i + 4 && j < count; j++, bits >>= 16) {
			if (t->type == TENSOR_F32)
				full[j] = t->level.full[bits & (LEVELS - 1)];
			else
				half[j] = t->level.half[bits & (LEVELS - 1)];
		}
	}
}

void normal_bytes(uint64_t *state, void *to, size_t count, uint8_t first, uint8_t mask)
{
	uint8_t *bytes = to;
	uint64_t bits;

	for (size_t i = 0; i < count; i += 8) {
		bits = random_next(state);
		for (size_t j = i; j < i + 8 && j < count; j++, bits >>= 8)
			bytes[j] = (uint8_t)(first + (bits & mask));
	}
}
