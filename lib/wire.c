/* SPDX-License-Identifier: MIT */
#include "wire.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/util.h"
#include "moe-expert.h"

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

static int refused(const struct moe_msg_error *e, struct moe_error *err)
{
	const int code = e->msg.status < 0 ? e->msg.status : -EPROTO;

	return moe_error_set(err, code, "%.*s", (int)strnlen(e->text, sizeof e->text), e->text);
}

int wire_recv(int sock, enum moe_msg_type type, void *reply, size_t bytes, int *fds, int n_fds, size_t *ret_n_fds,
	      void (*progress)(const struct moe_msg_progress *, void *), void *userdata, struct moe_error *err)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	const struct moe_msg *msg = (const struct moe_msg *)buffer;
	int got[FDMSG_FDS_MAX];
	size_t n_got = 0;
	bool reset = false;
	long n;

	for (;;) {
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
		if (progress)
			progress((const struct moe_msg_progress *)buffer, userdata);
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

int wire_call(int sock, const void *request, enum moe_msg_type type, void *reply, size_t bytes, struct moe_error *err)
{
	int r = wire_send(sock, request, NULL, err);

	/* A daemon that closed the connection may have said why. */
	if (r < 0 && r != -EPIPE)
		return r;
	return wire_recv(sock, type, reply, bytes, NULL, 0, NULL, NULL, NULL, err);
}

static int explain_connect(struct moe_error *err, int code, const char *path)
{
	switch (code) {
	case -ENOENT:
	case -ECONNREFUSED:
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

static int connect_once(const char *path, struct moe_msg_hello *ret_hello, struct moe_error *err)
{
	struct moe_msg_hello hello = {.features = MOE_FEATURES_ALL}, answer;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int sock = -1;
	int r;

	if (strlen(path) >= sizeof address.sun_path)
		return moe_error_set(err, -ENAMETOOLONG, "%s: a socket path has at most %zu bytes", path,
				     sizeof address.sun_path - 1);
	memcpy(address.sun_path, path, strlen(path) + 1);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return moe_error_sys(err, -errno, "cannot make a socket");
	/* It sleeps while the listener's backlog is full, and a signal wakes it: nothing has been begun then. */
	do
		r = connect(sock, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
	while (r == -EINTR);
	if (r < 0)
		return explain_connect(err, r, path);
	wire_begin(&hello, sizeof hello, MOE_MSG_HELLO, 0);
	r = wire_call(sock, &hello, MOE_MSG_HELLO, &answer, sizeof answer, err);
	if (r < 0)
		return r;
	if (!(answer.features & MOE_FEATURE_RING))
		return moe_error_set(err, -EPROTO,
				     "%s: features 0x%llx found, 0x%x required: daemon and library do not match", path,
				     (unsigned long long)answer.features, MOE_FEATURE_RING);
	*ret_hello = answer;
	return steal_fd(&sock);
}

int wire_connect(const char *path, struct moe_msg_hello *ret_hello, struct moe_error *err)
{
	int r, tries = 0;

	if (!path)
		path = getenv("MOE_EXPERTD_SOCKET");
	if (!path || !*path)
		path = MOE_SOCKET_DEFAULT;
	do
		r = connect_once(path, ret_hello, err);
	while (r == -EPIPE && ++tries < WIRE_TRIES);
	return r;
}
