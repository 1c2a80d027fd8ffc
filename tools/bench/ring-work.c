/* SPDX-License-Identifier: MIT */
/*
 * ring-work - round trips of requests with work: COMPUTE of one token, and FILL of slices of two sizes in turns with
 * bare copies of as many bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "ring.h"

#define ROUNDS 20
#define FILL_SHARE 20 /* of so many NOPs one fill or computation is timed */
#define IDLE_SHARE 10 /* and of so many of these one after idle */
#define COPY_FROM_BYTES ((uint64_t)256 << 20)
#define COPY_TO_BYTES ((uint64_t)64 << 20) /* of slots, and of the bare copies' destination: more than most caches */

/* -- one request after the other ---------------------------------------------------------------------------------- */

struct worker {
	struct moe_session *session;
	struct moe_session_info info;
	uint32_t turn, slots;
	int32_t *ids;
	float *weights, *x, *y;
	int (*run)(struct worker *w, uint32_t turn, struct moe_error *err);
};

/* The MoE layer whose turn it is. */
static uint32_t layer_of(const struct worker *w, uint32_t turn)
{
	const uint32_t row = turn % w->info.n_moe_layers;
	uint32_t layer = 0;

	while (w->info.layer_index[layer] != (int32_t)row)
		layer++;
	return layer;
}

static int run_turns(struct worker *w, bool idle, struct series *series, uint32_t n, struct moe_error *err)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin;
		int r;

		if (idle)
			usleep(RING_IDLE_US);
		begin = now_ns();
		r = w->run(w, w->turn++, err);
		if (r < 0)
			return r;
		series->samples[series->n++] = (double)(now_ns() - begin);
	}
	return 0;
}

static int new_trips(struct series *busy, struct series *idle, const struct options *o, struct moe_error *err)
{
	const uint32_t n = MAX(o->samples / FILL_SHARE, 1u);

	*idle = (struct series){0};
	if (series_new(busy, n) < 0 || series_new(idle, MAX(n / IDLE_SHARE, 1u)) < 0)
		return moe_error_set(err, -ENOMEM, "no memory for %u samples", n);
	return 0;
}

/* -- COMPUTE ------------------------------------------------------------------------------------------------------ */

/* Other experts each time: weights come from memory, not from the caches. */
static int compute_one(struct worker *w, uint32_t turn, struct moe_error *err)
{
	const uint32_t topk = w->info.topk, first = turn / w->info.n_moe_layers * topk;

	for (uint32_t i = 0; i < topk; i++)
		w->ids[i] = (int32_t)((first + i) % w->info.n_experts);
	return moe_compute(w->session, layer_of(w, turn), 1, topk, w->ids, w->weights, w->x, w->y, err);
}

int ring_compute(struct ring_result *result, const struct options *o, struct moe_session *session,
		 struct moe_error *err)
{
	struct worker w = {.session = session, .run = compute_one};
	struct series busy, idle;
	int r = new_trips(&busy, &idle, o, err);

	moe_session_info(session, &w.info);
	result->tokens = 1;
	result->topk = w.info.topk;
	w.ids = calloc(w.info.topk, sizeof *w.ids);
	w.weights = calloc(w.info.topk, sizeof *w.weights);
	w.x = calloc(w.info.hidden, sizeof *w.x);
	w.y = calloc(w.info.hidden, sizeof *w.y);
	if (r == 0 && !(w.ids && w.weights && w.x && w.y))
		r = moe_error_set(err, -ENOMEM, "no memory for a token");
	for (uint32_t i = 0; r == 0 && i < w.info.hidden; i++)
		w.x[i] = (float)(i % 7) - 3;
	for (uint32_t i = 0; r == 0 && i < w.info.topk; i++)
		w.weights[i] = 1.0f / (float)w.info.topk;
	for (uint32_t round = 0; round < ROUNDS && r == 0; round++) {
		r = run_turns(&w, false, &busy, series_share(&busy, round, ROUNDS), err);
		if (r == 0)
			r = run_turns(&w, true, &idle, series_share(&idle, round, ROUNDS), err);
	}
	result->compute = (struct ring_trips){series_end(&busy), series_end(&idle)};
	free(w.ids);
	free(w.weights);
	free(w.x);
	free(w.y);
	return r;
}

/* -- bare copies -------------------------------------------------------------------------------------------------- */

enum { ALONE, ALONE_PAST, TOGETHER, TOGETHER_PAST, COPIES };

struct copies {
	char *from, *to;
	uint64_t bytes, from_at, to_at;
	uint32_t threads;
	struct series series[COPIES];
};

/* Each from and to other memory than the one before it. */
static double copy_once(struct copies *c, int kind)
{
	const uint32_t threads = kind == ALONE || kind == ALONE_PAST ? 1 : c->threads;

	c->from_at = c->from_at + 2 * c->bytes <= COPY_FROM_BYTES ? c->from_at + c->bytes : 0;
	c->to_at = c->to_at + 2 * c->bytes <= COPY_TO_BYTES ? c->to_at + c->bytes : 0;
	return limit_copy(c->to + c->to_at, c->from + c->from_at, c->bytes, threads, kind % 2);
}

static void run_copies(struct copies *c, uint32_t round)
{
	for (int kind = 0; kind < COPIES; kind++)
		for (uint32_t n = series_share(&c->series[kind], round, ROUNDS); n > 0; n--)
			c->series[kind].samples[c->series[kind].n++] = copy_once(c, kind);
}

static int new_copies(struct copies *ret, const struct options *o, const struct moe_session_info *info,
		      struct moe_error *err)
{
	*ret = (struct copies){
		.from = limit_memory(COPY_FROM_BYTES),
		.to = limit_memory(COPY_TO_BYTES),
		.bytes = MIN(ALIGN_UP(info->slot_bytes, 64), COPY_TO_BYTES),
		.threads = info->cpu_threads,
	};
	for (int i = 0; i < COPIES; i++)
		if (series_new(&ret->series[i], MAX(o->samples / FILL_SHARE / COPIES, 1u)) < 0)
			return moe_error_set(err, -ENOMEM, "no memory for samples");
	return ret->from && ret->to ? 0 : moe_error_set(err, -ENOMEM, "no memory for bare copies: 320 MiB expected");
}

static struct summary end_copies(struct copies *c)
{
	struct summary best = {0};

	for (int i = 0; i < COPIES; i++) {
		const struct summary s = series_end(&c->series[i]);

		if (best.p50 == 0 || s.p50 < best.p50)
			best = s;
	}
	if (c->from)
		munmap(c->from, COPY_FROM_BYTES);
	if (c->to)
		munmap(c->to, COPY_TO_BYTES);
	return best;
}

/* -- FILL --------------------------------------------------------------------------------------------------------- */

/* Expert after expert into slot after slot; fewer slots than experts, so none is in its slot already. */
static int fill_one(struct worker *w, uint32_t turn, struct moe_error *err)
{
	const uint32_t i = turn / w->info.n_moe_layers;

	return moe_fill(w->session, layer_of(w, turn), i % w->info.n_experts, i % w->slots, err);
}

static int attach_slices(struct worker *w, const struct options *o, struct moe_client *client, uint32_t tp_size,
			 uint32_t slots, struct moe_error *err)
{
	const struct moe_attach_params params = {.size = sizeof params,
						 .model = o->model,
						 .tp_size = tp_size,
						 .max_tokens = 1,
						 .cache_expert_num = slots,
						 .miss_expert_num = 1};
	const int r = moe_attach(client, &w->session, &params, err);

	if (r < 0)
		return r;
	moe_session_info(w->session, &w->info);
	w->slots = w->info.cache_slots;
	w->run = fill_one;
	return 0;
}

/* Attaches so that slices are about `bytes`: *ret_tp_size ranks, as many as the model can be cut into at most. */
static int attach_near(struct worker *w, const struct options *o, struct moe_client *client, uint64_t bytes,
		       uint32_t *ret_tp_size, struct moe_error *err)
{
	uint64_t whole, slots;
	uint32_t tp_size;
	int r = attach_slices(w, o, client, 1, 0, err);

	if (r < 0)
		return r;
	whole = w->info.slot_bytes;
	w->session = moe_detach(w->session);
	tp_size = (uint32_t)MAX((whole + bytes / 2) / bytes, 1);
	slots = MAX(COPY_TO_BYTES / MIN(whole, bytes) / w->info.n_moe_layers, 1);
	slots = MIN(slots, MAX(w->info.n_experts - 1, 1u));
	do {
		*ret_tp_size = tp_size;
		r = attach_slices(w, o, client, tp_size, (uint32_t)slots, err);
		tp_size /= 2;
	} while (r == -EINVAL && tp_size > 0);
	return r;
}

static int measure_fill(struct ring_fill *fill, const struct options *o, struct worker *w, struct moe_error *err)
{
	struct series busy, idle;
	struct copies copies;
	int r = new_trips(&busy, &idle, o, err);

	if (r == 0)
		r = new_copies(&copies, o, &w->info, err);
	else
		copies = (struct copies){0};
	for (uint32_t round = 0; round < ROUNDS && r == 0; round++) {
		r = run_turns(w, false, &busy, series_share(&busy, round, ROUNDS), err);
		if (r == 0)
			r = run_turns(w, true, &idle, series_share(&idle, round, ROUNDS), err);
		if (r == 0)
			run_copies(&copies, round);
	}
	fill->trips = (struct ring_trips){series_end(&busy), series_end(&idle)};
	fill->copy = end_copies(&copies);
	return r;
}

/* Every slot is written once before: its first fill would be the kernel's finding of pages. */
static int touch_slots(struct worker *w, struct moe_error *err)
{
	int r = 0;

	while (w->turn < w->slots * w->info.n_moe_layers && r == 0)
		r = w->run(w, w->turn++, err);
	return r;
}

int ring_fills(struct ring_result *result, const struct options *o, struct moe_client *client, struct moe_error *err)
{
	static const uint64_t wanted[RING_FILLS] = {64 << 10, 4 << 20};

	for (int i = 0; i < RING_FILLS; i++) {
		struct ring_fill *fill = &result->fills[result->n_fills];
		struct worker w = {0};
		int r = attach_near(&w, o, client, wanted[i], &fill->tp_size, err);

		fill->bytes = w.info.slot_bytes;
		if (r == 0 && result->n_fills > 0 && fill[-1].bytes == fill->bytes) {
			moe_detach(w.session); /* a small model: both wishes are met by the same slice */
			return 0;
		}
		if (r == 0)
			r = touch_slots(&w, err);
		if (r == 0)
			r = measure_fill(fill, o, &w, err);
		moe_detach(w.session);
		if (r < 0)
			return r;
		result->n_fills++;
	}
	return 0;
}
