/* SPDX-License-Identifier: MIT */
/*
 * plain-policy - the rules of policy-score.c and policy-ebco.c, and lru's, as they are written: a key for each expert,
 * made anew in each event. Nothing is put off and nothing is found but by looking at all.
 *
 * `wanted` says what the last event has requested; until the next one begins it stays the event that counts.
 */
#ifndef TESTS_PLAIN_POLICY_H
#define TESTS_PLAIN_POLICY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "policy/policy.h"

#define PLAIN_EXPERTS 300

struct plain {
	const char *rule;
	uint32_t experts, event;
	double score[PLAIN_EXPERTS], w[PLAIN_EXPERTS][PLAIN_EXPERTS];
	uint32_t last[PLAIN_EXPERTS];
};

static void plain_ebco(struct plain *p, const struct policy_tokens *t)
{
	const bool hard = strcmp(p->rule, "ebco-hard") == 0;
	static double n[PLAIN_EXPERTS][PLAIN_EXPERTS];

	memset(n, 0, p->experts * sizeof n[0]);
	for (uint32_t i = 0; i < t->tokens * t->topk; i += t->topk)
		for (uint32_t j = i; j < i + t->topk; j++)
			for (uint32_t k = i; k < i + t->topk; k++)
				if (t->ids[j] >= 0 && t->ids[k] >= 0)
					n[t->ids[j]][t->ids[k]] += hard ? 1
									: (double)t->weights[j] * (double)t->weights[k];
	for (uint32_t i = 0; i < p->experts; i++)
		for (uint32_t j = 0; j < p->experts; j++)
			p->w[i][j] = 0.875 * p->w[i][j] + 0.125 * n[i][j] / t->tokens;
}

static double plain_mean_weight(const struct policy_tokens *t, uint32_t expert)
{
	double sum = 0;

	for (uint32_t i = 0; i < t->tokens * t->topk; i++)
		if (t->ids[i] == (int32_t)expert)
			sum += (double)t->weights[i];
	return sum / t->tokens;
}

/* Event number p->event. */
static void plain_event(struct plain *p, const struct policy_tokens *t, const bool *wanted)
{
	const bool decays = strcmp(p->rule, "lfu-decay") == 0 && p->event > 0 && p->event % 16 == 0;
	const bool mrs = strcmp(p->rule, "mrs") == 0;

	for (uint32_t e = 0; e < p->experts; e++) {
		double *s = &p->score[e];

		if (decays)
			*s = floor(*s / 2);
		if (mrs || strcmp(p->rule, "ema") == 0)
			*s *= 0.95;
		if (!wanted[e])
			continue;
		*s += mrs ? 0.05 * plain_mean_weight(t, e) : 1;
		p->last[e] = p->event;
	}
	if (strncmp(p->rule, "ebco", 4) == 0)
		plain_ebco(p, t);
}

static double plain_key(const struct plain *p, uint32_t e, const bool *wanted)
{
	double sum = 0;

	if (strcmp(p->rule, "lru") == 0)
		return p->last[e];
	if (strcmp(p->rule, "lfru") == 0)
		return p->score[e] / (p->event - p->last[e] + 1);
	if (strncmp(p->rule, "ebco", 4) != 0)
		return p->score[e];
	for (uint32_t a = 0; a < p->experts; a++)
		sum += wanted[a] ? p->w[e][a] : 0;
	return sum;
}

#endif
