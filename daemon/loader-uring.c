/* SPDX-License-Identifier: MIT */
/* The reader that keeps `depth` reads in flight on one io_uring, from one thread. */
#include <errno.h>
#include <liburing.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/loader-ring.h"

#define REFUSED_NS 1000000000u

struct reader {
	struct loader *loader;
	struct io_uring ring;
	uint32_t in_flight;
	bool fixed;          /* the bounce ring is registered */
	bool broken;         /* the kernel takes no more reads */
	uint64_t refused_ns; /* since when it takes none just now, 0: it does */
};

static void prepare(struct reader *r, struct loader_slot *slot)
{
	const struct loader_block *block = &slot->block;
	const int fd = r->loader->files[block->shard].fd;
	/* Never NULL: the submission queue has room for `depth`, and each slot in flight has one entry at most. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);

	if (r->fixed)
		io_uring_prep_read_fixed(sqe, fd, slot->memory + slot->got, block->length - slot->got,
					 block->offset + slot->got, 0);
	else
		io_uring_prep_read(sqe, fd, slot->memory + slot->got, block->length - slot->got,
				   block->offset + slot->got);
	io_uring_sqe_set_data(sqe, slot);
	r->in_flight++;
}

/* Returns false when there is nothing more to read. */
static bool fill_queue(struct reader *r)
{
	while (r->in_flight < r->loader->depth) {
		/* With reads in flight there is something better to wait for than a slot. */
		struct loader_slot *slot = loader_take_slot(r->loader, r->in_flight ? 0 : LOADER_TICK_NS);

		if (!slot)
			return !atomic_load(&r->loader->failed);
		if (!loader_next(r->loader, slot)) {
			loader_give_slot(r->loader, slot);
			return false;
		}
		prepare(r, slot);
	}
	return true;
}

static void take(struct reader *r, struct loader_slot *slot, int result)
{
	r->in_flight--;
	switch (loader_took(r->loader, slot, result)) {
	case LOADER_FULL:
		loader_dispatch(r->loader, slot);
		break;
	case LOADER_READ_ON:
		prepare(r, slot);
		break;
	case LOADER_STOP:
		loader_give_slot(r->loader, slot);
		break;
	}
}

static void take_completions(struct reader *r)
{
	struct __kernel_timespec tick = {.tv_nsec = LOADER_TICK_NS};
	struct io_uring_cqe *cqe;
	int result;

	result = io_uring_wait_cqe_timeout(&r->ring, &cqe, &tick);
	if (result < 0) /* even where waiting is refused, what there is can be had */
		result = io_uring_peek_cqe(&r->ring, &cqe);
	while (result == 0) {
		struct loader_slot *slot = io_uring_cqe_get_data(cqe);
		const int bytes = cqe->res;

		io_uring_cqe_seen(&r->ring, cqe);
		take(r, slot, bytes);
		result = io_uring_peek_cqe(&r->ring, &cqe);
	}
}

static void submit(struct reader *r)
{
	const int submitted = io_uring_submit(&r->ring);
	struct moe_error error;

	/* What was not submitted stays queued and goes with the next call. */
	if (submitted >= 0 || submitted == -EINTR) {
		r->refused_ns = 0;
		return;
	}
	if (!r->refused_ns)
		r->refused_ns = now_ns();
	if ((submitted == -EAGAIN || submitted == -EBUSY) && now_ns() - r->refused_ns < REFUSED_NS)
		return;
	moe_error_sys(&error, submitted, "%s: io_uring refuses reads", r->loader->params->name);
	loader_fail(r->loader, &error);
	r->in_flight -= io_uring_sq_ready(&r->ring);
	r->broken = true;
}

int loader_read_uring(struct loader *loader)
{
	struct reader r = {.loader = loader};
	const struct iovec bounce = {.iov_base = loader->ring,
				     .iov_len = (size_t)loader->n_slots * loader->block_bytes};
	bool more = true;
	int ret;

	ret = io_uring_queue_init(loader->depth, &r.ring, 0);
	if (ret < 0)
		return ret;
	ret = io_uring_register_buffers(&r.ring, &bounce, 1);
	r.fixed = ret == 0;
	if (ret < 0)
		log_debug("%s: plain reads, the bounce ring is not registered: error %d (RLIMIT_MEMLOCK?)",
			  loader->params->name, ret);
	while (more || r.in_flight > 0) {
		if (more)
			more = fill_queue(&r);
		if (!r.broken)
			submit(&r);
		if (r.in_flight > 0)
			take_completions(&r);
		loader_tick(loader);
	}
	io_uring_queue_exit(&r.ring);
	return 0;
}
