/* SPDX-License-Identifier: MIT */
#include "tools/worker/sample.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "tools/worker/vector.h"

int sampler_init(struct sampler *ret, double temperature, double top_p, uint64_t seed, uint32_t vocab,
		 struct moe_error *err)
{
	uint32_t *order = calloc(vocab, sizeof(*order));

	if (!order)
		return moe_error_set(err, -ENOMEM, "no memory to sample from %u tokens", vocab);
	*ret = (struct sampler){
		.temperature = temperature, .top_p = top_p, .state = seed, .vocab = vocab, .order = order};
	return 0;
}

void sampler_fini(struct sampler *s)
{
	free(s->order);
	s->order = NULL;
}

/* Uniform in [0, 1): splitmix64 (Steele, Lea, Flood 2014). */
static double draw(struct sampler *s)
{
	uint64_t z = s->state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int by_share(const void *a, const void *b, void *shares)
{
	const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	const float *p = shares;

	if (p[i] != p[j])
		return p[i] > p[j] ? -1 : 1;
	return i < j ? -1 : i > j;
}

static int32_t likeliest(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

int32_t sampler_next(struct sampler *s, float *logits)
{
	double sum = 0, at;
	uint32_t n = 0;

	if (s->temperature <= 0)
		return likeliest(logits, s->vocab);
	for (uint32_t i = 0; i < s->vocab; i++) {
		logits[i] = (float)(logits[i] / s->temperature);
		s->order[i] = i;
	}
	vector_softmax(logits, s->vocab);
	qsort_r(s->order, s->vocab, sizeof(*s->order), by_share, logits);
	while (n < s->vocab && (n == 0 || sum < s->top_p))
		sum += logits[s->order[n++]];
	at = draw(s) * sum;
	for (uint32_t i = 0; i + 1 < n; i++) {
		at -= logits[s->order[i]];
		if (at < 0)
			return (int32_t)s->order[i];
	}
	return (int32_t)s->order[n - 1];
}
