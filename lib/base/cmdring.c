/* SPDX-License-Identifier: MIT */
#include "cmdring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "util.h"

#define ENTRY_BYTES 128 /* of a ring with IORING_SETUP_SQE128 */
#define COMMAND_AT 48   /* in it */
#define UNKNOWN 0       /* a command that no device knows: no _IO() is that */

static int enter(const struct cmdring *ring, uint32_t submits, uint32_t flags)
{
	const long r = syscall(SYS_io_uring_enter, ring->fd, submits, 0, flags, NULL, 0);

	return r < 0 ? -errno : (int)r;
}

static uint32_t *word(const struct cmdring *ring, uint32_t offset)
{
	return (uint32_t *)((char *)ring->rings + offset);
}

/* One mapping for both rings: every kernel that has commands does so. */
static int map(struct cmdring *ring, const struct io_uring_params *p)
{
	const size_t sq = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
	const size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);

	ring->rings_bytes = MAX(sq, cq);
	ring->entry_bytes = (size_t)p->sq_entries * ENTRY_BYTES;
	ring->rings = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
			   IORING_OFF_SQ_RING);
	if (ring->rings == MAP_FAILED)
		return -errno;
	ring->entry = mmap(NULL, ring->entry_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
			   IORING_OFF_SQES);
	if (ring->entry == MAP_FAILED) {
		const int r = -errno;

		munmap(ring->rings, ring->rings_bytes);
		return r;
	}
	ring->sq_tail = word(ring, p->sq_off.tail);
	ring->sq_flags = word(ring, p->sq_off.flags);
	ring->cq_head = word(ring, p->cq_off.head);
	ring->cq_tail = word(ring, p->cq_off.tail);
	ring->cqes = (const char *)ring->rings + p->cq_off.cqes;
	ring->mask = p->cq_entries - 1;
	*word(ring, p->sq_off.array) = 0;
	return 0;
}

/* What a command meets that must come to the device, which refuses it. */
static int probe(struct cmdring *ring, int device)
{
	const uint8_t bytes[CMDRING_BYTES] = {0};
	uint64_t user_data;
	int result, r = cmdring_issue(ring, device, UNKNOWN, bytes, NULL, 0);

	if (r < 0)
		return r;
	if (!cmdring_next(ring, &user_data, &result) || result >= 0)
		return -EOPNOTSUPP;
	return result == -ENOTTY ? 0 : result;
}

int cmdring_open(struct cmdring *ret, int device, uint32_t commands, bool calm)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
		.cq_entries = commands,
	};
	struct cmdring ring = {.fd = -1};
	int r;

	ret->fd = -1;
	if (calm)
		p.flags |= IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
	ring.fd = (int)syscall(SYS_io_uring_setup, 1, &p);
	if (ring.fd < 0)
		return -errno;
	r = p.features & IORING_FEAT_SINGLE_MMAP ? map(&ring, &p) : -EOPNOTSUPP;
	if (r < 0) {
		close_fd(ring.fd);
		return r;
	}
	r = probe(&ring, device);
	if (r < 0) {
		cmdring_close(&ring);
		return r;
	}
	*ret = ring;
	return 0;
}

void cmdring_close(struct cmdring *ring)
{
	if (ring->fd < 0)
		return;
	munmap(ring->entry, ring->entry_bytes);
	munmap(ring->rings, ring->rings_bytes);
	ring->fd = close_fd(ring->fd);
}

int cmdring_issue(struct cmdring *ring, int device, uint32_t command, const void *bytes, void *to, uint64_t user_data)
{
	const uint32_t tail = *ring->sq_tail;
	struct io_uring_sqe *sqe = ring->entry;
	int r;

	memset(sqe, 0, ENTRY_BYTES);
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = device;
	sqe->off = command;
	sqe->addr = (uintptr_t)to;
	sqe->user_data = user_data;
	memcpy((char *)sqe + COMMAND_AT, bytes, CMDRING_BYTES);
	__atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
	do
		r = enter(ring, 1, 0);
	while (r == -EINTR);
	if (r == 1)
		return 0;
	__atomic_store_n(ring->sq_tail, tail, __ATOMIC_RELEASE); /* the kernel reads entries in the call alone */
	return r < 0 ? r : -EAGAIN;
}

bool cmdring_next(struct cmdring *ring, uint64_t *ret_user_data, int *ret_result)
{
	const uint32_t head = *ring->cq_head;
	const struct io_uring_cqe *cqe = (const struct io_uring_cqe *)ring->cqes + (head & ring->mask);

	if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
		/* It is there, and waits until this thread is in the kernel. */
		if (!(__atomic_load_n(ring->sq_flags, __ATOMIC_RELAXED) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
			return false;
		enter(ring, 0, IORING_ENTER_GETEVENTS);
		if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
			return false;
	}
	*ret_user_data = cqe->user_data;
	*ret_result = cqe->res;
	__atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
	return true;
}

bool cmdring_find(const struct cmdring *ring, uint64_t user_data, int *ret_result)
{
	const uint32_t tail = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE);

	for (uint32_t at = *ring->cq_head; at != tail; at++) {
		const struct io_uring_cqe *cqe = (const struct io_uring_cqe *)ring->cqes + (at & ring->mask);

		if (cqe->user_data == user_data) {
			*ret_result = cqe->res;
			return true;
		}
	}
	return false;
}

uint32_t cmdring_ready(const struct cmdring *ring)
{
	const uint32_t head = __atomic_load_n(ring->cq_head, __ATOMIC_RELAXED);

	return __atomic_load_n(ring->cq_tail, __ATOMIC_RELAXED) - head;
}

void cmdring_wait(const struct cmdring *ring, uint64_t timeout_ns)
{
	struct __kernel_timespec t = {.tv_sec = (int64_t)(timeout_ns / 1000000000u),
				      .tv_nsec = (int64_t)(timeout_ns % 1000000000u)};
	struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&t};

	syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
}
