/* SPDX-License-Identifier: MIT */
#include "predict/predict.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "policy/heat.h"

#define EXPERTS_MAX 4096
#define TOPK_MAX 64
#define LOG_ONE 256   /* a logarithm of 2 */
#define EXP_STEPS 256 /* of the table for powers of two */
#define COLUMNS 32
#define ROWS_AT_ONCE 8 /* so many logarithms, 3072 at most, are below 2^15 together */
#define PRIOR_MORE 7   /* an expert that was never chosen is not ruled out */

/* COLUMNS are two of them; at any address of an int16_t. */
typedef int16_t logs_vector __attribute__((vector_size(32), aligned(2), may_alias));

/* counts [experts][experts] and their logarithms: a guess adds up rows of the latter. */
struct table {
	uint16_t *counts;
	int16_t *logs;
};

/* One step's choice. */
struct choice {
	uint64_t at; /* 0: never; else when, by predict->clock */
	uint32_t tokens, topk;
	int32_t *ids; /* [PREDICT_TOKENS_MAX][topk of predict_new] */
};

struct row {
	struct table below, before;
	uint16_t *prior; /* [experts] */
	struct choice last;
};

struct predict {
	uint32_t n_rows, experts, topk;
	uint64_t clock;
	int16_t log[PREDICT_COUNT_MAX + 1]; /* of count + 1 */
	uint32_t exp[EXP_STEPS];            /* 2^16 to the power of ... */
	int32_t *scores;                    /* [experts] of one token */
	int32_t *common;                    /* [experts] logarithms of the prior */
	uint32_t *powers;                   /* [experts] of one token */
	uint32_t *chances;                  /* [experts] of all */
	uint64_t *keys;                     /* [experts] */
	struct row *rows;
	void *memory; /* of all tables and choices */
};

/* -- making ------------------------------------------------------------------------------------------------------- */

static size_t row_bytes(const struct predict *p)
{
	const size_t square = (size_t)p->experts * p->experts;

	return ALIGN_UP(2 * square * (sizeof(uint16_t) + sizeof(int16_t)) + p->experts * sizeof(uint16_t), 64) +
	       ALIGN_UP((size_t)PREDICT_TOKENS_MAX * p->topk * sizeof(int32_t), 64);
}

static void place_row(struct predict *p, uint32_t i)
{
	const size_t square = (size_t)p->experts * p->experts;
	uint8_t *at = (uint8_t *)p->memory + i * row_bytes(p);
	struct row *row = &p->rows[i];

	row->last.ids = (int32_t *)at;
	at += ALIGN_UP((size_t)PREDICT_TOKENS_MAX * p->topk * sizeof(int32_t), 64);
	row->below.counts = (uint16_t *)at;
	row->below.logs = (int16_t *)(row->below.counts + square);
	row->before.counts = (uint16_t *)(row->below.logs + square);
	row->before.logs = (int16_t *)(row->before.counts + square);
	row->prior = (uint16_t *)(row->before.logs + square);
}

static void make_tables(struct predict *p)
{
	for (uint32_t i = 0; i <= PREDICT_COUNT_MAX; i++)
		p->log[i] = (int16_t)lrint(LOG_ONE * log2(i + 1.0));
	for (uint32_t i = 0; i < EXP_STEPS; i++)
		p->exp[i] = (uint32_t)lrint(65536 * exp2(-(double)i / EXP_STEPS));
}

int predict_new(struct predict **ret, uint32_t rows, uint32_t experts, uint32_t topk, struct moe_error *err)
{
	struct predict *p;

	if (rows == 0 || experts == 0 || experts > EXPERTS_MAX || topk == 0 || topk > MIN(experts, TOPK_MAX))
		return moe_error_set(err, -EINVAL,
				     "predict: %u layers, %u experts, top %u found; 1 or more, 1 to %d and 1 to %d "
				     "expected",
				     rows, experts, topk, EXPERTS_MAX, TOPK_MAX);
	p = calloc(1, sizeof *p);
	if (!p)
		return moe_error_set(err, -ENOMEM, "predict: no memory");
	*p = (struct predict){.n_rows = rows, .experts = experts, .topk = topk};
	p->rows = calloc(rows, sizeof *p->rows);
	p->scores = calloc(4 * (size_t)experts, sizeof *p->scores);
	p->keys = calloc(experts, sizeof *p->keys);
	p->memory = calloc(rows, row_bytes(p));
	if (!p->rows || !p->scores || !p->keys || !p->memory) {
		predict_free(p);
		return moe_error_set(err, -ENOMEM, "predict: no memory for %u tables of %u experts", 2 * rows, experts);
	}
	p->common = p->scores + experts;
	p->powers = (uint32_t *)(p->common + experts);
	p->chances = p->powers + experts;
	make_tables(p);
	for (uint32_t i = 0; i < rows; i++)
		place_row(p, i);
	*ret = p;
	return 0;
}

struct predict *predict_free(struct predict *p)
{
	if (!p)
		return NULL;
	free(p->rows);
	free(p->scores);
	free(p->keys);
	free(p->memory);
	free(p);
	return NULL;
}

/* -- learning ----------------------------------------------------------------------------------------------------- */

static void halve(const struct predict *p, const struct table *t, uint32_t from)
{
	uint16_t *counts = t->counts + (size_t)from * p->experts;
	int16_t *logs = t->logs + (size_t)from * p->experts;

	for (uint32_t e = 0; e < p->experts; e++) {
		counts[e] /= 2;
		logs[e] = p->log[counts[e]];
	}
}

/* to: [tokens][topk] ids, of as many tokens as `from` has. */
static void count(const struct predict *p, const struct table *t, const struct choice *from, uint32_t topk,
		  const int32_t *to)
{
	for (uint32_t at = 0; at < from->tokens * from->topk; at++) {
		const int32_t a = from->ids[at], *right = to + (size_t)(at / from->topk) * topk;
		const size_t row = (size_t)MAX(a, 0) * p->experts;
		bool full = false;

		for (uint32_t k = 0; k < topk && a >= 0; k++) {
			if (right[k] < 0)
				continue;
			t->logs[row + (uint32_t)right[k]] = p->log[++t->counts[row + (uint32_t)right[k]]];
			full |= t->counts[row + (uint32_t)right[k]] == PREDICT_COUNT_MAX;
		}
		if (full)
			halve(p, t, (uint32_t)a);
	}
}

static void count_prior(const struct predict *p, uint16_t *prior, uint32_t n, const int32_t *ids)
{
	bool full = false;

	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= 0)
			full |= ++prior[ids[i]] >= PREDICT_COUNT_MAX - PRIOR_MORE - PREDICT_TOKENS_MAX;
	for (uint32_t e = 0; full && e < p->experts; e++)
		prior[e] /= 2;
}

/* What is below the row in the step that comes, or has just come, for it; NULL if it is not known. */
static const struct choice *below(const struct predict *p, uint32_t row)
{
	const struct choice *c = &p->rows[(row + p->n_rows - 1) % p->n_rows].last;

	return c->at > p->rows[row].last.at && c->tokens > 0 ? c : NULL;
}

static bool is_looked_at(const struct predict *p, uint32_t tokens, uint32_t topk)
{
	return tokens > 0 && tokens <= PREDICT_TOKENS_MAX && topk <= p->topk;
}

void predict_learn(struct predict *p, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	const struct choice *from = below(p, row), *last = &p->rows[row].last;

	if (!is_looked_at(p, tokens, topk))
		return;
	if (from && from->tokens == tokens)
		count(p, &p->rows[row].below, from, topk, ids);
	if (last->tokens == tokens)
		count(p, &p->rows[row].before, last, topk, ids);
	count_prior(p, p->rows[row].prior, tokens * topk, ids);
}

void predict_remember(struct predict *p, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids)
{
	struct choice *last = &p->rows[row].last;

	last->at = ++p->clock;
	last->tokens = is_looked_at(p, tokens, topk) ? tokens : 0;
	last->topk = topk;
	memcpy(last->ids, ids, (size_t)last->tokens * topk * sizeof *ids);
}

/* -- guessing ----------------------------------------------------------------------------------------------------- */

/* The loops below are written for vectors: what they read and write is in locals, and nothing in them branches. */
static void add_rows(int32_t *restrict scores, const int16_t *const *rows, uint32_t n, uint32_t experts, int32_t factor)
{
	uint32_t e = 0;

	for (; e + COLUMNS <= experts; e += COLUMNS) {
		union {
			logs_vector all[2];
			int16_t one[COLUMNS];
		} sum;
		logs_vector left = {0}, right = {0};

		for (uint32_t i = 0; i < n; i++) {
			const logs_vector *from = (const logs_vector *)(rows[i] + e);

			left += from[0];
			right += from[1];
		}
		sum.all[0] = left;
		sum.all[1] = right;
		for (uint32_t x = 0; x < COLUMNS; x++)
			scores[e + x] += factor * sum.one[x];
	}
	for (; e < experts; e++)
		for (uint32_t i = 0; i < n; i++)
			scores[e] += factor * rows[i][e];
}

static uint32_t add_logs(struct predict *p, const struct table *t, const struct choice *from, uint32_t token,
			 int32_t factor)
{
	const int32_t *ids = from->ids + (size_t)token * from->topk;
	const int16_t *rows[ROWS_AT_ONCE];
	uint32_t n = 0, all = 0;

	for (uint32_t i = 0; i < from->topk; i++) {
		if (ids[i] >= 0)
			rows[n++] = t->logs + (size_t)ids[i] * p->experts;
		if (n < ROWS_AT_ONCE && i + 1 < from->topk)
			continue;
		add_rows(p->scores, rows, n, p->experts, factor);
		all += n;
		n = 0;
	}
	return all * (uint32_t)factor;
}

static void find_common(struct predict *p, const struct row *row)
{
	for (uint32_t e = 0; e < p->experts; e++)
		p->common[e] = p->log[row->prior[e] + PRIOR_MORE];
}

/* Twice the score of the law, so that its half is a whole number too. False: nothing is said of this token. */
static bool score_token(struct predict *p, const struct row *row, const struct choice *from, const struct choice *last,
			uint32_t token)
{
	const int32_t *restrict common = p->common;
	int32_t *restrict scores = p->scores;
	const uint32_t experts = p->experts;
	int32_t terms = 0;

	memset(scores, 0, experts * sizeof *scores);
	if (from)
		terms += (int32_t)add_logs(p, &row->below, from, token, 2);
	if (last)
		terms += (int32_t)add_logs(p, &row->before, last, token, 1);
	for (uint32_t e = 0; e < experts; e++)
		scores[e] -= common[e] * (7 * terms - 16) / 8;
	return terms > 0;
}

/* Of each, 2^16 times 2^(-less / 2 / LOG_ONE), less what the best has more. Returns their sum: at most 2^28. */
static uint32_t find_powers(struct predict *p)
{
	const int32_t *restrict scores = p->scores;
	const uint32_t *restrict exp = p->exp;
	uint32_t *restrict powers = p->powers;
	const uint32_t experts = p->experts;
	int32_t best = scores[0];
	uint32_t sum = 0;

	for (uint32_t e = 1; e < experts; e++)
		best = MAX(best, scores[e]);
	for (uint32_t e = 0; e < experts; e++) {
		const uint32_t less = (uint32_t)(best - scores[e]), whole = less / (2 * LOG_ONE);
		const uint32_t part = exp[less % (2 * LOG_ONE) * EXP_STEPS / (2 * LOG_ONE)];

		/* 2^16 shifted further than that is 0. */
		powers[e] = part >> MIN(whole, 31u);
		sum += powers[e];
	}
	return sum;
}

/* Adds the chances of one token's experts, which are its top-k together, and at most 1 each, which is 2^16. */
static void add_chances(struct predict *p)
{
	const uint64_t scale = ((uint64_t)p->topk << 32) / find_powers(p);
	const uint32_t *restrict powers = p->powers;
	uint32_t *restrict chances = p->chances;
	const uint32_t experts = p->experts;

	for (uint32_t e = 0; e < experts; e++) {
		const uint32_t chance = (uint32_t)(powers[e] * scale >> 16);

		chances[e] += MIN(chance, (uint32_t)1 << 16);
	}
}

/* The n greatest of chances, the greatest first; of equal ones the lower id. */
static void take_greatest(struct predict *p, uint32_t n, int32_t *ret)
{
	for (uint32_t e = 0; e < p->experts; e++)
		p->keys[e] = heat_key(p->chances[e], (int32_t)e);
	for (uint32_t i = n / 2; i-- > 0;)
		heat_sink(p->keys, n, i);
	for (uint32_t e = n; e < p->experts; e++) {
		if (p->keys[e] <= p->keys[0])
			continue;
		p->keys[0] = p->keys[e];
		heat_sink(p->keys, n, 0);
	}
	heat_sort(p->keys, n);
	for (uint32_t i = 0; i < n; i++)
		ret[i] = heat_expert(p->keys[i]);
}

uint32_t predict_next(struct predict *p, uint32_t row, uint32_t n, int32_t *ret)
{
	const struct row *r = &p->rows[row];
	const struct choice *from = below(p, row), *last = r->last.tokens > 0 ? &r->last : NULL;
	const uint32_t tokens = from ? from->tokens : last ? last->tokens : 0;

	n = MIN(n, p->experts);
	if (n == 0 || tokens == 0)
		return 0;
	if (last && last->tokens != tokens)
		last = NULL;
	memset(p->chances, 0, p->experts * sizeof *p->chances);
	find_common(p, r);
	for (uint32_t token = 0; token < tokens; token++) {
		const bool known = score_token(p, r, from, last, token);

		if (tokens > 1 && known)
			add_chances(p);
	}
	/* Of one token the scores rank as the chances do, but for those that are too small to be told apart. */
	for (uint32_t e = 0; tokens == 1 && e < p->experts; e++)
		p->chances[e] = (uint32_t)p->scores[e] ^ UINT32_C(0x80000000);
	take_greatest(p, n, ret);
	return n;
}
