/* SPDX-License-Identifier: MIT */
#include "device/device-cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

#define CAPABILITY_FLOOR 80 /* what the kernels are compiled for at least */

/* -- calls -------------------------------------------------------------------------------------------------------- */

/* What this thread's capture mode was before it entered. */
static _Thread_local CUstreamCaptureMode callers_mode;

static void exchange_mode(struct device *device)
{
	device->cu->cuThreadExchangeStreamCaptureMode(&callers_mode);
}

int cuda_enter(struct device *device)
{
	int r;

	if (atomic_load(&device->failed))
		return -EIO;
	r = CUDA_CALL(device, cuCtxPushCurrent, device->context);
	if (r == 0) {
		callers_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		exchange_mode(device);
	}
	return r;
}

bool cuda_enter_to_free(struct device *device)
{
	if (device->cu->cuCtxPushCurrent(device->context) != CUDA_SUCCESS)
		return false;
	callers_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	exchange_mode(device);
	return true;
}

void cuda_leave(struct device *device)
{
	CUcontext popped;

	exchange_mode(device);
	device->cu->cuCtxPopCurrent(&popped);
}

/* Errors after which a context does no more work, whatever is asked of it. */
static bool is_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

static void write_down(struct device *device, CUresult result, const char *call)
{
	char room[32];

	pthread_mutex_lock(&device->lock);
	if (!atomic_load(&device->failed))
		snprintf(device->why, sizeof device->why, "%s is lost to this process: %s: %s; start the process again",
			 device->name, call, cuda_error_name(device->cu, result, room));
	atomic_store(&device->failed, true);
	pthread_mutex_unlock(&device->lock);
}

int cuda_result(struct device *device, CUresult result, const char *call)
{
	if (is_sticky(result))
		write_down(device, result, call);
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_NOT_READY:
		return -EBUSY;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	case CUDA_ERROR_NOT_SUPPORTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

int cuda_given(struct device *device, CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS)
		write_down(device, result, call);
	return cuda_result(device, result, call);
}

int cuda_copied(struct device *device, CUresult result, const char *call)
{
	return device->copies_only ? cuda_result(device, result, call) : cuda_given(device, result, call);
}

static const char *cuda_failure(struct device *device)
{
	return atomic_load(&device->failed) ? device->why : NULL;
}

int cuda_refused(struct device *device, int code, const char *what, struct moe_error *err)
{
	const char *why = cuda_failure(device);

	if (why)
		return moe_error_set(err, code, "%s", why);
	return moe_error_sys(err, code, "%s: %s", device->name, what);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static int attribute(const struct device *device, CUdevice_attribute what)
{
	int value = 0;

	return device->cu->cuDeviceGetAttribute(&value, what, device->id) == CUDA_SUCCESS ? value : 0;
}

/* By a name that another process has for it too: 32 digits. */
static int find_uuid(struct device *device, const char *digits, struct moe_error *err)
{
	const struct cuda_driver *cu = device->cu;
	char name[64] = "GPU", have[2 * sizeof(CUuuid) + 1];
	int i, count = 0;

	cu->cuDeviceGetCount(&count);
	for (i = 0; i < count; i++) {
		CUuuid uuid;
		size_t byte;

		if (cu->cuDeviceGet(&device->id, i) != CUDA_SUCCESS ||
		    cu->cuDeviceGetUuid(&uuid, device->id) != CUDA_SUCCESS)
			continue;
		for (byte = 0; byte < sizeof uuid; byte++)
			snprintf(have + 2 * byte, 3, "%02x", (unsigned char)uuid.bytes[byte]);
		if (strcmp(have, digits) != 0)
			continue;
		cu->cuDeviceGetName(name, sizeof name, device->id);
		snprintf(device->name, sizeof device->name, "GPU %d (%s)", i, name);
		device->copies_only = true;
		return 0;
	}
	return moe_error_set(err, -ENODEV, "GPU with the UUID %s: this process may use %d GPUs, none of which it is",
			     digits, count);
}

/* Which GPU: a number among those that CUDA_VISIBLE_DEVICES leaves, or its UUID. */
static int find_gpu(struct device *device, const char *which, struct moe_error *err)
{
	const struct cuda_driver *cu = device->cu;
	char name[64] = "GPU", *end;
	int count = 0;
	long number;

	if (strncmp(which, "uuid:", 5) == 0)
		return find_uuid(device, which + 5, err);
	errno = 0;
	number = which[0] ? strtol(which, &end, 10) : 0;
	if (cu->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
		return moe_error_set(err, -ENODEV, "device 'cuda': the driver finds no GPU that this process may use");
	if (which[0] && (errno || *end || which[0] < '0' || which[0] > '9'))
		return moe_error_set(err, -EINVAL, "device 'cuda:%s': expected a number", which);
	if (number >= count || cu->cuDeviceGet(&device->id, (int)number) != CUDA_SUCCESS)
		return moe_error_set(err, -ENODEV, "device 'cuda:%ld': this process may use GPUs 0 to %d", number,
				     count - 1);
	cu->cuDeviceGetName(name, sizeof name, device->id);
	snprintf(device->name, sizeof device->name, "GPU %ld (%s)", number, name);
	return 0;
}

static int check_gpu(struct device *device, struct moe_error *err)
{
	const int capability = 10 * attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
			       attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);

	if (capability < CAPABILITY_FLOOR)
		return moe_error_set(err, -ENODEV, "%s has compute capability %d.%d; expected %d.%d or later",
				     device->name, capability / 10, capability % 10, CAPABILITY_FLOOR / 10,
				     CAPABILITY_FLOOR % 10);
	if (!attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return moe_error_set(err, -ENODEV, "%s has no virtual memory management, which slots are made with",
				     device->name);
	device->flags_read_only = attribute(device, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
	device->reads_read_only = device->flags_read_only ||
				  attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
	device->exports_slots = attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	device->dmabufs = attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
	device->rdma = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	device->reads_pageable = attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) &&
				 attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
	snprintf(device->described, sizeof device->described, "%s, %s", device->name,
		 device->reads_pageable ? "which reads the pool by the host's page tables: nothing of it is registered"
					: "for which the pool is registered");
	return 0;
}

static struct device *cuda_close(struct device *device)
{
	if (device->context && cuda_enter_to_free(device)) {
		cuda_unregister_all(device);
		if (device->module)
			device->cu->cuModuleUnload(device->module);
		cuda_leave(device);
	}
	if (device->context)
		device->cu->cuDevicePrimaryCtxRelease(device->id);
	free(device->ranges);
	pthread_mutex_destroy(&device->lock);
	free(device);
	return NULL;
}

static int start_context(struct device *device, struct moe_error *err)
{
	int r = CUDA_CALL(device, cuDevicePrimaryCtxRetain, &device->context, device->id);

	if (r == 0)
		r = cuda_enter(device);
	if (r < 0)
		return cuda_refused(device, r, "cannot make a context", err);
	r = CUDA_CALL(device, cuCtxGetStreamPriorityRange, &device->priority_low, &device->priority_high);
	r = r < 0                 ? cuda_refused(device, r, "cannot tell stream priorities", err)
	    : device->copies_only ? 0
				  : cuda_load_kernels(device, err);
	cuda_leave(device);
	return r;
}

static int cuda_open(struct device **ret, const char *which, struct moe_error *err)
{
	const struct cuda_driver *cu;
	struct device *device;
	int r = cuda_driver_get(&cu, err);

	if (r < 0)
		return r;
	device = calloc(1, sizeof *device);
	if (!device)
		return moe_error_set(err, -ENOMEM, "device 'cuda': no memory");
	device->cu = cu;
	pthread_mutex_init(&device->lock, NULL);
	r = find_gpu(device, which, err);
	if (r == 0)
		r = check_gpu(device, err);
	if (r == 0)
		r = start_context(device, err);
	if (r < 0) {
		cuda_close(device);
		return r;
	}
	*ret = device;
	return 0;
}

static bool cuda_reads_read_only(const struct device *device)
{
	return device->reads_read_only;
}

static bool cuda_reads_pageable(const struct device *device)
{
	return device->reads_pageable;
}

static const char *cuda_describe(const struct device *device)
{
	return device->described;
}

/* -- streams ------------------------------------------------------------------------------------------------------ */

static int cuda_stream_new(struct device *device, enum device_priority priority, struct device_stream **ret,
			   struct moe_error *err)
{
	struct device_stream *s = calloc(1, sizeof *s);
	const int rank = priority == DEVICE_PRIORITY_HIGH ? device->priority_high : device->priority_low;
	const int r = s ? CUDA_WITHIN(device, CUDA_CALL(device, cuStreamCreateWithPriority, &s->stream,
							CU_STREAM_NON_BLOCKING, rank))
			: -ENOMEM;

	if (r < 0) {
		free(s);
		return cuda_refused(device, r, "cannot make a stream", err);
	}
	s->device = device;
	*ret = s;
	return 0;
}

static struct device_stream *cuda_stream_free(struct device_stream *s)
{
	const struct cuda_driver *cu;

	if (!s)
		return NULL;
	cu = s->device->cu;
	if (cuda_enter_to_free(s->device)) {
		cu->cuStreamSynchronize(s->stream);
		cu->cuStreamDestroy(s->stream);
		cuda_leave(s->device);
	}
	cuda_scratch_free(s->device, &s->scratch);
	free(s);
	return NULL;
}

/* Asks the driver: a context that has failed is known to nobody until a call meets its error. */
static int cuda_stream_error(struct device_stream *stream)
{
	struct device *d = stream->device;
	const int r = CUDA_WITHIN(d, CUDA_CALL(d, cuStreamQuery, stream->stream));

	return r == -EBUSY ? 0 : r;
}

/* Numbers that cuda.h gives to default streams, which hold up or are held up by others. */
static bool is_default_stream(uintptr_t handle)
{
	return handle == 0 || handle == (uintptr_t)CU_STREAM_LEGACY || handle == (uintptr_t)CU_STREAM_PER_THREAD;
}

static int check_borrowed(struct device *device, CUstream stream, bool captured, struct moe_error *err)
{
	CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	CUcontext context = NULL;
	int r = CUDA_CALL(device, cuStreamGetCtx, stream, &context);

	if (r == 0)
		r = CUDA_CALL(device, cuStreamIsCapturing, stream, &capturing);
	if (r < 0)
		return cuda_refused(device, r, "cannot use this stream", err);
	if (context != device->context)
		return moe_error_set(err, -EINVAL,
				     "%s: the stream is of another device or context; expected the "
				     "primary context of this one",
				     device->name);
	if (capturing != CU_STREAM_CAPTURE_STATUS_NONE && !captured)
		return moe_error_set(err, -EINVAL,
				     "%s: the stream is being captured, but a step is planned anew each "
				     "time",
				     device->name);
	return 0;
}

static int cuda_stream_borrow(struct device *device, uintptr_t handle, bool captured, struct device_stream **stream,
			      struct moe_error *err)
{
	struct device_stream *s = *stream ? *stream : calloc(1, sizeof *s);
	int r;

	if (is_default_stream(handle))
		r = moe_error_set(err, -EINVAL,
				  "%s: a default stream was given; make one (cuStreamCreate, "
				  "torch.cuda.Stream) and work on that",
				  device->name);
	else if (!s)
		r = moe_error_set(err, -ENOMEM, "%s: no memory for a stream", device->name);
	else if ((r = cuda_enter(device)) < 0)
		r = cuda_refused(device, r, "cannot use this stream", err);
	else {
		r = check_borrowed(device, (CUstream)handle, captured, err);
		cuda_leave(device);
	}
	if (r < 0) {
		if (!*stream)
			free(s);
		return r;
	}
	s->device = device;
	s->stream = (CUstream)handle;
	*stream = s;
	return 0;
}

static void cuda_stream_return(struct device_stream *stream)
{
	if (stream)
		cuda_scratch_free(stream->device, &stream->scratch);
	free(stream);
}

static uintptr_t cuda_stream_handle(const struct device_stream *stream)
{
	return (uintptr_t)stream->stream;
}

const struct device_ops device_cuda = {
	.name = "cuda",
	.exports = false,
	.one_registrar = true,
	.open = cuda_open,
	.close = cuda_close,
	.failure = cuda_failure,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.share = cuda_share,
	.import = cuda_import,
	.dmabuf = cuda_dmabuf,
	.host_register = cuda_register,
	.reads_read_only = cuda_reads_read_only,
	.reads_pageable = cuda_reads_pageable,
	.pages_advise = cuda_pages_advise,
	.pages_fetch = cuda_pages_fetch,
	.describe = cuda_describe,
	.stream_new = cuda_stream_new,
	.stream_free = cuda_stream_free,
	.stream_error = cuda_stream_error,
	.stream_borrow = cuda_stream_borrow,
	.stream_return = cuda_stream_return,
	.stream_handle = cuda_stream_handle,
	.event_new = cuda_event_new,
	.event_free = cuda_event_free,
	.event_record = cuda_event_record,
	.event_query = cuda_event_query,
	.event_wait = cuda_event_wait,
	.event_elapsed_ns = cuda_event_elapsed_ns,
	.stream_wait_event = cuda_stream_wait_event,
	.copy_to_device = cuda_copy_to_device,
	.copy_to_host = cuda_copy_to_host,
	.stream_wait_at = cuda_stream_wait_at,
	.stream_write_at = cuda_stream_write_at,
	.stream_wait_word = cuda_stream_wait_word,
	.stream_write_word = cuda_stream_write_word,
	.stream_take_word = cuda_stream_take_word,
	.word_write = cuda_word_write,
	.word_wait = cuda_word_wait,
	.experts_prepare = cuda_experts_prepare,
	.experts = cuda_launch,
	.add = cuda_add,
};
