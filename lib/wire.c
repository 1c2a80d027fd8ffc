/* SPDX-License-Identifier: MIT */
#include "wire.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/util.h"

#define NS_PER_MS 1000000ull

void wire_begin(void *message, size_t bytes, enum moe_msg_type type, unsigned int fds)
{
	*(struct moe_msg *)message = (struct moe_msg){
		.magic = MOE_PROTO_MAGIC, .type = (__u16)type, .fds = (__u16)fds, .bytes = (__u32)bytes};
}

int wire_send(int sock, const void *request, const int *fds, struct moe_error *err)
{
	const struct moe_msg *msg = request;
	int r = fdmsg_send(sock, request, msg->bytes, fds, msg->fds, 0);

	if (r < 0)
		return moe_error_sys(err, r == -ECONNRESET ? -EPIPE : r, "moe-expertd: cannot send a request");
	return 0;
}

/* -- waiting ------------------------------------------------------------------------------------------------------ */

static bool is_endless(const struct moe_patience *p)
{
	return !p || p->silent_ms == 0;
}

static uint64_t patience_end(const struct moe_patience *p)
{
	return is_endless(p) ? UINT64_MAX : now_ns() + p->silent_ms * NS_PER_MS;
}

/* Whether to wait on, and then until when. */
static bool still_patient(const struct moe_patience *p, uint64_t *until)
{
	if (now_ns() < *until)
		return true;
	if (!p->wait_on || !p->wait_on(p->userdata))
		return false;
	*until = patience_end(p);
	return true;
}

static int too_silent(const struct moe_patience *p, struct moe_error *err)
{
	return moe_error_set(err, -ETIMEDOUT, "moe-expertd: no word from it for %u ms", p->silent_ms);
}

/* Until there is something to receive, be it the end. */
static int wait_for_word(int sock, const struct moe_patience *p, struct moe_error *err)
{
	struct pollfd reply = {.fd = sock, .events = POLLIN};
	uint64_t until = patience_end(p);

	if (is_endless(p))
		return 0;
	/* What has come is looked for before the clock: it may be this process that stood still. */
	do {
		const uint64_t now = now_ns();
		const uint64_t left = until > now ? (until - now + NS_PER_MS - 1) / NS_PER_MS : 0;
		const int n = poll(&reply, 1, (int)MIN(left, (uint64_t)INT_MAX));

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return moe_error_sys(err, -errno, "moe-expertd: cannot wait for the reply");
	} while (still_patient(p, &until));
	return too_silent(p, err);
}

/* -- messages ----------------------------------------------------------------------------------------------------- */

static int refused(const struct moe_msg_error *e, struct moe_error *err)
{
	const int code = e->msg.status < 0 ? e->msg.status : -EPROTO;

	return moe_error_set(err, code, "%.*s", (int)strnlen(e->text, sizeof e->text), e->text);
}

int wire_recv(int sock, enum moe_msg_type type, void *reply, size_t bytes, int *fds, int n_fds, size_t *ret_n_fds,
	      const struct wire_wait *wait, struct moe_error *err)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	const struct moe_msg *msg = (const struct moe_msg *)buffer;
	int got[FDMSG_FDS_MAX];
	size_t n_got = 0;
	bool reset = false;
	long n;

	for (;;) {
		const int r = wait_for_word(sock, wait ? wait->patience : NULL, err);

		if (r < 0)
			return r;
		n = fdmsg_recv(sock, buffer, sizeof buffer, got, &n_got, 0);
		/* Said once, before what arrived earlier: a refusal that came before the end. */
		if (n == -ECONNRESET && !reset) {
			reset = true;
			continue;
		}
		if (n == 0 || n == -ECONNRESET)
			return moe_error_set(err, -EPIPE, "moe-expertd closed the connection (see its log)");
		if (n < 0)
			return moe_error_sys(err, (int)n, "moe-expertd: cannot receive the reply");
		if ((size_t)n < sizeof *msg || msg->magic != MOE_PROTO_MAGIC || msg->bytes != n || msg->fds != n_got)
			goto broken;
		if (msg->type == MOE_MSG_ERROR && (size_t)n == sizeof(struct moe_msg_error) && n_got == 0)
			return refused((const struct moe_msg_error *)buffer, err);
		if (msg->type != MOE_MSG_PROGRESS || (size_t)n != sizeof(struct moe_msg_progress) || n_got != 0)
			break;
		if (wait && wait->progress)
			wait->progress((const struct moe_msg_progress *)buffer, wait->userdata);
	}
	if (msg->type != (type | MOE_MSG_REPLY) || (size_t)n != bytes || (n_fds >= 0 && n_got != (size_t)n_fds))
		goto broken;
	memcpy(reply, buffer, bytes);
	if (n_got > 0)
		memcpy(fds, got, n_got * sizeof *fds);
	if (ret_n_fds)
		*ret_n_fds = n_got;
	return 0;

broken:
	fdmsg_close_fds(got, n_got);
	return moe_error_set(err, -EPROTO,
			     "moe-expertd: unexpected reply (type 0x%x, %ld bytes, %zu fds) to request %d: "
			     "are daemon and library of the same version?",
			     (unsigned int)msg->type, n, n_got, type);
}

static int say_hello(int sock, const struct moe_patience *patience, struct moe_msg_hello *ret, struct moe_error *err)
{
	const struct wire_wait wait = {.patience = patience};
	struct moe_msg_hello hello = {.features = MOE_FEATURES_ALL};
	int r;

	wire_begin(&hello, sizeof hello, MOE_MSG_HELLO, 0);
	r = wire_send(sock, &hello, NULL, err);
	/* A daemon that closed the connection may have said why. */
	if (r < 0 && r != -EPIPE)
		return r;
	return wire_recv(sock, MOE_MSG_HELLO, ret, sizeof *ret, NULL, 0, NULL, &wait, err);
}

/* -- connecting --------------------------------------------------------------------------------------------------- */

static int explain_connect(struct moe_error *err, int code, const char *path)
{
	struct stat st;

	switch (code) {
	case -ENOENT:
	case -ECONNREFUSED:
		if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
			return moe_error_set(err, -ENOTSOCK,
					     "%s: is no socket; name the daemon's (moectl --socket, moe-worker "
					     "--daemon, $MOE_EXPERTD_SOCKET)",
					     path);
		if (strcmp(path, MOE_SOCKET_DEFAULT) == 0)
			return moe_error_set(
				err, code,
				"%s: no daemon listens there; start the service (systemctl start moe-expertd), "
				"or a daemon of your own (moe-expertd --socket /tmp/moe --model DIR) and name its "
				"socket (moectl --socket, moe-worker --daemon, $MOE_EXPERTD_SOCKET)",
				path);
		return moe_error_set(
			err, code,
			"%s: no daemon listens there; start one with 'moe-expertd --socket %s --model DIR', "
			"or name another socket",
			path, path);
	case -EACCES:
	case -EPERM:
		return moe_error_set(err, code,
				     "%s: not permitted; the socket's owner decides who may attach (moe-expertd "
				     "--socket-mode, or membership in its group: usermod -aG, then log in again)",
				     path);
	default:
		return moe_error_sys(err, code, "%s: cannot connect", path);
	}
}

/* To connect is to send. A request itself never waits for room: there is one under way at a time. */
static int limit_sending(int sock, const struct moe_patience *p, struct moe_error *err)
{
	struct timeval most;

	if (is_endless(p))
		return 0;
	most = (struct timeval){.tv_sec = p->silent_ms / 1000, .tv_usec = (suseconds_t)(p->silent_ms % 1000) * 1000};
	if (setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) < 0)
		return moe_error_sys(err, -errno, "cannot limit how long a connection is waited for");
	return 0;
}

/* It sleeps while the listener's backlog is full, and a signal wakes it: nothing has been begun then. */
static int connect_in_time(int sock, const struct sockaddr_un *address, const struct moe_patience *p,
			   struct moe_error *err)
{
	uint64_t until = patience_end(p);
	int r = limit_sending(sock, p, err);

	if (r < 0)
		return r;
	while (connect(sock, (const struct sockaddr *)address, sizeof *address) < 0) {
		const int code = errno;

		if (code == EAGAIN && !is_endless(p))
			until = 0; /* SO_SNDTIMEO, by the kernel's clock */
		else if (code != EINTR)
			return explain_connect(err, -code, address->sun_path);
		if (!still_patient(p, &until))
			return too_silent(p, err);
	}
	return 0;
}

static int connect_once(const char *path, const struct moe_patience *patience, struct moe_msg_hello *ret_hello,
			struct moe_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct moe_msg_hello answer;
	_cleanup_close_ int sock = -1;
	int r;

	if (strlen(path) >= sizeof address.sun_path)
		return moe_error_set(err, -ENAMETOOLONG, "%s: a socket path has at most %zu bytes", path,
				     sizeof address.sun_path - 1);
	memcpy(address.sun_path, path, strlen(path) + 1);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return moe_error_sys(err, -errno, "cannot make a socket");
	r = connect_in_time(sock, &address, patience, err);
	if (r == 0)
		r = say_hello(sock, patience, &answer, err);
	if (r < 0)
		return r;
	if (!(answer.features & MOE_FEATURE_RING))
		return moe_error_set(err, -EPROTO,
				     "%s: features 0x%llx found, 0x%x required: daemon and library do not match", path,
				     (unsigned long long)answer.features, MOE_FEATURE_RING);
	*ret_hello = answer;
	return steal_fd(&sock);
}

int wire_connect(const char *path, const struct moe_patience *patience, struct moe_msg_hello *ret_hello,
		 struct moe_error *err)
{
	int r, tries = 0;

	if (!path)
		path = getenv("MOE_EXPERTD_SOCKET");
	if (!path || !*path)
		path = MOE_SOCKET_DEFAULT;
	do
		r = connect_once(path, patience, ret_hello, err);
	while (r == -EPIPE && ++tries < WIRE_TRIES);
	return r;
}

void wire_close(int sock, pid_t pid)
{
	if (sock >= 0 && pid == getpid())
		shutdown(sock, SHUT_RDWR);
	close_fd(sock);
}
