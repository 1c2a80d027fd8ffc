/* SPDX-License-Identifier: MIT */
/*
 * spawn - a private moe-expertd: started for one run of the worker, gone when the worker is gone.
 *
 * The daemon listens in a temporary folder of its own, says READY on a pipe when the model is loaded, and ends when
 * the pipe that is its standard input closes, which the kernel does for a worker that dies. Its messages are kept,
 * unless they are shown, and its last lines are told when it fails.
 */
#ifndef WORKER_SPAWN_H
#define WORKER_SPAWN_H

#include "moe-error.h"
#include "tools/worker/options.h"

struct spawn;

/* Starts it: ../daemon/moe-expertd beside this executable, else the one in $PATH. */
int spawn_new(struct spawn **ret, const struct options *options, struct moe_error *err);

/* Waits until the model is loaded. -ENOSYS when the daemon says that it cannot run here. */
int spawn_wait(struct spawn *spawn, struct moe_error *err);

const char *spawn_socket(const struct spawn *spawn);

/* In a forked rank: forgets the daemon, which belongs to rank 0. */
void spawn_disown(struct spawn *spawn);

/* True when it has ended by itself; writes how, and its last lines, to stderr. */
bool spawn_dead(struct spawn *spawn);

/* Ends it and removes its folder. Takes NULL, returns NULL. */
struct spawn *spawn_free(struct spawn *spawn);

#endif
