/* SPDX-License-Identifier: MIT */
/* client - a connection to the daemon for questions and orders; sessions have connections of their own. */
#ifndef LIB_CLIENT_H
#define LIB_CLIENT_H

#include "uapi/moe_proto.h"

struct moe_client {
	int socket;
	char *path;
	struct moe_msg_hello hello;
};

#endif
