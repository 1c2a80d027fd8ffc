/* SPDX-License-Identifier: MIT */
#include "tools/bench/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/util.h"

#define MIB (1ull << 20)
#define HOST_MAX (1ull << 30)
#define PATIENCE_NS 60000000000ull /* with one burst; the longest should take a fraction of a second */

/* -- opening ------------------------------------------------------------------------------------------------------ */

static void find_more(struct gpu *g)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *found[3];

	if (!library)
		return;
	found[0] = dlsym(library, "cuMemAllocManaged");
	found[1] = dlsym(library, "cuMemFree_v2");
	found[2] = dlsym(library, "cuMemPrefetchAsync_v2");
	_Static_assert(sizeof found == sizeof g->managed, "one pointer each, in this order");
	if (found[0] && found[1] && found[2])
		memcpy(&g->managed, found, sizeof found);
	g->simulated = dlsym(library, "cusim_calls") != NULL;
}

static int open_device(struct gpu *g, struct moe_error *err)
{
	const char *which;
	int r;

	if (strncmp(g->name, "cuda", 4) != 0 || (g->name[4] && g->name[4] != ':'))
		return moe_error_set(err, -EINVAL, "--device %s: expected cuda or cuda:N", g->name);
	which = g->name[4] ? g->name + 5 : "";
	r = device_cuda.open(&g->device, which, err);
	if (r < 0)
		return r;
	g->cu = g->device->cu;
	r = cuda_enter(g->device);
	return r < 0 ? gpu_error(g, r, "its context cannot be used", err) : 0;
}

/* Shared, as the library demands of all memory that it registers. */
static int make_host(struct gpu *g, struct moe_error *err)
{
	const uint64_t bytes = g->host_bytes + GPU_PAGE;
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (map == MAP_FAILED)
		return moe_error_sys(err, -errno, "no memory for %llu MiB to copy from: see --bytes",
				     (unsigned long long)(bytes / MIB));
	g->host = map;
	madvise(map, bytes, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < g->host_bytes / 8; i++) {
		const uint64_t word = (i + 1) * 0x9e3779b97f4a7c15u;

		memcpy(g->host + 8 * i, &word, sizeof word);
	}
	g->words = (struct gpu_words *)(g->host + g->host_bytes);
	r = device_cuda.host_register(g->device, map, bytes, true, err);
	if (r == 0)
		r = cuda_find(g->device, map, bytes, &g->host_at);
	return r;
}

static int make_rest(struct gpu *g, struct moe_error *err)
{
	const struct device_ops *ops = &device_cuda;
	int r = ops->alloc(g->device, g->o->bytes, &g->memory, err);

	if (r == 0)
		r = ops->alloc(g->device, GPU_SUMS_BLOCKS * 256 * sizeof(uint32_t), &g->sums, err);
	if (r == 0)
		r = ops->stream_new(g->device, DEVICE_PRIORITY_HIGH, &g->stream, err);
	for (uint32_t i = 0; i < GPU_EVENTS && r == 0; i++)
		r = ops->event_new(g->device, &g->events[i], err);
	return r;
}

int gpu_open(struct gpu *g, const struct options *o, struct moe_error *err)
{
	int processors = 1, r;

	*g = (struct gpu){
		.o = o, .name = o->device ? o->device : "cuda", .absent = json_array(), .failed = json_array()};
	if (o->samples > GPU_ROUNDS_MAX)
		return moe_error_set(err, -EINVAL, "--samples %u: device takes at most %d rounds", o->samples,
				     GPU_ROUNDS_MAX);
	if (o->bytes < 4 * MIB)
		return moe_error_set(err, -EINVAL, "--bytes %llu: device needs 4M at least",
				     (unsigned long long)o->bytes);
	r = open_device(g, err);
	if (r < 0)
		return r;
	find_more(g);
	g->cu->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->device->id);
	g->processors = (uint32_t)processors;
	g->blocks = g->simulated ? 2 : MIN(8 * g->processors, GPU_SUMS_BLOCKS);
	g->host_bytes = MIN(o->bytes / 4, HOST_MAX) / (2 * GPU_PAGE) * 2 * GPU_PAGE;
	r = make_host(g, err);
	return r < 0 ? r : make_rest(g, err);
}

void gpu_close(struct gpu *g)
{
	json_decref(g->absent);
	json_decref(g->failed);
	if (g->device) {
		for (uint32_t i = 0; i < GPU_EVENTS; i++)
			device_cuda.event_free(g->events[i]);
		device_cuda.stream_free(g->stream);
		device_cuda.free(g->device, &g->memory);
		device_cuda.free(g->device, &g->sums);
		cuda_leave(g->device);
		device_cuda.close(g->device);
	}
	if (g->host)
		munmap(g->host, g->host_bytes + GPU_PAGE);
	*g = (struct gpu){0};
}

int gpu_error(const struct gpu *g, int r, const char *what, struct moe_error *err)
{
	const char *failure = device_cuda.failure(g->device);

	if (failure)
		return moe_error_set(err, r, "%s: %s", what, failure);
	return moe_error_sys(err, r, "%s: %s", g->device->name, what);
}

void gpu_note(json_t *list, const char *what, const char *why)
{
	json_array_append_new(list, json_pack("{s:s, s:s}", "what", what, "why", why));
}

/* -- time --------------------------------------------------------------------------------------------------------- */

int gpu_settle(struct gpu *g, struct moe_error *err)
{
	int r = device_cuda.event_record(g->events[0], g->stream);

	if (r == 0)
		r = device_cuda.event_wait(g->events[0], PATIENCE_NS);
	return r < 0 ? gpu_error(g, r, "its stream does not come to an end", err) : 0;
}

static int give_burst(struct gpu *g, bool each, gpu_work *work, void *arg, uint32_t n)
{
	int r = device_cuda.event_record(g->events[0], g->stream);

	for (uint32_t i = 0; i < n && r == 0; i++) {
		r = work(arg, i);
		if (r == 0 && (each || i == n - 1))
			r = device_cuda.event_record(g->events[each ? i + 1 : 1], g->stream);
	}
	return r;
}

/* Whatever happens on the way, the gate is opened. */
static int run_burst(struct gpu *g, bool gated, bool each, gpu_work *work, void *arg, uint32_t n, struct moe_error *err)
{
	const struct device_ops *ops = &device_cuda;
	int r = gated ? ops->stream_wait_word(g->stream, &g->words->gate, ++g->turn) : 0;

	if (r == 0)
		r = give_burst(g, each, work, arg, n);
	ops->word_write(&g->words->gate, g->turn);
	if (r == 0)
		r = ops->event_wait(g->events[each ? n : 1], PATIENCE_NS);
	if (r < 0) /* what comes after must not stand behind a hop that nobody answers */
		ops->word_write(&g->words->answer, g->turn);
	return r < 0 ? gpu_error(g, r, "a burst does not come to an end", err) : 0;
}

int gpu_time(struct gpu *g, bool gated, gpu_work *work, void *arg, uint32_t n, double *ret_ns, struct moe_error *err)
{
	int r = run_burst(g, gated, false, work, arg, n, err);

	if (r == 0)
		*ret_ns = MAX((double)device_cuda.event_elapsed_ns(g->events[0], g->events[1]), 1.0) / n;
	return r;
}

int gpu_time_each(struct gpu *g, gpu_work *work, void *arg, uint32_t n, double *ret_ns, struct moe_error *err)
{
	int r = run_burst(g, true, true, work, arg, n, err);

	for (uint32_t i = 0; i < n && r == 0; i++)
		ret_ns[i] = (double)device_cuda.event_elapsed_ns(g->events[i], g->events[i + 1]);
	return r;
}

/* -- rounds ------------------------------------------------------------------------------------------------------- */

int gpu_rounds(struct gpu_way *ways, uint32_t n, void *arg, uint32_t rounds, struct moe_error *err)
{
	double unused;
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i++)
		r = ways[i].measure ? ways[i].measure(arg, &unused, err) : 0;
	for (uint32_t round = 0; round < rounds; round++)
		for (uint32_t i = 0; i < n && r == 0; i++)
			r = ways[i].measure ? ways[i].measure(arg, &ways[i].ns[round], err) : 0;
	return r;
}

json_t *gpu_rate_json(struct gpu_way *way, uint32_t rounds, double amount)
{
	struct summary s;

	if (!way->measure)
		return json_null();
	s = summarise(way->ns, rounds);
	return json_pack("{s:f, s:f}", "best", amount / s.best, "median", amount / s.p50);
}

double gpu_best(const struct gpu_way *way, uint32_t rounds)
{
	double best = 0;

	for (uint32_t i = 0; way->measure && i < rounds; i++)
		best = i == 0 ? way->ns[i] : MIN(best, way->ns[i]);
	return best;
}

json_t *gpu_us_json(double *ns, uint32_t n)
{
	const struct summary s = summarise(ns, n);

	return json_pack("{s:f, s:f, s:f}", "best", s.best / 1e3, "p50", s.p50 / 1e3, "p99", s.p99 / 1e3);
}
