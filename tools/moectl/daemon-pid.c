/* SPDX-License-Identifier: MIT */
#include "daemon-pid.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "uapi/moe_proto.h"

#define PATIENCE_MS 10000

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_(cleanup_close) int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	const int one = 1;

	if (sock < 0 || strlen(path) >= sizeof address.sun_path)
		return -1;
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) < 0 ||
	    connect(sock, (struct sockaddr *)&address, sizeof address) < 0)
		return -1;
	return steal_fd(&sock);
}

static int pid_of(struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		struct ucred who;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
			continue;
		memcpy(&who, CMSG_DATA(c), sizeof who);
		return who.pid;
	}
	return 0;
}

int daemon_pid(const char *socket)
{
	struct moe_msg_hello hello = {.msg = {.magic = MOE_PROTO_MAGIC, .type = MOE_MSG_HELLO, .bytes = sizeof hello},
				      .features = MOE_FEATURES_ALL};
	const char *named = getenv("MOE_EXPERTD_SOCKET");
	_cleanup_(cleanup_close) int sock = connect_to(socket ? socket : named && *named ? named : MOE_SOCKET_DEFAULT);
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
	struct iovec room = {&hello, sizeof hello};
	struct msghdr message = {
		.msg_iov = &room, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct pollfd answer = {.fd = sock, .events = POLLIN};

	if (sock < 0 || send(sock, &hello, sizeof hello, MSG_NOSIGNAL) < 0)
		return 0;
	if (poll(&answer, 1, PATIENCE_MS) <= 0 || recvmsg(sock, &message, MSG_CMSG_CLOEXEC) <= 0)
		return 0;
	return pid_of(&message);
}
