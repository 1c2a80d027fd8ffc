/* SPDX-License-Identifier: MIT */
/*
 * clientmem - memory that a client can write at any moment.
 *
 * Its pointers have a type of their own: clang refuses a plain dereference (noderef). Only the ring server turns them
 * into ordinary ones (ringsrv-internal.h), to copy a value out once, or to hand a range to the pool as data that
 * decides nothing.
 */
#ifndef DAEMON_CLIENTMEM_H
#define DAEMON_CLIENTMEM_H

#include <stdint.h>

#ifdef __clang__
#define CLIENT_MEMORY __attribute__((noderef))
#else
#define CLIENT_MEMORY
#endif

struct clientmem {
	CLIENT_MEMORY uint8_t *base; /* NULL: not there */
	uint64_t bytes;
};

#endif
