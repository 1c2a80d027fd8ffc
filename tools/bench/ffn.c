/* SPDX-License-Identifier: MIT */
/*
 * ffn - the CPU pool alone on one expert layer after another, beside what this machine can read and compute.
 *
 * Rounds of three: bursts of requests, streaming reads of the same memory by the same threads, as many and as long, and
 * the instructions that the dot products are made of. The time of a request is its burst's time over the burst's
 * requests; what is quoted is best over best, and the median beside it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/ffn-run.h"

struct figures {
	struct summary ns;
	struct ffn_limits limits;
	double error;
};

static void print_json(const struct ffn_run *run, const struct figures *f)
{
	const double bytes = ffn_run_bytes(run), flops = ffn_run_flops(run), best = f->ns.best, median = f->ns.p50;
	const struct ffn_limits *limits = &f->limits;

	printf("{");
	ffn_run_print_shape(run);
	printf(", \"format\": \"%s\", \"isa\": \"%s\", \"variant\": \"%s\", \"threads\": %u, \"tokens\": %u, \"ms\": "
	       "{\"best\": %.6g, \"median\": %.6g}, \"weight_gbs\": {\"best\": %.6g, \"median\": %.6g}, "
	       "\"read_limit_gbs\": %.6g, \"share_of_read\": %.6g, \"gflops\": {\"best\": %.6g, \"median\": %.6g}, "
	       "\"compute_limit_gflops\": %.6g, \"share_of_compute\": %.6g, \"max_rel_error\": ",
	       moe_formats[run->format].name, run->kernels->name, run->kernels->variant, pool_threads(run->pool),
	       run->o->tokens, best / 1e6, median / 1e6, bytes / best, bytes / median, limits->read_gbs,
	       bytes / best / limits->read_gbs, flops / best, flops / median, limits->gflops,
	       limits->gflops > 0 ? flops / best / limits->gflops : 0);
	print_json_number(f->error);
	printf("}\n");
}

static void print_text(const struct ffn_run *run, const struct figures *f)
{
	const double bytes = ffn_run_bytes(run), flops = ffn_run_flops(run), best = f->ns.best, median = f->ns.p50;
	const struct ffn_limits *limits = &f->limits;

	ffn_run_print_title(run);
	printf("  request      %9.3f ms best, %9.3f ms median\n"
	       "  weights      %9.1f GB/s best, %7.1f GB/s median; read limit %.1f: %5.1f %%, %5.1f %%\n"
	       "  arithmetic   %9.1f GFLOP/s best, %7.1f GFLOP/s median",
	       best / 1e6, median / 1e6, bytes / best, bytes / median, limits->read_gbs,
	       100 * bytes / best / limits->read_gbs, 100 * bytes / median / limits->read_gbs, flops / best,
	       flops / median);
	if (limits->gflops > 0)
		printf("; limit %.1f: %5.1f %%, %5.1f %%", limits->gflops, 100 * flops / best / limits->gflops,
		       100 * flops / median / limits->gflops);
	printf("\n");
	if (run->o->check)
		printf("  error        %9.2g of the largest output\n", f->error);
}

static int measure(struct ffn_run *run, double *ns, struct figures *f, struct moe_error *err)
{
	const uint32_t rounds = run->o->samples, bursts = ffn_run_bursts(run);
	uint32_t n;

	ffn_run_burst(run, 1); /* touches the scratch memory */
	n = ffn_run_burst_length(run, ffn_run_burst(run, 1));
	for (uint32_t i = 0; i < rounds; i++) {
		for (uint32_t k = 0; k < bursts; k++)
			ns[i * bursts + k] = ffn_run_burst(run, n);
		ffn_run_limits(run, i, ns[i * bursts], &f->limits);
	}
	if (run->status)
		return moe_error_sys(err, run->status, "the pool cannot compute");
	f->ns = summarise(ns, rounds * bursts);
	f->error = run->o->check ? ffn_run_error(run) : NAN;
	return 0;
}

static int list_formats(void)
{
	for (uint32_t i = 1; i < MOE_FORMAT_COUNT; i++)
		printf("%s\n", moe_formats[i].name);
	return 0;
}

int bench_ffn(const struct options *o)
{
	double *ns = calloc((size_t)o->samples * LIMIT_READ_WAYS, sizeof *ns);
	struct figures f = {0};
	struct moe_error err = {0};
	struct ffn_run run;
	int r;

	if (o->format && strcmp(o->format, "list") == 0) {
		free(ns);
		return list_formats();
	}
	r = ffn_run_make(&run, o);
	if (r == 0 && (!ns || measure(&run, ns, &f, &err) < 0))
		r = bench_fail(&err);
	else if (r == 0)
		(o->json ? print_json : print_text)(&run, &f);
	if (r == 0 && o->check && !(f.error <= FFN_ERROR_MAX)) {
		moe_error_set(&err, -1,
			      "the result is %.2g of the largest output off the reference's; at most %g expected",
			      f.error, FFN_ERROR_MAX);
		r = bench_fail(&err);
	}
	ffn_run_free(&run);
	free(ns);
	return r;
}
