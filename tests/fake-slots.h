/* SPDX-License-Identifier: MIT */
/*
 * fake-slots - where the fake daemon's fills go: memory that the client shares as a file, or, where its device has
 * none, a GPU's memory, which is imported and copied into by the driver, with the timeline (moe_ring.h) behind it.
 */
#ifndef TESTS_FAKE_SLOTS_H
#define TESTS_FAKE_SLOTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "daemon/timeline.h"
#include "device/device.h"
#include "moe-error.h"

#define FAKE_STAGING (1u << 20)

struct fake_slots {
	uint64_t bytes;
	uint8_t *map; /* of the host's memory, or NULL */
	const struct device_ops *ops;
	struct device *gpu;
	struct device_memory memory;
	struct device_stream *stream;
	struct device_event *event;
	uint8_t *staging;     /* [FAKE_STAGING], registered */
	uint64_t timeline_at; /* 0: none */
	struct timeline timeline;
};

static int fake_slots_map(struct fake_slots *s, int fd, uint64_t bytes)
{
	s->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	s->bytes = bytes;
	if (s->map != MAP_FAILED)
		return 0;
	s->map = NULL;
	return -ENOMEM;
}

/* A context of its own, as the daemon's. */
static int fake_slots_import(struct fake_slots *s, const char *device, int fd, uint64_t bytes, uint64_t timeline,
			     struct moe_error *err)
{
	const char *which;
	int r = device_find(device, &s->ops, &which, err);

	s->staging = mmap(NULL, FAKE_STAGING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->staging == MAP_FAILED)
		abort();
	if (r == 0)
		r = s->ops->open(&s->gpu, which, err);
	if (r == 0)
		r = s->ops->import(s->gpu, fd, bytes, &s->memory, err);
	if (r == 0)
		r = s->ops->host_register(s->gpu, s->staging, FAKE_STAGING, false, err);
	if (r == 0)
		r = s->ops->stream_new(s->gpu, DEVICE_PRIORITY_LOW, &s->stream, err);
	if (r == 0)
		r = s->ops->event_new(s->gpu, &s->event, err);
	s->bytes = bytes;
	s->timeline_at = timeline;
	return r;
}

/* The staging may be written again, and what was copied is there. */
static void fake_slots_finish(struct fake_slots *s)
{
	if (s->ops->event_record(s->event, s->stream) < 0 || s->ops->event_wait(s->event, 0) < 0)
		abort();
}

static void fake_slots_put(struct fake_slots *s, uint64_t at, const uint8_t *data, uint64_t n)
{
	const struct device_copy copy = {s->memory.base + at, s->staging, n, n, 1};

	if (s->map) {
		memcpy(s->map + at, data, n);
		return;
	}
	if (n > FAKE_STAGING)
		abort();
	memcpy(s->staging, data, n);
	if (s->ops->copy_to_device(s->stream, &copy, 1) < 0)
		abort();
	fake_slots_finish(s);
}

/* Whoever reads it now gets what is no number. */
static void fake_slots_spoil(struct fake_slots *s, uint64_t at, uint64_t n)
{
	uint8_t *nothing = malloc(n);

	if (!nothing)
		abort();
	memset(nothing, 0xff, n);
	fake_slots_put(s, at, nothing, n);
	free(nothing);
}

/* The FILL with this number has brought all. False: no number that is awaited. */
static bool fake_slots_come(struct fake_slots *s, uint32_t number)
{
	if (!s->timeline_at || !timeline_awaits(&s->timeline, number))
		return false;
	if (!timeline_come(&s->timeline, number))
		return true;
	if (s->ops->stream_write_at(s->stream, s->memory.base + s->timeline_at, s->timeline.reached) < 0)
		abort();
	fake_slots_finish(s);
	return true;
}

static void fake_slots_free(struct fake_slots *s)
{
	if (s->map)
		munmap(s->map, s->bytes);
	if (!s->gpu)
		return;
	s->ops->stream_free(s->stream);
	s->ops->event_free(s->event);
	s->ops->free(s->gpu, &s->memory);
	s->ops->close(s->gpu);
	munmap(s->staging, FAKE_STAGING);
}

#endif
