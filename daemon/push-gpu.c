/* SPDX-License-Identifier: MIT */
#include "daemon/push-gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"

#define REGISTER_BYTES ((uint64_t)8 << 30) /* as the library does: docs/decisions/0020 */
#define REGISTRAR_PATIENCE_NS 60000000000u

static const struct device_ops *const ops = &device_cuda;

/* -- what is registered ------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int push_model_take(struct push_model *ret, const struct resident *model, struct moe_error *err)
{
	const struct moe_manifest *m = model->manifest;
	const uint64_t n = (uint64_t)m->n_moe_layers * m->n_experts;

	*ret = (struct push_model){.epoch = m->epoch, .n_cuts = n, .cuts = malloc((n + 1) * sizeof *ret->cuts)};
	if (!ret->cuts)
		return moe_error_sys(err, -ENOMEM, "device slots");
	for (uint64_t i = 0; i < n; i++)
		ret->cuts[i] = model->records[i].offset;
	qsort(ret->cuts, n, sizeof *ret->cuts, by_offset);
	for (uint32_t i = 0; i < model->n_pools; i++) {
		const int fd = fcntl(model->pools[i].fd, F_DUPFD_CLOEXEC, 0);

		if (fd < 0) {
			push_model_drop(ret);
			return moe_error_sys(err, -errno, "device slots");
		}
		ret->bytes[ret->n_pools] = model->pools[i].bytes;
		ret->fds[ret->n_pools++] = fd;
	}
	return 0;
}

void push_model_drop(struct push_model *model)
{
	for (uint32_t i = 0; i < model->n_pools; i++)
		close_fd(model->fds[i]);
	free(model->cuts);
	*model = (struct push_model){0};
}

/* Among processes one registers at a time (lib/registrar.h); this one has the file open once. */
static int take_turn(int registrar_fd, struct moe_error *err)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	const uint64_t end = now_ns() + REGISTRAR_PATIENCE_NS;

	while (fcntl(registrar_fd, F_SETLK, &lock) < 0) {
		if (errno != EAGAIN && errno != EACCES && errno != EINTR)
			return moe_error_sys(err, -errno, "the registrar's file cannot be locked");
		if (now_ns() >= end)
			return moe_error_set(err, -EBUSY,
					     "device slots: another process registers memory with a GPU's driver: try "
					     "again when it is done");
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	return 0;
}

static void end_turn(int registrar_fd)
{
	struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

	fcntl(registrar_fd, F_SETLK, &lock);
}

/* Pieces of at most REGISTER_BYTES, but at least one record, that end where one begins: no copy may lie in two. */
static int register_pool(struct push_gpu *gpu, uint32_t pool, const struct push_model *model, struct moe_error *err)
{
	const uint64_t *cuts = model->cuts, n = model->n_cuts;
	uint64_t begin, end, i = 0;
	int r = 0;

	model->cuts[n] = gpu->bytes[pool];
	for (begin = 0; begin < gpu->bytes[pool] && r == 0; begin = end) {
		while (i < n && cuts[i] <= begin)
			i++;
		for (end = cuts[i]; i < n && cuts[i + 1] - begin <= REGISTER_BYTES; i++)
			end = cuts[i + 1];
		r = ops->host_register(gpu->device, gpu->maps[pool] + begin, end - begin, false, err);
	}
	return r;
}

static int map_pool(struct push_gpu *gpu, uint32_t pool, const struct push_model *model, struct moe_error *err)
{
	const bool read_only = ops->reads_read_only(gpu->device);
	void *map;
	int r = memfd_map(&map, model->fds[pool], model->bytes[pool], read_only ? PROT_READ : PROT_READ | PROT_WRITE,
			  "pool file", err);

	if ((r == -EPERM || r == -EACCES) && !read_only)
		return moe_error_set(err, -EPERM,
				     "device slots: this GPU registers only memory that is mapped writable, and the "
				     "weights are sealed: start moe-expertd with --writable-weights");
	if (r < 0)
		return r;
	gpu->maps[pool] = map;
	gpu->bytes[pool] = model->bytes[pool];
	gpu->n_pools = pool + 1;
	r = register_pool(gpu, pool, model, err);
	if (r == 0 && !read_only && mprotect(map, gpu->bytes[pool], PROT_READ) < 0)
		r = moe_error_sys(err, -errno, "pool file: cannot be made read-only again");
	return r;
}

int push_gpu_register(struct push_gpu *gpu, const struct push_model *model, int registrar_fd, struct moe_error *err)
{
	int r = take_turn(registrar_fd, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < model->n_pools && r == 0; i++)
		r = map_pool(gpu, i, model, err);
	end_turn(registrar_fd);
	return r;
}

int push_gpu_open(struct push_gpu **ret, const uint8_t uuid[PUSH_UUID_BYTES], uint64_t epoch, struct moe_error *err)
{
	struct push_gpu *gpu = calloc(1, sizeof *gpu);
	char which[8 + 2 * PUSH_UUID_BYTES] = "uuid:";
	int r;

	if (!gpu)
		return moe_error_sys(err, -ENOMEM, "device slots");
	memcpy(gpu->uuid, uuid, sizeof gpu->uuid);
	gpu->epoch = epoch;
	for (int i = 0; i < PUSH_UUID_BYTES; i++)
		snprintf(which + 5 + 2 * i, 3, "%02x", uuid[i]);
	r = ops->open(&gpu->device, which, err);
	if (r == 0)
		r = ops->stream_new(gpu->device, DEVICE_PRIORITY_LOW, &gpu->stream, err);
	if (r < 0) {
		push_gpu_close(gpu);
		return r;
	}
	*ret = gpu;
	return 0;
}

struct push_gpu *push_gpu_close(struct push_gpu *gpu)
{
	ops->stream_free(gpu->stream);
	if (gpu->device)
		ops->close(gpu->device);
	for (uint32_t i = 0; i < gpu->n_pools; i++)
		munmap(gpu->maps[i], gpu->bytes[i]);
	free(gpu);
	return NULL;
}
