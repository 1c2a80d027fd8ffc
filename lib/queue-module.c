/* SPDX-License-Identifier: MIT */
#include "queue-module.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "uapi/moe_kmod.h"

static int command(const struct queue_module *m, unsigned long number, void *arg)
{
	return ioctl(m->fd, number, arg) < 0 ? -errno : 0;
}

int queue_module_open(struct queue_module *m, struct moe_error *err)
{
	struct moe_kmod_features f = {0};
	int r;

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
	return 0;
}

void queue_module_close(struct queue_module *m)
{
	if (m->fd >= 0)
		m->fd = close_fd(m->fd);
}

int queue_module_post(struct queue_module *m, const struct moe_sqe *sqe)
{
	struct moe_kmod_request request = {.queue = m->queue};
	int r;

	_Static_assert(sizeof request.sqe == sizeof *sqe, "a request is the ring's entry");
	memcpy(request.sqe, sqe, sizeof request.sqe);
	r = command(m, MOE_KMOD_SUBMIT, &request);
	switch (r) {
	case -EBUSY:  /* of this open device are as many in flight as may be */
	case -EDQUOT: /* of this user */
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

/* What no daemon answers: the queue is gone, or this session is not there. */
static bool is_over(int status)
{
	return status == -ESHUTDOWN || status == -EHOSTDOWN || status == -ENOTCONN;
}

int queue_module_next(struct queue_module *m, struct moe_cqe *ret, bool *ret_over)
{
	struct moe_kmod_reap reap = {0};
	const int r = command(m, MOE_KMOD_REAP, &reap);

	if (r < 0)
		return r == -EAGAIN || r == -EINTR ? 0 : -EPIPE;
	*ret = (struct moe_cqe){.user_data = reap.user_data,
				.status = reap.answer.status,
				.pairs = reap.answer.pairs,
				.wait_ns = reap.answer.wait_ns,
				.work_ns = reap.answer.work_ns,
				.bytes = reap.answer.bytes,
				.lease = reap.answer.lease,
				.offset = reap.answer.offset};
	*ret_over = is_over(ret->status);
	if (*ret_over)
		ret->status = -EPIPE; /* as by the ring */
	return 1;
}

void queue_module_sleep(const struct queue_module *m, int socket, uint64_t timeout_ns)
{
	struct pollfd p[] = {{.fd = m->fd, .events = POLLPRI}, {.fd = socket, .events = POLLRDHUP}};
	const struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
				   .tv_nsec = (long)(timeout_ns % 1000000000u)};

	ppoll(p, 2, &t, NULL);
}
