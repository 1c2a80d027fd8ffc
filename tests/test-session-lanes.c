/* SPDX-License-Identifier: MIT */
/*
 * Streams and lanes through the library alone, with a real daemon: its results are moe_compute's, near enough, and
 * when it is killed in the middle of passes every stream goes on and says so. On the host device, or with TEST_ON_GPU
 * on the GPU that there is.
 */
#include <math.h>
#include <signal.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"
#ifdef TEST_ON_GPU
#include "tools/worker/cuda/gpu.h"
#endif

#define TOKENS 2
#define PASSES 200
#define DEATH_AFTER 50
#define TOPK_MAX 64
#ifdef TEST_ON_GPU
#define TOLERANCE 0x1p-7
#else
#define TOLERANCE 0.001
#endif

static struct fixture fixture;

/* -- the device's memory ------------------------------------------------------------------------------------------ */

/* As the host sees it and as the device does. */
struct array {
	void *host;
	uint64_t device, bytes;
};

#ifdef TEST_ON_GPU
static struct gpu *gpu;

static void array_init(struct array *a, uint64_t bytes)
{
	struct moe_error err;

	a->bytes = bytes;
	if ((!gpu && gpu_open(&gpu, "cuda", &err) < 0) || gpu_host(gpu, bytes, &a->host, &err) < 0 ||
	    gpu_alloc(gpu, bytes, &a->device, &err) < 0)
		abort();
}

static void array_fini(struct array *a)
{
	gpu = gpu_close(gpu);
}

static void array_send(const struct array *a)
{
	gpu_to_device(gpu, a->device, a->host, a->bytes);
	if (gpu_wait(gpu, NULL) < 0)
		abort();
}

static void array_fetch(const struct array *a)
{
	gpu_to_host(gpu, a->host, a->device, a->bytes);
	if (gpu_wait(gpu, NULL) < 0)
		abort();
}
#else
static void array_init(struct array *a, uint64_t bytes)
{
	a->bytes = bytes;
	a->host = aligned_alloc(64, ALIGN_UP(bytes, 64));
	if (!a->host)
		abort();
	a->device = (uintptr_t)a->host;
}

static void array_fini(struct array *a)
{
	free(a->host);
}

static void array_send(const struct array *a)
{
}

static void array_fetch(const struct array *a)
{
}
#endif

struct arrays {
	struct array on_x, on_y, on_ids, on_weights;
	float *x, *y, *weights, *expected;
	int32_t *ids;
};

static void arrays_init(struct arrays *a, const struct moe_session_info *info)
{
	array_init(&a->on_x, TOKENS * info->hidden * sizeof(float));
	array_init(&a->on_y, TOKENS * info->hidden * sizeof(float));
	array_init(&a->on_ids, TOKENS * TOPK_MAX * sizeof(int32_t));
	array_init(&a->on_weights, TOKENS * TOPK_MAX * sizeof(float));
	a->x = a->on_x.host;
	a->y = a->on_y.host;
	a->ids = a->on_ids.host;
	a->weights = a->on_weights.host;
	a->expected = calloc(TOKENS * info->hidden, sizeof *a->expected);
	if (!a->expected)
		abort();
}

static void arrays_send(const struct arrays *a)
{
	array_send(&a->on_x);
	array_send(&a->on_ids);
	array_send(&a->on_weights);
}

static void arrays_fini(struct arrays *a)
{
	array_fini(&a->on_x);
	array_fini(&a->on_y);
	array_fini(&a->on_ids);
	array_fini(&a->on_weights);
	free(a->expected);
}

/* -- passes ------------------------------------------------------------------------------------------------------- */

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

/* Whether y is what was expected, near enough: device and pool compute alike, not the same, and kernels of either may
 * round activations to BF16. */
static bool arrays_agree(const struct arrays *a, const struct moe_session_info *info)
{
	double largest = 0, worst = 0;
	uint32_t i;

	for (i = 0; i < TOKENS * info->hidden; i++) {
		const double error = fabs((double)a->y[i] - (double)a->expected[i]);

		largest = fmax(largest, fabs((double)a->expected[i]));
		worst = error > worst || isnan(error) ? error : worst;
	}
	return worst <= largest * TOLERANCE;
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
		.x = a->on_x.device,
		.ids = a->on_ids.device,
		.weights = a->on_weights.device,
		.y = a->on_y.device,
	};
	int r;

	arrays_send(a);
	r = moe_lane_submit(session, &step, err);
	if (r == 0)
		r = moe_stream_wait(stream, 0, err);
	array_fetch(&a->on_y);
	return r == 0 ? moe_lane_error(session, 0, err) : r;
}

static int planned_pass(struct moe_session *session, struct moe_stream *stream, struct arrays *a,
			const struct moe_session_info *info, uint32_t layer, struct moe_error *err)
{
	struct moe_plan *plan;
	struct moe_step *step;
	int r = moe_plan(session, layer, MOE_MODE_DECODE, TOKENS, info->topk, a->ids, a->weights, &plan, err);

	arrays_send(a);
	if (r == 0)
		r = moe_submit_on(session, plan, moe_stream_handle(stream), a->on_x.device, a->on_y.device, &step, err);
	if (r == 0)
		r = moe_wait(step, NULL, 0, err);
	array_fetch(&a->on_y);
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
	struct moe_attach_params params = {.size = sizeof params, .cache_expert_num = 4, .lanes = 1};
	struct moe_client *client = NULL;
	struct moe_session *session = NULL;
	struct moe_stream *stream = NULL;
	struct moe_error err = {0};
	char lock[128];

#ifdef TEST_ON_GPU
	params.device = "cuda";
	params.fill = MOE_FILL_PULL;
#endif
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--writable-weights", NULL});
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
