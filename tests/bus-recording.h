/* SPDX-License-Identifier: MIT */
/*
 * bus-recording - what a client of the socket has recorded, as the bus shows it: a job. After bus-fixture.h.
 */
#ifndef TESTS_BUS_RECORDING_H
#define TESTS_BUS_RECORDING_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "moe-expert.h"

struct recording {
	const char *model;
	struct moe_client *client;
	pthread_t thread;
	FILE *file;
	int r;
	struct moe_trace_result result;
	struct moe_error err;
};

static void *record_main(void *arg)
{
	struct recording *rec = arg;
	const struct moe_trace_params params = {.size = sizeof params, .model = rec->model};

	rec->r = moe_trace(rec->client, fileno(rec->file), &params, NULL, NULL, &rec->result, &rec->err);
	return NULL;
}

/* Returns the job's object. */
static const char *recording_begin(struct recording *rec, sd_bus *bus, const char *socket, const char *model)
{
	static char job[64];
	const char *jobs;
	uint64_t end = 0;

	*rec = (struct recording){.model = model, .file = tmpfile()};
	require(rec->file && moe_open(&rec->client, socket, &rec->err) == 0, "who records: %s", rec->err.text);
	require(pthread_create(&rec->thread, NULL, record_main, rec) == 0, "his thread");
	do
		jobs = strstr(manager(bus, "ListJobs", NULL), BUS_ROOT "/job/");
	while (!jobs && tap_wait(&end));
	require(jobs != NULL, "a recording is a job");
	snprintf(job, sizeof job, "%.*s", (int)strcspn(jobs, " "), jobs);
	return job;
}

/* Waits until it is over; its bytes. */
static uint64_t recording_end(struct recording *rec)
{
	pthread_join(rec->thread, NULL);
	require(rec->r == 0, "a recording: %s", rec->err.text);
	moe_close(rec->client);
	fclose(rec->file);
	return rec->result.bytes;
}

#endif
