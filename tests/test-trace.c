/* SPDX-License-Identifier: MIT */
/*
 * Recordings: what a client has planned is in the file, in its order, to the last bit; the simulator makes of it what
 * the client's cache has made; limits, a full disk, leaving and kill -9 end it with a file that can be read.
 */
#include <jansson.h>
#include <sys/resource.h>

#include "base/util.h"
#include "moe-expert.h"
#include "simulate/trace-routes.h"
#include "tests/trace-recording.h"

#define STEPS 60
#define TOKENS_MAX 3

/* -- a client that routes at random, and remembers it ------------------------------------------------------------- */

struct routed {
	uint32_t layer, tokens;
	uint64_t step;
	int32_t ids[TOKENS_MAX * MOE_TOPK_MAX];
	float weights[TOKENS_MAX * MOE_TOPK_MAX];
};

struct found {
	uint64_t pairs, experts, asked;
};

struct worker {
	struct moe_client *client;
	struct moe_session *session;
	struct moe_session_info info;
	float *x, *y;
	bool agrees; /* on each step, alone: its number is the daemon's */
	struct routed *routed;
	uint32_t n, room;
	uint64_t resident[64]; /* pairs by layer */
	struct found before[64];
};

/* What the daemon tells of a layer's caches. */
static void ask_found(struct found *ret)
{
	struct moe_client *client;
	json_t *document, *layer;
	char *text;
	size_t i;

	require(moe_open(&client, fixture.socket, NULL) == 0 && moe_query(client, MOE_DOCUMENT_STATS, &text, NULL) == 0,
		"asked for statistics");
	document = json_loads(text, 0, NULL);
	require(document != NULL, "which are JSON");
	json_array_foreach (json_object_get(json_array_get(json_object_get(document, "models"), 0), "layers"), i,
			    layer) {
		const json_int_t number = json_integer_value(json_object_get(layer, "layer"));

		if (number < 0 || number >= 64)
			abort();
		ret[number] = (struct found){
			.pairs = (uint64_t)json_integer_value(json_object_get(layer, "resident_pairs")),
			.experts = (uint64_t)json_integer_value(json_object_get(layer, "resident_experts")),
			.asked = (uint64_t)json_integer_value(json_object_get(layer, "asked_experts")),
		};
	}
	json_decref(document);
	free(text);
	moe_close(client);
}

static void worker_open(struct worker *w, struct moe_attach_params p)
{
	struct moe_error err = {0};

	*w = (struct worker){0};
	p.size = sizeof p;
	require(moe_open(&w->client, fixture.socket, NULL) == 0, "a worker");
	require(moe_attach(w->client, &w->session, &p, &err) == 0, "attached %s", err.text);
	moe_session_info(w->session, &w->info);
	w->x = calloc((size_t)TOKENS_MAX * w->info.hidden, sizeof *w->x);
	w->y = calloc((size_t)TOKENS_MAX * w->info.hidden, sizeof *w->y);
	w->room = 4 * STEPS * w->info.n_layers;
	w->routed = calloc(w->room, sizeof *w->routed);
	require(w->x && w->y && w->routed, "memory");
	ask_found(w->before);
}

static void worker_close(struct worker *w)
{
	moe_detach(w->session);
	moe_close(w->client);
	free(w->x);
	free(w->y);
	free(w->routed);
}

static uint32_t random_below(uint32_t n)
{
	return (uint32_t)random() % n;
}

/* Distinct ones of a token, of which a few are much more likely, and sometimes none. */
static void choose(const struct worker *w, struct routed *r)
{
	for (uint32_t t = 0; t < r->tokens; t++) {
		int32_t *ids = r->ids + t * w->info.topk;

		for (uint32_t k = 0; k < w->info.topk; k++) {
			bool again = true;

			while (again) {
				ids[k] = (int32_t)(random_below(3) ? random_below(w->info.n_experts)
								   : random_below(1 + w->info.n_experts / 4));
				again = false;
				for (uint32_t j = 0; j < k; j++)
					again |= ids[j] == ids[k];
			}
			r->weights[t * w->info.topk + k] = (float)random_below(1000) / 777.0f;
		}
		if (random_below(40) == 0)
			ids[w->info.topk - 1] = -1;
	}
}

static bool route_layer(struct worker *w, uint32_t layer, uint32_t tokens, uint64_t step, bool dummy)
{
	struct routed *r = &w->routed[w->n];
	struct moe_plan_view view;
	struct moe_plan *plan;
	struct moe_step *moe_step;
	struct moe_error err = {0};

	*r = (struct routed){.layer = layer, .tokens = tokens, .step = step};
	choose(w, r);
	if (moe_plan(w->session, layer, MOE_MODE_DECODE, tokens, w->info.topk, r->ids, r->weights, &plan, &err) < 0)
		return ok(false, "planned: %s", err.text);
	moe_plan_view(plan, &view);
	w->resident[layer] += dummy ? 0 : view.pairs_resident;
	w->n += !dummy;
	return moe_submit(w->session, plan, w->x, &moe_step, &err) == 0 && moe_wait(moe_step, w->y, 0, &err) == 0;
}

static void route(struct worker *w, uint64_t first, uint32_t steps)
{
	bool good = true;

	for (uint64_t s = first; s < first + steps; s++) {
		const bool dummy = random_below(10) == 0;
		const uint32_t tokens = 1 + (uint32_t)random_below(TOKENS_MAX);
		struct moe_agreement a = {.step = 0};

		if (w->agrees)
			good &= moe_agree(w->session, MOE_STEP_DECODE, tokens, &a, NULL) == 0 && !a.dummy;
		else
			good &= moe_phase(w->session, MOE_STEP_DECODE, s, dummy, NULL) == 0;
		for (uint32_t l = 0; l < w->info.n_layers; l++)
			if (w->info.layer_index[l] >= 0)
				good &= route_layer(w, l, tokens, w->agrees ? a.step : s, dummy && !w->agrees);
	}
	ok(good, "%u steps were routed", steps);
}

/* The recording has begun when the daemon has set the word of the session's tap: it sees routes then. */
static void await_tap(struct worker *w)
{
	struct moe_error err = {0};
	struct moe_client *client;
	char *text;
	bool on = false;

	require(moe_open(&client, fixture.socket, NULL) == 0, "asked for");
	for (int i = 0; i < 10000 && !on; i++) {
		require(moe_query(client, MOE_DOCUMENT_SESSIONS, &text, &err) == 0, "sessions %s", err.text);
		on = strstr(text, "\"tapped\":true") || strstr(text, "\"tapped\": true");
		free(text);
		if (!on)
			usleep(2000);
	}
	require(on, "the session's tap is open");
	moe_close(client);
}

/* -- what is in the file ------------------------------------------------------------------------------------------ */

static bool same_route(const struct worker *w, const struct routed *want, const struct routes_record *have)
{
	bool good = have->route.layer == want->layer && have->route.step == want->step &&
		    have->route.tokens == want->tokens && have->route.topk == w->info.topk &&
		    have->route.phase == MOE_PHASE_DECODE && have->route.mode == MOE_STATS_DECODE;

	for (size_t i = 0; good && i < (size_t)want->tokens * w->info.topk; i++) {
		const float weight = routes_weight(have, i);

		good &= routes_id(have, i) == want->ids[i] && memcmp(&weight, &want->weights[i], sizeof weight) == 0;
	}
	return good;
}

/* Routes of the one session that match what it remembers, from its `first` on; all of them, or -1. *ret_end: there is
 * an end. */
static long compare(const struct worker *w, uint32_t first, const uint8_t *data, size_t size, bool *ret_end)
{
	const struct trace_source source = {.name = "trace", .data = data, .size = size};
	struct routes_record record;
	struct moe_error err = {0};
	struct routes f;
	long n = 0;
	int r;

	*ret_end = false;
	if (routes_open(&f, &source, &err) < 0)
		return ok(false, "%s", err.text) - 1;
	while ((r = routes_next(&f, &record, &err)) > 0) {
		*ret_end = record.kind == MOE_TRACE_END;
		if (record.kind != MOE_TRACE_ROUTE)
			continue;
		if (first + n >= w->n || !same_route(w, &w->routed[first + n], &record))
			r = -1;
		n++;
		if (r < 0)
			break;
	}
	if (r == 0 && f.n_sources)
		ok(strcmp(f.sources[0].model, w->info.model) == 0 && f.sources[0].session == w->info.session &&
			   f.sources[0].n_experts == w->info.n_experts &&
			   memcmp(f.sources[0].digest, w->info.digest, 16) == 0,
		   "the source is the session");
	routes_close(&f);
	return r < 0 ? -1 : n;
}

/* The cache's own hits, what the daemon tells of them, and the simulator's, of each layer. */
static void replay(const struct worker *w, const char *policy, uint32_t slots, const uint8_t *data, size_t size)
{
	const struct trace_source source = {.name = "trace", .data = data, .size = size};
	struct sim_params params = {.mode = SIM_PINNED, .policy = policy, .capacity = slots};
	bool final[256], same = true, told = true;
	struct found now[64] = {0};
	struct moe_error err = {0};
	struct trace_file file = {0};
	uint64_t sum = 0, unique = 0;

	if (strcmp(policy, "original") == 0)
		params.tuning.cache_topk = 2; /* the client's K if nobody says; its U takes all */
	require(trace_file_parse(&file, &source, &err) == 0, "read as a trace %s", err.text);
	ask_found(now);
	for (uint32_t l = 0; l < w->info.n_layers; l++) {
		struct sim_counts counts = {0};

		require(sim_layer(&file.cases[0].trace, l, &params, &counts, final, &err) == 0, "simulated %s",
			err.text);
		same &= counts.hits_pairs == w->resident[l];
		told &= counts.hits_pairs == now[l].pairs - w->before[l].pairs &&
			counts.hits_unique == now[l].experts - w->before[l].experts &&
			counts.hits_unique + counts.misses_unique == now[l].asked - w->before[l].asked;
		sum += counts.hits_pairs;
		unique += counts.hits_unique;
	}
	ok(told && unique > 0 && unique < sum,
	   "%s: so do the statistics, of pairs and of distinct experts, without dummy steps (%llu experts)", policy,
	   (unsigned long long)unique);
	ok(same && sum > 0, "%s: the simulator finds what the client's cache has found (%llu pairs)", policy,
	   (unsigned long long)sum);
	trace_file_free(&file);
}

/* -- tests -------------------------------------------------------------------------------------------------------- */

static void test_same(const char *policy)
{
	struct recording t;
	struct worker w;
	uint8_t *data;
	size_t size;
	bool ended;
	long n;

	worker_open(&w, (struct moe_attach_params){.cache_expert_num = 3, .update_expert_num = 256, .policy = policy});
	recording_open(&t);
	recording_start(&t);
	await_tap(&w);
	route(&w, 1, STEPS);
	stop_recording();
	recording_wait(&t);
	ok(t.r == 0 && t.result.end == MOE_TRACE_END_STOPPED && t.result.lost == 0 && t.result.sessions == 1,
	   "ended %s", t.err.text);
	data = load(&t, &size);
	n = compare(&w, 0, data, size, &ended);
	ok(n == (long)w.n && ended && t.result.routes == w.n && t.result.bytes == size,
	   "all routes are there, to the last bit (%ld of %u)", n, w.n);
	replay(&w, policy, w.info.cache_slots, data, size);
	free(data);
	worker_close(&w);
}

/* moe_agree is moe_phase as well: for who records, too. */
static void test_agreed(void)
{
	struct recording t;
	struct worker w;
	uint8_t *data;
	size_t size;
	bool ended;
	long n;

	worker_open(&w,
		    (struct moe_attach_params){.cache_expert_num = 3, .dp_size = 1, .group = 77, .agree_ms = 10000});
	w.agrees = true;
	recording_open(&t);
	recording_start(&t);
	await_tap(&w);
	route(&w, 0, 8);
	stop_recording();
	recording_wait(&t);
	data = load(&t, &size);
	n = compare(&w, 0, data, size, &ended);
	ok(n == (long)w.n && ended && t.result.steps == 8 && w.routed[w.n - 1].step > w.routed[0].step,
	   "steps that are agreed on have their numbers and their phase (%ld routes of %u)", n, w.n);
	free(data);
	worker_close(&w);
}

static void test_limits(void)
{
	struct recording t, second;
	struct worker w;
	uint8_t *data;
	size_t size;
	bool ended;
	uint32_t first;

	worker_open(&w, (struct moe_attach_params){.cache_expert_num = 2});
	recording_open(&t);
	t.params.max_steps = 5;
	recording_start(&t);
	await_tap(&w);
	recording_open(&second);
	second.r = moe_trace(second.client, second.fd, &second.params, NULL, NULL, &second.result, &second.err);
	ok(second.r == -EBUSY, "one at a time: %s", second.err.text);
	moe_close(second.client);
	close(second.fd);
	unlink(second.path);
	route(&w, 1, 30);
	recording_wait(&t);
	ok(t.r == 0 && t.result.end == MOE_TRACE_END_STEPS && t.result.steps == 5, "five steps, and no more");
	data = load(&t, &size);
	ok(compare(&w, 0, data, size, &ended) == 5 * (long)w.info.n_moe_layers && ended, "they are there");
	free(data);
	recording_open(&t);
	t.params.max_bytes = 4096;
	recording_start(&t);
	await_tap(&w);
	first = w.n;
	route(&w, 100, STEPS);
	recording_wait(&t);
	data = load(&t, &size);
	ok(t.r == 0 && t.result.end == MOE_TRACE_END_BYTES && size <= 4096 && size > 3000, "%zu bytes of 4096", size);
	ok(compare(&w, first, data, size, &ended) > 0 && ended, "with an end");
	free(data);
	recording_open(&t);
	t.params.max_ms = 50;
	recording_start(&t);
	recording_wait(&t);
	ok(t.r == 0 && t.result.end == MOE_TRACE_END_TIME && t.result.routes == 0, "its time is over");
	free(load(&t, &size));
	worker_close(&w);
}

static void refuse(int fd, const char *what)
{
	struct recording t;

	recording_open(&t);
	t.r = moe_trace(t.client, fd, &t.params, NULL, NULL, &t.result, &t.err);
	ok(t.r == -EINVAL, "%s: %s", what, t.err.text);
	moe_close(t.client);
	close(t.fd);
	unlink(t.path);
	close(fd);
}

static void test_refused(void)
{
	struct recording t;
	int pipes[2];

	require(pipe(pipes) == 0, "a pipe");
	refuse(pipes[1], "a pipe");
	close(pipes[0]);
	refuse(open(fixture_sample(), O_RDONLY | O_DIRECTORY), "a folder");
	refuse(open("/proc/self/exe", O_RDONLY), "a file that cannot be written");
	recording_open(&t);
	require(write(t.fd, "x", 1) == 1, "a byte");
	refuse(t.fd, "a file with something in it");
	moe_close(t.client);
	unlink(t.path);
}

/* A file that may not grow stands for a full disk. */
static void test_full_disk(void)
{
	const struct rlimit limit = {8192, RLIM_INFINITY}, before = {RLIM_INFINITY, RLIM_INFINITY};
	struct recording t;
	struct worker w;
	uint8_t *data;
	size_t size;
	bool ended;

	worker_open(&w, (struct moe_attach_params){.cache_expert_num = 2});
	require(prlimit(fixture.pid, RLIMIT_FSIZE, &limit, NULL) == 0, "the daemon's files may have 8192 bytes");
	recording_open(&t);
	recording_start(&t);
	await_tap(&w);
	route(&w, 1, 4 * STEPS);
	pthread_join(t.thread, NULL);
	ok(t.r == -EFBIG && strstr(t.err.text, "8192"), "told: %s", t.err.text);
	moe_close(t.client);
	close(t.fd);
	data = load(&t, &size);
	ok(compare(&w, 0, data, size, &ended) > 0 && !ended && size == 8192, "and what is there can be read");
	free(data);
	require(prlimit(fixture.pid, RLIMIT_FSIZE, &before, NULL) == 0, "as before");
	worker_close(&w);
}

int main(void)
{
	static const char *const policies[] = {"lru",     "lfu",   "lfu-decay", "lfru",      "ema",      "mrs",   "arc",
					       "s3-fifo", "sieve", "ebco-soft", "ebco-hard", "original", "static"};

	srandom((unsigned int)tap_seed());
	fixture_start(&fixture, fixture_sample(), NULL);
	for (size_t i = 0; i < ARRAY_LEN(policies); i++)
		test_same(policies[i]);
	test_agreed();
	test_limits();
	test_refused();
	test_full_disk();
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	return tap_done();
}
