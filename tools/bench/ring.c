/* SPDX-License-Identifier: MIT */
/* ring - round trips of a NOP through the daemon, busy and after idle, beside bare ping-pongs of the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util.h"
#include "bench.h"

#define IDLE_US 2000
#define IDLE_SAMPLES 200

static void print_line(const struct options *o, const char *name, const struct summary *s, double floor)
{
	if (o->json)
		printf("{\"what\": \"%s\", \"p50_ns\": %.0f, \"p99_ns\": %.0f, \"p999_ns\": %.0f, \"ratio\": %.2f}\n",
		       name, s->p50, s->p99, s->p999, s->p50 / floor);
	else
		printf("%-28s %9.2f %9.2f %9.2f us   %6.1f x\n", name, s->p50 / 1e3, s->p99 / 1e3, s->p999 / 1e3,
		       s->p50 / floor);
}

static int measure_nops(struct moe_session *session, double *samples, uint32_t n, useconds_t pause,
			struct moe_error *err)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin;
		int r;

		if (pause)
			usleep(pause);
		begin = now_ns();
		r = moe_nop(session, err);
		if (r < 0)
			return r;
		samples[i] = (double)(now_ns() - begin);
	}
	return 0;
}

int bench_ring(const struct options *o)
{
	const struct moe_attach_params params = {.size = sizeof params, .model = o->model};
	double *samples = calloc(o->samples, sizeof *samples), floor = 1;
	struct moe_session *session = NULL;
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	struct summary s;
	int r = samples ? moe_open(&client, o->socket, &err) : -1;

	if (!o->json)
		printf("%-28s %9s %9s %9s      p50 ratio\n", "round trip", "p50", "p99", "p99.9");
	for (int kind = 0; r == 0 && kind < PINGPONGS; kind++) {
		r = limit_pingpong((enum pingpong)kind, samples, o->samples);
		if (r < 0)
			break;
		s = summarise(samples, o->samples);
		if (kind == PINGPONG_MEMORY)
			floor = s.p50;
		print_line(o, pingpong_names[kind], &s, floor);
	}
	if (r == 0)
		r = moe_attach(client, &session, &params, &err);
	if (r == 0)
		r = measure_nops(session, samples, o->samples, 0, &err);
	if (r == 0) {
		s = summarise(samples, o->samples);
		print_line(o, "NOP through the daemon", &s, floor);
		r = measure_nops(session, samples, MIN(o->samples, IDLE_SAMPLES), IDLE_US, &err);
	}
	if (r == 0) {
		s = summarise(samples, MIN(o->samples, IDLE_SAMPLES));
		print_line(o, "NOP after 2 ms idle", &s, floor);
	}
	moe_detach(session);
	moe_close(client);
	free(samples);
	return r < 0 ? bench_fail(&err) : 0;
}
