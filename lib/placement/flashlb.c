/* SPDX-License-Identifier: MIT */
/*
 * flashlb - copies and places by mean and spread of the load over several stages.
 *
 * Law: an expert's weight is its mean load and 0.67449 standard deviations (the upper quartile of a normal one). How
 * many copies each group of experts gets is searched for around what weights alone would say; a trial is placed and
 * scored by the largest rank's load in each stage. What is exact here is the score: sums in another order give another
 * map that is as good.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "placement/balance-layer.h"
#include "placement/overlap.h"

#define Z 0.67449
#define DEPTH 4
#define WIDTH 8
#define SAMPLES 64
#define FEW_RANKS 32
#define SMALL 0.01
#define GAIN 1e-9 /* a score that differs by less is the same one, added up in another order */

struct flash {
	const struct placement *from;
	uint32_t experts, ranks, slots, stages, rows;
	double *x;                       /* [stages][experts] */
	double *window;                  /* [rows][experts]: stages summed up */
	double *mu, *spread, *cov;       /* [experts], [experts], [experts][experts] */
	uint32_t *order, *by_mean;       /* experts by mu + Z sd; room for another order */
	uint32_t *copies, *trial, *best; /* [experts] */
	double *mean, *var, *total;      /* of ranks */
	uint32_t *filled;                /* of ranks */
	int32_t *at, *best_at;           /* [ranks][slots] */
};

/* -- what the stages say ------------------------------------------------------------------------------------------ */

static void read_stages(const struct flash *f, const struct balance_layer *l)
{
	const size_t all = (size_t)f->ranks * f->slots;

	for (uint32_t stage = 0; stage < f->stages; stage++) {
		const double *work = l->problem->work + ((size_t)stage * f->from->layers + l->layer) * all;
		double *x = f->x + (size_t)stage * f->experts;

		for (uint32_t e = 0; e < f->experts; e++)
			x[e] = 1;
		for (size_t i = 0; i < all; i++)
			x[l->from[i]] += work[i];
	}
}

static void sum_window(const struct flash *f)
{
	const uint32_t together = MAX(f->stages / SAMPLES, 1u);

	memset(f->window, 0, (size_t)f->rows * f->experts * sizeof *f->window);
	for (uint32_t stage = 0; stage < f->stages; stage++)
		for (uint32_t e = 0; e < f->experts; e++)
			f->window[(size_t)(stage / together) * f->experts + e] += f->x[(size_t)stage * f->experts + e];
}

static void measure(const struct flash *f)
{
	const uint32_t n = f->experts;

	memset(f->mu, 0, n * sizeof *f->mu);
	memset(f->cov, 0, (size_t)n * n * sizeof *f->cov);
	for (uint32_t i = 0; i < f->rows; i++)
		for (uint32_t e = 0; e < n; e++)
			f->mu[e] += f->window[(size_t)i * n + e];
	for (uint32_t e = 0; e < n; e++)
		f->mu[e] /= f->rows;
	for (uint32_t i = 0; i < f->rows && f->rows > 1; i++) {
		const double *row = f->window + (size_t)i * n;

		for (uint32_t a = 0; a < n; a++)
			for (uint32_t b = 0; b < n; b++)
				f->cov[(size_t)a * n + b] += (row[a] - f->mu[a]) * (row[b] - f->mu[b]) / (f->rows - 1);
	}
	for (uint32_t e = 0; e < n; e++)
		f->spread[e] = f->mu[e] + Z * sqrt(f->cov[(size_t)e * n + e]);
}

/* Descending, of equal ones the first. */
static void sort_down(uint32_t *order, const double *key, uint32_t n)
{
	for (uint32_t e = 0; e < n; e++) {
		uint32_t i = e;

		for (; i > 0 && key[order[i - 1]] < key[e]; i--)
			order[i] = order[i - 1];
		order[i] = e;
	}
}

/* The mean over rows of the largest rank's load over the mean one. */
static double score(const struct flash *f, const double *rows, uint32_t n, const uint32_t *copies, const int32_t *at)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		const double *x = rows + (size_t)i * f->experts;
		double most = 0, total = 0;

		for (uint32_t r = 0; r < f->ranks; r++) {
			double load = 0;

			for (uint32_t s = 0; s < f->slots; s++)
				load += x[at[(size_t)r * f->slots + s]] / copies[at[(size_t)r * f->slots + s]];
			most = fmax(most, load);
		}
		for (uint32_t e = 0; e < f->experts; e++)
			total += x[e];
		sum += (most * f->ranks + SMALL) / (total + SMALL);
	}
	return sum / n;
}

/* -- placing ------------------------------------------------------------------------------------------------------ */

/* What the rank would have to fear with a copy of it. */
static double fear(const struct flash *f, uint32_t rank, uint32_t e, const uint32_t *copies, double *ret_var)
{
	const double c = copies[e], *cov = f->cov + (size_t)e * f->experts;
	const int32_t *at = f->at + (size_t)rank * f->slots;
	double var = f->var[rank] + cov[e] / (c * c);

	for (uint32_t s = 0; s < f->filled[rank]; s++)
		var += 2 * cov[at[s]] / (c * copies[at[s]]);
	*ret_var = var;
	return f->mean[rank] + f->mu[e] / c + Z * sqrt(fmax(var, 0));
}

static bool place_copy(const struct flash *f, uint32_t e, const uint32_t *copies)
{
	uint32_t best = f->ranks;
	double least = 0, best_var = 0;

	for (uint32_t r = 0; r < f->ranks; r++) {
		double var, feared;

		if (f->filled[r] == f->slots || placement_holds(f->at + (size_t)r * f->slots, f->filled[r], (int32_t)e))
			continue;
		feared = fear(f, r, e, copies, &var);
		if (best < f->ranks && feared >= least)
			continue;
		best = r;
		least = feared;
		best_var = var;
	}
	if (best == f->ranks)
		return false;
	f->mean[best] += f->mu[e] / copies[e];
	f->var[best] = best_var;
	f->at[(size_t)best * f->slots + f->filled[best]++] = (int32_t)e;
	return true;
}

/* Into f->at. false: some copy has no rank that could take it. */
static bool place(const struct flash *f, const uint32_t *copies)
{
	memset(f->mean, 0, f->ranks * sizeof *f->mean);
	memset(f->var, 0, f->ranks * sizeof *f->var);
	memset(f->filled, 0, f->ranks * sizeof *f->filled);
	for (uint32_t e = 0; e < f->experts; e++)
		f->total[e] = f->mu[e] / copies[e];
	sort_down(f->by_mean, f->total, f->experts);
	for (uint32_t i = 0; i < f->experts; i++)
		for (uint32_t k = 0; k < copies[f->by_mean[i]]; k++)
			if (!place_copy(f, f->by_mean[i], copies))
				return false;
	return true;
}

/* -- how many copies ---------------------------------------------------------------------------------------------- */

/* To experts first..end-1 of the order go n copies more, each to the one with most weight a copy, of equal ones the
 * lowest id. false: a rank for each copy is not there. */
static bool replicate(const struct flash *f, uint32_t *copies, uint32_t first, uint32_t end, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		uint32_t best = f->experts;

		for (uint32_t i = first; i < end; i++) {
			const uint32_t e = f->order[i];
			const double weight = f->spread[e] / copies[e];

			if (copies[e] < f->ranks && (best == f->experts || weight > f->spread[best] / copies[best] ||
						     (e < best && weight == f->spread[best] / copies[best])))
				best = e;
		}
		if (best == f->experts)
			return false;
		copies[best]++;
	}
	return true;
}

/* What weights alone would give to first..end-1 of `n` copies for all from `first` on. */
static uint32_t joint_share(const struct flash *f, uint32_t first, uint32_t end, uint32_t n)
{
	uint32_t share = 0;

	memcpy(f->trial, f->copies, f->experts * sizeof *f->trial);
	replicate(f, f->trial, first, f->experts, n);
	for (uint32_t i = first; i < end; i++)
		share += f->trial[f->order[i]] - 1;
	return share;
}

/* The k-th guess around it: itself, one less, one more, two less, ... */
static int64_t guess(uint32_t start, uint32_t k)
{
	const int64_t away = (k + 1) / 2;

	return k % 2 ? (int64_t)start - away : (int64_t)start + away;
}

/* The best number of copies for one group, which it then has. false: none can be placed. */
static bool search_group(const struct flash *f, uint32_t first, uint32_t end, uint32_t *left)
{
	const uint32_t start = joint_share(f, first, end, *left);
	double best = INFINITY;
	uint32_t chosen = 0;

	for (uint32_t k = 0; k <= 2 * WIDTH; k++) {
		const int64_t n = guess(start, k);
		double found;

		if (n < 0 || n > *left)
			continue;
		memcpy(f->trial, f->copies, f->experts * sizeof *f->trial);
		if (!replicate(f, f->trial, first, end, (uint32_t)n) ||
		    !replicate(f, f->trial, end, f->experts, *left - (uint32_t)n) || !place(f, f->trial))
			continue;
		found = score(f, f->window, f->rows, f->trial, f->at);
		if (found >= best)
			continue;
		best = found;
		chosen = (uint32_t)n;
		memcpy(f->best, f->trial, f->experts * sizeof *f->best);
		memcpy(f->best_at, f->at, (size_t)f->ranks * f->slots * sizeof *f->at);
	}
	if (best == INFINITY)
		return false;
	replicate(f, f->copies, first, end, chosen);
	*left -= chosen;
	return true;
}

/* Into best and best_at. */
static bool search(const struct flash *f)
{
	const uint32_t size = (f->experts + DEPTH - 1) / DEPTH;
	uint32_t left = f->ranks * f->slots - f->experts;

	for (uint32_t e = 0; e < f->experts; e++)
		f->copies[e] = 1;
	sort_down(f->order, f->spread, f->experts);
	for (uint32_t g = 0; g + 1 < DEPTH && g * size < f->experts; g++)
		if (!search_group(f, g * size, MIN((g + 1) * size, f->experts), &left))
			return false;
	return true;
}

/* -- a layer ------------------------------------------------------------------------------------------------------ */

/* Is it worth it? Since the last time the score must have become worse by some, or be bad. */
static bool due(const struct balance_layer *l, double now)
{
	const bool few = l->problem->from->ranks < FEW_RANKS;
	const double last = l->problem->last ? l->problem->last[l->layer] : 0;

	return last <= 0 || now < (few ? 0.95 : 0.9) * last || now < (few ? 0.9 : 0.85);
}

static int plan(const struct flash *f, struct balance_layer *l, struct moe_error *err)
{
	double now, after;
	int r;

	read_stages(f, l);
	now = 1 / score(f, f->x, f->stages, l->copies, l->from);
	if (!due(l, now))
		return 0;
	if (l->problem->last && l->problem->last[l->layer] <= 0)
		l->problem->last[l->layer] = now;
	sum_window(f);
	measure(f);
	if (!search(f))
		return 0;
	after = 1 / score(f, f->x, f->stages, f->best, f->best_at);
	if (l->problem->last && after > now * (1 + GAIN))
		l->problem->last[l->layer] = after;
	r = overlap_permute(l->to, l->from, f->best_at, f->ranks, f->slots, err);
	l->most = 0;
	for (uint32_t i = 0; r == 0 && i < f->ranks; i++) {
		double load = 0;

		for (uint32_t s = 0; s < f->slots; s++)
			load += l->load[l->to[(size_t)i * f->slots + s]] / f->best[l->to[(size_t)i * f->slots + s]];
		l->most = fmax(l->most, load);
	}
	return r < 0 ? r : 1;
}

int balance_layer_flashlb(struct balance_layer *l, struct moe_error *err)
{
	const struct placement *from = l->problem->from;
	const size_t n = from->experts, ranks = from->ranks, all = ranks * from->slots;
	const uint32_t stages = l->problem->stages, together = MAX(stages / SAMPLES, 1u);
	const uint32_t rows = DIV_UP(stages, together);
	_cleanup_free_ double *numbers = calloc((size_t)stages * n + (size_t)rows * n + n * n + 3 * n + 2 * ranks,
						sizeof *numbers);
	_cleanup_free_ uint32_t *counts = calloc(5 * n + ranks, sizeof *counts);
	_cleanup_free_ int32_t *places = calloc(2 * all, sizeof *places);
	struct flash f = {
		.from = from,
		.experts = from->experts,
		.ranks = from->ranks,
		.slots = from->slots,
		.stages = stages,
		.rows = rows,
	};

	if (!numbers || !counts || !places)
		return moe_error_set(err, -ENOMEM, "flashlb: no memory for %u stages of %u experts", stages,
				     from->experts);
	f.x = numbers;
	f.window = f.x + (size_t)stages * n;
	f.cov = f.window + (size_t)rows * n;
	f.mu = f.cov + n * n;
	f.spread = f.mu + n;
	f.total = f.spread + n;
	f.mean = f.total + n;
	f.var = f.mean + ranks;
	f.order = counts;
	f.by_mean = f.order + n;
	f.copies = f.by_mean + n;
	f.trial = f.copies + n;
	f.best = f.trial + n;
	f.filled = f.best + n;
	f.at = places;
	f.best_at = places + all;
	return plan(&f, l, err);
}
