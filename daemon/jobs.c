/* SPDX-License-Identifier: MIT */
#include "daemon/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job *jobs_start(struct jobs *jobs, enum job_kind kind, const char *target)
{
	struct job *job = calloc(1, sizeof *job), **at = &jobs->head;

	if (job)
		job->target = strdup(target);
	if (!job || !job->target) {
		free(job);
		return NULL;
	}
	job->id = ++jobs->last_id;
	job->kind = kind;
	while (*at)
		at = &(*at)->next;
	*at = job;
	jobs->n++;
	return job;
}

void jobs_forget(struct jobs *jobs, struct job *job)
{
	struct job **at = &jobs->head;

	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
	jobs->n--;
	free(job->target);
	free(job);
}

void jobs_end(struct jobs *jobs, struct job *job, int code, const struct moe_error *err)
{
	if (!job)
		return;
	job->ended = true;
	job->code = code;
	if (code < 0)
		snprintf(job->error.text, sizeof job->error.text, "%s", err->text);
	if (!jobs->heard)
		jobs_forget(jobs, job);
}

void jobs_unheard(struct jobs *jobs)
{
	struct job *next;

	jobs->heard = false;
	for (struct job *job = jobs->head; job; job = next) {
		next = job->next;
		if (job->ended)
			jobs_forget(jobs, job);
	}
}

void jobs_clear(struct jobs *jobs)
{
	while (jobs->head)
		jobs_forget(jobs, jobs->head);
}
