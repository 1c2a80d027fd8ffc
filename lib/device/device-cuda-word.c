/* SPDX-License-Identifier: MIT */
/* Events, and the words at which streams and the host meet. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/util.h"
#include "device/device-cuda.h"

#define SPIN_NS 50000 /* how long the host looks for an event or a word before it sleeps between looks */
#define NAP_NS 20000

/* -- events ------------------------------------------------------------------------------------------------------- */

int cuda_event_new(struct device *device, struct device_event **ret, struct moe_error *err)
{
	struct device_event *e = calloc(1, sizeof *e);
	const int r = e ? CUDA_WITHIN(device, CUDA_CALL(device, cuEventCreate, &e->event, CU_EVENT_DEFAULT)) : -ENOMEM;

	if (r < 0) {
		free(e);
		return cuda_refused(device, r, "cannot make an event", err);
	}
	e->device = device;
	*ret = e;
	return 0;
}

struct device_event *cuda_event_free(struct device_event *event)
{
	if (event && cuda_enter_to_free(event->device)) {
		event->device->cu->cuEventDestroy(event->event);
		cuda_leave(event->device);
	}
	free(event);
	return NULL;
}

int cuda_event_record(struct device_event *event, struct device_stream *stream)
{
	struct device *d = stream->device;

	return CUDA_WITHIN(d, CUDA_GIVE(d, cuEventRecord, event->event, stream->stream));
}

int cuda_event_query(struct device_event *event)
{
	struct device *d = event->device;

	return CUDA_WITHIN(d, CUDA_CALL(d, cuEventQuery, event->event));
}

/* Between two looks at something that a GPU changes; nothing wakes a sleeper. */
static void pause_looking(uint64_t began)
{
	if (now_ns() - began < SPIN_NS)
		cpu_relax();
	else
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

int cuda_event_wait(struct device_event *event, uint64_t timeout_ns)
{
	const uint64_t began = now_ns();
	int r;

	while ((r = cuda_event_query(event)) == -EBUSY) {
		if (timeout_ns && now_ns() - began >= timeout_ns)
			return -ETIMEDOUT;
		pause_looking(began);
	}
	return r;
}

uint64_t cuda_event_elapsed_ns(struct device_event *from, struct device_event *to)
{
	struct device *d = from->device;
	float ms = 0;

	if (CUDA_WITHIN(d, CUDA_CALL(d, cuEventElapsedTime, &ms, from->event, to->event)) < 0)
		return 0;
	return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

int cuda_stream_wait_event(struct device_stream *stream, struct device_event *event)
{
	struct device *d = stream->device;

	return CUDA_WITHIN(d, CUDA_GIVE(d, cuStreamWaitEvent, stream->stream, event->event, 0));
}

/* -- words -------------------------------------------------------------------------------------------------------- */

int cuda_stream_wait_at(struct device_stream *stream, device_ptr word, uint32_t value)
{
	struct device *d = stream->device;

	return CUDA_WITHIN(d, CUDA_GIVE(d, cuStreamWaitValue32, stream->stream, word, value, CU_STREAM_WAIT_VALUE_GEQ));
}

/* The default flag: a fence for the whole system stands before the write. */
int cuda_stream_write_at(struct device_stream *stream, device_ptr word, uint32_t value)
{
	struct device *d = stream->device;

	return CUDA_WITHIN(
		d, CUDA_COPY(d, cuStreamWriteValue32, stream->stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

int cuda_stream_wait_word(struct device_stream *stream, const uint32_t *word, uint32_t value)
{
	CUdeviceptr at;
	int r = cuda_find(stream->device, word, sizeof *word, &at);

	return r < 0 ? r : cuda_stream_wait_at(stream, at, value);
}

int cuda_stream_write_word(struct device_stream *stream, uint32_t *word, uint32_t value)
{
	CUdeviceptr at;
	int r = cuda_find(stream->device, word, sizeof *word, &at);

	return r < 0 ? r : cuda_stream_write_at(stream, at, value);
}

/* One batch: a graph has one node of it. */
int cuda_stream_take_word(struct device_stream *stream, uint32_t *word, uint32_t *waiting)
{
	CUstreamBatchMemOpParams ops[4] = {
		{.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .value = 1}},
		{.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
			       .value = 1,
			       .flags = CU_STREAM_WAIT_VALUE_GEQ}},
		{.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .value = 0}},
		{.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .value = 0}},
	};
	CUdeviceptr at[2];
	int r = cuda_find(stream->device, word, sizeof *word, &at[0]);

	if (r == 0)
		r = cuda_find(stream->device, waiting, sizeof *waiting, &at[1]);
	if (r == 0)
		r = cuda_enter(stream->device);
	if (r < 0)
		return r;
	ops[0].writeValue.address = ops[3].writeValue.address = at[1];
	ops[1].waitValue.address = ops[2].writeValue.address = at[0];
	r = CUDA_GIVE(stream->device, cuStreamBatchMemOp, stream->stream, ARRAY_LEN(ops), ops, 0);
	cuda_leave(stream->device);
	return r;
}

void cuda_word_write(uint32_t *word, uint32_t value)
{
	/* Partner: the acquire load in device_word_reached, and the GPU's wait. */
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

int cuda_word_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
	const uint64_t began = now_ns();

	while (!device_word_reached(word, value)) {
		if (now_ns() - began >= timeout_ns)
			return -ETIMEDOUT;
		pause_looking(began);
	}
	return 0;
}
