/* SPDX-License-Identifier: MIT */
#include "daemon/keeper-store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "daemon/handover.h"

#define OWN_FDS 64 /* room for what is not kept */

struct keeper_kept {
	int fd;
	dev_t dev;
	ino_t ino;
	char name[HANDOVER_NAME_MAX + 1];
};

static bool has_hung_up(int fd)
{
	struct pollfd pollfd = {.fd = fd};

	return poll(&pollfd, 1, 0) > 0 && (pollfd.revents & (POLLHUP | POLLERR));
}

/* Closed for the last time by a child that ends, which waits for nobody's peer. No thread: a daemon that is started
 * meanwhile would have it as well, and wait. Its own copies of all else go at once, or what it may wait for in spite of
 * that (a FUSE file) would keep them. */
static void close_by_another(int fd)
{
	int end[2];
	pid_t pid;

	if (pipe2(end, O_CLOEXEC) < 0) {
		close_fd(fd);
		return;
	}
	pid = fork();
	if (pid == 0) {
		char byte;

		dup2(end[0], 1); /* which may be 0 */
		dup2(fd, 0);
		syscall(SYS_close_range, 2, ~0u, 0);
		while (read(1, &byte, 1) < 0 && errno == EINTR)
			continue;
		_exit(0);
	}
	close_fd(fd);
	close_fd(end[0]);
	close_fd(end[1]);
}

/* Of a connection this may be the last close, and so of the descriptors that nobody has received from it, which may
 * wait for ever (closer.h). */
static void close_kept(int fd)
{
	if (has_hung_up(fd) && fdmsg_unread(fd))
		close_by_another(fd);
	else
		close_fd(fd);
}

static void drop_at(struct keeper_store *s, uint32_t i)
{
	s->names_bytes -= strlen(s->kept[i].name) + 1;
	/* By hand: closing takes it out of epoll only when the daemon has no copy. */
	epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->kept[i].fd, NULL);
	close_kept(s->kept[i].fd);
	s->n--;
	memmove(&s->kept[i], &s->kept[i + 1], (s->n - i) * sizeof *s->kept);
}

bool keeper_store_has(const struct keeper_store *s, const char *name)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (strcmp(s->kept[i].name, name) == 0)
			return true;
	return false;
}

void keeper_store_drop(struct keeper_store *s, const char *name)
{
	for (uint32_t i = s->n; i-- > 0;)
		if (strcmp(s->kept[i].name, name) == 0)
			drop_at(s, i);
}

/* The number may have been given to another one since the event. */
void keeper_store_drop_hung_up(struct keeper_store *s, int fd)
{
	if (!has_hung_up(fd))
		return;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->kept[i].fd == fd) {
			log_debug("keeper: %s: its other end is gone; dropped", s->kept[i].name);
			drop_at(s, i);
			return;
		}
}

static void refuse(struct keeper_store *s, const char *name, const char *why)
{
	if (!s->refused)
		log_warning("keeper: %s is not kept: %s; %u are kept, with %zu bytes of names; "
			    "further refusals to this daemon are not logged",
			    name, why, s->n, s->names_bytes);
	s->refused = true;
}

/* As systemd: printable, and no colon, which parts names in LISTEN_FDNAMES. */
static bool name_is_good(const char *name)
{
	for (const char *c = name; *c; c++)
		if (*c < ' ' || *c > '~' || *c == ':')
			return false;
	return *name && strlen(name) <= HANDOVER_NAME_MAX;
}

/* As systemd, which keeps an open file once. Where the kernel does not tell, it is kept twice. */
static const char *name_of_same(const struct keeper_store *s, int fd, const struct stat *st)
{
	const pid_t self = getpid();

	for (uint32_t i = 0; i < s->n; i++) {
		const struct keeper_kept *k = &s->kept[i];

		if (k->dev == st->st_dev && k->ino == st->st_ino &&
		    syscall(SYS_kcmp, self, self, KCMP_FILE, fd, k->fd) == 0)
			return k->name;
	}
	return NULL;
}

/* NULL: it is kept. */
static const char *why_not(const struct keeper_store *s, int fd, const char *name, const struct stat *st, char *ret,
			   size_t size)
{
	const char *same;

	if (!name_is_good(name))
		return "names have 1 to 100 printable characters and no colon";
	if (s->n >= s->max)
		return "there is room for no more";
	if (s->names_bytes + strlen(name) + 1 > HANDOVER_NAMES_BYTES_MAX)
		return "no room for names is left";
	same = name_of_same(s, fd, st);
	if (!same)
		return NULL;
	snprintf(ret, size, "it is the same open file as %s", same);
	return ret;
}

void keeper_store_put(struct keeper_store *s, int fd, const char *name, bool watched)
{
	struct epoll_event event = {.events = 0}; /* hang-ups and errors are always told */
	struct keeper_kept *k = &s->kept[s->n];
	const char *why;
	char words[256];
	struct stat st;
	int high;

	high = fstat(fd, &st) < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, s->first);
	why = high < 0 ? strerror(errno) : why_not(s, fd, name, &st, words, sizeof words);
	if (why) {
		refuse(s, name, why);
		close_fd(high);
		return;
	}
	event.data.fd = high;
	if (watched && epoll_ctl(s->epoll, EPOLL_CTL_ADD, high, &event) < 0 && errno != EPERM)
		log_warning("keeper: %s: epoll: %s; kept, but not watched", name, strerror(errno));
	*k = (struct keeper_kept){.fd = high, .dev = st.st_dev, .ino = st.st_ino};
	memcpy(k->name, name, strlen(name) + 1);
	s->names_bytes += strlen(name) + 1;
	s->n++;
}

const char *keeper_store_hand_back(const struct keeper_store *s)
{
	char *end = s->names;

	*end = '\0';
	for (uint32_t i = 0; i < s->n; i++) {
		if (dup2(s->kept[i].fd, HANDOVER_LISTEN_FD + (int)i) < 0)
			log_err("keeper: %s cannot be handed back: %s", s->kept[i].name, strerror(errno));
		end += sprintf(end, "%s%s", i ? ":" : "", s->kept[i].name);
	}
	return s->names;
}

/* Twice what is kept: its own numbers are above those that a child gets. */
static int set_limits(struct keeper_store *s, uint32_t max, struct moe_error *err)
{
	const rlim_t need = 2 * (rlim_t)max + OWN_FDS;
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return moe_error_sys(err, -errno, "RLIMIT_NOFILE");
	if (files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (files.rlim_max < 2 * OWN_FDS)
		return moe_error_set(err, -EMFILE, "--keep: %llu file descriptors are allowed, %d needed (ulimit -Hn)",
				     (unsigned long long)files.rlim_max, 2 * OWN_FDS);
	s->max = files.rlim_max < need ? (uint32_t)(files.rlim_max - OWN_FDS) / 2 : max;
	if (s->max < max)
		log_warning("keeper: keeps at most %u descriptors, not %u: ulimit -Hn is %llu", s->max, max,
			    (unsigned long long)files.rlim_max);
	s->first = HANDOVER_LISTEN_FD + (int)s->max + 1;
	return 0;
}

int keeper_store_init(struct keeper_store *ret, uint32_t max, struct moe_error *err)
{
	struct keeper_store s = {.epoll = -1};
	int r = set_limits(&s, max, err);

	if (r < 0)
		return r;
	s.kept = calloc(s.max, sizeof *s.kept);
	s.names = malloc(HANDOVER_NAMES_BYTES_MAX + 1);
	s.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!s.kept || !s.names || s.epoll < 0) {
		r = moe_error_sys(err, s.epoll < 0 ? -errno : -ENOMEM, "--keep: room for %u descriptors", max);
		keeper_store_clear(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void keeper_store_clear(struct keeper_store *s)
{
	while (s->n > 0)
		drop_at(s, s->n - 1);
	assert(s->names_bytes == 0);
	free(s->kept);
	free(s->names);
	close_fd(s->epoll);
	*s = (struct keeper_store){.epoll = -1};
}
