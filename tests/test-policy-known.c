/* SPDX-License-Identifier: MIT */
/*
 * Policies and the simulator against what is known: every published vector with its log of evictions, every reference
 * count of a recorded trace, and which policies find more on recorded traces (docs/decisions/0045).
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "policy/policy.h"
#include "simulate/moetrc.h"
#include "simulate/trace-file.h"
#include "tests/sim-layers.h"
#include "tests/tap.h"

#define EXPERTS 64

/* -- published vectors -------------------------------------------------------------------------------------------- */

static json_int_t number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static bool same_counts(const struct sim_counts *c, const json_t *want)
{
	return (json_int_t)c->hits_unique == number(want, "hits_unique") &&
	       (json_int_t)c->misses_unique == number(want, "misses_unique") &&
	       (json_int_t)c->hits_pairs == number(want, "hits_pairs") &&
	       (json_int_t)c->misses_pairs == number(want, "misses_pairs") &&
	       (json_int_t)c->copies == number(want, "copies") && (json_int_t)c->cold == number(want, "cold") &&
	       (json_int_t)c->insertions == number(want, "insertions") &&
	       (json_int_t)c->evictions == number(want, "evictions") &&
	       (json_int_t)c->bypasses == number(want, "bypasses");
}

static void log_eviction(void *userdata, uint32_t event, int32_t victim, int32_t incoming)
{
	json_array_append_new(userdata, json_pack("[i,i,i]", (int)event, victim, incoming));
}

static bool replay(const struct sim_trace *t, const json_t *result, struct sim_params *p)
{
	const json_t *logs = json_object_get(result, "evictions_t_victim_incoming");
	struct sim_counts total = {0}, counts;
	bool good = true, final[EXPERTS];

	for (uint32_t layer = 0; layer < t->layers; layer++) {
		const json_t *want = json_array_get(json_object_get(result, "per_layer"), layer);
		json_t *left = json_array();

		p->userdata = json_array();
		good &= sim_layer(t, layer, p, &counts, final, NULL) == 0;
		for (uint32_t e = 0; e < t->experts; e++)
			if (final[e])
				json_array_append_new(left, json_integer(e));
		good &= same_counts(&counts, want) && json_equal(left, json_object_get(want, "final"));
		good &= !logs || json_equal(p->userdata, json_array_get(logs, layer));
		sim_add(&total, &counts);
		json_decref(left);
		json_decref(p->userdata);
	}
	return good && same_counts(&total, json_object_get(result, "total"));
}

static void test_vectors(void)
{
	const char *source = getenv("MOE_SOURCE");
	uint32_t runs = 0, logs = 0;
	struct moe_error err = {0};
	json_t *file, *one, *result;
	struct trace_file read = {0};
	json_error_t error;
	char path[4096];
	size_t i, j;

	snprintf(path, sizeof path, "%s/tests/data/cache.json", source ? source : ".");
	file = json_load_file(path, 0, &error);
	require(file, "tests/data/cache.json is read%s%s", file ? "" : ": ", file ? "" : error.text);
	require(trace_file_read(&read, path, false, &err) == 0, "and its traces%s", err.text);
	json_array_foreach (json_object_get(file, "cases"), i, one) {
		json_array_foreach (json_object_get(one, "results"), j, result) {
			const char *policy = json_string_value(json_object_get(result, "policy"));
			const char *mode = json_string_value(json_object_get(result, "mode"));
			struct sim_params p = {.policy = policy,
					       .capacity = (uint32_t)number(result, "capacity"),
					       .evicted = log_eviction};

			p.mode = strcmp(policy, "belady") == 0          ? SIM_BELADY
				 : strcmp(policy, "belady-pinned") == 0 ? SIM_BELADY_PINNED
				 : strcmp(mode, "atomic") == 0          ? SIM_ATOMIC
									: SIM_PINNED;
			ok(replay(&read.cases[i].trace, result, &p), "%s, %u slots: %s, %s",
			   json_string_value(json_object_get(one, "id")), p.capacity, policy, mode);
			runs++;
			logs += json_object_get(result, "evictions_t_victim_incoming") != NULL;
		}
	}
	trace_file_free(&read);
	ok(runs == 180 && logs > 80, "%u published results were run, %u of them with a log", runs, logs);
	json_decref(file);
}

/* -- recorded traces ---------------------------------------------------------------------------------------------- */

static double rate(const struct sim_counts *c)
{
	return (double)c->hits_unique / (double)(c->hits_unique + c->misses_unique);
}

static void test_references(const json_t *references, const char *path)
{
	const char *key, *policy;
	json_t *one, *want;
	uint32_t runs = 0;

	json_object_foreach ((json_t *)references, key, one) {
		unsigned tokens, capacity;
		struct moe_error err = {0};
		struct trace_file file = {0};
		bool good = true;

		if (sscanf(key, "dev-B%u-C%u", &tokens, &capacity) != 2)
			continue; /* of a trace that is kept back */
		require(trace_file_read(&file, path, tokens > 1, &err) == 0, "the trace is read%s", err.text);
		json_object_foreach (one, policy, want) {
			struct sim_counts counts;

			run_all(&file.cases[0].trace, policy, capacity, &counts);
			good &= same_counts(&counts, want);
			runs++;
		}
		ok(good, "%s: every count of %zu policies is the reference's", key, json_object_size(one));
		trace_file_free(&file);
	}
	ok(runs == 66, "%u references were compared", runs);
}

/* With one token a step and as many slots as it has experts nothing is free to choose. */
static void test_no_choice(const char *name, const struct sim_trace *t)
{
	struct sim_counts counts, best;
	bool same = true;

	run_all(t, "belady-pinned", t->topk, &best);
	for (size_t i = 0; policy_at(i); i++) {
		if (policy_at(i)->slots_only)
			continue;
		run_all(t, policy_at(i)->name, t->topk, &counts);
		same &= counts.copies == best.copies;
	}
	ok(same, "%s: one token, C = k: every pinned policy ties with belady-pinned", name);
}

/* With more, rules that see both how often and how lately find more than lru and ebco do: 0045 has the numbers. */
static void test_order_of_policies(const char *name, const struct sim_trace *t, uint32_t capacity)
{
	static const char *const names[] = {"lru", "ebco-hard", "ebco-soft", "lfu-decay", "ema", "belady-pinned"};
	double rates[ARRAY_LEN(names)];
	struct sim_counts counts;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		run_all(t, names[i], capacity, &counts);
		rates[i] = rate(&counts);
	}
	ok(MIN(rates[3], rates[4]) > MAX(rates[0], MAX(rates[1], rates[2])) && rates[5] > MAX(rates[3], rates[4]),
	   "%s, %u slots: lru %.4f, ebco %.4f and %.4f, lfu-decay %.4f, ema %.4f, belady-pinned %.4f", name, capacity,
	   rates[0], rates[1], rates[2], rates[3], rates[4], rates[5]);
}

/* Nobody who has not chosen a rule loses by it: 0076. */
static void test_default(const char *name, const struct sim_trace *t)
{
	const char *chosen = policy_find(NULL)->name;

	for (uint32_t quarters = 1; quarters < 4; quarters++) {
		const uint32_t capacity = t->experts * quarters / 4;
		double own, lru, most = 0;
		struct sim_counts counts;

		run_all(t, chosen, capacity, &counts);
		own = rate(&counts);
		run_all(t, "lru", capacity, &counts);
		lru = rate(&counts);
		for (size_t i = 0; policy_at(i); i++) {
			if (policy_at(i) == &policy_static || policy_at(i) == &policy_original)
				continue;
			run_all(t, policy_at(i)->name, capacity, &counts);
			most = MAX(most, rate(&counts));
		}
		ok(own > lru && own > most - 0.002,
		   "%s, %u slots: %s, the default, finds %.4f, lru %.4f, the best %.4f", name, capacity, chosen, own,
		   lru, most);
	}
}

static void test_finding(const char *path, const char *name)
{
	struct trace_file file = {0};
	struct moe_error err = {0};
	const struct sim_trace *t;

	require(trace_file_read(&file, path, false, &err) == 0, "%s is read%s", name, err.text);
	t = &file.cases[0].trace;
	test_no_choice(name, t);
	test_order_of_policies(name, t, t->experts / 4);
	test_order_of_policies(name, t, t->experts / 2);
	test_default(name, t);
	trace_file_free(&file);
}

static void test_traces(void)
{
	static const char *const recorded[] = {"gptoss20b-dev.moetrc", "trace_olmoe_299.jsonl"};
	const char *folder = getenv("MOE_TRACES"), *source = getenv("MOE_SOURCE");
	json_error_t error;
	char path[4096], beside[2048];
	json_t *references;

	snprintf(beside, sizeof beside, "%s/../shared/traces", source ? source : ".");
	for (size_t i = 0; i < ARRAY_LEN(recorded); i++) {
		snprintf(path, sizeof path, "%s/%s", folder ? folder : beside, recorded[i]);
		if (access(path, R_OK) == 0)
			test_finding(path, recorded[i]);
		else
			tap_skip("no %s in $MOE_TRACES or ../shared/traces", recorded[i]);
	}
	snprintf(path, sizeof path, "%s/reference-hit-rates.json", folder ? folder : beside);
	references = json_load_file(path, 0, &error);
	snprintf(path, sizeof path, "%s/%s", folder ? folder : beside, recorded[0]);
	if (references && access(path, R_OK) == 0)
		test_references(json_object_get(references, "results"), path);
	else
		tap_skip("no reference-hit-rates.json in $MOE_TRACES or ../shared/traces");
	json_decref(references);
}

int main(void)
{
	test_vectors();
	test_traces();
	return tap_done();
}
