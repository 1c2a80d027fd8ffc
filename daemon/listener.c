/* SPDX-License-Identifier: MIT */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "uapi/moe_proto.h"

#define BACKLOG 128

/* The lock file is removed by the daemon that ends: what was locked must still be what the path names. */
static bool still_there(int fd, const char *path)
{
	struct stat open_file, named;

	return fstat(fd, &open_file) == 0 && lstat(path, &named) == 0 && open_file.st_ino == named.st_ino &&
	       open_file.st_dev == named.st_dev;
}

static int take_lock(const char *path, const char *lock_path, struct moe_error *err)
{
	_cleanup_close_ int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	char pid[32] = "";

	if (fd < 0)
		return moe_error_sys(err, -errno,
				     "%s: cannot make the lock file of the socket (does its folder exist? may uid %u "
				     "write there? --socket PATH names another place)",
				     lock_path, (unsigned)geteuid());
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return moe_error_sys(err, -errno, "%s: flock", lock_path);
		if (read(fd, pid, sizeof pid - 1) < 0)
			pid[0] = '\0';
		pid[strcspn(pid, "\n")] = '\0';
		return moe_error_set(err, -EADDRINUSE,
				     "%s: another moe-expertd (pid %s) serves this socket; stop it or use --socket",
				     path, *pid ? pid : "unknown");
	}
	if (!still_there(fd, lock_path))
		return moe_error_set(err, -EAGAIN, "%s: another moe-expertd is just ending there; try again", path);
	snprintf(pid, sizeof pid, "%d\n", getpid());
	if (ftruncate(fd, 0) < 0 || write(fd, pid, strlen(pid)) < 0) {
		const int r = moe_error_sys(err, -errno, "%s: cannot write", lock_path);

		unlink(lock_path);
		return r;
	}
	return steal_fd(&fd);
}

static int bind_socket(const char *path, uint32_t mode, struct moe_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;
	mode_t before;
	int r;

	if (sock < 0)
		return moe_error_sys(err, -errno, "cannot make a socket");
	if (lstat(path, &st) == 0) {
		if (!S_ISSOCK(st.st_mode))
			return moe_error_set(err, -EEXIST, "%s: exists and is not a socket", path);
		unlink(path); /* the lock is ours: whoever made it is dead */
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	before = umask(0777); /* nobody connects between bind and chmod */
	r = bind(sock, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
	umask(before);
	if (r == 0 && (chmod(path, mode) < 0 || listen(sock, BACKLOG) < 0))
		r = -errno;
	if (r < 0)
		return moe_error_sys(err, r, "%s: cannot listen", path);
	return steal_fd(&sock);
}

/* Whether the path still names a socket, and this one is bound to it. */
static bool serves(int sock, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNSPEC};
	socklen_t size = sizeof address;
	struct stat st;

	return sock >= 0 && getsockname(sock, (struct sockaddr *)&address, &size) == 0 &&
	       address.sun_family == AF_UNIX && strcmp(address.sun_path, path) == 0 && lstat(path, &st) == 0 &&
	       S_ISSOCK(st.st_mode);
}

/* The socket unit made it, with the rights that it has. */
static int check_activated(int sock, const char *path, struct moe_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNSPEC};
	socklen_t size = sizeof address;
	int type = 0, listens = 0;
	socklen_t int_size = sizeof type;

	if (getsockname(sock, (struct sockaddr *)&address, &size) < 0 ||
	    getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &int_size) < 0 ||
	    getsockopt(sock, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_size) < 0)
		return moe_error_sys(err, -errno, "the socket unit's socket");
	if (address.sun_family != AF_UNIX || type != SOCK_SEQPACKET || !listens)
		return moe_error_set(err, -EPROTOTYPE,
				     "the socket unit's socket is of another kind; ListenSequentialPacket=%s expected",
				     path);
	if (strcmp(address.sun_path, path) != 0)
		return moe_error_set(
			err, -EADDRNOTAVAIL,
			"the socket unit listens at %s, and Socket= or --socket says %s; they must be the same",
			address.sun_path, path);
	return fcntl(sock, F_SETFL, O_NONBLOCK) < 0 ? moe_error_sys(err, -errno, "%s", path) : 0;
}

int listener_open(struct listener *ret, const char *path, uint32_t mode, int inherited, int activated,
		  struct moe_error *err)
{
	_cleanup_close_ int sock = inherited, given = activated;

	struct listener l = {.socket = -1, .lock = -1, .activated = activated >= 0};
	int r = 0;

	if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
		return moe_error_set(err, -ENAMETOOLONG, "--socket %s: at most %zu bytes", path,
				     sizeof((struct sockaddr_un *)0)->sun_path - 1);
	if (l.activated)
		r = check_activated(given, path, err);
	if (r < 0)
		return r;
	if (strcmp(path, MOE_SOCKET_DEFAULT) == 0)
		mkdir("/run/moe-expertd", 0755); /* systemd makes it as RuntimeDirectory; by hand we do */
	l.path = strdup(path);                   /* settings are read anew meanwhile */
	if (!l.path || asprintf(&l.lock_path, "%s.lock", path) < 0) {
		free(l.path);
		return moe_error_sys(err, -ENOMEM, "%s", path);
	}
	r = l.lock = take_lock(path, l.lock_path, err);
	if (r >= 0 && l.activated)
		l.socket = steal_fd(&given);
	else if (r >= 0)
		r = l.socket = serves(sock, path) ? steal_fd(&sock) : bind_socket(path, mode, err);
	if (r >= 0)
		fdmsg_pass_fds(l.socket, false); /* of nobody who has not been let in */
	if (r < 0) {
		if (l.lock >= 0)
			unlink(l.lock_path);
		close_fd(l.lock);
		free(l.lock_path);
		free(l.path);
		return r;
	}
	*ret = l;
	return 0;
}

void listener_close(struct listener *l, bool leaves, bool folder)
{
	if (l->socket < 0)
		return;
	if (!leaves && !l->activated)
		unlink(l->path);
	l->socket = close_fd(l->socket);
	if (!leaves)
		unlink(l->lock_path);
	l->lock = close_fd(l->lock);
	if (folder && !leaves) {
		*strrchr(l->lock_path, '/') = '\0';
		rmdir(l->lock_path);
	}
	free(l->lock_path);
	free(l->path);
	l->lock_path = l->path = NULL;
}
