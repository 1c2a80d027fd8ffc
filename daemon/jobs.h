/* SPDX-License-Identifier: MIT */
/*
 * jobs - what the daemon was asked to do that has an end of its own: a load, an unload, a drain, another policy, a
 * recording.
 *
 * Law: the reactor's alone. A job runs from the moment it is there, and ends once. Its number is its daemon's, and
 * given once. With a listener it stays until the listener has told its end and forgets it, else its end is its last.
 */
#ifndef DAEMON_JOBS_H
#define DAEMON_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

enum job_kind { JOB_LOAD, JOB_UNLOAD, JOB_DRAIN, JOB_POLICY, JOB_TRACE };

struct job {
	uint32_t id;
	enum job_kind kind;
	char *target; /* the model's folder, its name, or "" */
	bool ended;
	int code; /* of one that has ended: 0, -ECANCELED, or why it failed, with the words for it */
	struct moe_error error;
	struct job *next;
};

struct jobs {
	struct job *head; /* in order of their numbers */
	uint32_t last_id, n;
	bool heard; /* there is a listener */
};

/* NULL: no memory. */
struct job *jobs_start(struct jobs *jobs, enum job_kind kind, const char *target);
/* The job may be gone then; NULL is nothing to end. `err` may be NULL when code is 0. */
void jobs_end(struct jobs *jobs, struct job *job, int code, const struct moe_error *err);
/* It never was, or its end was told. */
void jobs_forget(struct jobs *jobs, struct job *job);
/* The listener has left: what has ended goes. */
void jobs_unheard(struct jobs *jobs);
/* All of them. */
void jobs_clear(struct jobs *jobs);

#endif
