/* SPDX-License-Identifier: MIT */
/*
 * heat - how often each expert was used, as far as the daemon sees it: what it computed with, and what it copied or
 * lent. A worker's hits in its own slots it does not see; heat-table.h is what the worker tells of them.
 *
 * Cost: 8 bytes for each expert of each layer, and one addition for each pair, after the client has its answer. A
 * counter stops at its largest value. It lies in the model's books, so a daemon that takes over goes on with it. The
 * reactor's alone.
 */
#ifndef DAEMON_HEAT_H
#define DAEMON_HEAT_H

#include <stdint.h>

struct heat_cell {
	uint32_t pairs;  /* computed by the pool */
	uint32_t copies; /* FILLs, and leases */
};

static inline void heat_more(uint32_t *count, uint32_t n)
{
	*count += n < UINT32_MAX - *count ? n : UINT32_MAX - *count;
}

#endif
