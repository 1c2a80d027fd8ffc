/* SPDX-License-Identifier: MIT */
/* attach - how long a worker takes to attach to a loaded model; with --hold, sessions that are there and do nothing. */
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "bench.h"
#include "tools/patient.h"

#define HOLD_S 10

static int hold(const struct options *o, struct moe_client *client, struct moe_error *err)
{
	const struct moe_attach_params params = {.size = sizeof params, .model = o->model};
	struct moe_session **sessions = calloc(o->hold, sizeof(struct moe_session *));
	int r = sessions ? 0 : -1;
	uint32_t n = 0;

	for (; r == 0 && n < o->hold; n++)
		r = moe_attach(client, &sessions[n], &params, err);
	if (r == 0) {
		printf("%u sessions attached\n", n);
		fflush(stdout);
		bench_pause(o->seconds > 0 ? o->seconds : HOLD_S);
	}
	for (uint32_t i = 0; sessions && i < n; i++)
		moe_detach(sessions[i]);
	free(sessions);
	return r;
}

static int measure(const struct options *o, struct moe_client *client, struct moe_error *err)
{
	const struct moe_attach_params params = {.size = sizeof params, .model = o->model, .cache_expert_num = 1};
	double *samples = calloc(o->samples, sizeof *samples);
	struct summary s;
	int r = samples ? 0 : -1;

	for (uint32_t i = 0; r == 0 && i < o->samples; i++) {
		const uint64_t begin = now_ns();
		struct moe_session *session;

		r = moe_attach(client, &session, &params, err);
		samples[i] = (double)(now_ns() - begin);
		if (r == 0)
			moe_detach(session);
	}
	if (r == 0) {
		s = summarise(samples, o->samples);
		printf(o->json ? "{\"p50_ms\": %.6g, \"p99_ms\": %.6g, \"worst_ms\": %.6g}\n"
			       : "attach: p50 %.2f ms, p99 %.2f ms, worst %.2f ms\n",
		       s.p50 / 1e6, s.p99 / 1e6, s.worst / 1e6);
	}
	free(samples);
	return r;
}

int bench_attach(const struct options *o)
{
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	int r = open_patiently(&client, o->socket, &err);

	if (r == 0)
		r = o->hold ? hold(o, client, &err) : measure(o, client, &err);
	moe_close(client);
	return r < 0 ? bench_fail(&err) : 0;
}
