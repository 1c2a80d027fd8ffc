/* SPDX-License-Identifier: MIT */
#include "queue-module.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "uapi/moe_kmod.h"

#define SLOTS MOE_KMOD_REQUESTS_MAX
#define UNWRITTEN 1          /* as a status, which is 0 or negative */
#define SETTLE_NS 100000000u /* a step of the second in which the kernel is done with what was in flight */
#define SETTLE_STEPS 10

/* A SUBMIT in the ring. */
struct queue_module_slot {
	struct moe_kmod_answer answer;
	uint64_t user_data;
	bool refused;  /* who posted it knows */
	uint32_t next; /* free: SLOTS is the end */
};

static int command(const struct queue_module *m, unsigned long number, void *arg)
{
	return ioctl(m->fd, number, arg) < 0 ? -errno : 0;
}

/* -- slots -------------------------------------------------------------------------------------------------------- */

static void give_slot(struct queue_module *m, uint32_t i)
{
	m->slots[i].next = m->free;
	m->free = i;
	m->taken--;
}

static uint32_t take_slot(struct queue_module *m, uint64_t user_data)
{
	const uint32_t i = m->free;
	struct queue_module_slot *slot = &m->slots[i];

	if (i == SLOTS)
		return i;
	m->free = slot->next;
	m->taken++;
	*slot = (struct queue_module_slot){.answer.status = UNWRITTEN, .user_data = user_data};
	return i;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

/* Looking at it is no system call, as asking for one's process is. */
static void open_page(struct queue_module *m)
{
	void *page = mmap(NULL, sizeof *m->mine, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return;
	if (madvise(page, sizeof *m->mine, MADV_WIPEONFORK) < 0) {
		munmap(page, sizeof *m->mine);
		return;
	}
	m->mine = page;
	*m->mine = true;
}

/* Without it: by ioctl and poll. */
static void open_ring(struct queue_module *m, uint64_t features)
{
	const uint64_t needed = MOE_KMOD_HAS_URING | MOE_KMOD_HAS_STAYS;

	if ((features & needed) != needed || !m->mine)
		return;
	m->slots = calloc(SLOTS, sizeof *m->slots);
	if (!m->slots)
		return;
	if (cmdring_open(&m->ring, m->fd, SLOTS, false) < 0) {
		free(m->slots);
		m->slots = NULL;
		return;
	}
	m->free = SLOTS;
	m->taken = SLOTS;
	for (uint32_t i = SLOTS; i-- > 0;)
		give_slot(m, i);
}

int queue_module_open(struct queue_module *m, bool plain, struct moe_error *err)
{
	struct moe_kmod_features f = {0};
	int r;

	*m = (struct queue_module){.fd = -1, .ring.fd = -1, .pid = getpid()};
	m->fd = open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (m->fd < 0 && (errno == EACCES || errno == EPERM))
		return moe_error_set(err, -EACCES,
				     "transport kmod: %s: %s; its group may open it, as the udev rule says",
				     MOE_KMOD_DEVICE, strerror(errno));
	if (m->fd < 0)
		return moe_error_set(err, -EOPNOTSUPP,
				     "transport kmod: %s: %s; modprobe moe_expert, or use the transport ring",
				     MOE_KMOD_DEVICE, strerror(errno));
	r = command(m, MOE_KMOD_FEATURES, &f);
	if (r < 0 || f.abi != MOE_KMOD_ABI || !(f.features & MOE_KMOD_HAS_QUEUE) || !f.client) {
		queue_module_close(m);
		return moe_error_set(err, -EOPNOTSUPP,
				     "transport kmod: the kernel module has no queue that this library knows; load the "
				     "module of this release");
	}
	m->client = f.client;
	open_page(m);
	if (!plain)
		open_ring(m, f.features);
	return 0;
}

/* Whoever posted may be another thread, and what was in flight is written until it has completed. */
static bool settle(struct queue_module *m)
{
	uint64_t i;
	int result;

	for (int step = 0; m->taken > 0 && step < SETTLE_STEPS;) {
		if (cmdring_next(&m->ring, &i, &result)) {
			give_slot(m, (uint32_t)i);
			continue;
		}
		cmdring_wait(&m->ring, SETTLE_NS);
		step++;
	}
	return m->taken == 0;
}

void queue_module_close(struct queue_module *m)
{
	if (m->fd < 0)
		return;
	m->fd = close_fd(m->fd); /* what is in flight ends by that */
	if (m->mine)
		munmap(m->mine, sizeof *m->mine);
	m->mine = NULL;
	if (!m->slots)
		return;
	if (m->pid == getpid() && settle(m)) /* a child that was forked shares the ring, which is its parent's */
		free(m->slots);
	m->slots = NULL;
	cmdring_close(&m->ring);
}

bool queue_module_mine(const struct queue_module *m)
{
	return !m->mine || *m->mine;
}

const char *queue_module_way(const struct queue_module *m)
{
	return m->slots ? "io_uring" : "ioctl";
}

/* -- requests ----------------------------------------------------------------------------------------------------- */

/* What the module refuses has completed when it is issued; its completion stays for who drains. */
static int submit_by_ring(struct queue_module *m, struct moe_kmod_request *request, uint64_t user_data)
{
	const uint32_t i = take_slot(m, user_data);
	int r, result;

	if (i == SLOTS)
		return -EAGAIN;
	request->flags = MOE_KMOD_REQUEST_STAYS;
	r = cmdring_issue(&m->ring, m->fd, MOE_KMOD_SUBMIT, request, &m->slots[i].answer, i);
	if (r < 0) {
		give_slot(m, i);
		return r;
	}
	if (!cmdring_find(&m->ring, i, &result) || result >= 0 || result == -ECANCELED ||
	    m->slots[i].answer.status != UNWRITTEN)
		return 0;
	m->slots[i].refused = true;
	atomic_fetch_add(&m->refused, 1);
	return result;
}

int queue_module_post(struct queue_module *m, const struct moe_sqe *sqe)
{
	struct moe_kmod_request request = {.queue = m->queue};
	int r;

	_Static_assert(sizeof request.sqe == sizeof *sqe, "a request is the ring's entry");
	_Static_assert(sizeof request == CMDRING_BYTES, "and with its queue a command");
	if (!queue_module_mine(m))
		return -EPIPE;
	memcpy(request.sqe, sqe, sizeof request.sqe);
	r = m->slots ? submit_by_ring(m, &request, sqe->user_data) : command(m, MOE_KMOD_SUBMIT, &request);
	switch (r) {
	case -EBUSY:  /* of this open device are as many in flight as may be */
	case -EDQUOT: /* of this user */
	case -ENOMEM: /* the kernel's, just now */
	case -EINTR:
		return -EAGAIN;
	case -ESTALE:
	case -ENOENT:
	case -EPERM:
	case -EBADF:
		return -EPIPE;
	default:
		return r;
	}
}

/* -- answers ------------------------------------------------------------------------------------------------------ */

/* What no daemon answers: the queue is gone, or this session is not there. */
static bool is_over(int status)
{
	return status == -ESHUTDOWN || status == -EHOSTDOWN || status == -ENOTCONN;
}

static void tell(const struct moe_kmod_answer *answer, uint64_t user_data, struct moe_cqe *ret, bool *ret_over)
{
	*ret = (struct moe_cqe){.user_data = user_data,
				.status = answer->status,
				.pairs = answer->pairs,
				.wait_ns = answer->wait_ns,
				.work_ns = answer->work_ns,
				.bytes = answer->bytes,
				.lease = answer->lease,
				.offset = answer->offset};
	*ret_over = is_over(ret->status);
	if (*ret_over)
		ret->status = -EPIPE; /* as by the ring */
}

static int next_by_ioctl(struct queue_module *m, struct moe_cqe *ret, bool *ret_over)
{
	struct moe_kmod_reap reap = {0};
	const int r = command(m, MOE_KMOD_REAP, &reap);

	if (r < 0)
		return r == -EAGAIN || r == -EINTR ? 0 : -EPIPE;
	tell(&reap.answer, reap.user_data, ret, ret_over);
	return 1;
}

/* What says ECANCELED without an answer has lost the thread that posted it, and its answer is reaped. */
static int next_by_ring(struct queue_module *m, struct moe_cqe *ret, bool *ret_over)
{
	uint64_t i;
	int result, r;

	while (cmdring_next(&m->ring, &i, &result)) {
		struct queue_module_slot *slot = &m->slots[i];
		const bool answered = slot->answer.status != UNWRITTEN, refused = slot->refused;

		if (answered)
			tell(&slot->answer, slot->user_data, ret, ret_over);
		else if (!refused && result == -ECANCELED)
			atomic_fetch_add(&m->strays, 1);
		else if (!refused)
			tell(&(struct moe_kmod_answer){.status = result}, slot->user_data, ret, ret_over);
		if (refused)
			atomic_fetch_sub(&m->refused, 1);
		give_slot(m, (uint32_t)i);
		if (answered || (!refused && result != -ECANCELED))
			return 1;
	}
	if (atomic_load(&m->strays) == 0)
		return 0;
	r = next_by_ioctl(m, ret, ret_over);
	if (r > 0)
		atomic_fetch_sub(&m->strays, 1);
	return r;
}

int queue_module_next(struct queue_module *m, struct moe_cqe *ret, bool *ret_over)
{
	if (!queue_module_mine(m))
		return -EPIPE;
	return m->slots ? next_by_ring(m, ret, ret_over) : next_by_ioctl(m, ret, ret_over);
}

bool queue_module_refused(const struct queue_module *m)
{
	return atomic_load(&m->refused) > 0;
}

bool queue_module_news(const struct queue_module *m)
{
	struct pollfd p = {.fd = m->fd, .events = POLLPRI};

	if (!queue_module_mine(m))
		return false;
	if (m->slots && cmdring_ready(&m->ring) > atomic_load(&m->refused))
		return true;
	if (m->slots && atomic_load(&m->strays) == 0)
		return false;
	return poll(&p, 1, 0) > 0 && p.revents & POLLPRI;
}

void queue_module_sleep(struct queue_module *m, int socket, uint64_t timeout_ns)
{
	struct pollfd p[] = {{.fd = m->fd, .events = POLLPRI},
			     {.fd = socket, .events = POLLRDHUP},
			     {.fd = m->ring.fd, .events = POLLIN}}; /* -1: none */
	const struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
				   .tv_nsec = (long)(timeout_ns % 1000000000u)};

	if (m->slots && atomic_load(&m->strays) == 0)
		cmdring_wait(&m->ring, timeout_ns);
	else
		ppoll(p, 3, &t, NULL);
}
