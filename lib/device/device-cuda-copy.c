/* SPDX-License-Identifier: MIT */
/*
 * Copies by the copy engines. What is contiguous goes in one call for many of them where the driver has such a call
 * (CUDA 12.8), a row of planes with gaps in one call each.
 */
#include <errno.h>

#include "base/util.h"
#include "device/device-cuda.h"

#define BATCH 64

/* Contiguous copies on their way. */
struct batch {
	CUdeviceptr to[BATCH], from[BATCH];
	size_t bytes[BATCH];
	uint32_t n;
};

static int copy_each(struct device_stream *s, const struct batch *b)
{
	uint32_t i;
	int r = 0;

	for (i = 0; i < b->n && r == 0; i++)
		r = CUDA_COPY(s->device, cuMemcpyHtoDAsync, b->to[i], (const void *)(uintptr_t)b->from[i], b->bytes[i],
			      s->stream);
	return r;
}

static int copy_batch(struct device_stream *s, struct batch *b)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t first = 0;
	int r;

	if (b->n > 1 && s->device->cu->cuMemcpyBatchAsync)
		r = CUDA_COPY(s->device, cuMemcpyBatchAsync, b->to, b->from, b->bytes, b->n, &attributes, &first, 1,
			      s->stream);
	else
		r = copy_each(s, b);
	b->n = 0;
	return r;
}

static int copy_rows(struct device_stream *s, const struct device_copy *c)
{
	const CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = c->from,
		.srcPitch = c->pitch,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = c->to,
		.dstPitch = c->width,
		.WidthInBytes = c->width,
		.Height = c->rows,
	};

	return CUDA_COPY(s->device, cuMemcpy2DAsync, &rows, s->stream);
}

static int copy_one(struct device_stream *s, struct batch *b, const struct device_copy *c)
{
	const bool contiguous = c->pitch == c->width || c->rows == 1;
	const uint64_t bytes = c->pitch * (c->rows - 1) + c->width;
	CUdeviceptr known;
	int r = cuda_find(s->device, c->from, bytes, &known);

	if (r < 0)
		return r;
	if (!contiguous)
		return copy_rows(s, c);
	b->to[b->n] = c->to;
	b->from[b->n] = (CUdeviceptr)(uintptr_t)c->from;
	b->bytes[b->n++] = bytes;
	return b->n == BATCH ? copy_batch(s, b) : 0;
}

int cuda_copy_to_device(struct device_stream *stream, const struct device_copy *copies, uint32_t n)
{
	struct batch batch;
	uint32_t i;
	int r = cuda_enter(stream->device);

	if (r < 0)
		return r;
	batch.n = 0;
	for (i = 0; i < n && r == 0; i++)
		if (copies[i].rows > 0 && copies[i].width > 0)
			r = copy_one(stream, &batch, &copies[i]);
	if (r == 0 && batch.n > 0)
		r = copy_batch(stream, &batch);
	cuda_leave(stream->device);
	return r;
}

int cuda_copy_to_host(struct device_stream *stream, void *dst, device_ptr src, uint64_t bytes)
{
	struct device *device = stream->device;
	CUdeviceptr known;
	int r = cuda_find(device, dst, bytes, &known);

	if (r == 0)
		r = cuda_enter(device);
	if (r < 0)
		return r;
	r = CUDA_GIVE(device, cuMemcpyDtoHAsync, dst, src, bytes, stream->stream);
	cuda_leave(device);
	return r;
}
