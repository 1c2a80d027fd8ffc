/* SPDX-License-Identifier: MIT */
/*
 * trace-recording - a recording under way, in a thread of its own.
 */
#ifndef TESTS_TRACE_RECORDING_H
#define TESTS_TRACE_RECORDING_H

#include <pthread.h>
#include <sys/stat.h>

#include "moe-expert.h"
#include "tests/raw-client.h"

#define PATH_BYTES 128

struct recording {
	pthread_t thread;
	struct moe_client *client;
	struct moe_trace_params params;
	struct moe_trace_result result;
	struct moe_error err;
	char path[PATH_BYTES];
	int fd, r;
};

static void *record(void *arg)
{
	struct recording *t = arg;

	t->r = moe_trace(t->client, t->fd, &t->params, NULL, NULL, &t->result, &t->err);
	return NULL;
}

static void recording_open(struct recording *t)
{
	*t = (struct recording){.params.size = sizeof t->params};
	snprintf(t->path, sizeof t->path, "%s/trace-XXXXXX", fixture.folder);
	t->fd = mkstemp(t->path);
	require(t->fd >= 0 && moe_open(&t->client, fixture.socket, NULL) == 0, "a file and a client");
}

static void recording_start(struct recording *t)
{
	require(pthread_create(&t->thread, NULL, record, t) == 0, "the recording's thread");
}

static void recording_wait(struct recording *t)
{
	pthread_join(t->thread, NULL);
	moe_close(t->client);
	close(t->fd);
}

static void stop_recording(void)
{
	struct moe_client *client;
	struct moe_error err = {0};

	require(moe_open(&client, fixture.socket, NULL) == 0, "another client");
	ok(moe_trace_stop(client, &err) == 0, "stopped %s", err.text);
	moe_close(client);
}

/* The file in memory. */
static uint8_t *load(const struct recording *t, size_t *ret)
{
	struct stat st;
	int fd = open(t->path, O_RDONLY | O_CLOEXEC);
	uint8_t *data;

	require(fd >= 0 && fstat(fd, &st) == 0, "the file is there");
	*ret = (size_t)st.st_size;
	data = malloc(*ret + 1);
	require(data && read(fd, data, *ret) == (ssize_t)*ret, "and can be read");
	close(fd);
	unlink(t->path);
	return data;
}

#endif
