/* SPDX-License-Identifier: MIT */
/* The kernels: loaded whole when the device is opened, launched as kernels/cuda/launch.h lists them. */
#include <errno.h>

#include "base/error.h"
#include "base/util.h"
#include "device/device-cuda.h"

#define NAME(name, params) #name,

static const char *const names[CUDA_KERNEL_COUNT] = {CUDA_KERNELS(NAME)};

/* Now, not at the first launch: what is loaded lazily takes the context's lock then, under a stream that may be waiting
 * for a word that this very thread is to bring about. */
static int load_function(struct device *device, uint32_t i)
{
	int unused, r = CUDA_CALL(device, cuModuleGetFunction, &device->functions[i], device->module, names[i]);

	if (r == 0 && device->cu->cuFuncLoad)
		r = CUDA_CALL(device, cuFuncLoad, device->functions[i]);
	else if (r == 0)
		r = CUDA_CALL(device, cuFuncGetAttribute, &unused, CU_FUNC_ATTRIBUTE_NUM_REGS, device->functions[i]);
	return r;
}

int cuda_load_kernels(struct device *device, struct moe_error *err)
{
	uint32_t i;
	int r = CUDA_CALL(device, cuModuleLoadData, &device->module, cuda_fatbin);

	for (i = 0; i < CUDA_KERNEL_COUNT && r == 0; i++)
		r = load_function(device, i);
	return r < 0 ? cuda_refused(device, r, "cannot load the kernels (built for compute capability 8.0 and later)",
				    err)
		     : 0;
}

/* -- scratch ------------------------------------------------------------------------------------------------------ */

/* Where weights and map begin in the block, and its bytes: they lie in it as on the host. */
static int routing_of(const struct device_experts *w, uint64_t *ret_weights, uint64_t *ret_map, uint64_t *ret_bytes)
{
	const uintptr_t ids = (uintptr_t)w->ids, weights = (uintptr_t)w->weights, map = (uintptr_t)w->map;
	const uintptr_t room = (uintptr_t)w->room;
	const uint64_t pairs = (uint64_t)w->tokens * w->topk * sizeof(int32_t);

	if (weights < ids + pairs || map < weights + pairs || (weights - ids) % 16 || (map - ids) % 16)
		return -EINVAL;
	*ret_weights = weights - ids;
	*ret_map = map - ids;
	*ret_bytes = *ret_map + w->n_experts * sizeof(int32_t);
	if (w->n_reads == 0)
		return 0;
	if (room < ids + *ret_bytes || (room - ids) % 16)
		return -EINVAL;
	*ret_bytes = room - ids + device_room_bytes(w->n_reads, w->n_shares);
	return 0;
}

static uint64_t routing_room(const struct device_experts *w)
{
	const uint64_t pairs = ALIGN_UP((uint64_t)w->tokens * w->topk * sizeof(int32_t), (uint64_t)CACHE_LINE);
	const uint64_t map = ALIGN_UP(w->n_experts * sizeof(int32_t), (uint64_t)CACHE_LINE);

	return ALIGN_UP(2 * pairs + map + device_room_bytes(w->n_reads, w->n_shares), (uint64_t)CUDA_SCRATCH_ALIGN);
}

/* What is read in the pool: the shares' matrices and the records' device addresses, in the block's room, which goes to
 * the device with the rest of it. */
static int route_pool(struct device *device, const struct device_experts *w, struct cuda_experts *work)
{
	struct cuda_share *shares = w->room;
	CUdeviceptr *records = (CUdeviceptr *)(shares + w->n_shares);
	uint32_t i;
	int r = 0;

	_Static_assert(sizeof(struct cuda_share) <= 256 && CUDA_DECODE_PAIRS >= DEVICE_READ_PAIRS, "device.h");
	for (i = 0; i < w->n_shares && r == 0; i++)
		cuda_share_of(&shares[i], w->layout, w->slice, i, w->n_shares);
	for (i = 0; i < w->n_reads * w->n_shares && r == 0; i++)
		r = cuda_find(device, w->records[i], w->layout->record_bytes, &records[i]);
	work->shares = work->ids + (uint64_t)((const uint8_t *)w->room - (const uint8_t *)w->ids);
	work->records = work->shares + w->n_shares * sizeof *shares;
	return r;
}

static struct cuda_experts experts_of(const struct device_experts *w)
{
	return (struct cuda_experts){
		.slots = w->slots,
		.slot_bytes = w->slot_bytes,
		.layout = w->layout,
		.slice = w->slice,
		.hidden = w->hidden,
		.activation = w->activation,
		.limit = w->limit,
		.tokens = w->tokens,
		.topk = w->topk,
		.n_experts = w->n_experts,
		.n_slots = w->n_slots,
		.n_shares = w->n_reads ? w->n_shares : 0,
		.path = CUDA_PATH_AUTO,
		.x = w->x,
		.y = w->y,
	};
}

/* At least so many bytes for the next launch; work in flight keeps what it has. */
static int grow_scratch(struct device_stream *stream, uint64_t bytes, struct moe_error *err)
{
	struct cuda_scratch *scratch = &stream->scratch;
	struct device_memory more;
	int r;

	if (bytes <= scratch->now.bytes)
		return 0;
	if (scratch->n_outgrown == CUDA_OUTGROWN_MAX)
		return moe_error_set(err, -ENOMEM, "%s: no more scratch memory", stream->device->name);
	r = cuda_alloc(stream->device, MAX(bytes, 2 * scratch->now.bytes), &more, err);
	if (r < 0)
		return r;
	if (scratch->now.base)
		scratch->outgrown[scratch->n_outgrown++] = scratch->now;
	scratch->now = more;
	return 0;
}

void cuda_scratch_free(struct device *device, struct cuda_scratch *scratch)
{
	while (scratch->n_outgrown > 0)
		cuda_free(device, &scratch->outgrown[--scratch->n_outgrown]);
	cuda_free(device, &scratch->now);
}

/* -- launches ----------------------------------------------------------------------------------------------------- */

int cuda_experts_prepare(struct device_stream *stream, const struct device_experts *largest, struct moe_error *err)
{
	const struct cuda_experts work = experts_of(largest);
	struct cuda_launch launches[CUDA_LAUNCHES_MAX];
	const int r = cuda_launch_experts(&work, launches);

	if (r < 0)
		return moe_error_set(
			err, r,
			"%s: its kernels cannot compute %u experts of hidden size %u, of %s and %s, for %u "
			"tokens of %u",
			stream->device->name, work.n_experts, work.hidden,
			moe_formats[work.layout->part[MOE_PART_GATE].format].name,
			moe_formats[work.layout->part[MOE_PART_DOWN].format].name, work.tokens, work.topk);
	return grow_scratch(stream, routing_room(largest) + cuda_scratch_bytes(&work), err);
}

static int launch_one(struct device_stream *stream, struct cuda_launch *l)
{
	void *params = &l->params;

	return CUDA_GIVE(stream->device, cuLaunchKernel, stream->device->functions[l->kernel], l->grid[0], l->grid[1],
			 l->grid[2], l->block[0], l->block[1], l->block[2], l->shared_bytes, stream->stream, &params,
			 NULL);
}

static int launch_all(struct device_stream *stream, const struct cuda_experts *work)
{
	struct cuda_launch launches[CUDA_LAUNCHES_MAX];
	const int n = cuda_launch_experts(work, launches);
	int i, r = n < 0 ? n : 0;

	for (i = 0; i < n && r == 0; i++)
		r = launch_one(stream, &launches[i]);
	return r;
}

/* The kernel itself reads the host's memory, each number once, or what a copy has brought: docs/decisions/0042. */
int cuda_add(struct device_stream *stream, device_ptr y, const float *z, uint64_t n, device_ptr landing)
{
	struct cuda_launch launch;
	CUdeviceptr at;
	int r = cuda_find(stream->device, z, n * sizeof *z, &at);

	if (r == 0)
		r = cuda_enter(stream->device);
	if (r < 0)
		return r;
	if (landing)
		r = CUDA_GIVE(stream->device, cuMemcpyHtoDAsync, landing, z, n * sizeof *z, stream->stream);
	cuda_launch_add(y, landing ? landing : at, n, &launch);
	if (r == 0)
		r = launch_one(stream, &launch);
	cuda_leave(stream->device);
	return r;
}

/* Ids, weights and map are the device's: nothing is copied, and no scratch memory made, so it may be captured. */
static int launch_routed(struct device_stream *stream, const struct device_experts *work)
{
	struct cuda_experts w = experts_of(work);
	int r;

	if (cuda_scratch_bytes(&w) > stream->scratch.now.bytes)
		return -ENOMEM;
	w.ids = work->on_ids;
	w.weights = work->on_weights;
	w.map = work->on_map;
	w.scratch = stream->scratch.now.base;
	r = cuda_enter(stream->device);
	if (r < 0)
		return r;
	r = launch_all(stream, &w);
	cuda_leave(stream->device);
	return r;
}

int cuda_launch(struct device_stream *stream, const struct device_experts *work)
{
	struct cuda_experts w = experts_of(work);
	uint64_t weights, map, bytes;
	CUdeviceptr known;
	int r;

	if (work->on_map)
		return launch_routed(stream, work);
	r = routing_of(work, &weights, &map, &bytes);
	if (r == 0)
		r = cuda_find(stream->device, work->ids, bytes, &known);
	if (r == 0)
		r = grow_scratch(stream, ALIGN_UP(bytes, (uint64_t)CUDA_SCRATCH_ALIGN) + cuda_scratch_bytes(&w), NULL);
	w.ids = stream->scratch.now.base;
	if (r == 0 && work->n_reads)
		r = route_pool(stream->device, work, &w);
	if (r == 0)
		r = cuda_enter(stream->device);
	if (r < 0)
		return r;
	w.weights = w.ids + weights;
	w.map = w.ids + map;
	w.scratch = w.ids + ALIGN_UP(bytes, (uint64_t)CUDA_SCRATCH_ALIGN);
	r = CUDA_GIVE(stream->device, cuMemcpyHtoDAsync, w.ids, work->ids, bytes, stream->stream);
	if (r == 0)
		r = launch_all(stream, &w);
	cuda_leave(stream->device);
	return r;
}
