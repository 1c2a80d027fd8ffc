/* SPDX-License-Identifier: MIT */
/*
 * engine-memory - an engine's device, and the memory that the device works in or reads.
 *
 * Pool files are registered in pieces that end where a record ends: drivers refuse large pieces, hold their lock for as
 * long as one takes, and copy nothing that lies in two of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "lanes.h"
#include "registrar.h"
#include "step.h"

static int open_streams(struct engine *e, struct moe_error *err)
{
	const struct moe_attach_params *p = &e->session->params;
	const struct device_ops *ops;
	const char *which;
	int i, r = device_find(p->device, &ops, &which, err);

	if (r < 0)
		return r;
	if (p->fill == MOE_FILL_PUSH && !ops->exports && !(ops->share && e->session->features & MOE_FEATURE_DEVICE))
		return moe_error_set(
			err, -ENOTSUP,
			"moe_attach: fill is MOE_FILL_PUSH, but moe-expertd does not push into the memory of device "
			"'%s': set fill to MOE_FILL_PULL, or start it with --push-cuda",
			ops->name);
	r = ops->open(&e->device, which, err);
	if (r < 0)
		return r;
	e->ops = ops;
	for (i = 0; i < ENGINE_COMPUTES && r == 0; i++)
		r = ops->stream_new(e->device, DEVICE_PRIORITY_HIGH, &e->compute[i].stream, err);
	if (r == 0)
		r = ops->stream_new(e->device, DEVICE_PRIORITY_LOW, &e->copy, err);
	return r;
}

/* The timeline is 0 before the daemon hears of it. */
static int begin_timeline(struct engine *e, uint64_t at, struct moe_error *err)
{
	struct device_event *event;
	int r = e->ops->stream_new(e->device, DEVICE_PRIORITY_HIGH, &e->aid, err);

	if (r < 0)
		return r;
	r = e->ops->event_new(e->device, &event, err);
	if (r < 0)
		return r;
	e->timeline = e->slots.base + at;
	r = e->ops->stream_write_at(e->aid, e->timeline, 0);
	if (r == 0)
		r = e->ops->event_record(event, e->aid);
	if (r == 0)
		r = e->ops->event_wait(event, e->watchdog_ns);
	e->ops->event_free(event);
	return r < 0 ? moe_error_sys(err, r, "moe_attach: the timeline behind the slots cannot be written") : 0;
}

/* timeline: where it is behind the slots, or 0. */
static int share_slots(struct engine *e, uint64_t timeline, struct moe_error *err)
{
	uint8_t uuid[DEVICE_UUID_BYTES];
	int fd, r = timeline ? begin_timeline(e, timeline, err) : 0;

	if (r == 0)
		r = e->ops->share(e->device, &e->slots, uuid, &fd, err);
	if (r < 0)
		return r;
	r = session_send_device(e->session, fd, e->slots.bytes, timeline, uuid, err);
	close_fd(fd);
	return r;
}

static int make_landing(struct engine *e, struct moe_error *err)
{
	const struct moe_session *s = e->session;
	const uint64_t bytes = lanes_landing_bytes(e) + e->n_step_slots * step_rows_bytes(s, s->params.max_tokens);

	return s->params.answers == MOE_ANSWERS_COPY ? e->ops->alloc(e->device, bytes, &e->landing, err) : 0;
}

static int make_slots(struct engine *e, struct moe_error *err)
{
	struct moe_session *s = e->session;
	const uint64_t n = (uint64_t)e->n_rows * e->n_slots + (uint64_t)MISSBUF_COUNT * e->miss_slots + e->spare_slots;
	const uint64_t read = s->params.zero_copy ? e->n_experts : 0; /* numbers behind the slots */
	uint64_t bytes, timeline = 0;
	int i, r;

	if (n + read > INT32_MAX || !checked_mul(&bytes, n, s->info.slot_bytes))
		return moe_error_set(
			err, -EINVAL,
			"moe_attach: %llu slots (%u layers of %u, two miss buffers of %u, and %u spare) are too many",
			(unsigned long long)n, e->n_rows, e->n_slots, e->miss_slots, e->spare_slots);
	/* More numbers under way than the daemon takes: then the feeder's words alone say what has come. */
	e->signals = s->params.fill == MOE_FILL_PUSH && !e->ops->exports &&
		     (uint64_t)e->n_step_slots * step_fills_max(s) <= MOE_TIMELINE_WINDOW;
	if (e->signals) {
		timeline = ALIGN_UP(bytes, (uint64_t)CACHE_LINE);
		bytes = timeline + CACHE_LINE;
	}
	r = e->ops->alloc(e->device, bytes, &e->slots, err);
	for (i = 0; i < ENGINE_COMPUTES && r == 0; i++)
		r = e->ops->alloc(e->device, 2 * step_rows_bytes(s, e->compute[i].tokens), &e->compute[i].work, err);
	if (r == 0 && s->params.fill == MOE_FILL_PUSH)
		r = e->ops->exports ? session_send_slots(s, e->slots.export_fd, e->slots.bytes, err)
				    : share_slots(e, timeline, err);
	return r;
}

/* The words of the miss buffers, the steps' regions, and on pages of their own the lanes'. */
static int make_control(struct engine *e, struct moe_error *err)
{
	const uint64_t bytes = MISSBUF_COUNT * (uint64_t)CACHE_LINE + e->n_step_slots * step_control_bytes(e);
	void *map;
	uint32_t i;

	e->control_bytes = ALIGN_UP(bytes, (uint64_t)ENGINE_PAGE) +
			   ALIGN_UP(lanes_control_bytes(e), (uint64_t)ENGINE_PAGE);
	map = mmap(NULL, e->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return moe_error_sys(err, -errno, "moe_attach: no %llu bytes of control memory",
				     (unsigned long long)e->control_bytes);
	e->control = map;
	for (i = 0; i < MISSBUF_COUNT; i++)
		missbuf_init(&e->missbufs[i], (uint32_t *)(e->control + i * CACHE_LINE));
	return 0;
}

/* -- what the device reads ---------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* One pool file: pieces of at most `most` bytes, but at least one record, that end at one of cuts[0 .. n]. These
 * ascend; the last one is the file's end. registrar NULL: others need not be told. */
static int register_pool(struct engine *e, struct registrar *registrar, const struct session_pool *pool,
			 const uint64_t *cuts, uint64_t n, uint64_t most, struct moe_error *err)
{
	uint64_t begin, end, i = 0;
	int r = 0;

	for (begin = 0; begin < pool->bytes && r == 0; begin = end) {
		while (i < n && cuts[i] <= begin)
			i++;
		for (end = cuts[i]; i < n && cuts[i + 1] - begin <= most; i++)
			end = cuts[i + 1];
		r = e->ops->host_register(e->device, (void *)(pool->map + begin), end - begin, false, err);
		if (r == 0 && registrar)
			r = registrar_note(registrar, end - begin, err);
	}
	return r;
}

static uint64_t pools_bytes(const struct moe_session *s)
{
	uint64_t bytes = 0;
	uint32_t p;

	for (p = 0; p < s->n_pools; p++)
		bytes += s->pools[p].bytes;
	return bytes;
}

static bool engine_reads_pageable(const struct engine *e)
{
	return e->ops->reads_pageable && e->ops->reads_pageable(e->device);
}

static int register_pools(struct engine *e, struct moe_error *err)
{
	struct moe_session *s = e->session;
	const uint64_t n = (uint64_t)e->n_rows * e->n_experts;
	const uint64_t most = s->params.register_bytes ? s->params.register_bytes : ENGINE_REGISTER_BYTES;
	const bool in_turn = e->ops->one_registrar && !engine_reads_pageable(e);
	uint64_t *cuts = malloc((n + 1) * sizeof *cuts), i;
	struct registrar registrar = {.fd = -1};
	uint32_t p;
	int r = 0;

	if (!cuts)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for the places of %llu records",
				     (unsigned long long)n);
	for (i = 0; i < n; i++)
		cuts[i] = s->records[i].offset;
	qsort(cuts, n, sizeof *cuts, by_offset);
	if (in_turn)
		r = registrar_take(&registrar, s, pools_bytes(s), err);
	for (p = 0; p < s->n_pools && r == 0; p++) {
		cuts[n] = s->pools[p].bytes;
		r = register_pool(e, in_turn ? &registrar : NULL, &s->pools[p], cuts, n, most, err);
	}
	registrar_give(&registrar);
	free(cuts);
	return r;
}

/* Pull reads the pools, and every step's x and y pass through the data arena. */
static int register_memory(struct engine *e, struct moe_error *err)
{
	struct moe_session *s = e->session;
	const bool read_only = e->ops->reads_read_only(e->device);
	int r = e->ops->host_register(e->device, s->data, s->data_bytes, true, err);

	if (r == 0)
		r = e->ops->host_register(e->device, e->control, e->control_bytes, true, err);
	if (r == 0 && s->params.fill != MOE_FILL_PULL)
		return pages_begin(e, err);
	if (r < 0)
		return r;
	if (s->manifest->flags & MOE_MANIFEST_TIERED)
		return moe_error_set(err, -EOPNOTSUPP,
				     "moe_attach to '%s': it is tiered (records come from disk and go): the device "
				     "cannot pull them, set fill to MOE_FILL_PUSH",
				     s->manifest->name);
	r = session_map_pools(s, !read_only, err);
	if (r == 0)
		r = register_pools(e, err);
	if (r == 0)
		r = pages_begin(e, err);
	if (r == 0 && !read_only)
		r = session_protect_pools(s, err);
	return r;
}

/* The largest launch of each layout, so that no step makes memory. */
static int prepare_launches(struct engine *e, const struct engine_compute *compute, struct moe_error *err)
{
	const struct moe_session *s = e->session;
	uint32_t row;
	int r = 0;

	for (row = 0; row < e->n_rows && r == 0; row++) {
		const struct device_experts largest = {
			.layout = session_layout(s, row),
			.slice = session_slice(s, row),
			.slot_bytes = s->info.slot_bytes,
			.hidden = s->info.hidden,
			.activation = s->manifest->activation,
			.tokens = compute->tokens,
			.topk = s->info.topk,
			.n_experts = e->n_experts,
			.n_reads = s->params.zero_copy ? e->n_experts : 0,
			.n_shares = s->n_pools,
		};

		if (row == 0 || largest.layout != session_layout(s, row - 1))
			r = e->ops->experts_prepare(compute->stream, &largest, err);
	}
	return r;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

int engine_open_device(struct engine *e, struct moe_error *err)
{
	int i, r = open_streams(e, err);

	if (r == 0)
		r = make_slots(e, err);
	if (r == 0)
		r = make_landing(e, err);
	if (r == 0)
		r = places_init(&e->places, e->n_rows, e->n_slots, engine_all_slots(e) - e->spare_slots, e->spare_slots,
				err);
	if (r == 0)
		r = make_control(e, err);
	if (r == 0)
		r = register_memory(e, err);
	for (i = 0; i < ENGINE_COMPUTES && r == 0; i++)
		r = prepare_launches(e, &e->compute[i], err);
	return r;
}

void engine_close_device(struct engine *e)
{
	const struct device_ops *ops = e->ops;
	int i;

	if (ops) {
		for (i = 0; i < ENGINE_COMPUTES; i++)
			ops->stream_free(e->compute[i].stream);
		ops->stream_free(e->copy);
		ops->stream_free(e->aid);
		lanes_free(e);
		for (i = 0; i < ENGINE_COMPUTES; i++)
			ops->free(e->device, &e->compute[i].work);
		if (e->landing.base)
			ops->free(e->device, &e->landing);
		ops->free(e->device, &e->slots);
		ops->close(e->device);
	}
	places_fini(&e->places);
	if (e->control)
		munmap(e->control, e->control_bytes);
}
