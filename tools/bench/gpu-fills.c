/* SPDX-License-Identifier: MIT */
/*
 * What the library's fills carry: steps of full mode, whose experts all have to come, of each loaded model whole and in
 * slices, by pull and, where the daemon copies into GPUs, by push; beside bare pinned copies of as many bytes in as
 * many pieces.
 *
 * The rate of a fill is that of the copies of one step, timed by the library's own events (for push by the daemon), as
 * `moectl stats` sums them up; the step's rate has all in it that a worker waits for, the device's computing too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/gpu-session.h"

#define UNIT_BYTES (256ull << 20) /* of one step, about */
#define SLICE_MIN (1ull << 20)
#define PIECES_MAX 64u

struct fills {
	struct gpu *g;
	struct gpu_session s;
	uint32_t pieces, turn;
	double step_ns[GPU_ROUNDS_MAX + 1]; /* the first is the uncounted one's */
	uint32_t steps;
	uint64_t bytes; /* of a step's copies */
};

/* -- ways --------------------------------------------------------------------------------------------------------- */

static double copy_ns(const struct fills *f)
{
	json_t *stats = gpu_session_stats(&f->s);
	const double ns = (double)json_integer_value(json_object_get(stats, "copy_ns"));

	json_decref(stats);
	return ns;
}

static int time_fills(void *arg, double *ret_ns, struct moe_error *err)
{
	struct fills *f = arg;
	const double before = copy_ns(f);
	const uint32_t tokens = gpu_session_list(&f->s, f->turn, f->pieces);
	uint64_t begin = now_ns(), bytes;
	struct moe_step *step;
	int r = gpu_session_submit(&f->s, f->s.layer, MOE_MODE_FULL, tokens, &step, &bytes, err);

	f->turn = (f->turn + f->pieces) % f->s.info.n_experts;
	if (r == 0)
		r = moe_wait(step, f->s.y, 0, err);
	if (r < 0)
		return r;
	f->step_ns[f->steps++] = (double)(now_ns() - begin);
	*ret_ns = (copy_ns(f) - before) * (double)f->bytes / (double)MAX(bytes, 1u);
	return *ret_ns > 0 ? 0
			   : moe_error_set(err, -EBADMSG, "a step that copies %llu bytes took no time",
					   (unsigned long long)bytes);
}

static int give_bare(void *arg, uint32_t i)
{
	const struct fills *f = arg;
	struct gpu *g = f->g;
	const uint64_t piece = f->s.info.slot_bytes, places = g->host_bytes / piece;
	int r = 0;

	for (uint32_t n = 0; n < f->pieces && r == 0; n++)
		r = CUDA_GIVE(g->device, cuMemcpyHtoDAsync, g->memory.base + n % places * piece,
			      g->host + n % places * piece, piece, g->stream->stream);
	return r;
}

static int time_bare(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_time(((struct fills *)arg)->g, true, give_bare, arg, 1, ret_ns, err);
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* What the device makes of slots that were filled is what the CPU makes of the same experts. */
static int check(struct fills *f, struct moe_error *err)
{
	struct gpu_session *s = &f->s;
	const uint32_t tokens = gpu_session_list(s, 0, f->pieces);
	const size_t n = (size_t)tokens * s->info.hidden;
	double worst = 0, largest = 0;
	struct moe_step *step;
	int r = gpu_session_submit(s, s->layer, MOE_MODE_FULL, tokens, &step, NULL, err);
	float *y = NULL;

	if (r == 0)
		r = moe_wait(step, s->y, 0, err);
	if (r == 0 && !(y = calloc(n, sizeof *y)))
		r = moe_error_set(err, -ENOMEM, "no memory for the check");
	if (r == 0)
		r = moe_compute(s->session, s->layer, tokens, s->info.topk, s->ids, s->weights, s->x, y, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		const double error = y[i] > s->y[i] ? y[i] - s->y[i] : s->y[i] - y[i];

		worst = error > worst || error != error ? error : worst;
		largest = MAX(largest, y[i] < 0 ? -y[i] : y[i]);
	}
	if (r == 0 && !(worst <= 0.05 * largest))
		r = moe_error_set(err, -EBADMSG, "what fills brought computes to something else: off by %g of %g",
				  worst, largest);
	free(y);
	return r;
}

/* -- rows --------------------------------------------------------------------------------------------------------- */

static json_t *row(struct fills *f, const char *model, const char *how, uint32_t tp_size, struct gpu_way *ways)
{
	const uint32_t rounds = f->g->o->samples;
	const double bytes = (double)f->bytes, best = gpu_best(&ways[0], rounds), bare = gpu_best(&ways[1], rounds);
	json_t *o = json_pack("{s:s, s:s, s:i, s:I, s:i}", "model", model, "how", how, "tp_size", (int)tp_size, "bytes",
			      (json_int_t)f->s.info.slot_bytes, "pieces", (int)f->pieces);
	struct gpu_way step = {.measure = time_fills};

	memcpy(step.ns, f->step_ns + 1, rounds * sizeof *step.ns);
	json_object_set_new(o, "gbs", gpu_rate_json(&ways[0], rounds, bytes));
	json_object_set_new(o, "step_gbs", gpu_rate_json(&step, rounds, bytes));
	json_object_set_new(o, "bare_gbs", gpu_rate_json(&ways[1], rounds, bytes));
	json_object_set_new(o, "share", json_real(bare / best));
	return o;
}

static int measure(struct fills *f, const char *model, const char *how, uint32_t tp_size, json_t *to,
		   struct moe_error *err)
{
	struct gpu_way ways[] = {{how, time_fills, {0}}, {"bare", time_bare, {0}}};
	const uint32_t most = f->g->simulated ? 4 : (uint32_t)MAX(UNIT_BYTES / f->s.info.slot_bytes, 2);
	int r;

	f->pieces = MIN(MIN(f->s.info.n_experts - 1, most), MIN(PIECES_MAX, f->s.tokens * f->s.info.topk));
	f->bytes = f->pieces * f->s.info.slot_bytes;
	f->steps = 0;
	if (f->s.info.slot_bytes > MIN(f->g->host_bytes, f->g->memory.bytes))
		return moe_error_set(err, -ENOMEM, "a slice of %llu bytes needs more --bytes",
				     (unsigned long long)f->s.info.slot_bytes);
	r = f->g->o->check ? check(f, err) : 0;
	if (r == 0)
		r = gpu_rounds(ways, ARRAY_LEN(ways), f, f->g->o->samples, err);
	if (r == 0)
		json_array_append_new(to, row(f, model, how, tp_size, ways));
	return r;
}

/* One slice of a model. -ERANGE: it is too small to be of interest. */
static int try_slice(struct gpu *g, struct moe_client *client, const char *model, enum moe_fill fill, uint32_t tp_size,
		     json_t *to, struct moe_error *err)
{
	const struct moe_attach_params params = {
		.model = model, .tp_size = tp_size, .cache_expert_num = 1, .fill = fill};
	struct fills f = {.g = g};
	int r = gpu_session_attach(&f.s, g, client, &params, PIECES_MAX, err);

	if (r == 0 && tp_size > 1 && f.s.info.slot_bytes < SLICE_MIN)
		r = -ERANGE;
	if (r == 0)
		r = measure(&f, model, fill == MOE_FILL_PULL ? "pull" : "push", tp_size, to, err);
	gpu_session_detach(&f.s);
	return r;
}

/* Whole, then in halves until a slice is below 1 MiB or the layer cannot be cut any more. */
static void measure_model(struct gpu *g, struct moe_client *client, const char *model, enum moe_fill fill, json_t *to)
{
	struct moe_error err = {0};
	char what[128];
	int r = 0;

	for (uint32_t tp_size = 1; tp_size <= 16 && r == 0; tp_size *= 2) {
		r = try_slice(g, client, model, fill, tp_size, to, &err);
		if (r == 0 || r == -ERANGE || (r == -EINVAL && tp_size > 1))
			continue;
		snprintf(what, sizeof what, "%s of %s", fill == MOE_FILL_PULL ? "pull" : "push", model);
		gpu_note(fill == MOE_FILL_PUSH && tp_size == 1 ? g->absent : g->failed, what, err.text);
	}
}

int gpu_fills(struct gpu *g, struct moe_client *client, json_t *to, struct moe_error *err)
{
	json_t *rows = json_array(), *models = gpu_models(client), *each;
	size_t i;

	json_object_set_new(to, "fills", rows);
	json_array_foreach (json_object_get(models, "models"), i, each) {
		const char *name = json_string_value(json_object_get(each, "name"));

		if (!name || (g->o->model && strcmp(name, g->o->model) != 0))
			continue;
		measure_model(g, client, name, MOE_FILL_PULL, rows);
		measure_model(g, client, name, MOE_FILL_PUSH, rows);
	}
	json_decref(models);
	return json_array_size(rows) > 0 ? 0 : moe_error_set(err, -ENOENT, "no fill could be timed");
}
