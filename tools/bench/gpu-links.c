/* SPDX-License-Identifier: MIT */
/*
 * What the link to a GPU carries, without the library: pinned memory by one copy for each piece, or by one call for
 * all of them; managed memory that is brought over (for comparison: the library has no such mode); and a kernel that
 * reads registered host memory where it is.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/gpu.h"

#define MIB (1ull << 20)
#define UNIT_BYTES (256 * MIB) /* of one burst: several milliseconds */
#define PIECES_MAX 64

struct links {
	struct gpu *g;
	uint64_t bytes; /* of a piece */
	uint32_t pieces;
	CUdeviceptr managed;
};

static uint64_t unit_of(const struct links *l)
{
	return l->bytes * l->pieces;
}

/* -- ways --------------------------------------------------------------------------------------------------------- */

static int give_pinned(void *arg, uint32_t i)
{
	const struct links *l = arg;
	struct gpu *g = l->g;
	int r = 0;

	for (uint32_t piece = 0; piece < l->pieces && r == 0; piece++)
		r = CUDA_GIVE(g->device, cuMemcpyHtoDAsync, g->memory.base + piece * l->bytes,
			      g->host + piece * l->bytes, l->bytes, g->stream->stream);
	return r;
}

static int give_batched(void *arg, uint32_t i)
{
	const struct links *l = arg;
	struct device_copy copies[PIECES_MAX];

	for (uint32_t piece = 0; piece < l->pieces; piece++)
		copies[piece] = (struct device_copy){l->g->memory.base + piece * l->bytes,
						     l->g->host + piece * l->bytes, l->bytes, l->bytes, 1};
	return device_cuda.copy_to_device(l->g->stream, copies, l->pieces);
}

static int give_read(void *arg, uint32_t i)
{
	const struct links *l = arg;

	return gpu_give_read(l->g, l->g->host_at, unit_of(l));
}

static int migrate(const struct links *l, bool home)
{
	struct gpu *g = l->g;
	const CUmemLocation to = home ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
				      : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->device->id};

	return cuda_result(g->device, g->managed.prefetch(l->managed, unit_of(l), to, 0, g->stream->stream),
			   "cuMemPrefetchAsync");
}

static int give_migration(void *arg, uint32_t i)
{
	return migrate(arg, false);
}

static int time_pinned(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_time(((struct links *)arg)->g, true, give_pinned, arg, 1, ret_ns, err);
}

static int time_batched(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_time(((struct links *)arg)->g, true, give_batched, arg, 1, ret_ns, err);
}

static int time_read(void *arg, double *ret_ns, struct moe_error *err)
{
	return gpu_time(((struct links *)arg)->g, true, give_read, arg, 1, ret_ns, err);
}

static int time_migration(void *arg, double *ret_ns, struct moe_error *err)
{
	struct links *l = arg;
	int r = migrate(l, true);

	if (r == 0)
		r = gpu_settle(l->g, err);
	else
		gpu_error(l->g, r, "managed memory does not go back", err);
	return r < 0 ? r : gpu_time(l->g, false, give_migration, l, 1, ret_ns, err);
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* What a way has brought to `at` is what was to be brought. */
static int check_copies(struct links *l, const struct gpu_way *way, CUdeviceptr at, struct moe_error *err)
{
	struct gpu *g = l->g;
	uint8_t *landing = g->host + g->host_bytes / 2;
	const struct device_copy wipe = {g->memory.base, landing, unit_of(l), unit_of(l), 1};
	double unused;
	int r;

	memset(landing, 0xa5, unit_of(l));
	r = device_cuda.copy_to_device(g->stream, &wipe, 1);
	if (r == 0)
		r = gpu_settle(g, err);
	if (r == 0)
		r = way->measure(l, &unused, err);
	if (r == 0)
		r = device_cuda.copy_to_host(g->stream, landing, at, unit_of(l));
	if (r == 0)
		r = gpu_settle(g, err);
	if (r < 0)
		return r;
	return memcmp(landing, g->host, unit_of(l)) == 0
		       ? 0
		       : moe_error_set(err, -EBADMSG, "%s copies of %llu bytes: what has come is not what was sent",
				       way->name, (unsigned long long)l->bytes);
}

static int check_read(struct links *l, struct moe_error *err)
{
	uint32_t found, expected = 0;
	double unused;
	int r = time_read(l, &unused, err);

	if (r == 0)
		r = gpu_read_sum(l->g, &found, err);
	for (uint64_t i = 0; i < unit_of(l); i += sizeof expected)
		expected += *(const uint32_t *)(l->g->host + i);
	if (r == 0 && found != expected)
		r = moe_error_set(err, -EBADMSG, "a kernel that reads host memory: sum %#x; expected %#x", found,
				  expected);
	return r;
}

static int check_ways(struct links *l, const struct gpu_way *ways, struct moe_error *err)
{
	int r = check_copies(l, &ways[0], l->g->memory.base, err);

	if (r == 0 && ways[1].measure)
		r = check_copies(l, &ways[1], l->g->memory.base, err);
	if (r == 0 && ways[3].measure)
		r = check_copies(l, &ways[3], l->managed, err);
	return r == 0 ? check_read(l, err) : r;
}

/* -- sizes -------------------------------------------------------------------------------------------------------- */

static json_t *row(struct links *l, struct gpu_way *ways, uint32_t n)
{
	json_t *o = json_pack("{s:I, s:i}", "bytes", (json_int_t)l->bytes, "pieces", (int)l->pieces);

	for (uint32_t i = 0; i < n; i++)
		json_object_set_new(o, ways[i].name, gpu_rate_json(&ways[i], l->g->o->samples, (double)unit_of(l)));
	return o;
}

static int measure(struct links *l, json_t *to, struct moe_error *err)
{
	struct gpu *g = l->g;
	struct gpu_way ways[] = {
		{"pinned_gbs", time_pinned, {0}},
		{"batched_gbs", g->cu->cuMemcpyBatchAsync ? time_batched : NULL, {0}},
		{"zero_copy_gbs", time_read, {0}},
		{"managed_gbs", l->managed ? time_migration : NULL, {0}},
	};
	int r = g->o->check ? check_ways(l, ways, err) : 0;

	if (r == 0)
		r = gpu_rounds(ways, ARRAY_LEN(ways), l, g->o->samples, err);
	if (r == 0)
		json_array_append_new(to, row(l, ways, ARRAY_LEN(ways)));
	return r;
}

static void drop_managed(struct links *l)
{
	if (l->managed)
		l->g->managed.free(l->managed);
	l->managed = 0;
}

/* Managed memory of one burst's size, with the pattern in it, that has been brought over once: whether it can be is
 * known then. */
static void make_managed(struct links *l, uint64_t bytes)
{
	struct gpu *g = l->g;
	struct moe_error err = {0};
	double unused;
	int r;

	if (!g->managed.alloc) {
		gpu_note(g->absent, "managed memory", "the driver has no cuMemAllocManaged and cuMemPrefetchAsync_v2");
		return;
	}
	r = cuda_result(g->device, g->managed.alloc(&l->managed, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
	if (r < 0) {
		l->managed = 0;
		gpu_note(g->absent, "managed memory", strerror(-r));
		return;
	}
	memcpy((void *)l->managed, g->host, bytes);
	l->bytes = bytes;
	l->pieces = 1;
	if (time_migration(l, &unused, &err) < 0) {
		gpu_note(g->absent, "managed memory", err.text);
		drop_managed(l);
	}
}

int gpu_links(struct gpu *g, json_t *to, struct moe_error *err)
{
	static const uint64_t sizes[] = {MIB, 4 * MIB, 16 * MIB, 64 * MIB};
	const uint64_t unit = MIN(MIN(UNIT_BYTES, g->host_bytes / 2), g->memory.bytes);
	struct links l = {.g = g};
	json_t *rows = json_array();
	int r = 0;

	json_object_set_new(to, "link", rows);
	make_managed(&l, unit);
	if (g->cu->cuMemcpyBatchAsync == NULL)
		gpu_note(g->absent, "batched copies", "the driver has no cuMemcpyBatchAsync");
	for (size_t i = 0; i < ARRAY_LEN(sizes) && r == 0; i++) {
		l.bytes = i == 0 ? MIN(sizes[0], unit / 4 / 64 * 64) : sizes[i];
		if (l.bytes > unit)
			break;
		l.pieces = (uint32_t)MIN(unit / l.bytes, PIECES_MAX);
		r = measure(&l, rows, err);
	}
	drop_managed(&l);
	return r;
}
