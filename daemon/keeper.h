/* SPDX-License-Identifier: MIT */
/*
 * keeper - the process of `moe-expertd --keep`: it holds the daemon's descriptors and starts it again when it dies.
 *
 * Law: it does what systemd does with FDSTORE=1, FDSTOREREMOVE=1, FDPOLL=0, BARRIER=1, READY=1 and WATCHDOG=1
 * (sd_notify(3)), and nothing else: no model, no client, no thread. It maps nothing that it keeps, and takes all its
 * memory at the start. Only its own child is heard: the socket has no name that another process could open, and the
 * kernel says who sent each message.
 *
 * Once a daemon was ready, what is kept waits for one that can go on with it: a start that fails is tried again, less
 * and less often, and never given up; only deaths by signals are, and ends after READY.
 *
 * The child gets all descriptors back as LISTEN_FDS, and SIGTERM when the keeper is gone.
 */
#ifndef DAEMON_KEEPER_H
#define DAEMON_KEEPER_H

#include <stdint.h>

#include "moe-error.h"

#define KEEPER_DEATHS_MAX 5             /* so many ... */
#define KEEPER_DEATHS_NS 10000000000ull /* ... in this time, and it gives up */
#define KEEPER_BACKOFF_MS 100           /* after the second death; double after each further one */
#define KEEPER_RETRY_MS 10000           /* after a start that failed, at most; at first KEEPER_BACKOFF_MS */
#define KEEPER_STOP_MS 30000            /* a daemon that was asked to end and has not is killed */
#define KEEPER_WATCHDOG_MS 30000        /* one that was ready and says nothing for so long gets SIGABRT (0: never) */

struct keeper_params {
	const char *program; /* what lies at this path is executed at each start */
	char **argv;
	uint32_t fds_max;
	uint32_t stop_ms, watchdog_ms;
	int ready_fd; /* gets "READY\n" when the daemon first says so; -1: none. Closed at the end. */
};

/* Runs until the daemon ends for good, by SIGTERM or SIGINT, by itself, or by one death too many; SIGUSR2 starts it
 * anew from what lies on disk, SIGHUP goes to the daemon. *ret_code is what to exit with. 0, or -errno: it could not
 * begin. */
int keeper_run(const struct keeper_params *params, int *ret_code, struct moe_error *err);

/* Where this program's file is: 0 or -errno. */
int keeper_find_program(char *ret, uint32_t size, struct moe_error *err);

#endif
