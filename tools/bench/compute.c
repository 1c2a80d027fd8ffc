/* SPDX-License-Identifier: MIT */
/*
 * compute - the CPU pool's rate on one layer after another, beside the machine's streaming read limit of the same run.
 *
 * The bytes that count are those of the distinct experts of a request: what must be read at least once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "bench.h"
#include "tools/patient.h"

#define LIMIT_BYTES (1ull << 30)
#define PARTS 4 /* of it, that are read by turns: none lies in a cache still */

struct request {
	struct moe_session *session;
	struct moe_session_info info;
	uint32_t tokens;
	int32_t *ids;
	float *weights, *x, *y;
	uint64_t random;
};

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
	return (uint32_t)(*state >> 33);
}

/* Distinct experts in each token, any routing; returns the number of distinct ones in all. */
static uint32_t draw_routing(struct request *q)
{
	const uint32_t n = q->info.n_experts, k = q->info.topk;
	uint8_t *seen = calloc(n, 1);
	uint32_t distinct = 0;

	if (!seen)
		return 0;
	for (uint32_t t = 0; t < q->tokens; t++) {
		int32_t *ids = q->ids + (size_t)t * k;

		for (uint32_t i = 0; i < k; i++) {
			bool again;

			do {
				ids[i] = (int32_t)(next_random(&q->random) % n);
				again = false;
				for (uint32_t j = 0; j < i; j++)
					again |= ids[j] == ids[i];
			} while (again);
			distinct += !seen[ids[i]];
			seen[ids[i]] = 1;
			q->weights[(size_t)t * k + i] = 1.0f / (float)k;
		}
	}
	free(seen);
	return distinct;
}

static int run_once(struct request *q, uint32_t layer, double *ret_ns, double *ret_bytes, struct moe_error *err)
{
	const uint32_t distinct = draw_routing(q);
	const uint64_t begin = now_ns();
	int r = moe_compute(q->session, layer, q->tokens, q->info.topk, q->ids, q->weights, q->x, q->y, err);

	*ret_ns = (double)(now_ns() - begin);
	*ret_bytes = (double)distinct * (double)q->info.slot_bytes;
	return r;
}

static void print_result(const struct options *o, const struct request *q, double rate, double limit, double gflops)
{
	if (o->json)
		printf("{\"tokens\": %u, \"gb_per_s\": %.6g, \"limit_gb_per_s\": %.6g, \"share\": %.6g, \"gflops\": "
		       "%.6g}\n",
		       q->tokens, rate, limit, rate / limit, gflops);
	else
		printf("%u tokens, top %u of %u experts, hidden %u, intermediate %u\n"
		       "  weights read  %7.2f GB/s (best sample)\n  read limit    %7.2f GB/s, %u threads, same run\n"
		       "  share         %7.1f %%\n  arithmetic    %7.1f GFLOP/s\n",
		       q->tokens, q->info.topk, q->info.n_experts, q->info.hidden, q->info.inter, rate, limit,
		       q->info.cpu_threads, 100 * rate / limit, gflops);
}

static int measure(const struct options *o, struct request *q, struct moe_error *err)
{
	char *memory = limit_memory(LIMIT_BYTES);
	double best = 0, limit = 0, gflops = 0;
	uint32_t layer = 0;

	if (!memory) {
		snprintf(err->text, sizeof err->text, "no memory for the read limit's %llu bytes", LIMIT_BYTES);
		return -1;
	}
	for (uint32_t i = 0; i < o->samples; i++, layer = (layer + 1) % q->info.n_layers) {
		double ns, bytes;
		int r;

		while (q->info.layer_index[layer] < 0)
			layer = (layer + 1) % q->info.n_layers;
		r = run_once(q, layer, &ns, &bytes, err);
		if (r < 0) {
			munmap(memory, LIMIT_BYTES);
			return r;
		}
		best = MAX(best, bytes / ns);
		gflops = MAX(gflops, 6.0 * q->info.hidden * q->info.inter * q->info.topk * q->tokens / ns);
		if (i % 8 == 0)
			limit = MAX(limit, limit_read(memory + i / 8 % PARTS * (LIMIT_BYTES / PARTS),
						      LIMIT_BYTES / PARTS, q->info.cpu_threads));
	}
	munmap(memory, LIMIT_BYTES);
	print_result(o, q, best, limit, gflops);
	return 0;
}

int bench_compute(const struct options *o)
{
	const struct moe_attach_params params = {.size = sizeof params, .model = o->model, .max_tokens = o->tokens};
	struct request q = {.tokens = o->tokens, .random = 1};
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	int r = open_patiently(&client, o->socket, &err);

	if (r == 0)
		r = moe_attach(client, &q.session, &params, &err);
	if (r == 0) {
		const size_t values = (size_t)o->tokens;

		moe_session_info(q.session, &q.info);
		q.ids = calloc(values * q.info.topk, sizeof *q.ids);
		q.weights = calloc(values * q.info.topk, sizeof *q.weights);
		q.x = calloc(values * q.info.hidden, sizeof *q.x);
		q.y = calloc(values * q.info.hidden, sizeof *q.y);
		for (size_t i = 0; q.x && i < values * q.info.hidden; i++)
			q.x[i] = (float)(next_random(&q.random) % 2001) / 1000.0f - 1.0f;
		r = q.ids && q.weights && q.x && q.y ? measure(o, &q, &err) : -1;
	}
	free(q.ids);
	free(q.weights);
	free(q.x);
	free(q.y);
	moe_detach(q.session);
	moe_close(client);
	return r < 0 ? bench_fail(&err) : 0;
}
