/* SPDX-License-Identifier: MIT */
/*
 * compare - the CPU pool beside other libraries on the same weights, threads and requests.
 *
 * Each round has a burst of everyone, then the limits of reading and arithmetic. Whoever's turn it is finds the machine
 * at rest: the threads of OpenMP and the pool's poll for some milliseconds after their work. Ratios are those of the
 * times, round by round and best over best.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/peer.h"

/* Of a peer: it may have one scale for all activations of a request. */
#define PEER_ERROR_MAX 0.15
#define ROWS 4
#define REST_NS 20000000 /* libgomp's threads poll for 300,000 rounds of `pause` */

struct row {
	char name[48];
	const char *made_by; /* the peer's name in the table below */
	struct peer *peer;   /* NULL: the pool */
	uint32_t burst;
	double *ns;          /* of a request, by round */
	double *ratio;       /* to the pool's, by round */
	double best, median; /* of ns */
	double ratio_best, ratio_median;
	double error;
};

struct comparison {
	struct ffn_run run;
	struct ffn_limits limits;
	struct row rows[ROWS];
	uint32_t n_rows;
	struct {
		const char *name;
		struct moe_error why;
	} absent[ROWS];
	uint32_t n_absent;
};

/* -- measuring ---------------------------------------------------------------------------------------------------- */

/* Nanoseconds of a request of n. */
static int burst(struct comparison *c, struct row *row, uint32_t n, double *ret_ns, struct moe_error *err)
{
	uint64_t begin;
	int r = 0;

	nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
	if (!row->peer) {
		*ret_ns = ffn_run_burst(&c->run, n);
		return c->run.status ? moe_error_sys(err, c->run.status, "the pool cannot compute") : 0;
	}
	begin = now_ns();
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		ffn_run_route(&c->run);
		r = row->peer->request(row->peer, err);
	}
	*ret_ns = (double)(now_ns() - begin) / n;
	return r;
}

/* Twice, because the first request makes and touches what the others find. */
static int warm_up(struct comparison *c, struct row *row, struct moe_error *err)
{
	double once;
	int r = burst(c, row, 1, &once, err);

	if (r == 0)
		r = burst(c, row, 1, &once, err);
	row->burst = ffn_run_burst_length(&c->run, once);
	return r;
}

static int measure(struct comparison *c, struct moe_error *err)
{
	const uint32_t rounds = c->run.o->samples;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < c->n_rows; i++)
		r = warm_up(c, &c->rows[i], err);
	for (uint32_t round = 0; r == 0 && round < rounds; round++) {
		for (uint32_t i = 0; r == 0 && i < c->n_rows; i++) {
			struct row *row = &c->rows[i];

			r = burst(c, row, row->burst, &row->ns[round], err);
			row->ratio[round] = row->ns[round] / c->rows[0].ns[round];
			if (r == 0 && round == rounds - 1 && c->run.o->check)
				row->error = ffn_run_error(&c->run);
		}
		ffn_run_limits(&c->run, round, c->rows[0].ns[round], &c->limits);
	}
	for (uint32_t i = 0; r == 0 && i < c->n_rows; i++) {
		struct row *row = &c->rows[i];
		const struct summary s = summarise(row->ns, rounds);

		row->best = s.best;
		row->median = s.p50;
		row->ratio_best = s.best / c->rows[0].best;
		row->ratio_median = summarise(row->ratio, rounds).p50;
	}
	return r;
}

/* -- printing ----------------------------------------------------------------------------------------------------- */

static void print_json(const struct comparison *c)
{
	const double bytes = ffn_run_bytes(&c->run), flops = ffn_run_flops(&c->run);

	printf("{");
	ffn_run_print_shape(&c->run);
	printf(", \"format\": \"%s\", \"isa\": \"%s\", \"variant\": \"%s\", \"threads\": %u, \"tokens\": %u, "
	       "\"read_limit_gbs\": %.6g, \"compute_limit_gflops\": %.6g, \"rows\": [",
	       moe_formats[c->run.format].name, c->run.kernels->name, c->run.kernels->variant,
	       pool_threads(c->run.pool), c->run.o->tokens, c->limits.read_gbs, c->limits.gflops);
	for (uint32_t i = 0; i < c->n_rows; i++) {
		const struct row *row = &c->rows[i];

		printf("%s{\"name\": \"%s\", \"ms\": {\"best\": %.6g, \"median\": %.6g}, \"weight_gbs\": {\"best\": "
		       "%.6g, \"median\": %.6g}, \"gflops\": {\"best\": %.6g, \"median\": %.6g}, \"ratio\": "
		       "{\"best\": %.6g, \"median\": %.6g}, \"max_rel_error\": ",
		       i ? ", " : "", row->name, row->best / 1e6, row->median / 1e6, bytes / row->best,
		       bytes / row->median, flops / row->best, flops / row->median, row->ratio_best, row->ratio_median);
		print_json_number(row->error);
		printf("}");
	}
	printf("], \"absent\": [");
	for (uint32_t i = 0; i < c->n_absent; i++)
		printf("%s{\"name\": \"%s\", \"why\": \"%s\"}", i ? ", " : "", c->absent[i].name,
		       c->absent[i].why.text);
	printf("]}\n");
}

static void print_text(const struct comparison *c)
{
	const double bytes = ffn_run_bytes(&c->run), flops = ffn_run_flops(&c->run);

	ffn_run_print_title(&c->run);
	printf("  %-20s %9s %9s %8s %9s %8s %8s%s\n", "", "ms best", "median", "GB/s", "GFLOP/s", "times", "median",
	       c->run.o->check ? "    error" : "");
	for (uint32_t i = 0; i < c->n_rows; i++) {
		const struct row *row = &c->rows[i];

		printf("  %-20s %9.3f %9.3f %8.1f %9.1f %8.2f %8.2f", row->name, row->best / 1e6, row->median / 1e6,
		       bytes / row->best, flops / row->best, row->ratio_best, row->ratio_median);
		if (c->run.o->check)
			printf(" %8.2g", row->error);
		printf("\n");
	}
	printf("  %-20s %9s %9s %8.1f", "the machine's limit", "", "", c->limits.read_gbs);
	if (c->limits.gflops > 0)
		printf(" %9.1f", c->limits.gflops);
	printf("\n");
	for (uint32_t i = 0; i < c->n_absent; i++)
		printf("  %-20s %s\n", c->absent[i].name, c->absent[i].why.text);
}

/* -- the verb ----------------------------------------------------------------------------------------------------- */

static struct row *add_row(struct comparison *c, const char *made_by, const char *name, struct peer *peer)
{
	const uint32_t rounds = c->run.o->samples;
	struct row *row = &c->rows[c->n_rows];

	*row = (struct row){.made_by = made_by,
			    .peer = peer,
			    .error = NAN,
			    .ns = calloc(rounds, sizeof *row->ns),
			    .ratio = calloc(rounds, sizeof *row->ratio)};
	snprintf(row->name, sizeof row->name, "%s", name);
	c->n_rows++;
	return row->ns && row->ratio ? row : NULL;
}

static bool add_rows(struct comparison *c)
{
	static const struct {
		const char *name;
		int (*make)(struct peer **, const struct ffn_run *, bool, struct moe_error *);
		bool packed;
	} peers[ROWS - 1] = {
		{"onednn", peer_onednn, false},
		{"onednn-packed", peer_onednn, true},
		{"ggml", peer_ggml, false},
	};
	bool good = add_row(c, "moe-expertd", "moe-expertd", NULL);

	for (size_t i = 0; i < ARRAY_LEN(peers); i++) {
		struct peer *peer;

		if (peers[i].make(&peer, &c->run, peers[i].packed, &c->absent[c->n_absent].why) == 0)
			good &= add_row(c, peers[i].name, peer->name, peer) != NULL;
		else
			c->absent[c->n_absent++].name = peers[i].name;
	}
	return good;
}

static void free_row(struct row *row)
{
	free(row->ns);
	free(row->ratio);
	if (row->peer)
		row->peer->free(row->peer);
}

/*
 * A peer that computes something else is no comparison: it is absent, with the reason. oneDNN does where a processor
 * has no VNNI: its INT8 adds up pairs in 16 bits there.
 */
static void leave_out_wrong(struct comparison *c)
{
	uint32_t kept = 1;

	for (uint32_t i = 1; i < c->n_rows; i++) {
		struct row *row = &c->rows[i];

		if (!c->run.o->check || row->error <= PEER_ERROR_MAX) {
			c->rows[kept++] = *row;
			continue;
		}
		moe_error_set(&c->absent[c->n_absent].why, -1,
			      "%s: the result is %.2g of the largest output off the reference's; at most %g expected",
			      row->name, row->error, PEER_ERROR_MAX);
		c->absent[c->n_absent++].name = row->made_by;
		free_row(row);
	}
	c->n_rows = kept;
}

static int check_own(const struct comparison *c)
{
	struct moe_error err;

	if (!c->run.o->check || c->rows[0].error <= FFN_ERROR_MAX)
		return 0;
	moe_error_set(&err, -1, "the result is %.2g of the largest output off the reference's; at most %g expected",
		      c->rows[0].error, FFN_ERROR_MAX);
	return bench_fail(&err);
}

int bench_compare(const struct options *o)
{
	struct comparison c = {0};
	struct moe_error err = {0};
	int r = ffn_run_make(&c.run, o);

	if (r == 0 && (!add_rows(&c) || measure(&c, &err) < 0))
		r = bench_fail(&err);
	else if (r == 0) {
		leave_out_wrong(&c);
		(o->json ? print_json : print_text)(&c);
		r = check_own(&c);
	}
	for (uint32_t i = 0; i < c.n_rows; i++)
		free_row(&c.rows[i]);
	ffn_run_free(&c.run);
	return r;
}
