/* SPDX-License-Identifier: MIT */
/* exporter-address - where --metrics listens, as it is written in a file or on the command line. Pure. */
#ifndef SETTINGS_EXPORTER_ADDRESS_H
#define SETTINGS_EXPORTER_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "moe-error.h"

struct exporter_address {
	struct sockaddr_storage sock; /* AF_INET, AF_INET6 or AF_UNIX */
	socklen_t bytes;
	bool local; /* nobody but this machine reaches it */
};

/* "PORT" and "localhost:PORT" are 127.0.0.1; "ADDRESS:PORT", "[ADDRESS]:PORT" of IPv6; "/PATH" is a socket file.
 * Port 0: the kernel picks one. -EINVAL: *err says what is expected, not where the text stands. */
int exporter_address_parse(struct exporter_address *ret, const char *text, struct moe_error *err);

#endif
