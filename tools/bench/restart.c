/* SPDX-License-Identifier: MIT */
/*
 * restart - the daemon is killed with sessions attached, again and again: from kill -9 to its next answer, and to a
 * session's next completion. For a daemon with a keeper (moe-expertd --keep, or systemd), on a machine of its own.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "bench.h"
#include "tools/patient.h"

#define SESSIONS 64
/* Between two kills: a keeper waits before it starts a daemon again that has died twice within ten seconds, and gives
 * up when it has died five times. */
#define PAUSE_S 11

struct restart {
	const struct options *o;
	struct moe_client *client;
	struct moe_session **sessions;
	uint32_t n;
	double *ready, *first;
	uint64_t weight_bytes;
};

/* A number of the status document; 1 for true. */
static int status_number(struct moe_client *client, const char *name, uint64_t *ret, struct moe_error *err)
{
	char *text, key[64];
	const char *at;
	int r = moe_query(client, MOE_DOCUMENT_STATUS, &text, err);

	if (r < 0)
		return r;
	snprintf(key, sizeof key, "\"%s\":", name);
	at = strstr(text, key);
	if (at) {
		at += strlen(key) + strspn(at + strlen(key), " ");
		*ret = *at == 't' ? 1 : strtoull(at, NULL, 10);
	}
	free(text);
	return at ? 0
		  : moe_error_set(err, -EPROTO, "status: no '%s': daemon and moe-bench are of different versions",
				  name);
}

/* Every session goes on. */
static int touch_all(struct restart *b, struct moe_error *err)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < b->n; i++)
		r = moe_nop(b->sessions[i], err);
	return r;
}

/* Whoever has no keeper ends with its models; and in a container's namespace the number is another process's here. */
static int check_daemon(const struct restart *b, uint64_t pid, struct moe_error *err)
{
	char path[64], name[32] = "";
	uint64_t kept;
	FILE *f;
	int r = status_number(b->client, "kept", &kept, err);

	if (r == 0 && !kept)
		return moe_error_set(
			err, -EINVAL,
			"the daemon has no keeper, and would end with its models: start it with --keep, or by "
			"systemd");
	if (r < 0)
		return r;
	snprintf(path, sizeof path, "/proc/%llu/comm", (unsigned long long)pid);
	f = fopen(path, "re");
	if (f && !fgets(name, sizeof name, f))
		name[0] = '\0';
	if (f)
		fclose(f);
	if (strncmp(name, "moe-expertd", 11) != 0)
		return moe_error_set(
			err, -ESRCH,
			"process %llu, as the daemon calls itself, is none here: run moe-bench restart where "
			"it runs, in its container",
			(unsigned long long)pid);
	return 0;
}

static int kill_once(struct restart *b, uint32_t sample, struct moe_error *err)
{
	uint64_t pid, begin, read = 0;
	int r = status_number(b->client, "pid", &pid, err);

	if (r == 0)
		r = check_daemon(b, pid, err);
	if (r < 0)
		return r;
	b->client = moe_close(b->client);
	begin = now_ns();
	if (kill((pid_t)pid, SIGKILL) < 0)
		return moe_error_sys(err, -errno, "cannot kill the daemon (pid %d)", (int)pid);
	r = open_patiently(&b->client, b->o->socket, err);
	b->ready[sample] = (double)(now_ns() - begin);
	if (r == 0)
		r = moe_nop(b->sessions[0], err);
	b->first[sample] = (double)(now_ns() - begin);
	if (r == 0)
		r = touch_all(b, err);
	if (r == 0)
		r = status_number(b->client, "weight_bytes_read", &read, err);
	b->weight_bytes += read;
	return r;
}

static void pause_before(const struct restart *b, uint32_t sample)
{
	const double seconds = b->o->seconds > 0 ? b->o->seconds : PAUSE_S;

	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\rmoe-bench: %u of %u kills, one each %g s ", sample, b->o->samples, seconds);
	if (sample > 0)
		bench_pause(seconds);
}

static int attach_all(struct restart *b, struct moe_error *err)
{
	const struct moe_attach_params params = {.size = sizeof params, .model = b->o->model};
	int r = 0;

	for (; r == 0 && b->n < (b->o->hold ? b->o->hold : SESSIONS); b->n += r == 0)
		r = moe_attach(b->client, &b->sessions[b->n], &params, err);
	return r;
}

static void print(const struct restart *b)
{
	const struct summary ready = summarise(b->ready, b->o->samples), first = summarise(b->first, b->o->samples);

	if (b->o->json)
		printf("{\"kill_to_ready_ms\": {\"p50\": %.6g, \"p99\": %.6g}, \"kill_to_completion_ms\": "
		       "{\"p50\": %.6g, \"p99\": %.6g}, \"weight_bytes_read\": %llu, \"sessions\": %u, \"kills\": "
		       "%u}\n",
		       ready.p50 / 1e6, ready.p99 / 1e6, first.p50 / 1e6, first.p99 / 1e6,
		       (unsigned long long)b->weight_bytes, b->n, b->o->samples);
	else
		printf("%u kills with %u sessions: ready after p50 %.2f ms, p99 %.2f ms; a session goes on after p50 "
		       "%.2f ms, p99 %.2f ms; %llu bytes of weights read again\n",
		       b->o->samples, b->n, ready.p50 / 1e6, ready.p99 / 1e6, first.p50 / 1e6, first.p99 / 1e6,
		       (unsigned long long)b->weight_bytes);
}

int bench_restart(const struct options *o)
{
	struct restart b = {.o = o};
	struct moe_error err = {0};
	int r;

	b.sessions = calloc(o->hold ? o->hold : SESSIONS, sizeof(struct moe_session *));
	b.ready = calloc(o->samples, sizeof *b.ready);
	b.first = calloc(o->samples, sizeof *b.first);
	r = b.sessions && b.ready && b.first ? open_patiently(&b.client, o->socket, &err) : -1;
	if (r == 0)
		r = attach_all(&b, &err);
	for (uint32_t i = 0; r == 0 && i < o->samples; i++) {
		pause_before(&b, i);
		r = kill_once(&b, i, &err);
	}
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
	if (r == 0)
		print(&b);
	for (uint32_t i = 0; i < b.n; i++)
		moe_detach(b.sessions[i]);
	moe_close(b.client);
	free(b.sessions);
	free(b.ready);
	free(b.first);
	return r < 0 ? bench_fail(&err) : 0;
}
