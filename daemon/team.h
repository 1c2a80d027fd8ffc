/* SPDX-License-Identifier: MIT */
/*
 * team - threads for one piece of work: started together, joined together.
 *
 * All run the same function on the same argument and divide the work among themselves. They block every signal, so that
 * signals reach the program's own threads. A team of fewer threads than asked for is a team; none at all is an error.
 */
#ifndef DAEMON_TEAM_H
#define DAEMON_TEAM_H

#include <pthread.h>
#include <stdint.h>

#include "moe-error.h"

#define TEAM_MAX 128

struct team {
	uint32_t n;
	pthread_t threads[TEAM_MAX];
};

/* `name` (15 characters at most) is what top shows. */
int team_start(struct team *ret, const char *name, uint32_t n, void *(*run)(void *), void *argument,
	       struct moe_error *err);

/* For the calling thread, whose work is long and waits for nobody: whoever else wakes up on its CPU goes first, and it
 * pushes nobody aside. Where that is refused it works as well, and the log says so once. */
void team_step_back(void);

/* Waits for all; a team that was never started (n == 0) is fine. */
void team_join(struct team *team);

#endif
