/* SPDX-License-Identifier: MIT */
#include "daemon/diskring.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"

#define REFUSALS_MAX 1000 /* of one read: then it is no matter of waiting */
#define SHORTS_MAX 8      /* that brought no whole unit */
#define REFUSED_NS 1000000000u
#define NO_WAIT_US 1000 /* where the kernel refuses even waiting */

#define ALIGN_DOWN(value, align) ((value) & ~((__typeof__(value))(align)-1))

/* -- one read ----------------------------------------------------------------------------------------------------- */

int diskread_took(struct diskread *read, int64_t result, struct moe_error *err)
{
	const struct shardfile *file = read->file;
	uint32_t got;

	if ((result == -EINTR || result == -EAGAIN) && read->refusals++ < REFUSALS_MAX)
		return 1;
	if (result < 0)
		return moe_error_sys(err, (int)result, "%s: cannot read %u bytes at offset %" PRIu64, file->shard->path,
				     read->length - read->got, read->offset + read->got);
	read->bytes += (uint64_t)result;
	got = read->got + (uint32_t)result;
	if (got >= read->expected)
		return 0;
	/* A direct read can go on only where a unit begins. */
	if (ALIGN_DOWN(got, SHARDFILE_ALIGN) > read->got || (!file->direct && result > 0)) {
		read->got = file->direct ? ALIGN_DOWN(got, SHARDFILE_ALIGN) : got;
		return 1;
	}
	if (result > 0 && read->refusals++ < SHORTS_MAX)
		return 1;
	return shardfile_short(file, read->offset, read->expected, got, err);
}

static void begin(struct diskread *read)
{
	read->bytes = 0;
	read->got = read->refusals = 0;
}

int diskread_sync(struct diskread *read, struct moe_error *err)
{
	int r;

	begin(read);
	do {
		const ssize_t n = pread(read->file->fd, read->memory + read->got, read->length - read->got,
					(off_t)(read->offset + read->got));

		r = diskread_took(read, n < 0 ? -errno : n, err);
	} while (r > 0);
	return r;
}

/* -- what the kernel has not taken -------------------------------------------------------------------------------- */

/* Never NULL: the queue has room for `depth` reads and a poll, and each has one entry at most. */
static struct io_uring_sqe *entry(struct diskring *r, struct diskread *read)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);

	assert(sqe);
	read->next = NULL;
	*r->last = read;
	r->last = &read->next;
	return sqe;
}

static void forget_first(struct diskring *r)
{
	r->first = r->first->next;
	if (!r->first)
		r->last = &r->first;
	r->n_waiting--;
}

static void prepare(struct diskring *r, struct diskread *read)
{
	struct io_uring_sqe *sqe = entry(r, read);
	uint8_t *to = read->memory + read->got;
	const uint32_t length = read->length - read->got;

	if (r->fixed)
		io_uring_prep_read_fixed(sqe, read->file->fd, to, length, read->offset + read->got, 0);
	else
		io_uring_prep_read(sqe, read->file->fd, to, length, read->offset + read->got);
	io_uring_sqe_set_data(sqe, read);
	r->n_waiting++;
}

/* Polled, not read: the kernel writes nothing for it. */
static void arm_wake(struct diskring *r)
{
	struct io_uring_sqe *sqe;

	if (r->wake_fd < 0 || r->armed)
		return;
	sqe = entry(r, &r->wake);
	io_uring_prep_poll_add(sqe, r->wake_fd, POLLIN);
	io_uring_sqe_set_data(sqe, &r->wake);
	r->armed = true;
	r->n_waiting++;
}

static void end(struct diskring *r, struct diskread *read, const struct moe_error *error)
{
	r->in_flight--;
	r->done(r->userdata, read, error);
}

static void give_up(struct diskring *r, int code)
{
	struct moe_error error;

	r->broken = code;
	while (r->first) {
		struct diskread *read = r->first;

		forget_first(r);
		if (read == &r->wake)
			continue;
		moe_error_sys(&error, code, "%s: io_uring refuses reads", r->name);
		end(r, read, &error);
	}
}

static void submit(struct diskring *r)
{
	const int submitted = io_uring_submit(&r->ring);

	/* What was not taken stays queued and goes with the next call. */
	while (r->n_waiting > io_uring_sq_ready(&r->ring))
		forget_first(r);
	if (submitted >= 0 || submitted == -EINTR) {
		r->refused_ns = 0;
		return;
	}
	if (!r->refused_ns)
		r->refused_ns = now_ns();
	if ((submitted != -EAGAIN && submitted != -EBUSY) || now_ns() - r->refused_ns >= REFUSED_NS)
		give_up(r, submitted);
}

/* -- what has ended ----------------------------------------------------------------------------------------------- */

static void take(struct diskring *r, struct diskread *read, int result)
{
	struct moe_error error;
	eventfd_t count;
	int c;

	if (read == &r->wake) {
		r->armed = false;
		eventfd_read(r->wake_fd, &count);
		return;
	}
	c = diskread_took(read, result, &error);
	if (c > 0 && r->broken)
		c = moe_error_sys(&error, r->broken, "%s: io_uring refuses reads", r->name);
	if (c > 0)
		prepare(r, read);
	else
		end(r, read, c < 0 ? &error : NULL);
}

static void await(struct diskring *r, uint64_t wait_ns)
{
	struct __kernel_timespec time = {.tv_sec = (int64_t)(wait_ns / 1000000000u),
					 .tv_nsec = (int64_t)(wait_ns % 1000000000u)};
	struct io_uring_cqe *cqe;
	const int waited = io_uring_wait_cqe_timeout(&r->ring, &cqe, wait_ns == UINT64_MAX ? NULL : &time);
	/* Even where waiting is refused, what there is can be had. */
	int c = io_uring_peek_cqe(&r->ring, &cqe);

	if (c < 0 && waited < 0 && waited != -ETIME && waited != -EINTR)
		usleep(NO_WAIT_US);
	for (; c == 0; c = io_uring_peek_cqe(&r->ring, &cqe)) {
		struct diskread *read = io_uring_cqe_get_data(cqe);
		const int result = cqe->res;

		io_uring_cqe_seen(&r->ring, cqe);
		if (read) /* or of a time that has run out, on kernels that ask for it in the ring */
			take(r, read, result);
	}
}

void diskring_submit(struct diskring *r)
{
	if (r->broken)
		return;
	arm_wake(r);
	submit(r);
}

void diskring_turn(struct diskring *r, uint64_t wait_ns)
{
	diskring_submit(r);
	/* What the kernel does not take now is offered again, and not when something else has ended. */
	if (r->in_flight > 0)
		await(r, r->refused_ns ? MIN(wait_ns, (uint64_t)NO_WAIT_US * 1000) : wait_ns);
}

void diskring_add(struct diskring *r, struct diskread *read)
{
	assert(r->open && !r->broken && r->in_flight < r->depth);
	begin(read);
	r->in_flight++;
	prepare(r, read);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

int diskring_open(struct diskring *r)
{
	const struct iovec memory = {.iov_base = r->memory, .iov_len = r->bytes};
	int c = io_uring_queue_init(r->depth + 1, &r->ring, 0);

	if (c < 0)
		return c;
	r->open = true;
	r->broken = 0;
	r->armed = false;
	r->refused_ns = 0;
	r->first = NULL;
	r->last = &r->first;
	r->n_waiting = r->in_flight = 0;
	c = io_uring_register_buffers(&r->ring, &memory, 1);
	r->fixed = c == 0;
	if (c < 0)
		log_debug("%s: plain reads, the memory to read into is not registered: error %d (RLIMIT_MEMLOCK?)",
			  r->name, c);
	return 0;
}

void diskring_close(struct diskring *r)
{
	if (!r->open)
		return;
	assert(r->in_flight == 0);
	io_uring_queue_exit(&r->ring);
	r->open = false;
}
