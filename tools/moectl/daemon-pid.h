/* SPDX-License-Identifier: MIT */
/*
 * daemon-pid - the process that answers at the daemon's socket.
 *
 * Law: the kernel says it, with the answer itself (SCM_CREDENTIALS), as a number of this PID namespace. What the daemon
 * says of itself is a number of its own namespace; what connecting says (SO_PEERCRED) is who began to listen, which
 * is the service manager where it has made the socket.
 */
#ifndef TOOLS_DAEMON_PID_H
#define TOOLS_DAEMON_PID_H

#include <stdbool.h>

/* socket: NULL is the default. 0: nobody answers, or a process that is not to be seen from here. */
int daemon_pid(const char *socket);

/* Where the daemon is looked for: `socket`, unless it is NULL. */
const char *daemon_path(const char *socket);

/* Of a daemon that does not answer nothing else can be known: who began to listen. */
struct daemon_listener {
	bool there;
	int pid; /* 0: nobody, or no moe-expertd that is to be seen from here */
	bool stopped;
};
struct daemon_listener daemon_listener(const char *socket);

#endif
