/* SPDX-License-Identifier: MIT */
/*
 * Caches that begin warm: a session that asks for it has the experts in its slots that others' routers chose most, and
 * finds more there in its first steps than one that begins cold, with the same results to the last bit. Dummy steps
 * heat nothing, all replicas feed one table, a group is told the same, and what is forgotten warms nobody.
 */
#include <string.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/raw-client.h"

#define HOT 6 /* of a layer's experts, the ones that most tokens want */
#define SLOTS 8
#define FIRST_STEPS 12

struct worker {
	struct moe_client *client;
	struct moe_session *session;
	struct moe_session_info info;
	float *x, *y;
	uint64_t resident, pairs;
};

static struct moe_attach_params params(bool warm)
{
	return (struct moe_attach_params){.size = sizeof(struct moe_attach_params),
					  .cache_expert_num = SLOTS,
					  .update_expert_num = 4,
					  .warm = warm};
}

static void worker_open(struct worker *w, const struct moe_attach_params *p)
{
	struct moe_error err = {0};

	*w = (struct worker){0};
	require(moe_open(&w->client, fixture.socket, NULL) == 0, "a worker");
	require(moe_attach(w->client, &w->session, p, &err) == 0, "attached %s", err.text);
	moe_session_info(w->session, &w->info);
	w->x = calloc(w->info.hidden, sizeof *w->x);
	w->y = calloc(w->info.hidden, sizeof *w->y);
	require(w->x && w->y, "memory");
}

static void worker_close(struct worker *w)
{
	moe_detach(w->session);
	moe_close(w->client);
	free(w->x);
	free(w->y);
}

/* One token's experts: mostly of the layer's hot ones, which are others in each layer. */
static void choose(const struct worker *w, uint32_t layer, unsigned long long *state, int32_t *ids, float *weights)
{
	for (uint32_t k = 0; k < w->info.topk; k++) {
		bool again = true;

		while (again) {
			const uint32_t any = (uint32_t)(tap_random(state) % w->info.n_experts);

			ids[k] = (int32_t)(tap_random(state) % 8 ? (any % HOT * 5 + layer) % w->info.n_experts : any);
			again = false;
			for (uint32_t j = 0; j < k; j++)
				again |= ids[j] == ids[k];
		}
		weights[k] = 0.5f + (float)(tap_random(state) % 100) / 200.0f;
	}
}

static bool step(struct worker *w, uint32_t layer, const int32_t *ids, const float *weights)
{
	struct moe_plan_view view;
	struct moe_error err = {0};
	struct moe_plan *plan;
	struct moe_step *moe_step;

	if (moe_plan(w->session, layer, MOE_MODE_DECODE, 1, w->info.topk, ids, weights, &plan, &err) < 0)
		return ok(false, "planned: %s", err.text);
	moe_plan_view(plan, &view);
	w->resident += view.pairs_resident;
	w->pairs += w->info.topk;
	return moe_submit(w->session, plan, w->x, &moe_step, &err) == 0 && moe_wait(moe_step, w->y, 0, &err) == 0;
}

/* So many steps of all layers; a checksum of the results, or none when something failed. */
static bool route(struct worker *w, uint32_t steps, unsigned long long state, uint64_t *ret_sum)
{
	int32_t ids[MOE_TOPK_MAX];
	float weights[MOE_TOPK_MAX];
	bool good = true;

	*ret_sum = 0;
	for (uint32_t s = 0; s < steps && good; s++)
		for (uint32_t l = 0; l < w->info.n_layers && good; l++) {
			if (w->info.layer_index[l] < 0)
				continue;
			choose(w, l, &state, ids, weights);
			for (uint32_t i = 0; i < w->info.hidden; i++)
				w->x[i] = (float)(tap_random(&state) % 1000) / 500.0f - 1.0f;
			good = step(w, l, ids, weights);
			for (uint32_t i = 0; i < w->info.hidden; i++) {
				uint32_t bits;

				memcpy(&bits, &w->y[i], sizeof bits);
				*ret_sum = *ret_sum * 31 + bits;
			}
		}
	return good;
}

static char *heat_text(void)
{
	struct moe_client *client;
	char *text;

	require(moe_open(&client, fixture.socket, NULL) == 0 && moe_query(client, MOE_DOCUMENT_HEAT, &text, NULL) == 0,
		"the heat");
	moe_close(client);
	return text;
}

static void test_cold_model(void)
{
	const struct moe_attach_params p = params(true);
	struct worker w;
	uint64_t sum;

	worker_open(&w, &p);
	ok(route(&w, 1, 1, &sum) && w.resident == 0, "without heat a warm session is a cold one");
	worker_close(&w);
}

/* Two replicas, one of them without slots: what is hot is what both have chosen. */
static void heat_up(unsigned long long seed)
{
	struct moe_attach_params p = params(false);
	struct worker a, b;
	uint64_t sum;

	worker_open(&a, &p);
	p.cache_expert_num = 0;
	worker_open(&b, &p);
	ok(route(&a, 60, seed, &sum) && route(&b, 60, seed + 1, &sum), "two replicas have worked");
	worker_close(&a);
	worker_close(&b);
}

static void test_first_steps(unsigned long long seed)
{
	const struct moe_attach_params cold = params(false), warm = params(true);
	uint64_t sums[2];
	struct worker c, w;

	worker_open(&c, &cold);
	worker_open(&w, &warm);
	ok(route(&c, FIRST_STEPS, seed, &sums[0]) && route(&w, FIRST_STEPS, seed, &sums[1]),
	   "the first steps of two more");
	ok(sums[0] == sums[1], "their results are the same, bit for bit");
	ok(w.resident > c.resident && 10 * w.resident > 7 * w.pairs, "warm %llu of %llu pairs were there, cold %llu",
	   (unsigned long long)w.resident, (unsigned long long)w.pairs, (unsigned long long)c.resident);
	worker_close(&c);
	worker_close(&w);
}

/* Of the stats document what it says of models: statistics, fills, histograms, ghosts and guesses of all sessions. */
static char *models_text(void)
{
	struct moe_client *client;
	char *text, *end;

	require(moe_open(&client, fixture.socket, NULL) == 0 && moe_query(client, MOE_DOCUMENT_STATS, &text, NULL) == 0,
		"the statistics");
	moe_close(client);
	end = strstr(text, "\"sessions\": [");
	require(strstr(text, "\"models\": [") && end && end > strstr(text, "\"models\": ["),
		"of models, then of sessions");
	*end = '\0';
	memmove(text, strstr(text, "\"models\": ["), strlen(strstr(text, "\"models\": [")) + 1);
	return text;
}

/* Dummy steps that want what nobody else does. */
static void test_dummy(void)
{
	const struct moe_attach_params p = {
		.size = sizeof p, .cache_expert_num = SLOTS, .update_expert_num = 4, .ghost_layers = 6, .predict = 4};
	char *stats, *then;
	float weights[MOE_TOPK_MAX];
	int32_t ids[MOE_TOPK_MAX];
	char *before = heat_text(), *after;
	struct worker w;
	bool good;

	worker_open(&w, &p);
	stats = models_text();
	good = moe_phase(w.session, MOE_STEP_DECODE, 1, true, NULL) == 0;
	for (uint32_t k = 0; k < w.info.topk; k++) {
		ids[k] = (int32_t)(w.info.n_experts - 1 - k);
		weights[k] = 1;
	}
	for (int i = 0; i < 50; i++)
		good &= step(&w, 0, ids, weights);
	after = heat_text();
	ok(good && strcmp(before, after) == 0, "50 dummy steps heat nothing");
	then = models_text();
	ok(strcmp(stats, then) == 0, "they are in no statistics, fills, histograms, ghosts or guesses");
	if (strcmp(stats, then) != 0)
		diag("before %s\nafter %s", stats, then);
	free(then);
	good = moe_phase(w.session, MOE_STEP_DECODE, 2, false, NULL) == 0 && step(&w, 0, ids, weights);
	free(after);
	after = heat_text();
	ok(good && strcmp(before, after) != 0, "one that is not does");
	ok(w.resident == 0, "and finds nothing in its cache that they have brought");
	then = models_text();
	ok(strcmp(stats, then) != 0, "it is in the statistics");
	free(then);
	free(stats);
	worker_close(&w);
	free(before);
	free(after);
}

/* Two ranks that cache in common, attached while a third session heats other experts. */
static void test_group(unsigned long long seed)
{
	struct moe_attach_params p = params(true);
	struct worker ranks[2], other;
	float weights[MOE_TOPK_MAX] = {0};
	int32_t ids[MOE_TOPK_MAX];
	uint64_t sum;

	p.group = 7;
	p.tp_size = 2;
	p.cache_expert_num = HOT; /* a slot more would have any of the others */
	worker_open(&ranks[0], &p);
	worker_open(&other, &(struct moe_attach_params){.size = sizeof p});
	for (uint32_t k = 0; k < other.info.topk; k++)
		ids[k] = (int32_t)(other.info.n_experts - 1 - k);
	for (uint32_t i = 0; i < 2000 && step(&other, 0, ids, weights); i++)
		;
	p.tp_rank = 1;
	worker_open(&ranks[1], &p);
	for (int i = 0; i < 2; i++) {
		ok(step(&ranks[i], 0, ids, weights) && ranks[i].resident == 0, "to rank %d they are not hot", i);
		ok(route(&ranks[i], 1, seed, &sum), "its first step");
	}
	ok(ranks[0].resident > 0 && ranks[0].resident == ranks[1].resident,
	   "both ranks have the same there, %llu pairs", (unsigned long long)ranks[0].resident);
	worker_close(&ranks[0]);
	worker_close(&ranks[1]);
	worker_close(&other);
}

static void test_forget(void)
{
	const struct moe_attach_params p = params(true);
	struct moe_client *client;
	struct moe_error err = {0};
	struct worker w;
	uint64_t sum;

	require(moe_open(&client, fixture.socket, NULL) == 0, "a client");
	ok(moe_forget_heat(client, "", &err) == 0, "forgotten %s", err.text);
	ok(moe_forget_heat(client, "nobody", &err) == -ENOENT, "of no model: %s", err.text);
	moe_close(client);
	worker_open(&w, &p);
	ok(route(&w, 1, 1, &sum) && w.resident == 0, "then nothing is warm");
	worker_close(&w);
}

int main(void)
{
	const unsigned long long seed = tap_seed();

	fixture_start(&fixture, fixture_sample(), NULL);
	test_cold_model();
	heat_up(seed);
	test_first_steps(seed + 2);
	test_dummy();
	test_group(seed + 3);
	test_forget();
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	return tap_done();
}
