/* SPDX-License-Identifier: MIT */
/* Guesses against exact counting in doubles on random routing, and what they find of recorded routing. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/predict.h"
#include "simulate/moetrc.h"
#include "tests/recorded.h"
#include "tests/tap.h"

#define EXPERTS 40
#define ROWS 3
#define PRIOR_FULL (PREDICT_COUNT_MAX - 7 - PREDICT_TOKENS_MAX) /* 7: what it is never below */
#define TOKENS (PREDICT_TOKENS_MAX + 4)                         /* a step may be too large */

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static void observe(struct predict *p, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	predict_learn(p, row, tokens, topk, ids);
	predict_remember(p, row, tokens, topk, ids);
}

/* -- a plain one -------------------------------------------------------------------------------------------------- */

/* All counts as the law has them, one after the other, and scores by log2(). */
struct plain {
	uint32_t rows, experts, topk;
	double below[ROWS][EXPERTS][EXPERTS], before[ROWS][EXPERTS][EXPERTS], prior[ROWS][EXPERTS];
	uint32_t tokens[ROWS]; /* of the last step, 0: none that counts */
	uint64_t at[ROWS], clock;
	uint32_t width[ROWS]; /* the last step's topk */
	int32_t ids[ROWS][PREDICT_TOKENS_MAX * EXPERTS];
	uint32_t halved;
};

/* The last step of row `from`, and what came after it, of as many tokens. */
static void plain_count(struct plain *p, double table[][EXPERTS], uint32_t from, const int32_t *right, uint32_t topk)
{
	for (uint32_t t = 0; t < p->tokens[from]; t++)
		for (uint32_t i = 0; i < p->width[from]; i++) {
			const int32_t a = p->ids[from][t * p->width[from] + i];
			bool full = false;

			for (uint32_t k = 0; k < topk && a >= 0; k++) {
				const int32_t e = right[t * topk + k];

				if (e >= 0)
					full |= ++table[a][e] >= PREDICT_COUNT_MAX;
			}
			p->halved += full;
			for (uint32_t e = 0; full && e < p->experts; e++)
				table[a][e] = floor(table[a][e] / 2);
		}
}

static uint32_t plain_below(const struct plain *p, uint32_t row)
{
	const uint32_t under = (row + p->rows - 1) % p->rows;

	return p->at[under] > p->at[row] && p->tokens[under] ? under : UINT32_MAX;
}

static void plain_learn(struct plain *p, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	const uint32_t under = plain_below(p, row);
	bool full = false;

	if (tokens > PREDICT_TOKENS_MAX)
		return;
	if (under != UINT32_MAX && p->tokens[under] == tokens)
		plain_count(p, p->below[row], under, ids, topk);
	if (p->tokens[row] == tokens)
		plain_count(p, p->before[row], row, ids, topk);
	for (uint32_t i = 0; i < tokens * topk; i++)
		if (ids[i] >= 0)
			full |= ++p->prior[row][ids[i]] >= PRIOR_FULL;
	for (uint32_t e = 0; full && e < p->experts; e++)
		p->prior[row][e] = floor(p->prior[row][e] / 2);
}

static void plain_remember(struct plain *p, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	p->tokens[row] = tokens > PREDICT_TOKENS_MAX ? 0 : tokens;
	p->width[row] = topk;
	p->at[row] = ++p->clock;
	memcpy(p->ids[row], ids, p->tokens[row] * topk * sizeof *ids);
}

/* -- its guesses -------------------------------------------------------------------------------------------------- */

/* The choice-th of the row's last step; -1: none, or there is no such row. */
static int32_t plain_choice(const struct plain *p, uint32_t row, uint32_t token, uint32_t choice)
{
	return row < p->rows && token < p->tokens[row] && choice < p->width[row]
		       ? p->ids[row][token * p->width[row] + choice]
		       : -1;
}

static uint32_t plain_token(const struct plain *p, uint32_t row, uint32_t under, uint32_t token, double *score)
{
	double terms = 0;

	memset(score, 0, p->experts * sizeof *score);
	for (uint32_t i = 0; i < p->topk; i++) {
		const int32_t a = plain_choice(p, under, token, i), b = plain_choice(p, row, token, i);
		const bool before = b >= 0 && p->tokens[row] &&
				    (under == UINT32_MAX || p->tokens[under] == p->tokens[row]);

		terms += (a >= 0) + 0.5 * before;
		for (uint32_t e = 0; e < p->experts; e++) {
			if (a >= 0)
				score[e] += log2(p->below[row][a][e] + 1);
			if (before)
				score[e] += 0.5 * log2(p->before[row][b][e] + 1);
		}
	}
	for (uint32_t e = 0; e < p->experts; e++)
		score[e] -= (7 * terms / 8 - 1) * log2(p->prior[row][e] + 8);
	return terms > 0;
}

/* [experts]: of one token its scores, of several the chances. Returns how many tokens; 0: nothing is known. */
static uint32_t plain_chances(const struct plain *p, uint32_t row, double *chances)
{
	const uint32_t under = plain_below(p, row), tokens = under == UINT32_MAX ? p->tokens[row] : p->tokens[under];
	double score[EXPERTS];

	if (tokens == 1)
		plain_token(p, row, under, 0, chances);
	else
		memset(chances, 0, p->experts * sizeof *chances);
	for (uint32_t t = 0; tokens > 1 && t < tokens; t++) {
		double best = -INFINITY, sum = 0;

		if (!plain_token(p, row, under, t, score))
			continue;
		for (uint32_t e = 0; e < p->experts; e++)
			best = fmax(best, score[e]);
		for (uint32_t e = 0; e < p->experts; e++)
			sum += exp2(score[e] - best);
		for (uint32_t e = 0; e < p->experts; e++)
			chances[e] += fmin(1, p->topk * exp2(score[e] - best) / sum);
	}
	return tokens;
}

/* -- beside each other -------------------------------------------------------------------------------------------- */

/* A token likes what is next to its last choice, so that there is something to learn. */
static void route(uint32_t experts, uint32_t topk, uint32_t tokens, int32_t *ids)
{
	for (uint32_t t = 0; t < tokens; t++) {
		bool taken[EXPERTS] = {false};

		for (uint32_t k = 0; k < topk; k++) {
			const uint32_t near = ids[t * topk + k] < 0 ? 0 : (uint32_t)ids[t * topk + k];
			uint32_t e = below(3) ? (near + below(2)) % experts : below(experts);

			while (taken[e])
				e = (e + 1) % experts;
			taken[e] = true;
			ids[t * topk + k] = below(30) ? (int32_t)e : -1;
		}
	}
}

/* Whoever is not guessed is, by the plain one, no better than who is: but for what rounding may do. */
static bool is_best(const double *chances, uint32_t experts, const int32_t *guess, uint32_t n, double slack)
{
	bool in[EXPERTS] = {false};
	double worst = INFINITY;

	for (uint32_t i = 0; i < n; i++) {
		if (guess[i] < 0 || (uint32_t)guess[i] >= experts || in[guess[i]] ||
		    (i && chances[guess[i]] > chances[guess[i - 1]] + slack))
			return false;
		in[guess[i]] = true;
		worst = fmin(worst, chances[guess[i]]);
	}
	for (uint32_t e = 0; e < experts; e++)
		if (!in[e] && chances[e] > worst + slack)
			return false;
	return true;
}

static bool same_as_plain(struct plain *plain, uint32_t steps, uint32_t tokens_max, uint32_t experts_max)
{
	struct predict *p;
	int32_t ids[TOKENS * EXPERTS], guess[EXPERTS];
	double chances[EXPERTS];
	uint32_t tokens = 1;
	bool good = true;

	memset(plain, 0, sizeof *plain);
	plain->rows = 1 + below(ROWS);
	plain->experts = 1 + below(experts_max);
	plain->topk = 1 + below(plain->experts < 8 ? plain->experts : 8);
	require(predict_new(&p, plain->rows, plain->experts, plain->topk, NULL) == 0, "a predictor is made");
	memset(ids, 0, sizeof ids);
	for (uint32_t s = 0; s < steps && good; s++) {
		/* Mostly as many as before, or nothing is counted. */
		tokens = below(3) ? tokens : 1 + below(tokens_max);
		for (uint32_t row = 0; row < plain->rows && good; row++) {
			const uint32_t n = below(plain->experts + 2),
				       topk = below(4) ? plain->topk : 1 + below(plain->topk);
			const uint32_t asked = n < plain->experts ? n : plain->experts;
			const uint32_t known = plain_chances(plain, row, chances);
			const uint32_t got = predict_next(p, row, n, guess);

			/* A logarithm is off by 1/512 at most; a chance by what that makes of it, and by its own. */
			good = got == (known ? asked : 0) &&
			       is_best(chances, plain->experts, guess, got, known == 1 ? 0.1 : 0.02 * known);
			if (below(20) == 0)
				continue; /* a layer may be left out */
			route(plain->experts, topk, tokens, ids);
			if (below(10)) {
				predict_learn(p, row, tokens, topk, ids);
				plain_learn(plain, row, tokens, topk, ids);
			}
			predict_remember(p, row, tokens, topk, ids);
			plain_remember(plain, row, tokens, topk, ids);
		}
	}
	if (!good)
		diag("%u layers, %u experts, top %u", plain->rows, plain->experts, plain->topk);
	predict_free(p);
	return good;
}

static void test_plain(void)
{
	struct plain *plain = calloc(1, sizeof *plain);
	bool one = true, several = true, full = true;
	uint32_t halved = 0;

	require(plain, "memory");
	for (uint32_t i = 0; i < 60 && one; i++)
		one = same_as_plain(plain, 150, 1, EXPERTS);
	ok(one, "one token a step: guesses are those of exact counting");
	for (uint32_t i = 0; i < 60 && several; i++)
		several = same_as_plain(plain, 100, i % 2 ? TOKENS : 4, EXPERTS);
	ok(several, "several, and more than are looked at: the same");
	for (uint32_t i = 0; i < 10 && full; i++) {
		full = same_as_plain(plain, 6000, i % 2 ? 1 : TOKENS, 4);
		halved += plain->halved;
	}
	ok(full && halved > 5, "many steps, and %u rows that were full: the same", halved);
	free(plain);
}

static void test_halving(void)
{
	struct predict *p;
	int32_t guess[2];
	bool always = true;

	require(predict_new(&p, 2, 2, 1, NULL) == 0, "a small one");
	for (uint32_t i = 0; i < 3 * PREDICT_COUNT_MAX; i++) {
		observe(p, 0, 1, 1, &(int32_t){0});
		always &= i == 0 || (predict_next(p, 1, 2, guess) == 2 && guess[0] == 1);
		observe(p, 1, 1, 1, &(int32_t){1});
	}
	ok(always, "full counts are halved, and say the same");
	for (uint32_t i = 0; i < 3 * PREDICT_COUNT_MAX; i++) {
		observe(p, 0, 1, 1, &(int32_t){0});
		observe(p, 1, 1, 1, &(int32_t){0});
	}
	observe(p, 0, 1, 1, &(int32_t){0});
	ok(predict_next(p, 1, 1, guess) == 1 && guess[0] == 0, "what was long ago fades");
	predict_free(p);
}

static void test_limits(void)
{
	const int32_t ids[PREDICT_TOKENS_MAX + 1] = {0};
	struct moe_error err = {0};
	struct predict *p;
	int32_t guess[4];

	ok(predict_new(&p, 0, 4, 1, &err) == -EINVAL && predict_new(&p, 1, 4097, 1, &err) == -EINVAL &&
		   predict_new(&p, 1, 4, 5, &err) == -EINVAL && predict_new(&p, 1, 256, 65, &err) == -EINVAL,
	   "wrong numbers are refused: %s", err.text);
	require(predict_new(&p, 1, 4, 1, NULL) == 0, "one layer");
	ok(predict_next(p, 0, 4, guess) == 0, "nothing is known at first");
	observe(p, 0, PREDICT_TOKENS_MAX, 1, ids);
	ok(predict_next(p, 0, 9, guess) == 4 && guess[0] == 0, "after one step all can be guessed, none twice");
	observe(p, 0, PREDICT_TOKENS_MAX + 1, 1, ids);
	ok(predict_next(p, 0, 4, guess) == 0, "a large step is not looked at, and nothing is said after it");
	predict_free(p);
	predict_free(NULL);
}

/* -- recorded routing --------------------------------------------------------------------------------------------- */

static const uint32_t guessed[] = {4, 8, 12};

/* found[i]: of the experts of these steps, those among the first guessed[i]. `learn`: from them too. */
static void replay(struct predict *p, const struct sim_trace *t, uint32_t from, uint32_t to, bool learn,
		   double found[3])
{
	uint64_t hits[3] = {0}, all = 0;
	int32_t guess[12];

	for (uint32_t s = from; s < to; s++)
		for (uint32_t l = 0; l < t->layers; l++) {
			const int32_t *ids = t->ids + t->first[(size_t)s * t->layers + l];
			const uint32_t n = predict_next(p, l, 12, guess);

			for (uint32_t k = 0; k < t->topk; k++)
				for (uint32_t g = 0; g < n; g++)
					for (uint32_t i = 0; i < 3; i++)
						hits[i] += g < guessed[i] && guess[g] == ids[k];
			all += t->topk;
			if (learn)
				predict_learn(p, l, 1, t->topk, ids);
			predict_remember(p, l, 1, t->topk, ids);
		}
	for (uint32_t i = 0; i < 3; i++)
		found[i] = (double)hits[i] / (double)all;
}

static void test_recorded(void)
{
	struct predict *p;
	struct sim_trace t;
	double found[3];

	if (!recorded_load(&t, "gptoss20b-dev.moetrc", false)) {
		tap_skip("recorded routing: no gptoss20b-dev.moetrc in $MOE_TRACES or ../shared/traces");
		return;
	}
	require(predict_new(&p, t.layers, t.experts, t.topk, NULL) == 0, "a predictor for it");
	replay(p, &t, 0, t.steps / 2, true, found);
	replay(p, &t, t.steps / 2, t.steps, false, found);
	ok(found[0] >= .58 && found[1] >= .79 && found[2] >= .88,
	   "gpt-oss-20b, trained on half of the sequences: of a token's 4 experts %.4f, %.4f and %.4f are among 4, 8 "
	   "and 12 guesses of the other half",
	   found[0], found[1], found[2]);
	replay(p, &t, t.steps / 2, t.steps, true, found);
	ok(found[0] >= .64 && found[1] >= .84 && found[2] >= .92, "learning on as it is live: %.4f, %.4f and %.4f",
	   found[0], found[1], found[2]);
	predict_free(p);
	sim_trace_fini(&t);
}

int main(void)
{
	seed = tap_seed();
	test_plain();
	test_halving();
	test_limits();
	test_recorded();
	return tap_done();
}
