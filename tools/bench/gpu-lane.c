/* SPDX-License-Identifier: MIT */
/*
 * A lane's step whose pairs are all padding: an empty request to the daemon, which answers at once. Beside it the bare
 * hop, a word that the stream writes, a thread of the host that sees it and writes another, for which the stream waits;
 * and the step's other commands alone, the copies to the host, the device's kernels and the addition, without a hop.
 *
 * All of it twice: the answer is read in the host's memory when it is added, or copied to the device first; and the
 * addition alone, both ways, for answers of one token and of many.
 *
 * Each is timed on the device, event to event, several behind a gate; they take turns.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "model/expert.h"
#include "tools/bench/gpu-session.h"

#define BATCH 16 /* steps behind one gate */
#define ROUNDS 64

struct lane_bench {
	struct gpu *g;
	struct gpu_session s;
	uint32_t batch, rounds;
	/* the device's memory */
	device_ptr x, y, ids, weights, map, landing;
	enum moe_answers answers;
	/* the step's kernels, without a session: nobody is in a slot */
	struct moe_layout layout;
	struct moe_slice slice;
	struct device_experts experts;
	/* the other side of the bare hop */
	pthread_t thread;
	uint32_t first_seen; /* read before the thread begins: the first request may be there before it runs */
	bool stop;
};

/* -- the three ----------------------------------------------------------------------------------------------------- */

static int give_step(void *arg, uint32_t i)
{
	const struct lane_bench *b = arg;
	const struct moe_lane_step step = {.size = sizeof step,
					   .lane = 0,
					   .layer = b->s.layer,
					   .tokens = 1,
					   .topk = b->s.info.topk,
					   .stream = device_cuda.stream_handle(b->g->stream),
					   .x = b->x,
					   .ids = b->ids,
					   .weights = b->weights,
					   .y = b->y};

	return moe_lane_submit(b->s.session, &step, NULL);
}

static void *answer(void *arg)
{
	struct lane_bench *b = arg;
	struct gpu_words *w = b->g->words;
	uint32_t seen = b->first_seen;

	while (!__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE)) {
		const uint32_t now = __atomic_load_n(&w->request, __ATOMIC_ACQUIRE);

		if (now != seen)
			__atomic_store_n(&w->answer, seen = now, __ATOMIC_RELEASE);
		cpu_relax();
	}
	return NULL;
}

static int give_hop(void *arg, uint32_t i)
{
	struct lane_bench *b = arg;
	struct gpu_words *w = b->g->words;
	const uint32_t value = ++b->g->turn;
	int r = device_cuda.stream_write_word(b->g->stream, &w->request, value);

	return r == 0 ? device_cuda.stream_wait_word(b->g->stream, &w->answer, value) : r;
}

static int give_work(void *arg, uint32_t i)
{
	struct lane_bench *b = arg;
	struct gpu *g = b->g;
	const uint64_t rows = b->s.info.hidden * sizeof(float), pairs = b->s.info.topk * sizeof(float);
	uint8_t *landing = g->host + g->host_bytes / 2;
	int r = device_cuda.copy_to_host(g->stream, landing, b->x, rows);

	if (r == 0)
		r = device_cuda.copy_to_host(g->stream, landing + rows, b->ids, pairs);
	if (r == 0)
		r = device_cuda.copy_to_host(g->stream, landing + rows + GPU_PAGE, b->weights, pairs);
	if (r == 0)
		r = device_cuda.experts(g->stream, &b->experts);
	return r == 0 ? device_cuda.add(g->stream, b->y, (const float *)(g->host + g->host_bytes / 4), b->s.info.hidden,
					b->answers == MOE_ANSWERS_COPY ? b->landing : 0)
		      : r;
}

/* -- making it ---------------------------------------------------------------------------------------------------- */

static int bring(struct lane_bench *b, device_ptr to, const void *from, uint64_t bytes, struct moe_error *err)
{
	struct gpu *g = b->g;
	const struct device_copy copy = {to, g->host + g->host_bytes / 2, bytes, bytes, 1};
	int r;

	memcpy(g->host + g->host_bytes / 2, from, bytes);
	r = device_cuda.copy_to_device(g->stream, &copy, 1);
	return r < 0 ? gpu_error(g, r, "cannot copy to the device", err) : gpu_settle(g, err);
}

/* Ids from 0 on, or padding. */
static int bring_ids(struct lane_bench *b, bool padding, struct moe_error *err)
{
	gpu_session_list(&b->s, 0, padding ? 0 : b->s.info.topk);
	for (uint32_t i = 0; i < b->s.info.topk && padding; i++)
		b->s.ids[i] = -1;
	return bring(b, b->ids, b->s.ids, b->s.info.topk * sizeof *b->s.ids, err);
}

static int prepare_work(struct lane_bench *b, struct moe_error *err)
{
	const struct moe_session_info *info = &b->s.info;
	const bool bias[MOE_PARTS] = {false};
	uint32_t formats[MOE_PARTS];
	struct moe_slot_layout slot;
	int r = moe_slot_layout(b->s.session, b->s.layer, &slot, err);

	if (r < 0)
		return r;
	for (int i = 0; i < MOE_PARTS; i++)
		formats[i] = slot.part[i].format;
	r = layout_place(&b->layout, formats, bias, info->hidden, info->inter);
	if (r < 0)
		return moe_error_sys(err, r, "no layout of the model's shape");
	moe_slice_of(&b->slice, &b->layout, 0, 1);
	b->experts = (struct device_experts){.slots = b->g->memory.base,
					     .slot_bytes = b->slice.bytes,
					     .layout = &b->layout,
					     .slice = &b->slice,
					     .hidden = info->hidden,
					     .activation = MOE_ACTIVATION_SILU,
					     .tokens = 1,
					     .topk = info->topk,
					     .n_experts = info->n_experts,
					     .x = b->x,
					     .y = b->y,
					     .on_ids = b->ids,
					     .on_weights = b->weights,
					     .on_map = b->map};
	return device_cuda.experts_prepare(b->g->stream, &b->experts, err);
}

static int prepare(struct lane_bench *b, struct moe_error *err)
{
	const uint64_t rows = ALIGN_UP(b->s.info.hidden * sizeof(float), (uint64_t)CUDA_SCRATCH_ALIGN);
	const uint64_t pairs = ALIGN_UP(b->s.info.topk * sizeof(float), (uint64_t)CUDA_SCRATCH_ALIGN);
	const uint64_t maps = ALIGN_UP(b->s.info.n_experts * sizeof(int32_t), (uint64_t)CUDA_SCRATCH_ALIGN);
	const uint64_t need = 3 * rows + 2 * pairs + maps;
	int32_t *map = malloc(b->s.info.n_experts * sizeof *map);
	int r;

	b->x = b->g->memory.base;
	b->y = b->x + rows;
	b->ids = b->y + rows;
	b->weights = b->ids + pairs;
	b->map = b->weights + pairs;
	b->landing = b->map + maps;
	if (!map || need > b->g->memory.bytes || 2 * need + 2 * GPU_PAGE > b->g->host_bytes / 4) {
		free(map);
		return moe_error_set(err, -ENOMEM, "a lane of this model needs more --bytes");
	}
	memset(map, 0xff, b->s.info.n_experts * sizeof *map);
	r = bring(b, b->map, map, b->s.info.n_experts * sizeof *map, err);
	if (r == 0)
		r = bring(b, b->x, b->s.x, b->s.info.hidden * sizeof(float), err);
	if (r == 0)
		r = bring(b, b->weights, b->s.weights, b->s.info.topk * sizeof(float), err);
	if (r == 0)
		r = bring_ids(b, true, err);
	free(map);
	return r == 0 ? prepare_work(b, err) : r;
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* One step with ids, which the CPU computes, and the same without a lane. */
static int check(struct lane_bench *b, struct moe_error *err)
{
	struct gpu *g = b->g;
	const uint64_t bytes = b->s.info.hidden * sizeof(float);
	const float *landing = (const float *)(g->host + g->host_bytes / 2);
	double worst = 0, largest = 0, unused;
	int r = bring_ids(b, false, err);

	if (r == 0)
		r = gpu_time(g, false, give_step, b, 1, &unused, err);
	if (r == 0)
		r = moe_lane_error(b->s.session, 0, err);
	if (r == 0)
		r = device_cuda.copy_to_host(g->stream, g->host + g->host_bytes / 2, b->y, bytes);
	if (r == 0)
		r = gpu_settle(g, err);
	if (r == 0)
		r = moe_compute(b->s.session, b->s.layer, 1, b->s.info.topk, b->s.ids, b->s.weights, b->s.x, b->s.y,
				err);
	for (uint32_t i = 0; i < b->s.info.hidden && r == 0; i++) {
		const double error = fabs((double)landing[i] - b->s.y[i]);

		worst = error > worst || isnan(error) ? error : worst;
		largest = MAX(largest, fabs((double)b->s.y[i]));
	}
	if (r == 0 && !(worst <= 0.05 * largest))
		r = moe_error_set(err, -EBADMSG, "a lane's step is off by %g of %g", worst, largest);
	return r == 0 ? bring_ids(b, true, err) : r;
}

/* -- rounds ------------------------------------------------------------------------------------------------------- */

static int run_rounds(struct lane_bench *b, double *step, double *hop, double *work, struct moe_error *err)
{
	int r = gpu_time_each(b->g, give_work, b, b->batch, work, err);

	/* The first batch of each is for warming up: the rounds write over it. */
	for (uint32_t i = 0; i < b->rounds && r == 0; i++) {
		const uint32_t at = (i ? i - 1 : 0) * b->batch;

		r = gpu_time_each(b->g, give_step, b, b->batch, step + at, err);
		if (r == 0)
			r = moe_lane_error(b->s.session, 0, err);
		if (r == 0)
			r = gpu_time_each(b->g, give_hop, b, b->batch, hop + at, err);
		if (r == 0)
			r = gpu_time_each(b->g, give_work, b, b->batch, work + at, err);
	}
	return r;
}

static json_t *result(const struct lane_bench *b, double *step, double *hop, double *work)
{
	const uint32_t n = (b->rounds - 1) * b->batch;
	json_t *o = json_pack("{s:s, s:i, s:i}", "model", b->s.info.model, "steps", (int)n, "topk",
			      (int)b->s.info.topk);
	const double step_p50 = summarise(step, n).p50, work_p50 = summarise(work, n).p50;

	json_object_set_new(o, "step_us", gpu_us_json(step, n));
	json_object_set_new(o, "bare_hop_us", gpu_us_json(hop, n));
	json_object_set_new(o, "work_us", gpu_us_json(work, n));
	json_object_set_new(o, "round_trip_us",
			    json_pack("{s:f, s:f}", "p50", (step_p50 - work_p50) / 1e3, "p99",
				      (summarise(step, n).p99 - work_p50) / 1e3));
	return o;
}

static int measure(struct lane_bench *b, json_t *to, struct moe_error *err)
{
	const uint32_t n = b->rounds * b->batch;
	double *samples = calloc(3 * (size_t)n, sizeof *samples);
	int r = samples ? run_rounds(b, samples, samples + n, samples + 2 * n, err)
			: moe_error_set(err, -ENOMEM, "no memory for samples");

	if (r == 0)
		json_object_set_new(to, b->answers == MOE_ANSWERS_COPY ? "lane_copy" : "lane",
				    result(b, samples, samples + n, samples + 2 * n));
	free(samples);
	return r;
}

static int with_partner(struct lane_bench *b, json_t *to, struct moe_error *err)
{
	int r;

	b->first_seen = __atomic_load_n(&b->g->words->request, __ATOMIC_ACQUIRE);
	r = -pthread_create(&b->thread, NULL, answer, b);
	if (r < 0)
		return moe_error_sys(err, r, "no thread for the bare hop");
	r = b->g->o->check ? check(b, err) : 0;
	if (r == 0)
		r = measure(b, to, err);
	__atomic_store_n(&b->stop, true, __ATOMIC_RELEASE);
	pthread_join(b->thread, NULL);
	return r;
}

static int measure_lane(struct gpu *g, struct moe_client *client, const char *model, enum moe_answers answers,
			json_t *to, struct moe_error *err)
{
	const struct moe_attach_params params = {.model = model,
						 .cache_expert_num = 1,
						 .miss_expert_num = 1,
						 .lanes = 1,
						 .fill = MOE_FILL_PULL,
						 .answers = answers};
	struct lane_bench b = {
		.g = g, .batch = g->simulated ? 2 : BATCH, .rounds = g->simulated ? 3 : ROUNDS + 1, .answers = answers};
	int r = gpu_session_attach(&b.s, g, client, &params, 1, err);

	if (r == 0)
		r = prepare(&b, err);
	if (r == 0)
		r = moe_lanes_fix(b.s.session, err);
	if (r == 0) {
		r = with_partner(&b, to, err);
		moe_lanes_release(b.s.session);
	}
	gpu_session_detach(&b.s);
	return r;
}

/* -- the addition alone ------------------------------------------------------------------------------------------- */

struct addition {
	struct gpu *g;
	uint64_t n; /* floats */
	bool copied;
};

/* y, then where an answer is copied to, each at most half of the memory. */
static int give_addition(void *arg, uint32_t i)
{
	const struct addition *a = arg;
	const device_ptr y = a->g->memory.base;

	return device_cuda.add(a->g->stream, y, (const float *)a->g->host, a->n,
			       a->copied ? y + a->g->memory.bytes / 2 / GPU_PAGE * GPU_PAGE : 0);
}

static int add_row(struct gpu *g, uint32_t tokens, uint32_t hidden, json_t *rows, struct moe_error *err)
{
	const uint32_t batch = g->simulated ? 2 : BATCH, rounds = g->simulated ? 2 : ROUNDS / 4;
	struct addition a = {g, (uint64_t)tokens * hidden, false};
	double *ns = calloc(2 * (size_t)batch * rounds, sizeof *ns);
	json_t *row = json_pack("{s:i, s:I}", "tokens", (int)tokens, "bytes", (json_int_t)(a.n * sizeof(float)));
	int r = ns && row ? 0 : moe_error_set(err, -ENOMEM, "no memory for samples");

	/* The first round is for warming up. */
	for (uint32_t i = 0; i <= rounds && r == 0; i++)
		for (int way = 0; way < 2 && r == 0; way++) {
			a.copied = way;
			r = gpu_time_each(g, give_addition, &a, batch,
					  ns + ((size_t)way * rounds + (i ? i - 1 : 0)) * batch, err);
		}
	if (r == 0) {
		json_object_set_new(row, "read_us", gpu_us_json(ns, rounds * batch));
		json_object_set_new(row, "copy_us", gpu_us_json(ns + rounds * batch, rounds * batch));
		json_array_append(rows, row);
	}
	json_decref(row);
	free(ns);
	return r;
}

static int measure_additions(struct gpu *g, uint32_t hidden, json_t *to, struct moe_error *err)
{
	static const uint32_t tokens[] = {1, 16, 64, 512, 4096};
	json_t *rows = json_array();
	int r = 0;

	memset(g->host, 0, g->host_bytes); /* sums that stay numbers */
	for (size_t i = 0; i < sizeof tokens / sizeof *tokens && r == 0; i++) {
		const uint64_t bytes = (uint64_t)tokens[i] * hidden * sizeof(float);

		if (bytes <= g->host_bytes && bytes <= g->memory.bytes / 2 - GPU_PAGE)
			r = add_row(g, tokens[i], hidden, rows, err);
	}
	json_object_set_new(to, "answers", rows);
	return r;
}

int gpu_lane(struct gpu *g, struct moe_client *client, json_t *to, struct moe_error *err)
{
	json_t *models = gpu_models(client);
	const json_t *model = gpu_model(g, models);
	const char *name = json_string_value(json_object_get(model, "name"));
	const uint32_t hidden = (uint32_t)json_integer_value(json_object_get(model, "hidden"));
	int r = model ? measure_lane(g, client, name, MOE_ANSWERS_READ, to, err)
		      : moe_error_set(err, -ENOENT, "the daemon has no such model");

	if (r == 0)
		r = measure_lane(g, client, name, MOE_ANSWERS_COPY, to, err);
	if (r == 0)
		r = measure_additions(g, hidden, to, err);
	json_decref(models);
	return r;
}
