/* SPDX-License-Identifier: MIT */
#include "tools/worker/stats.h"

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "base/stdout.h"
#include "base/util.h"

uint64_t stats_pairs(const struct experts_stats *s)
{
	return s->hit + s->miss_buffer + s->pool + s->cpu + s->deferred + s->local;
}

uint64_t stats_pairs_expected(const struct run *run)
{
	return run->forward->tokens * run->arch->n_moe_layers * run->arch->router.topk;
}

static double share(uint64_t part, uint64_t all)
{
	return all ? (double)part / (double)all : 0.0;
}

static void print_path(const char *path, uint64_t pairs, uint64_t all)
{
	printf("%-12s %14llu %8.1f %%\n", path, (unsigned long long)pairs, 100.0 * share(pairs, all));
}

static void print_rate(const char *phase, uint64_t tokens, uint64_t ns)
{
	printf("%-12s %14llu tokens in %.3f s", phase, (unsigned long long)tokens, (double)ns / 1e9);
	if (tokens && ns)
		printf(", %.1f tokens/s", (double)tokens * 1e9 / (double)ns);
	putchar('\n');
}

void stats_print(const struct run *run, const struct stats_times *times)
{
	const struct experts_stats *s = &run->experts->stats;
	const uint64_t all = stats_pairs(s), expected = stats_pairs_expected(run);

	printf("%-12s %14s %10s\n", "path", "pairs", "share");
	print_path("cache hit", s->hit, all);
	print_path("miss buffer", s->miss_buffer, all);
	if (run->options->zero_copy)
		print_path("zero copy", s->pool, all);
	print_path("CPU pool", s->cpu, all);
	if (run->options->defer)
		print_path("CPU deferred", s->deferred, all);
	print_path("local", s->local, all);
	print_path("all", all, all);
	printf("%llu tokens x %u MoE layers x %u experts = %llu pairs: %s\n", (unsigned long long)run->forward->tokens,
	       run->arch->n_moe_layers, run->arch->router.topk, (unsigned long long)expected,
	       all == expected ? "adds up" : "DOES NOT ADD UP");
	if (run->options->defer)
		printf("APPROXIMATE: of each token's experts up to %u counted one MoE layer late\n",
		       run->options->defer);
	printf("%-12s %14llu fills, %.1f MB; %.1f %% of the pairs found their expert in a slot already (hit rate)\n",
	       "copies", (unsigned long long)s->fills, (double)s->fill_bytes / 1e6, 100.0 * share(s->resident, all));
	printf("%-12s on %s", "dense part", run->forward->where);
	if (run->forward->on_device)
		printf("; %llu of %llu steps by a captured graph; answers of the CPU pool: %s",
		       (unsigned long long)run->forward->replays, (unsigned long long)run->forward->steps,
		       answers_names[run->options->answers]);
	putchar('\n');
	if (run->options->zero_copy)
		printf("%-12s %14llu experts, %.1f MB read in the pool\n", "zero copy", (unsigned long long)s->reads,
		       (double)s->read_bytes / 1e6);
	print_rate("prefill", times->prefill_tokens, times->prefill_ns);
	print_rate("decode", times->decode_tokens, times->decode_ns);
}

int stats_add(const struct run *run, json_t *object, struct moe_error *err)
{
	const struct options *o = run->options;
	const struct experts_stats *s = &run->experts->stats;
	const bool cached = o->experts == EXPERTS_CACHE;
	json_t *all = json_pack("{s:{s:I,s:I,s:I,s:I,s:I,s:I},s:I,s:I,s:I,s:I,s:f,s:s,s:s,s:i,s:i,s:i,s:b,s:s,s:s,s:I}",
				"pairs", "hit", (json_int_t)s->hit, "miss_buffer", (json_int_t)s->miss_buffer, "pool",
				(json_int_t)s->pool, "cpu", (json_int_t)s->cpu, "deferred", (json_int_t)s->deferred,
				"local", (json_int_t)s->local, "fills", (json_int_t)s->fills, "fill_bytes",
				(json_int_t)s->fill_bytes, "reads", (json_int_t)s->reads, "read_bytes",
				(json_int_t)s->read_bytes, "hit_rate", share(s->resident, stats_pairs(s)), "experts",
				experts_names[o->experts], "mode", mode_names[o->mode], "tp", (int)o->tp, "slots",
				cached ? (int)MIN(o->slots, run->arch->router.n_experts) : 0, "defer", (int)o->defer,
				"approximate", o->defer > 0, "dense", dense_names[run->forward->on_device], "answers",
				answers_names[o->answers], "graph_steps", (json_int_t)run->forward->replays);

	if (!all || json_object_update_new(object, all) < 0)
		return moe_error_set(err, -ENOMEM, "no memory for the JSON");
	return 0;
}

int stats_write(const json_t *object, struct moe_error *err)
{
	const bool whole = json_dumpf(object, stdout, JSON_COMPACT) == 0;
	int r;

	putchar('\n');
	r = stdout_flush();
	if (r == 0 && !whole)
		r = -ENOMEM; /* the stream is in order: jansson had no memory for it */
	return r < 0 ? moe_error_sys(err, r, "cannot write to standard output") : 0;
}
