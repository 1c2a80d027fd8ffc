/* SPDX-License-Identifier: MIT */
#include "guesses.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "moe-expert.h"
#include "plan.h"
#include "predict/predict.h"

#define PLACE_TRIED_MAX 4096 /* then both numbers are halved: what was long ago fades */

/* What was guessed for a layer's next step. */
struct guess {
	uint32_t n;
	int32_t *experts; /* [guesses->size] */
};

struct guesses {
	struct engine *engine;
	pthread_mutex_t lock;
	struct predict *predict;
	uint32_t size;      /* of a guess */
	struct guess *rows; /* [n_rows] */
	int32_t *experts;   /* of all rows */
	uint16_t *layers;   /* [n_rows] the model's own numbers */
	int32_t *announced; /* [size] in the data arena: what the daemon reads */
	float *weights;     /* [size] behind them */
	struct {
		uint32_t tried, found;
	} * places;         /* [size]: of the guesses that stood at this place, how many were asked for */
	struct queue_op op; /* of the announcement ... */
	bool in_flight;     /* ... that is on its way */
};

static uint32_t size_of(const struct engine *e)
{
	const struct moe_attach_params *p = &e->session->params;

	return p->tp_rank == 0 ? MIN(p->predict, e->n_experts) : 0;
}

uint64_t guesses_data_bytes(const struct engine *e)
{
	return ALIGN_UP((uint64_t)size_of(e) * sizeof(int32_t), CACHE_LINE) +
	       ALIGN_UP((uint64_t)size_of(e) * sizeof(float), CACHE_LINE);
}

int guesses_new(struct guesses **ret, struct engine *e, void *data, struct moe_error *err)
{
	const struct moe_session_info *info = &e->session->info;
	struct guesses *g;
	int r;

	*ret = NULL;
	if (size_of(e) == 0 || e->n_rows == 0)
		return 0;
	g = calloc(1, sizeof *g);
	if (!g)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory to guess");
	*g = (struct guesses){.engine = e, .size = size_of(e), .announced = data};
	pthread_mutex_init(&g->lock, NULL);
	g->rows = calloc(e->n_rows, sizeof *g->rows);
	g->experts = calloc((size_t)e->n_rows * g->size, sizeof *g->experts);
	g->layers = calloc(e->n_rows, sizeof *g->layers);
	g->places = calloc(g->size, sizeof *g->places);
	g->weights = (float *)((uint8_t *)data + ALIGN_UP((uint64_t)g->size * sizeof(int32_t), CACHE_LINE));
	r = g->rows && g->experts && g->layers && g->places
		    ? 0
		    : moe_error_set(err, -ENOMEM, "moe_attach: no memory to guess");
	if (r == 0)
		r = predict_new(&g->predict, e->n_rows, e->n_experts, MIN(info->topk, e->n_experts), err);
	if (r < 0) {
		guesses_free(g);
		return r;
	}
	for (uint32_t layer = 0; layer < info->n_layers; layer++)
		if (info->layer_index[layer] >= 0)
			g->layers[info->layer_index[layer]] = (uint16_t)layer;
	for (uint32_t row = 0; row < e->n_rows; row++)
		g->rows[row].experts = g->experts + (size_t)row * g->size;
	*ret = g;
	return 0;
}

struct guesses *guesses_free(struct guesses *g)
{
	if (!g)
		return NULL;
	if (g->in_flight && queue_wait(&g->engine->session->queue, &g->op, g->engine->watchdog_ns) == -ETIMEDOUT)
		engine_give_up(g->engine, -ETIME);
	predict_free(g->predict);
	free(g->rows);
	free(g->experts);
	free(g->layers);
	free(g->places);
	pthread_mutex_destroy(&g->lock);
	free(g);
	return NULL;
}

/* Requests are in ascending order. */
static bool is_requested(const struct moe_plan *plan, int32_t expert)
{
	uint32_t low = 0, high = plan->n_requests;

	while (low < high) {
		const uint32_t middle = (low + high) / 2;

		if (plan->requests[middle].expert < expert)
			low = middle + 1;
		else
			high = middle;
	}
	return low < plan->n_requests && plan->requests[low].expert == expert;
}

/* Chances are what they turned out to be, by the place in the guess: the most probable one stands first. */
static void learn_place(struct guesses *g, uint32_t place, bool found)
{
	g->places[place].tried++;
	g->places[place].found += found;
	if (g->places[place].tried < PLACE_TRIED_MAX)
		return;
	g->places[place].tried /= 2;
	g->places[place].found /= 2;
}

static float weight_of(const struct guesses *g, uint32_t place)
{
	return (float)(g->places[place].found + 1) / (float)(g->places[place].tried + 2);
}

static void judge(struct guesses *g, const struct guess *guess, const struct moe_plan *plan)
{
	struct moe_layer_stats *stats = &g->engine->session->stats[plan->layer];
	uint64_t found = 0;

	if (guess->n == 0)
		return;
	for (uint32_t i = 0; i < guess->n; i++) {
		const bool asked = is_requested(plan, guess->experts[i]);

		learn_place(g, i, asked);
		found += asked;
	}
	__atomic_fetch_add(&stats->guessed, guess->n, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->guess_asked, plan->n_requests, __ATOMIC_RELAXED);
	__atomic_fetch_add(&stats->guess_found, found, __ATOMIC_RELAXED);
}

static void announce(struct guesses *g, uint32_t row)
{
	struct queue *queue = &g->engine->session->queue;
	struct moe_sqe sqe = {
		.op = MOE_OP_HINT,
		.layer = g->layers[row],
		.count = g->rows[row].n,
		.hint.ids = (uint64_t)((uint8_t *)g->announced - g->engine->session->data),
	};

	if (g->in_flight && !queue_poll(queue, &g->op))
		return;
	memcpy(g->announced, g->rows[row].experts, g->rows[row].n * sizeof *g->announced);
	for (uint32_t i = 0; i < g->rows[row].n; i++)
		g->weights[i] = weight_of(g, i);
	if (g->engine->session->features & MOE_FEATURE_WEIGHTS)
		sqe.hint.weights = (uint64_t)((uint8_t *)g->weights - g->engine->session->data);
	g->in_flight = engine_submit(g->engine, &sqe, &g->op) == 0; /* a daemon that is gone says so to the step */
}

void guesses_step(struct guesses *g, uint32_t row, const struct moe_plan *plan)
{
	uint32_t next;

	if (!g || plan->tokens == 0 || plan->frozen || plan->late || plan->speculative)
		return;
	next = (row + 1) % g->engine->n_rows;
	pthread_mutex_lock(&g->lock);
	judge(g, &g->rows[row], plan);
	predict_learn(g->predict, row, plan->tokens, plan->topk, plan->ids);
	predict_remember(g->predict, row, plan->tokens, plan->topk, plan->ids);
	g->rows[row].n = 0;
	g->rows[next].n = predict_next(g->predict, next, g->size, g->rows[next].experts);
	if (g->rows[next].n > 0)
		announce(g, next);
	pthread_mutex_unlock(&g->lock);
}
