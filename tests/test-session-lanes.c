/* SPDX-License-Identifier: MIT */
/*
 * Streams and lanes through the library alone, with a real daemon: its results are moe_compute's, near enough, and
 * when it is killed in the middle of passes every stream goes on and says so.
 */
#include <math.h>
#include <signal.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"

#define TOKENS 2
#define PASSES 200
#define DEATH_AFTER 50
#define TOPK_MAX 64

static struct fixture fixture;

/* On the host device, the device's memory is this. */
struct arrays {
	float *x, *y, *expected;
	_Alignas(16) int32_t ids[TOKENS * TOPK_MAX];
	_Alignas(16) float weights[TOKENS * TOPK_MAX];
};

static float *floats(uint32_t n)
{
	float *p = aligned_alloc(64, ALIGN_UP(n * sizeof *p, 64));

	if (!p)
		abort();
	return p;
}

static void arrays_init(struct arrays *a, const struct moe_session_info *info)
{
	a->x = floats(TOKENS * info->hidden);
	a->y = floats(TOKENS * info->hidden);
	a->expected = floats(TOKENS * info->hidden);
}

static void arrays_fini(struct arrays *a)
{
	free(a->x);
	free(a->y);
	free(a->expected);
}

static void arrays_fill(struct arrays *a, const struct moe_session_info *info, unsigned long long *seed)
{
	uint32_t i;

	for (i = 0; i < TOKENS * info->hidden; i++)
		a->x[i] = (float)(tap_random(seed) >> 40) / (1 << 24) - 0.5f;
	for (i = 0; i < TOKENS * info->topk; i++) {
		a->ids[i] = (int32_t)((i * 5 + tap_random(seed) % 5) % info->n_experts);
		a->weights[i] = 1.0f / (float)(1 + i % info->topk);
	}
}

/* Whether y is what was expected, within a thousandth of its largest number: device and pool compute alike, not the
 * same. */
static bool arrays_agree(const struct arrays *a, const struct moe_session_info *info)
{
	double largest = 0, worst = 0;
	uint32_t i;

	for (i = 0; i < TOKENS * info->hidden; i++) {
		const double error = fabs((double)a->y[i] - (double)a->expected[i]);

		largest = fmax(largest, fabs((double)a->expected[i]));
		worst = error > worst || isnan(error) ? error : worst;
	}
	return worst <= largest / 1000;
}

/* The first MoE layer. */
static uint32_t first_layer(const struct moe_session_info *info)
{
	uint32_t layer = 0;

	while (info->layer_index[layer] < 0)
		layer++;
	return layer;
}

static int lane_pass(struct moe_session *session, struct moe_stream *stream, struct arrays *a,
		     const struct moe_session_info *info, uint32_t layer, struct moe_error *err)
{
	const struct moe_lane_step step = {
		.size = sizeof step,
		.layer = layer,
		.tokens = TOKENS,
		.topk = info->topk,
		.stream = moe_stream_handle(stream),
		.x = (uintptr_t)a->x,
		.ids = (uintptr_t)a->ids,
		.weights = (uintptr_t)a->weights,
		.y = (uintptr_t)a->y,
	};
	int r = moe_lane_submit(session, &step, err);

	if (r == 0)
		r = moe_stream_wait(stream, 0, err);
	return r == 0 ? moe_lane_error(session, 0, err) : r;
}

static int planned_pass(struct moe_session *session, struct moe_stream *stream, struct arrays *a,
			const struct moe_session_info *info, uint32_t layer, struct moe_error *err)
{
	struct moe_plan *plan;
	struct moe_step *step;
	int r = moe_plan(session, layer, MOE_MODE_DECODE, TOKENS, info->topk, a->ids, a->weights, &plan, err);

	if (r == 0)
		r = moe_submit_on(session, plan, moe_stream_handle(stream), (uintptr_t)a->x, (uintptr_t)a->y, &step,
				  err);
	if (r == 0)
		r = moe_wait(step, NULL, 0, err);
	return r;
}

static int expect(struct moe_session *session, struct arrays *a, const struct moe_session_info *info, uint32_t layer,
		  struct moe_error *err)
{
	return moe_compute(session, layer, TOKENS, info->topk, a->ids, a->weights, a->x, a->expected, err);
}

static void test_passes(struct moe_session *session, struct moe_stream *stream)
{
	unsigned long long seed = 1;
	struct moe_session_info info;
	struct moe_error err = {0};
	struct arrays a;
	int i, planned = 0, lanes = 0;

	moe_session_info(session, &info);
	arrays_init(&a, &info);
	for (i = 0; i < PASSES; i++) {
		const uint32_t layer = first_layer(&info);

		if (i == PASSES / 2)
			ok(moe_lanes_fix(session, &err) == 0, "the caches are taken as they are");
		arrays_fill(&a, &info, &seed);
		if (expect(session, &a, &info, layer, &err) < 0)
			break;
		if (i < PASSES / 2)
			planned += planned_pass(session, stream, &a, &info, layer, &err) == 0 &&
				   arrays_agree(&a, &info);
		else
			lanes += lane_pass(session, stream, &a, &info, layer, &err) == 0 && arrays_agree(&a, &info);
	}
	ok(planned == PASSES / 2, "%d of %d steps on a stream are right: %s", planned, PASSES / 2, err.text);
	ok(lanes == PASSES / 2, "%d of %d steps on a lane are right: %s", lanes, PASSES / 2, err.text);
	arrays_fini(&a);
}

static void test_death(struct moe_session *session, struct moe_stream *stream)
{
	unsigned long long seed = 2;
	struct moe_session_info info;
	struct moe_error err = {0};
	struct arrays a;
	uint64_t began = 0;
	int i, r = 0, later;

	moe_session_info(session, &info);
	arrays_init(&a, &info);
	arrays_fill(&a, &info, &seed);
	for (i = 0; r == 0; i++) {
		if (i == DEATH_AFTER)
			kill(fixture.pid, SIGKILL);
		began = now_ns();
		r = lane_pass(session, stream, &a, &info, first_layer(&info), &err);
	}
	ok(r == -EPIPE && i > DEATH_AFTER && now_ns() - began < TAP_SOON_NS, "a killed daemon ends the pass: %s",
	   err.text);
	began = now_ns();
	later = lane_pass(session, stream, &a, &info, first_layer(&info), &err);
	ok(later == -EPIPE && now_ns() - began < TAP_SOON_NS, "and the next one at once");
	arrays_fini(&a);
}

int main(void)
{
	const struct moe_attach_params params = {.size = sizeof params, .cache_expert_num = 4, .lanes = 1};
	struct moe_client *client = NULL;
	struct moe_session *session = NULL;
	struct moe_stream *stream = NULL;
	struct moe_error err = {0};
	char lock[128];

	fixture_start(&fixture, fixture_sample(), NULL);
	require(moe_open(&client, fixture.socket, &err) == 0 && moe_attach(client, &session, &params, &err) == 0 &&
			moe_stream_new(session, &stream, &err) == 0,
		"attached, with a lane and a stream: %s", err.text);
	test_passes(session, stream);
	test_death(session, stream);
	moe_stream_free(stream);
	moe_detach(session);
	moe_close(client);
	fixture_stop(&fixture);
	snprintf(lock, sizeof lock, "%s.lock", fixture.socket);
	unlink(lock);
	rmdir(fixture.folder);
	return tap_done();
}
