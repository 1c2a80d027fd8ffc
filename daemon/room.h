/* SPDX-License-Identifier: MIT */
/*
 * room - is there memory for a pool file, asked before anything is touched; and what to type when there is not.
 *
 * The kernel answers a shortage of ordinary memory with the OOM killer, so ordinary memory is compared with the node's,
 * the machine's and the cgroup's free memory first. Hugepages come from their own reserve and fail cleanly, but a
 * reserve that is too small is known at once and is worth a command. All numbers are read anew at each call; an unknown
 * number refuses nothing.
 */
#ifndef DAEMON_ROOM_H
#define DAEMON_ROOM_H

#include <stdint.h>

#include "base/host.h"
#include "daemon/pages.h"
#include "moe-error.h"

/* Room for one file of `bytes` on this rung of the ladder and this node: 0, or -ENOMEM with needed, available and
 * the way out. */
int room_check(enum pages_rung rung, uint64_t bytes, const struct host_node *node, struct moe_error *err);

/* Room for all files of a model together: bytes[i] on nodes[i]. `want` as in pages_new. */
int room_check_all(const uint64_t *bytes, const struct host_node *nodes, uint32_t n, int want, struct moe_error *err);

/* The shell command that makes room on a hugetlb rung (1g, 2m) for `bytes` more on the node; "" when the kernel has no
 * pages of that size, or the node less memory than that. */
void room_command(char *ret, uint32_t size, enum pages_rung rung, uint64_t bytes, const struct host_node *node);

#endif
