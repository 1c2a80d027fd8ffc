/* SPDX-License-Identifier: MIT */
/* client - a connection to the daemon for questions and orders; sessions have connections of their own. */
#ifndef LIB_CLIENT_H
#define LIB_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include "moe-expert.h"
#include "uapi/moe_proto.h"

/* The lock makes a question and its answer one. A child that was forked has its parent's connection, whose answers are
 * its parent's: it makes its own. */
struct moe_client {
	pthread_mutex_t lock;
	int socket;
	pid_t pid; /* that connected */
	char *path;
	struct moe_patience patience;
	struct moe_msg_hello hello;
};

#endif
