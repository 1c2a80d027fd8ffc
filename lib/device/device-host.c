/* SPDX-License-Identifier: MIT */
#include "device/device-host.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/thread.h"
#include "base/util.h"

#define RING_START 64
#define PAGE 4096
#define JITTER_NS_MAX 200000

struct device {
	const struct kernels *kernels;
};

static _Atomic uint64_t jitter_seed;

void device_host_jitter(uint64_t seed)
{
	atomic_store(&jitter_seed, seed);
}

static const struct kernels *_Atomic forced_kernels;

void device_host_kernels(const struct kernels *kernels)
{
	atomic_store(&forced_kernels, kernels);
}

/* splitmix64 (Vigna 2015). Half of the pauses are none, so that streams also overtake each other. */
static void jitter_pause(struct device_stream *stream)
{
	uint64_t seed = atomic_load_explicit(&jitter_seed, memory_order_relaxed), z;

	if (!seed)
		return;
	z = stream->jitter += 0x9e3779b97f4a7c15u + seed;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	if (z & 1)
		nanosleep(&(struct timespec){.tv_nsec = (long)((z >> 1) % JITTER_NS_MAX)}, NULL);
}

/* -- device and memory -------------------------------------------------------------------------------------------- */

static int host_open(struct device **ret, const char *which, struct moe_error *err)
{
	struct device *device;

	if (which[0])
		return moe_error_set(err, -EINVAL, "device 'host:%s': there is only one host", which);
	device = calloc(1, sizeof *device);
	if (!device)
		return moe_error_set(err, -ENOMEM, "host device: no memory");
	device->kernels = atomic_load(&forced_kernels);
	if (!device->kernels)
		device->kernels = kernels_get(isa_detect(NULL));
	*ret = device;
	return 0;
}

static struct device *host_close(struct device *device)
{
	free(device);
	return NULL;
}

static int host_alloc(struct device *device, uint64_t bytes, struct device_memory *ret, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	uint64_t size;
	void *map;
	int r;

	if (bytes == 0 || !checked_align(&size, bytes, PAGE))
		return moe_error_set(err, -EINVAL, "host device: cannot allocate %llu bytes",
				     (unsigned long long)bytes);
	fd = memfd_new("moe-device", size, err);
	if (fd < 0)
		return fd;
	r = memfd_map(&map, fd, size, PROT_READ | PROT_WRITE, "host device memory", err);
	if (r < 0)
		return r;
	*ret = (struct device_memory){.base = (uintptr_t)map, .bytes = size, .export_fd = steal_fd(&fd)};
	return 0;
}

static void host_free(struct device *device, struct device_memory *memory)
{
	if (memory->base)
		munmap((void *)(uintptr_t)memory->base, memory->bytes);
	close_fd(memory->export_fd);
	*memory = (struct device_memory){.export_fd = -1};
}

static int host_register(struct device *device, void *base, uint64_t bytes, bool writes, struct moe_error *err)
{
	return 0; /* every copy can read host memory */
}

static bool host_reads_read_only(const struct device *device)
{
	return true;
}

static const char *host_failure(struct device *device)
{
	return NULL; /* a failure is one stream's */
}

/* -- streams ------------------------------------------------------------------------------------------------------ */

static void run_copy(struct device_stream *stream, const struct host_command *c)
{
	const uint64_t half = c->copy.rows / 2;
	uint64_t i;

	for (i = 0; i < c->copy.rows; i++) {
		if (i == half)
			jitter_pause(stream);
		memcpy(c->copy.to + i * c->copy.width, c->copy.from + i * c->copy.pitch, c->copy.width);
	}
}

static void run_add(struct device_stream *stream, const struct host_command *c)
{
	uint64_t i;

	for (i = 0; i < c->add.n; i++) {
		if (i == c->add.n / 2)
			jitter_pause(stream);
		c->add.y[i] += c->add.z[i];
	}
}

static void take_word(struct device_stream *stream, const struct host_command *c)
{
	host_word_write(c->word.waiting, 1);
	host_word_wait(c->word.word, 1, 0);
	jitter_pause(stream);
	host_word_write(c->word.word, 0);
	host_word_write(c->word.waiting, 0);
}

static int run_command(struct device_stream *stream, const struct host_command *c)
{
	switch (c->kind) {
	case HOST_WAIT:
		return host_event_wait_turn(c->event.event, c->event.turn, 0);
	case HOST_COPY:
		run_copy(stream, c);
		return 0;
	case HOST_WAIT_WORD:
		return host_word_wait(c->word.word, c->word.value, 0);
	case HOST_WRITE_WORD:
		host_word_write(c->word.word, c->word.value);
		return 0;
	case HOST_TAKE_WORD:
		take_word(stream, c);
		return 0;
	case HOST_EXPERTS:
		return host_experts(stream->device->kernels, &stream->scratch, &c->experts);
	case HOST_ADD:
		run_add(stream, c);
		return 0;
	case HOST_RECORD:
		break;
	}
	return 0;
}

static void *stream_main(void *arg)
{
	struct device_stream *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct host_command c;
		int error = s->error, r = 0;

		if (s->count == 0) {
			if (s->stopping)
				break;
			pthread_cond_wait(&s->more, &s->lock);
			continue;
		}
		c = s->ring[s->head];
		s->head = (s->head + 1) % s->capacity;
		s->count--;
		pthread_cond_signal(&s->room);
		pthread_mutex_unlock(&s->lock);
		jitter_pause(s);
		if (c.kind == HOST_RECORD)
			host_event_reach(c.event.event, c.event.turn, error);
		else if (error == 0)
			r = run_command(s, &c);
		pthread_mutex_lock(&s->lock);
		if (s->error == 0)
			s->error = r;
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Under the lock. Without memory the ring stays as it is: the caller waits for room. */
static void grow_ring(struct device_stream *s)
{
	struct host_command *ring = calloc((size_t)s->capacity * 2, sizeof *ring);
	uint32_t i;

	if (!ring)
		return;
	for (i = 0; i < s->count; i++)
		ring[i] = s->ring[(s->head + i) % s->capacity];
	free(s->ring);
	s->ring = ring;
	s->capacity *= 2;
	s->head = 0;
}

/* Returns the stream's error, if it has one; a record is taken even then. */
static int push_command(struct device_stream *s, const struct host_command *c)
{
	int r;

	pthread_mutex_lock(&s->lock);
	assert(!s->stopping);
	if (s->count == s->capacity)
		grow_ring(s);
	while (s->count == s->capacity)
		pthread_cond_wait(&s->room, &s->lock);
	r = s->error;
	if (r == 0 || c->kind == HOST_RECORD) {
		s->ring[(s->head + s->count++) % s->capacity] = *c;
		pthread_cond_signal(&s->more);
	}
	pthread_mutex_unlock(&s->lock);
	return c->kind == HOST_RECORD ? 0 : r;
}

/* The kernel shares the cores among threads: a priority of ours would only starve a stream. */
static int host_stream_new(struct device *device, enum device_priority priority, struct device_stream **ret,
			   struct moe_error *err)
{
	struct device_stream *s = calloc(1, sizeof *s);
	int r;

	if (s)
		s->ring = calloc(RING_START, sizeof *s->ring);
	if (!s || !s->ring) {
		free(s);
		return moe_error_set(err, -ENOMEM, "host device: no memory for a stream");
	}
	s->device = device;
	s->capacity = RING_START;
	s->jitter = (uintptr_t)s;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	pthread_cond_init(&s->room, NULL);
	r = thread_start(&s->thread, stream_main, s);
	if (r < 0) {
		free(s->ring);
		free(s);
		return moe_error_sys(err, r, "host device: cannot start a stream's thread");
	}
	*ret = s;
	return 0;
}

static struct device_stream *host_stream_free(struct device_stream *s)
{
	if (!s)
		return NULL;
	pthread_mutex_lock(&s->lock);
	s->stopping = true;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	assert(s->count == 0);
	pthread_cond_destroy(&s->room);
	pthread_cond_destroy(&s->more);
	pthread_mutex_destroy(&s->lock);
	free(s->scratch.memory);
	free(s->ring);
	free(s);
	return NULL;
}

/* A handle is the stream itself: nobody but stream_new makes any. Small numbers are CUDA's default streams, which a
 * program that was written for a GPU may give here too. */
static int host_stream_borrow(struct device *device, uintptr_t handle, bool captured, struct device_stream **stream,
			      struct moe_error *err)
{
	struct device_stream *s = (struct device_stream *)handle;

	if (handle < PAGE || s->device != device)
		return moe_error_set(err, -EINVAL, "host device: expected a stream of moe_stream_new");
	*stream = s;
	return 0;
}

static void host_stream_return(struct device_stream *stream)
{
}

static uintptr_t host_stream_handle(const struct device_stream *stream)
{
	return (uintptr_t)stream;
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

static int host_event_record(struct device_event *event, struct device_stream *stream)
{
	return push_command(stream,
			    &(struct host_command){.kind = HOST_RECORD, .event = {event, host_event_next_turn(event)}});
}

static int host_stream_wait_event(struct device_stream *stream, struct device_event *event)
{
	return push_command(stream,
			    &(struct host_command){.kind = HOST_WAIT, .event = {event, host_event_last_turn(event)}});
}

static int host_stream_error(struct device_stream *stream)
{
	int r;

	pthread_mutex_lock(&stream->lock);
	r = stream->error;
	pthread_mutex_unlock(&stream->lock);
	return r;
}

static int host_copy(struct device_stream *stream, void *to, const void *from, uint64_t pitch, uint64_t width,
		     uint64_t rows)
{
	return push_command(stream, &(struct host_command){.kind = HOST_COPY, .copy = {to, from, pitch, width, rows}});
}

static int host_copy_to_device(struct device_stream *stream, const struct device_copy *copies, uint32_t n)
{
	uint32_t i;
	int r = 0;

	for (i = 0; i < n && r == 0; i++)
		r = host_copy(stream, (void *)(uintptr_t)copies[i].to, copies[i].from, copies[i].pitch, copies[i].width,
			      copies[i].rows);
	return r;
}

static int host_copy_to_host(struct device_stream *stream, void *dst, device_ptr src, uint64_t bytes)
{
	return host_copy(stream, dst, (const void *)(uintptr_t)src, bytes, bytes, 1);
}

static int host_stream_wait_word(struct device_stream *stream, const uint32_t *word, uint32_t value)
{
	return push_command(stream,
			    &(struct host_command){.kind = HOST_WAIT_WORD, .word = {(uint32_t *)word, value, NULL}});
}

static int host_stream_write_word(struct device_stream *stream, uint32_t *word, uint32_t value)
{
	return push_command(stream, &(struct host_command){.kind = HOST_WRITE_WORD, .word = {word, value, NULL}});
}

static int host_stream_take_word(struct device_stream *stream, uint32_t *word, uint32_t *waiting)
{
	return push_command(stream,
			    &(struct host_command){.kind = HOST_TAKE_WORD, .word = {.word = word, .waiting = waiting}});
}

/* The scratch memory of this back-end grows when it must. */
static int host_experts_prepare(struct device_stream *stream, const struct device_experts *largest,
				struct moe_error *err)
{
	return 0;
}

static int host_launch_experts(struct device_stream *stream, const struct device_experts *work)
{
	struct host_command c = {.kind = HOST_EXPERTS, .experts = *work};

	if (work->on_map) {
		c.experts.ids = (const int32_t *)(uintptr_t)work->on_ids;
		c.experts.weights = (const float *)(uintptr_t)work->on_weights;
		c.experts.map = (const int32_t *)(uintptr_t)work->on_map;
	}
	return push_command(stream, &c);
}

static int host_add(struct device_stream *stream, device_ptr y, const float *z, uint64_t n, device_ptr landing)
{
	const uint64_t bytes = n * sizeof *z;
	float *to = (float *)(uintptr_t)landing;
	int r = landing ? host_copy(stream, to, z, bytes, bytes, 1) : 0;

	if (r < 0)
		return r;
	return push_command(
		stream, &(struct host_command){.kind = HOST_ADD, .add = {(float *)(uintptr_t)y, landing ? to : z, n}});
}

const struct device_ops device_host = {
	.name = "host",
	.exports = true,
	.open = host_open,
	.close = host_close,
	.failure = host_failure,
	.alloc = host_alloc,
	.free = host_free,
	.host_register = host_register,
	.reads_read_only = host_reads_read_only,
	.stream_new = host_stream_new,
	.stream_free = host_stream_free,
	.stream_error = host_stream_error,
	.stream_borrow = host_stream_borrow,
	.stream_return = host_stream_return,
	.stream_handle = host_stream_handle,
	.event_new = host_event_new,
	.event_free = host_event_free,
	.event_record = host_event_record,
	.event_query = host_event_query,
	.event_wait = host_event_wait,
	.event_elapsed_ns = host_event_elapsed_ns,
	.stream_wait_event = host_stream_wait_event,
	.copy_to_device = host_copy_to_device,
	.copy_to_host = host_copy_to_host,
	.stream_wait_word = host_stream_wait_word,
	.stream_write_word = host_stream_write_word,
	.stream_take_word = host_stream_take_word,
	.word_write = host_word_write,
	.word_wait = host_word_wait,
	.experts_prepare = host_experts_prepare,
	.experts = host_launch_experts,
	.add = host_add,
};
