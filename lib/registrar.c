/* SPDX-License-Identifier: MIT */
#include "registrar.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "session.h"

#define NAP_NS 10000000
#define TELL_NS 1000000000u

/* Of this process's sessions, who has the file. Held across calls, by the thread that attaches. */
static pthread_mutex_t ours = PTHREAD_MUTEX_INITIALIZER;

static const char *name_of(pid_t pid, char room[32])
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/comm", pid);
	file = fopen(path, "re");
	if (!file || !fgets(room, 32, file))
		snprintf(room, 32, "?");
	if (file)
		fclose(file);
	room[strcspn(room, "\n")] = '\0';
	return room;
}

static void tell(const struct registrar *r, pid_t holder)
{
	const struct moe_attach_params *p = &r->session->params;

	if (p->register_progress)
		p->register_progress(&(struct moe_registering){.holder = holder,
							       .done_bytes = r->done_bytes,
							       .total_bytes = r->total_bytes,
							       .elapsed_ns = now_ns() - r->began_ns},
				     p->register_userdata);
}

static int daemon_lives(const struct moe_session *session, struct moe_error *err)
{
	struct pollfd p = {.fd = session->socket, .events = POLLRDHUP};

	if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
		return 0;
	return moe_error_set(err, -EPIPE, "moe_attach to '%s': moe-expertd has gone while memory was to be registered",
			     session->info.model);
}

/* 1: held; 0: not yet, *ret_holder has it (0: a process that cannot be seen from here); -errno. */
static int try_lock(int fd, pid_t *ret_holder)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	if (fcntl(fd, F_SETLK, &lock) == 0)
		return 1;
	if (errno != EAGAIN && errno != EACCES && errno != EINTR)
		return -errno;
	if (fcntl(fd, F_GETLK, &lock) < 0)
		return -errno;
	*ret_holder = lock.l_type == F_UNLCK ? 0 : MAX(lock.l_pid, 0);
	return 0;
}

/* The same with what comes before: `ours`, then the file, which nobody else of this process may have. */
static int try_take(struct registrar *r, pid_t *ret_holder, struct moe_error *err)
{
	int got;

	if (r->fd < 0) {
		if (pthread_mutex_trylock(&ours) != 0) {
			*ret_holder = getpid();
			return 0;
		}
		got = r->fd = session_registrar(r->session, err);
		if (got < 0) {
			pthread_mutex_unlock(&ours);
			return got;
		}
	}
	got = try_lock(r->fd, ret_holder);
	return got < 0 ? moe_error_sys(err, got, "moe_attach: the registrar's file cannot be locked") : got;
}

static int waited_enough(const struct registrar *r, pid_t holder, struct moe_error *err)
{
	char room[32], who[64] = "a process of another container";

	if (holder)
		snprintf(who, sizeof who, "pid %d (%s)", holder, name_of(holder, room));
	return moe_error_set(err, -EBUSY,
			     "moe_attach to '%s': %s registers memory with a GPU's driver, which one process does at a "
			     "time; waited for %u ms (register_wait_ms): end that process, or wait longer",
			     r->session->info.model, who, r->session->params.register_wait_ms);
}

int registrar_take(struct registrar *ret, struct moe_session *session, uint64_t total_bytes, struct moe_error *err)
{
	struct registrar *r = ret;
	uint64_t told_ns = 0;
	pid_t holder = 0;
	int got;

	*r = (struct registrar){.session = session, .fd = -1, .began_ns = now_ns(), .total_bytes = total_bytes};
	while ((got = try_take(r, &holder, err)) == 0) {
		const uint64_t now = now_ns();

		if (now - r->began_ns >= session->params.register_wait_ms * (uint64_t)1000000)
			got = waited_enough(r, holder, err);
		else
			got = daemon_lives(session, err);
		if (got < 0)
			break;
		if (told_ns == 0 || now - told_ns >= TELL_NS) {
			tell(r, holder);
			told_ns = now;
		}
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	if (got < 0) {
		registrar_give(r);
		return got;
	}
	r->began_ns = now_ns();
	tell(r, getpid());
	return 0;
}

int registrar_note(struct registrar *r, uint64_t bytes, struct moe_error *err)
{
	r->done_bytes += bytes;
	tell(r, getpid());
	return daemon_lives(r->session, err);
}

void registrar_give(struct registrar *r)
{
	if (r->fd < 0)
		return;
	r->fd = close_fd(r->fd); /* which gives the lock back */
	pthread_mutex_unlock(&ours);
}
