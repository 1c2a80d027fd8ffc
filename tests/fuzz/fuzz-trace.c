/* SPDX-License-Identifier: MIT */
/* Recorded routing in any form: refused in one line, or a trace that keeps its word, which the simulator replays. */
#include "cache.h"
#include "policy/policy.h"
#include "simulate/trace-file.h"
#include "tests/fuzz/fuzz.h"

#define REPLAYED_MAX 20000 /* experts times steps */

static void check_trace(const struct sim_trace *t)
{
	size_t ids = 0;

	fuzz_check(t->layers > 0 && t->experts > 0 && t->topk > 0 && t->topk <= t->experts);
	for (size_t place = 0; place < (size_t)t->steps * t->layers; place++) {
		fuzz_check(t->first[place] == ids);
		ids += (size_t)t->tokens[place] * t->topk;
	}
	for (uint32_t i = 0, end = 0, first; i < sim_sequences(t); i++) {
		const uint32_t steps = sim_sequence(t, i, &first);

		fuzz_check(first == end && steps <= t->steps - first);
		end = first + steps;
		fuzz_check(i + 1 < sim_sequences(t) || end == t->steps);
	}
	for (size_t i = 0; i < ids; i++)
		fuzz_check(t->ids[i] >= -1 && t->ids[i] < (int32_t)t->experts);
}

static void replay_trace(const struct sim_trace *t, const char *policy, uint32_t capacity)
{
	struct sim_params params = {.policy = policy, .capacity = capacity};
	bool *final = calloc(t->experts, sizeof *final);
	struct sim_counts counts;

	fuzz_check(final && sim_layer(t, 0, &params, &counts, final, NULL) == 0);
	fuzz_check(counts.copies == counts.insertions + counts.bypasses);
	free(final);
}

static void parse(const uint8_t *data, size_t size, bool together)
{
	const struct trace_source source = {"trace", data, size, together};
	struct moe_error err = {0};
	struct trace_file file = {0};
	int r = trace_file_parse(&file, &source, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		fuzz_check(!file.cases);
		return;
	}
	fuzz_check(file.n > 0 && file.format);
	for (uint32_t i = 0; i < file.n; i++) {
		const struct trace_case *one = &file.cases[i];

		fuzz_check(one->id);
		check_trace(&one->trace);
		for (uint32_t j = 0; j < one->n_runs; j++)
			fuzz_check(one->runs[j].policy && one->runs[j].params &&
				   one->runs[j].capacity <= CACHE_EXPERTS_MAX);
		if ((uint64_t)one->trace.steps * one->trace.experts >= REPLAYED_MAX)
			continue;
		replay_trace(&one->trace, policy_at((i + size) % 13)->name, one->trace.experts / 2);
		if (one->n_runs) /* more than there are experts is as many */
			replay_trace(&one->trace, policy_at((i + size) % 13)->name, one->runs[0].capacity);
	}
	trace_file_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	parse(data, size, false);
	parse(data, size, true);
	return 0;
}
