/* SPDX-License-Identifier: MIT */
#include "daemon-pid.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "uapi/moe_proto.h"

#define PATIENCE_MS 10000

static int connect_to(const char *path, int flags)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_(cleanup_close) int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
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

const char *daemon_path(const char *socket)
{
	const char *named = getenv("MOE_EXPERTD_SOCKET");

	return socket ? socket : named && *named ? named : MOE_SOCKET_DEFAULT;
}

/* "4711 (moe-expertd) T 1 ...": 0 where it is another program by now, else the letter of its state. */
static char state_of(int pid)
{
	char path[64], line[256], state = 0;
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (file && fgets(line, sizeof line, file) && sscanf(line, "%*d (moe-expertd) %c", &state) != 1)
		state = 0;
	return state;
}

struct daemon_listener daemon_listener(const char *socket)
{
	_cleanup_(cleanup_close) int sock = connect_to(daemon_path(socket), SOCK_NONBLOCK);
	socklen_t bytes = sizeof(struct ucred);
	struct ucred who;
	char state;

	if (sock < 0 || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &bytes) < 0)
		return (struct daemon_listener){.there = sock >= 0};
	state = state_of(who.pid);
	return (struct daemon_listener){
		.there = true, .pid = state ? who.pid : 0, .stopped = state == 'T' || state == 't'};
}

int daemon_pid(const char *socket)
{
	struct moe_msg_hello hello = {.msg = {.magic = MOE_PROTO_MAGIC, .type = MOE_MSG_HELLO, .bytes = sizeof hello},
				      .features = MOE_FEATURES_ALL};
	_cleanup_(cleanup_close) int sock = connect_to(daemon_path(socket), 0);
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
