/* SPDX-License-Identifier: MIT */
/* ring - round trips of a NOP through the daemon, busy and after idle, in turns with bare ping-pongs. */
#include "ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/patient.h"

#define WARM 200
#define WARM_MODULE 10 /* it sleeps between any two, so there is little to warm up */
#define ROUNDS 100
#define IDLE_SHARE 50 /* of so many busy samples one idle one is taken: each takes 2 ms */

enum { MEMORY, FUTEX, EVENTFD, FUTEX_IDLE, EVENTFD_IDLE, NOP, NOP_IDLE, AGREE, MODULE, MODULE_IDLE, N_SERIES };

int series_new(struct series *ret, uint32_t room)
{
	*ret = (struct series){.samples = calloc(room, sizeof *ret->samples), .room = room};
	return ret->samples ? 0 : -ENOMEM;
}

struct summary series_end(struct series *series)
{
	const struct summary s = series->n ? summarise(series->samples, series->n) : (struct summary){0};

	free(series->samples);
	series->samples = NULL;
	return s;
}

/* Of the samples that the series took last. */
static double median_of_last(const struct series *series, uint32_t n)
{
	double *copy = calloc(n + 1, sizeof *copy), median;

	if (!copy || n == 0) {
		free(copy);
		return 1;
	}
	memcpy(copy, series->samples + series->n - n, n * sizeof *copy);
	median = summarise(copy, n).p50;
	free(copy);
	return median;
}

/* The CPU on which the daemon's reactor, its first thread, ran last; -1: not known, another PID namespace perhaps. */
static int reactor_cpu(struct moe_client *client)
{
	char path[64], line[1024], *at;
	FILE *stat;
	int cpu = -1;

	snprintf(path, sizeof path, "/proc/%d/stat", bench_daemon_pid(client));
	stat = fopen(path, "re");
	if (!stat)
		return -1;
	/* proc(5): field 39; the second, the name, ends with the last parenthesis. */
	at = fgets(line, sizeof line, stat) ? strrchr(line, ')') : NULL;
	for (int field = 2; at && field < 39; field++)
		at = strchr(at + 1, ' ');
	if (at)
		cpu = atoi(at);
	fclose(stat);
	return cpu;
}

static int run_bare(const struct pingpong_place *place, enum pingpong kind, bool idle, struct series *series,
		    uint32_t round, struct moe_error *err)
{
	const uint32_t n = series_share(series, round, ROUNDS);
	const int r = limit_pingpong(place, kind, idle ? RING_IDLE_US : 0, series->samples + series->n, n);

	if (r < 0)
		return moe_error_sys(err, r, "bare round trips");
	series->n += n;
	return 0;
}

static int run_agreements(struct moe_session *session, struct series *series, uint32_t round, struct moe_error *err)
{
	const uint32_t n = series_share(series, round, ROUNDS);
	struct moe_agreement agreed;
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i++) {
		const uint64_t begin = now_ns();

		r = moe_agree(session, MOE_STEP_DECODE, 1, &agreed, err);
		series->samples[series->n++] = (double)(now_ns() - begin);
	}
	return r;
}

/* The sessions take turns. Busy trips begin with some that do not count: the daemon wakes up. */
static int run_nops(struct moe_session **sessions, uint32_t n_sessions, uint32_t warm, bool idle, struct series *series,
		    uint32_t round, struct moe_error *err)
{
	const uint32_t n = series_share(series, round, ROUNDS);
	int r = 0;

	for (uint32_t i = 0; !idle && i < MIN(warm, MAX(n, (uint32_t)WARM_MODULE)) && r == 0; i++)
		r = moe_nop(sessions[i % n_sessions], err);
	for (uint32_t i = 0; i < n && r == 0; i++) {
		struct moe_session *session = sessions[series->n % n_sessions];
		uint64_t begin;

		if (idle)
			usleep(RING_IDLE_US);
		begin = now_ns();
		r = moe_nop(session, err);
		series->samples[series->n++] = (double)(now_ns() - begin);
	}
	return r;
}

/* Ours is another CPU than the reactor's, and the bare partner has the reactor's: the same two for all. */
static int run_round(struct series *all, struct moe_client *client, struct moe_session **sessions, uint32_t n_sessions,
		     struct moe_session *module, uint32_t round, struct moe_error *err)
{
	const struct pingpong_place place = limit_place(reactor_cpu(client));
	cpu_set_t before;
	int r;

	limit_pin(&place, &before);
	r = run_nops(sessions, n_sessions, WARM, false, &all[NOP], round, err);
	if (r == 0 && module)
		r = run_nops(&module, 1, WARM_MODULE, false, &all[MODULE], round, err);
	if (r == 0)
		r = run_agreements(sessions[0], &all[AGREE], round, err);
	if (r == 0)
		r = run_bare(&place, PINGPONG_MEMORY, false, &all[MEMORY], round, err);
	if (r == 0)
		r = run_bare(&place, PINGPONG_FUTEX, false, &all[FUTEX], round, err);
	if (r == 0)
		r = run_bare(&place, PINGPONG_EVENTFD, false, &all[EVENTFD], round, err);
	if (r == 0)
		r = run_nops(sessions, n_sessions, WARM, true, &all[NOP_IDLE], round, err);
	if (r == 0 && module)
		r = run_nops(&module, 1, WARM_MODULE, true, &all[MODULE_IDLE], round, err);
	if (r == 0)
		r = run_bare(&place, PINGPONG_FUTEX, true, &all[FUTEX_IDLE], round, err);
	if (r == 0)
		r = run_bare(&place, PINGPONG_EVENTFD, true, &all[EVENTFD_IDLE], round, err);
	sched_setaffinity(0, sizeof before, &before);
	return r;
}

static int measure_nops(struct ring_result *result, const struct options *o, struct moe_client *client,
			struct moe_session **sessions, struct moe_session *module, struct moe_error *err)
{
	const uint32_t idle = MAX(o->samples / IDLE_SHARE, 1u);
	struct series all[N_SERIES] = {0};
	double ratios[ROUNDS], module_ratios[ROUNDS];
	int r = 0;

	for (int i = 0; i < N_SERIES; i++)
		if (series_new(&all[i], i == FUTEX_IDLE || i == EVENTFD_IDLE || i == NOP_IDLE || i == MODULE_IDLE
						? idle
						: o->samples) < 0)
			r = moe_error_set(err, -ENOMEM, "no memory for %u samples", o->samples);
	for (uint32_t round = 0; round < ROUNDS && r == 0; round++) {
		const uint32_t n = series_share(&all[NOP], round, ROUNDS);

		r = run_round(all, client, sessions, o->sessions, module, round, err);
		module_ratios[round] = r == 0 && module ? median_of_last(&all[MODULE], n) / median_of_last(&all[NOP], n)
							: 0;
		ratios[round] = r == 0 ? median_of_last(&all[NOP], n) / median_of_last(&all[MEMORY], n) : 0;
	}
	result->nop_ratio = r == 0 ? summarise(ratios, ROUNDS).p50 : 0;
	result->module_ratio = r == 0 ? summarise(module_ratios, ROUNDS).p50 : 0;
	result->memory.busy = series_end(&all[MEMORY]);
	result->futex = (struct ring_trips){series_end(&all[FUTEX]), series_end(&all[FUTEX_IDLE])};
	result->eventfd = (struct ring_trips){series_end(&all[EVENTFD]), series_end(&all[EVENTFD_IDLE])};
	result->agree = series_end(&all[AGREE]);
	result->nop = (struct ring_trips){series_end(&all[NOP]), series_end(&all[NOP_IDLE])};
	result->module = (struct ring_trips){series_end(&all[MODULE]), series_end(&all[MODULE_IDLE])};
	return r;
}

/* By the ring, whatever the environment says, and with --transport kmod one more by the kernel module. */
static int attach_all(const struct options *o, struct moe_client *client, struct moe_session **sessions,
		      struct moe_session **ret_module, struct moe_error *err)
{
	struct moe_attach_params params = {
		.size = sizeof params, .model = o->model, .max_tokens = 1, .transport = "ring"};
	int r = 0;

	if (o->transport && strcmp(o->transport, "ring") != 0) {
		params.transport = o->transport;
		r = moe_attach(client, ret_module, &params, err);
		params.transport = "ring";
	}

	for (uint32_t i = 0; i < o->sessions && r == 0; i++) {
		params.dp_size = i == 0; /* agrees with itself */
		params.group = i == 0 ? (uint64_t)getpid() : 0;
		r = moe_attach(client, &sessions[i], &params, err);
	}
	return r;
}

int bench_ring(const struct options *o)
{
	_cleanup_free_ struct moe_session **sessions = calloc(o->sessions, sizeof(struct moe_session *));
	struct ring_result result = {.sessions = o->sessions, .beside = o->beside};
	struct strangers strangers = {0};
	struct moe_session *module = NULL;
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	int r = sessions ? open_patiently(&client, o->socket, &err) : -ENOMEM;

	if (r == 0)
		r = attach_all(o, client, sessions, &module, &err);
	if (r == 0)
		r = strangers_start(&strangers, o->beside, &err);
	if (r == 0)
		r = measure_nops(&result, o, client, sessions, module, &err);
	if (r == 0)
		r = ring_compute(&result, o, sessions[0], &err);
	for (uint32_t i = 0; sessions && i < o->sessions; i++)
		moe_detach(sessions[i]);
	moe_detach(module);
	if (r == 0)
		r = ring_fills(&result, o, client, &err);
	strangers_end(&strangers);
	moe_close(client);
	if (r < 0)
		return bench_fail(&err);
	ring_print(&result, o->json);
	return 0;
}
