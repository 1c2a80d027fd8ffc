/* SPDX-License-Identifier: MIT */
/*
 * How much of a step runs side by side: prefetch steps at the cost model's split, of the experts of which a quarter lie
 * in cache slots. T_wait is what the copies took, T_compute what the device's and the CPU's computing took, T_ideal the
 * longest of the three, T_step what a step took, as `moectl stats` has them, which knows them of steps whose end was
 * waited for; in turn, and with two steps in flight.
 */
#include <errno.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/gpu-session.h"

#define WARM_STEPS 24 /* the cost model learns, the free slots fill up */
#define STEPS 48
#define TOKENS_MAX 512u

/* Sums so far, of prefetch steps. */
struct sums {
	double steps, hidden, wait, device, cpu, step, fills, pairs_cpu, pairs_device;
};

static double number(const json_t *o, const char *key)
{
	return (double)json_integer_value(json_object_get(o, key));
}

static struct sums read_sums(const struct gpu_session *s)
{
	json_t *stats = gpu_session_stats(s);
	const json_t *mode = json_object_get(json_object_get(stats, "modes"), "prefetch");
	const struct sums sums = {.steps = number(mode, "steps"),
				  .hidden = number(mode, "hidden_steps"),
				  .wait = number(mode, "t_wait_ns"),
				  .device = number(mode, "device_ns"),
				  .cpu = number(mode, "cpu_ns"),
				  .step = number(mode, "t_step_ns"),
				  .fills = number(stats, "fills"),
				  .pairs_cpu = number(stats, "pairs_cpu"),
				  .pairs_device = number(stats, "pairs_hit") + number(stats, "pairs_miss_buffer")};

	json_decref(stats);
	return sums;
}

static uint32_t next_layer(const struct gpu_session *s, uint32_t layer)
{
	do
		layer = (layer + 1) % s->info.n_layers;
	while (s->info.layer_index[layer] < 0);
	return layer;
}

/* n steps, at most `flight` at the same time. */
static int run_steps(struct gpu_session *s, uint32_t tokens, uint32_t n, uint32_t flight, struct moe_error *err)
{
	struct moe_step *steps[2] = {NULL, NULL};
	uint32_t layer = s->layer;
	int r = 0;

	for (uint32_t i = 0; i < n + flight; i++) {
		struct moe_step **step = &steps[i % flight];

		if (*step) {
			const int waited = moe_wait(*step, s->y, 0, r < 0 ? NULL : err);

			r = r < 0 ? r : waited;
		}
		*step = NULL;
		if (r < 0 || i >= n)
			continue;
		gpu_session_draw(s, tokens);
		r = gpu_session_submit(s, layer, MOE_MODE_PREFETCH, tokens, step, NULL, err);
		if (r < 0)
			*step = NULL;
		layer = next_layer(s, layer);
	}
	return r;
}

static json_t *row(const struct gpu_session *s, uint32_t tokens, uint32_t flight, double wall_ns,
		   const struct sums *from, const struct sums *to)
{
	const double n = MAX(to->steps - from->steps, 1.0), wait = (to->wait - from->wait) / n;
	const double device = (to->device - from->device) / n, cpu = (to->cpu - from->cpu) / n;
	const double ideal = MAX(wait, MAX(device, cpu)), step = (to->step - from->step) / n;
	const double pairs_cpu = to->pairs_cpu - from->pairs_cpu,
		     pairs = pairs_cpu + to->pairs_device - from->pairs_device;

	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "model",
			 s->info.model, "tokens", (int)tokens, "in_flight", (int)flight, "steps",
			 (int)(to->steps - from->steps), "slots", (int)s->info.cache_slots, "t_wait_us", wait / 1e3,
			 "t_compute_us", (device + cpu) / 1e3, "device_us", device / 1e3, "cpu_us", cpu / 1e3,
			 "t_ideal_us", ideal / 1e3, "t_step_us", step / 1e3, "copies", (to->fills - from->fills) / n,
			 "wall_step_us", wall_ns / 1e3, "cpu_share_of_pairs",
			 pairs > 0 ? json_real(pairs_cpu / pairs) : json_null(), "step_over_ideal",
			 ideal > 0 ? json_real(step / ideal) : json_null());
}

static int measure(struct gpu_session *s, uint32_t tokens, uint32_t flight, bool simulated, json_t *to,
		   struct moe_error *err)
{
	const uint32_t steps = simulated ? 4 : STEPS;
	struct sums from, at;
	uint64_t begin;
	int r = run_steps(s, tokens, simulated ? 4 : WARM_STEPS, flight, err);

	if (r < 0)
		return r;
	from = read_sums(s);
	begin = now_ns();
	r = run_steps(s, tokens, steps, flight, err);
	if (r < 0)
		return r;
	begin = now_ns() - begin;
	at = read_sums(s);
	if (at.steps + at.hidden - from.steps - from.hidden != steps)
		return moe_error_set(err, -EBADMSG, "%g prefetch steps are in the statistics; expected %u",
				     at.steps + at.hidden - from.steps - from.hidden, steps);
	json_array_append_new(to, row(s, tokens, flight, (double)begin / steps, &from, &at));
	return 0;
}

int gpu_overlap(struct gpu *g, struct moe_client *client, json_t *to, struct moe_error *err)
{
	static const uint32_t real[] = {16, 64, 256, TOKENS_MAX}, simulated[] = {4};
	const uint32_t *tokens = g->simulated ? simulated : real;
	const size_t n = g->simulated ? ARRAY_LEN(simulated) : ARRAY_LEN(real);
	json_t *models = gpu_models(client), *rows = json_array();
	const json_t *model = gpu_model(g, models);
	const uint32_t experts = (uint32_t)json_integer_value(json_object_get(model, "experts"));
	const struct moe_attach_params params = {.model = json_string_value(json_object_get(model, "name")),
						 .cache_expert_num = MAX(experts / 4, 1u),
						 .fill = MOE_FILL_PULL,
						 .n_copy = MOE_N_COPY_COST};
	struct gpu_session s = {0};
	int r = model ? gpu_session_attach(&s, g, client, &params, TOKENS_MAX, err)
		      : moe_error_set(err, -ENOENT, "the daemon has no such model");

	json_object_set_new(to, "overlap", rows);
	for (size_t i = 0; i < n && r == 0; i++)
		for (uint32_t flight = 1; flight <= 2 && r == 0; flight++)
			r = measure(&s, tokens[i], flight, g->simulated, rows, err);
	gpu_session_detach(&s);
	json_decref(models);
	return r;
}
