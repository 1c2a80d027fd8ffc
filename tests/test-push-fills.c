/* SPDX-License-Identifier: MIT */
/*
 * Pushed FILLs that fail, guesses, and what pushing takes: the library with a real daemon, both on the simulated
 * driver. A copy that the daemon's driver refuses fails its step and those that count on it, and no other; an error
 * that ends the daemon's context ends pushing, and nothing else.
 */
#include <jansson.h>
#include <math.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"

#define SLOTS 4
#define HIDDEN 128
#define TOPK_MAX 8

static struct fixture fixture;
static struct moe_client *client;
static struct moe_session_info info;
static uint32_t layer;

/* Only the daemon's driver has the knobs. */
static void daemon_begin(const char *knob, const char *value, const char *delay)
{
	struct moe_error err = {0};

	setenv(knob, value, 1);
	setenv("CUSIM_DELAY", delay, 1);
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "2", "--writable-weights", "--push-cuda", NULL});
	unsetenv(knob);
	unsetenv("CUSIM_DELAY");
	require(moe_open(&client, fixture.socket, &err) == 0, "connected: %s", err.text);
}

static void daemon_end(void)
{
	client = moe_close(client);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
}

static struct moe_session *attach(enum moe_fill fill, struct moe_error *err)
{
	const struct moe_attach_params params = {.size = sizeof params,
						 .device = "cuda",
						 .fill = fill,
						 .cache_expert_num = SLOTS,
						 .update_expert_num = 2};
	struct moe_session *session = NULL;

	if (moe_attach(client, &session, &params, err) < 0)
		return NULL;
	moe_session_info(session, &info);
	for (layer = 0; info.layer_index[layer] < 0;)
		layer++;
	return session;
}

/* -- steps -------------------------------------------------------------------------------------------------------- */

struct work {
	float x[HIDDEN], y[HIDDEN], expected[HIDDEN], weights[TOPK_MAX];
	int32_t ids[TOPK_MAX];
	struct moe_step *step;
};

/* One token that asks for the experts from `first` on. */
static void work_init(struct work *w, struct moe_session *session, int32_t first)
{
	for (uint32_t i = 0; i < info.hidden; i++)
		w->x[i] = sinf((float)i);
	for (uint32_t i = 0; i < info.topk; i++) {
		w->ids[i] = first + (int32_t)i;
		w->weights[i] = 1.0f / (float)(1 + i);
	}
	require(info.hidden <= HIDDEN && info.topk <= TOPK_MAX &&
			moe_compute(session, layer, 1, info.topk, w->ids, w->weights, w->x, w->expected, NULL) == 0,
		"what is expected");
}

static int work_submit(struct work *w, struct moe_session *session, uint32_t *ret_copies, struct moe_error *err)
{
	struct moe_plan_view view;
	struct moe_plan *plan;
	int r = moe_plan(session, layer, MOE_MODE_DECODE, 1, info.topk, w->ids, w->weights, &plan, err);

	if (r < 0)
		return r;
	moe_plan_view(plan, &view);
	*ret_copies = view.n_copies;
	return moe_submit(session, plan, w->x, &w->step, err);
}

static bool work_is_right(const struct work *w)
{
	double worst = 0, largest = 0;

	for (uint32_t i = 0; i < info.hidden; i++) {
		const double error = fabs((double)w->y[i] - (double)w->expected[i]);

		worst = error > worst || isnan(error) ? error : worst;
		largest = fmax(largest, fabs((double)w->expected[i]));
	}
	return worst <= largest * 0x1p-7;
}

static int work_run(struct work *w, struct moe_session *session, uint32_t *ret_copies, struct moe_error *err)
{
	int r = work_submit(w, session, ret_copies, err);

	return r == 0 ? moe_wait(w->step, w->y, 0, err) : r;
}

/* -- failures ----------------------------------------------------------------------------------------------------- */

static void test_fill(void)
{
	struct moe_error err = {0};
	struct moe_session *session;
	struct work w;
	uint32_t copies;
	int r[4], again;

	daemon_begin("CUSIM_FAIL", "cuMemcpyBatchAsync:3", "0");
	session = attach(MOE_FILL_PUSH, &err);
	require(session != NULL, "attached: %s", err.text);
	for (uint32_t i = 0; i < SLOTS; i++)
		r[i] = moe_fill(session, layer, i, i, i == 2 ? &err : NULL);
	ok(r[0] == 0 && r[1] == 0 && r[2] == -ENOMEM && r[3] == 0, "of four fills the third fails alone: %s", err.text);
	ok(moe_nop(session, NULL) == 0, "the session goes on");
	again = moe_fill(session, layer, 2, 2, &err);
	ok(again == 0, "and comes when it is asked for again: %d", again);
	work_init(&w, session, 0);
	again = work_run(&w, session, &copies, &err);
	ok(again == 0 && copies == 0 && work_is_right(&w), "a step on these slots is right: %d, %u copies", again,
	   copies);
	moe_detach(session);
	daemon_end();
}

/* Slow copies: the second step is there before the first one's have failed, and reads what they were to bring. */
static void test_steps(void)
{
	struct moe_error err = {0}, second = {0};
	struct moe_session *session;
	struct work a, b;
	uint32_t copies[3];
	int r[3];

	daemon_begin("CUSIM_FAIL", "cuMemcpyBatchAsync:2", "50000");
	session = attach(MOE_FILL_PUSH, &err);
	require(session != NULL, "attached: %s", err.text);
	work_init(&a, session, 0);
	work_init(&b, session, 0);
	require(work_submit(&a, session, &copies[0], &err) == 0 && work_submit(&b, session, &copies[1], &err) == 0,
		"two steps: %s", err.text);
	r[0] = moe_wait(a.step, a.y, 0, &err);
	r[1] = moe_wait(b.step, b.y, 0, &second);
	ok(copies[0] == 2 && r[0] == -ENOMEM, "a step one of whose copies fails: %s", err.text);
	ok(r[1] == -ENOMEM || (r[1] == 0 && work_is_right(&b)), "one that counts on it: %d: %s", r[1], second.text);
	for (int i = 0; i < 3; i++) {
		r[2] = work_run(&a, session, &copies[2], &err);
		ok(r[2] == 0 && work_is_right(&a), "later steps fill and are right: %d, %u copies", r[2], copies[2]);
	}
	moe_detach(session);
	daemon_end();
}

/* The closing FILL is refused as well: then the session is at its end, and says so. */
static void test_no_way(void)
{
	struct moe_error err = {0};
	struct moe_session *session;
	uint64_t began;
	int r = 0, i;

	daemon_begin("CUSIM_FAIL", "cuEventCreate:21+", "0");
	session = attach(MOE_FILL_PUSH, &err);
	require(session != NULL, "attached: %s", err.text);
	began = now_ns();
	for (i = 0; i < 1000 && r == 0; i++)
		r = moe_fill(session, layer, (uint32_t)i % info.n_experts, (uint32_t)i % SLOTS, &err);
	ok(r < 0 && now_ns() - began < TAP_SOON_NS,
	   "where no copy can be made any more one of %d fills fails, soon: %s", i, err.text);
	ok(moe_nop(session, NULL) < 0, "and the session is at its end");
	moe_detach(session);
	daemon_end();
}

static void test_lost_gpu(void)
{
	struct moe_error err = {0}, other = {0}, third = {0};
	struct moe_session *sessions[2], *puller;
	struct work w;
	uint32_t copies;
	int r = 0, r2;

	daemon_begin("CUSIM_FAIL", "run:12", "0");
	sessions[0] = attach(MOE_FILL_PUSH, &err);
	sessions[1] = attach(MOE_FILL_PUSH, &err);
	require(sessions[0] && sessions[1], "two sessions: %s", err.text);
	for (uint32_t i = 0; i < 20 && r == 0; i++)
		r = moe_fill(sessions[0], layer, i, i % SLOTS, &err);
	ok(r == -EREMOTEIO && strstr(err.text, "push nothing more"), "an error that ends the context: %s", err.text);
	r2 = moe_fill(sessions[1], layer, 0, 0, &other);
	ok(r2 == -EREMOTEIO, "ends pushing for others on this GPU as well: %s", other.text);
	ok(!attach(MOE_FILL_PUSH, &third) && strstr(third.text, "is lost to this process"), "who comes is told why: %s",
	   third.text);
	puller = attach(MOE_FILL_PULL, &err);
	require(puller != NULL, "one that pulls: %s", err.text);
	work_init(&w, puller, 0);
	r = work_run(&w, puller, &copies, &err);
	ok(r == 0 && copies > 0 && work_is_right(&w), "the daemon serves who pulls: %d", r);
	moe_detach(puller);
	moe_detach(sessions[0]);
	moe_detach(sessions[1]);
	daemon_end();
}

/* -- guesses ------------------------------------------------------------------------------------------------------ */

/* Four experts are guessed: of them the third fails, or the last ones are taken back unless they have come. */
static void guess(const char *knob, bool cancels)
{
	const struct moe_copy copies[] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
	const int32_t kept[] = {0, 1};
	struct moe_error err = {0};
	struct moe_session *session;
	struct moe_step *step;
	struct work w;
	uint32_t filled;
	int r;

	daemon_begin("CUSIM_FAIL", knob, cancels ? "20000" : "0");
	session = attach(MOE_FILL_PUSH, &err);
	require(session && moe_prefetch(session, layer, copies, 4, &step, &err) == 0, "guessed: %s", err.text);
	r = cancels ? moe_cancel(step, 2, kept, &err) : 0;
	ok(r == 0, "%s", cancels ? "what has not come is taken back" : "they come");
	r = moe_wait(step, NULL, 0, &err);
	ok(r == (cancels                  ? -ECANCELED
		 : strcmp(knob, "none:1") ? -ENOMEM
					  : 0) ||
		   (cancels && r == 0),
	   "they end: %d %s", r, r < 0 ? err.text : "");
	work_init(&w, session, 0);
	r = work_run(&w, session, &filled, &err);
	ok(r == 0 && work_is_right(&w) && filled <= 2, "a step on them is right: %d, %u more copies", r, filled);
	if (!cancels)
		ok(filled == (strcmp(knob, "none:1") ? 1 : 0), "and has what came");
	moe_detach(session);
	daemon_end();
}

/* -- time --------------------------------------------------------------------------------------------------------- */

/* Of all layers together: what single layers and sessions have is in it. */
static uint64_t count_ns(const char *key)
{
	char *text = NULL;
	json_t *stats;
	uint64_t ns;

	require(moe_query(client, MOE_DOCUMENT_STATS, &text, NULL) == 0, "stats");
	stats = json_loads(text, 0, NULL);
	ns = (uint64_t)json_integer_value(
		json_object_get(json_object_get(json_array_get(json_object_get(stats, "models"), 0), "totals"), key));
	json_decref(stats);
	free(text);
	return ns;
}

/* The copies of a step run one after the other, and each is counted by itself: not from when it was asked for. */
static void test_time(void)
{
	struct moe_error err = {0};
	struct moe_session *session;
	uint64_t began, took, counted;
	struct moe_plan *plan;
	struct work w;
	int r;

	daemon_begin("CUSIM_SEED", "1", "4000");
	session = attach(MOE_FILL_PUSH, &err);
	require(session != NULL, "attached: %s", err.text);
	began = now_ns();
	for (int32_t first = 0; first + (int32_t)info.topk <= (int32_t)info.n_experts; first += (int32_t)info.topk) {
		work_init(&w, session, first);
		r = moe_plan(session, layer, MOE_MODE_FULL, 1, info.topk, w.ids, w.weights, &plan, &err);
		if (r == 0)
			r = moe_submit(session, plan, w.x, &w.step, &err);
		if (r == 0)
			r = moe_wait(w.step, w.y, 0, &err);
		require(r == 0, "a step: %s", err.text);
	}
	took = now_ns() - began;
	counted = count_ns("copy_ns");
	ok(counted > took / 100 && counted <= took, "copies took %.1f ms of %.1f", (double)counted / 1e6,
	   (double)took / 1e6);
	moe_detach(session);
	daemon_end();
}

int main(void)
{
	test_fill();
	test_steps();
	test_no_way();
	test_lost_gpu();
	guess("none:1", false);
	guess("cuMemcpyBatchAsync:3", false);
	guess("none:1", true);
	test_time();
	return tap_done();
}
