/* SPDX-License-Identifier: MIT */
/*
 * lane-user - a worker on lanes: micro-batches that run all MoE layers, each with two lanes. On a GPU a micro-batch's
 * pass is captured once and replayed; on the host its steps are given to the stream anew each time.
 */
#ifndef TESTS_LANE_USER_H
#define TESTS_LANE_USER_H

#ifdef MOE_CUDA
#include <cuda.h>
#include <dlfcn.h>
#endif

#include "tests/engine-jobs.h"

#define BATCHES 2
#define MOE_LAYERS (LAYERS - 1)
#define TOPK 3

/* What a pass reads and writes, on the device and, registered, on the host. */
struct lane_data {
	float x[TOKENS * HIDDEN];
	int32_t ids[MOE_LAYERS][64]; /* of each layer, [TOKENS][TOPK] */
	float weights[MOE_LAYERS][64];
	float y[MOE_LAYERS][TOKENS * HIDDEN];
};

struct batch {
	uint32_t tokens;
	struct moe_stream *stream;
	struct device_stream *commands; /* the same one */
	struct lane_data *host;
	device_ptr device;
	void *graph; /* captured, or NULL */
};

struct user {
	struct fake *fake;
	const struct device_ops *ops;
	struct device *device;
	struct device_memory memory;
	void *host;
	bool shares_lane;  /* breaks the law of one user */
	uint64_t hit, cpu; /* pairs of the passes so far */
	struct batch batches[BATCHES];
};

#define DATA_ROOM ALIGN_UP(sizeof(struct lane_data), 4096)

/* -- graphs ------------------------------------------------------------------------------------------------------- */

#ifdef MOE_CUDA
static void *find_call(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *call = library ? dlsym(library, name) : NULL;

	if (!call)
		abort();
	return call;
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define DRIVER(call) ((__typeof__(&(call)))find_call(TEXT(call)))
#define good(result)                                                                                                   \
	do {                                                                                                           \
		if ((result) != CUDA_SUCCESS)                                                                          \
			abort();                                                                                       \
	} while (0)

/* The context is the session's, which keeps it. */
static void push_context(void)
{
	CUcontext context;

	good(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0));
	good(DRIVER(cuCtxPushCurrent)(context));
	good(DRIVER(cuDevicePrimaryCtxRelease)(0));
}

static void pop_context(void)
{
	CUcontext context;

	good(DRIVER(cuCtxPopCurrent)(&context));
}

static CUstream stream_of(const struct batch *b)
{
	return (CUstream)moe_stream_handle(b->stream);
}
#endif

static bool has_graphs(void)
{
	return strcmp(test_device(), "cuda") == 0;
}

/* -- passes ------------------------------------------------------------------------------------------------------- */

/* All MoE layers of a micro-batch, whose lanes take turns. */
static int give_pass(struct user *u, const struct batch *b, struct moe_error *err)
{
	const uint32_t first = u->shares_lane ? 0 : 2 * (uint32_t)(b - u->batches);
	uint32_t row;
	int r = 0;

	for (row = 0; row < MOE_LAYERS && r == 0; row++) {
		const struct moe_lane_step step = {
			.size = sizeof step,
			.lane = first + row % 2,
			.layer = row + 1,
			.tokens = b->tokens,
			.topk = TOPK,
			.stream = moe_stream_handle(b->stream),
			.x = b->device + offsetof(struct lane_data, x),
			.ids = b->device + offsetof(struct lane_data, ids) + row * sizeof b->host->ids[0],
			.weights = b->device + offsetof(struct lane_data, weights) + row * sizeof b->host->weights[0],
			.y = b->device + offsetof(struct lane_data, y) + row * sizeof b->host->y[0],
		};

		r = moe_lane_submit(&u->fake->session, &step, err);
	}
	return r;
}

/* Once; a framework's threads may not make calls that wait meanwhile, the library's may. */
__attribute__((unused)) static int capture(struct user *u, struct batch *b, struct moe_error *err)
{
	int r = 0;

#ifdef MOE_CUDA
	CUgraphExec exec;
	CUgraph graph;

	if (!has_graphs())
		return 0;
	push_context();
	good(DRIVER(cuStreamBeginCapture)(stream_of(b), CU_STREAM_CAPTURE_MODE_GLOBAL));
	r = give_pass(u, b, err);
	good(DRIVER(cuStreamEndCapture)(stream_of(b), &graph));
	good(DRIVER(cuGraphInstantiate)(&exec, graph, 0));
	good(DRIVER(cuGraphDestroy)(graph));
	pop_context();
	b->graph = exec;
#endif
	return r;
}

static int replay(struct user *u, struct batch *b, struct moe_error *err)
{
#ifdef MOE_CUDA
	if (b->graph) {
		push_context();
		good(DRIVER(cuGraphLaunch)((CUgraphExec)b->graph, stream_of(b)));
		pop_context();
		return 0;
	}
#endif
	return give_pass(u, b, err);
}

static void new_numbers(const struct batch *b)
{
	uint32_t i, row;

	for (i = 0; i < b->tokens * HIDDEN; i++)
		b->host->x[i] = (float)plain_random(&seed, 1);
	for (row = 0; row < MOE_LAYERS; row++) {
		for (i = 0; i < b->tokens * TOPK; i++) {
			/* One expert stands once in a token. */
			b->host->ids[row][i] = below(9) ? (int32_t)(4 * (i % TOPK) + below(4)) : -1;
			b->host->weights[row][i] = (float)plain_random(&seed, 1);
		}
	}
}

/* The numbers, the pass and its results: all given to the stream, nobody waits. */
static int give_numbers(struct user *u, struct batch *b, struct moe_error *err)
{
	const uint64_t in = offsetof(struct lane_data, y);
	int r;

	u->ops->copy_to_device(b->commands, &(struct device_copy){b->device, b->host, in, in, 1}, 1);
	r = replay(u, b, err);
	u->ops->copy_to_host(b->commands, b->host->y, b->device + in, sizeof b->host->y);
	return r;
}

static int start_pass(struct user *u, struct batch *b, struct moe_error *err)
{
	new_numbers(b);
	return give_numbers(u, b, err);
}

static bool has_pairs(const int32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= 0)
			return true;
	return false;
}

/* The pass step by step, planned anew: how many layers differ in any bit. -1: a step has failed. */
static int count_differing(struct user *u, const struct batch *b, enum moe_mode mode)
{
	struct moe_session *s = &u->fake->session;
	float y[TOKENS * HIDDEN];
	uint32_t row;
	int differing = 0;

	for (row = 0; row < MOE_LAYERS; row++) {
		struct moe_error err = {0};
		struct moe_plan *plan;
		struct moe_step *step;
		int r;

		if (!has_pairs(b->host->ids[row], b->tokens * TOPK))
			continue;
		r = moe_plan(s, row + 1, mode, b->tokens, TOPK, b->host->ids[row], b->host->weights[row], &plan, &err);
		if (r == 0)
			r = moe_submit(s, plan, b->host->x, &step, &err);
		if (r == 0)
			r = moe_wait(step, y, 0, &err);
		if (r < 0) {
			diag("%s", err.text);
			return -1;
		}
		differing += memcmp(y, b->host->y[row], b->tokens * HIDDEN * sizeof(float)) != 0;
	}
	return differing;
}

/* How many layers are further from plain arithmetic than they may be. */
__attribute__((unused)) static int count_wrong(struct user *u, const struct batch *b)
{
	uint32_t row;
	int wrong = 0;

	for (row = 0; row < MOE_LAYERS; row++) {
		struct job job = {.layer = row + 1, .tokens = b->tokens, .topk = TOPK};

		memcpy(job.x, b->host->x, sizeof job.x);
		memcpy(job.ids, b->host->ids[row], b->tokens * TOPK * sizeof *job.ids);
		memcpy(job.weights, b->host->weights[row], b->tokens * TOPK * sizeof *job.weights);
		wrong += job_error(u->fake, &job, b->host->y[row]) > 1;
	}
	return wrong;
}

/* The end of what start_pass has given: the streams', or the lanes', first error. */
static int end_pass(struct user *u, struct batch *b, struct moe_error *err)
{
	const uint32_t first = 2 * (uint32_t)(b - u->batches);
	int r = moe_stream_wait(b->stream, 0, err), lane;

	for (uint32_t i = 0; i < 2; i++) {
		lane = moe_lane_error(&u->fake->session, first + i, r == 0 ? err : NULL);
		r = r == 0 ? lane : r;
	}
	return r;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static struct moe_attach_params lane_params(void)
{
	struct moe_attach_params p = default_params();

	p.lanes = 2 * BATCHES;
	p.lane_tokens = TOKENS;
	return p;
}

static void user_init(struct user *u, const struct moe_attach_params *params)
{
	struct moe_error err = {0};
	uint32_t i;

	*u = (struct user){.fake = open_fake(params)};
	u->ops = u->fake->session.engine->ops;
	u->device = u->fake->session.engine->device;
	u->host = fake_map(BATCHES * DATA_ROOM);
	if (u->ops->alloc(u->device, BATCHES * DATA_ROOM, &u->memory, &err) < 0 ||
	    u->ops->host_register(u->device, u->host, BATCHES * DATA_ROOM, true, &err) < 0)
		abort();
	for (i = 0; i < BATCHES; i++) {
		struct batch *b = &u->batches[i];

		b->tokens = 1 + i * (1 + below(TOKENS - 1));
		b->host = (struct lane_data *)((uint8_t *)u->host + i * DATA_ROOM);
		b->device = u->memory.base + i * DATA_ROOM;
		if (moe_stream_new(&u->fake->session, &b->stream, &err) < 0 ||
		    u->ops->stream_borrow(u->device, moe_stream_handle(b->stream), false, &b->commands, &err) < 0)
			abort();
	}
}

static void user_fini(struct user *u)
{
	for (uint32_t i = 0; i < BATCHES; i++) {
		struct batch *b = &u->batches[i];

#ifdef MOE_CUDA
		if (b->graph) {
			push_context();
			good(DRIVER(cuStreamSynchronize)(stream_of(b)));
			good(DRIVER(cuGraphExecDestroy)((CUgraphExec)b->graph));
			pop_context();
		}
#endif
		u->ops->stream_return(b->commands);
		moe_stream_free(b->stream);
	}
	u->ops->free(u->device, &u->memory);
	fake_free(u->fake);
	munmap(u->host, BATCHES * DATA_ROOM);
}

#endif
