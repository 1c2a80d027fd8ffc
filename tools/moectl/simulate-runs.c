/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "cache.h"
#include "policy/policy.h"
#include "simulate.h"

#define NAME_MAX_BYTES 32
#define CAPACITIES_MAX 256

/* Every policy that makes room, and both bounds: what is run of a file that names nothing. */
#define MODES_DEFAULT "pinned,belady-pinned,belady"
#define ATOMIC_DEFAULT "lru,lfu,lfru"

/* -- lists -------------------------------------------------------------------------------------------------------- */

/* The next word of a list with commas; false at its end. An empty word, or one that is too long, is "". */
static bool next_word(const char **at, char ret[NAME_MAX_BYTES])
{
	const size_t n = *at ? strcspn(*at, ",") : 0;

	if (!*at)
		return false;
	snprintf(ret, NAME_MAX_BYTES, "%.*s", (int)(n < NAME_MAX_BYTES ? n : 0), *at);
	*at = (*at)[n] ? *at + n + 1 : NULL;
	return true;
}

/* params: of the file, or NULL. again: also where there is such a run already, as the file has it twice. */
static int add_run(struct runs *runs, const struct run *what, bool again, const json_t *wished, struct moe_error *err)
{
	struct run run = *what;
	int r = run_tune(&run, wished, err);

	for (uint32_t i = 0; r == 0 && !again && i < runs->n; i++)
		if (runs->runs[i].mode == run.mode && runs->runs[i].capacity == run.capacity &&
		    strcmp(runs->runs[i].policy, run.policy) == 0 && strcmp(runs->runs[i].label, run.label) == 0) {
			json_decref(run.params);
			return 0;
		}
	if (r == 0 && runs->n == runs->room) {
		const uint32_t room = runs->room ? 2 * runs->room : 16;
		struct run *grown = reallocarray(runs->runs, room, sizeof *grown);

		if (grown) {
			runs->runs = grown;
			runs->room = room;
		} else {
			r = moe_error_set(err, -ENOMEM, "simulate: no memory for %u runs", room);
		}
	}
	if (r < 0)
		json_decref(run.params);
	else
		runs->runs[runs->n++] = run;
	return r;
}

/* -- what is run -------------------------------------------------------------------------------------------------- */

struct capacities {
	uint32_t n, of[CAPACITIES_MAX];
};

static void add_capacity(struct capacities *c, uint32_t capacity)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->of[i] == capacity)
			return;
	if (c->n < CAPACITIES_MAX)
		c->of[c->n++] = capacity;
}

static int read_capacities(struct capacities *ret, const char *list, struct moe_error *err)
{
	char word[NAME_MAX_BYTES], *end;

	while (next_word(&list, word)) {
		const unsigned long capacity = strtoul(word, &end, 10);

		if (*end || end == word || *word < '0' || *word > '9' || capacity > CACHE_EXPERTS_MAX)
			return moe_error_set(err, -EINVAL, "--capacity: '%s' found, 0 to %d expected", word,
					     CACHE_EXPERTS_MAX);
		if (ret->n == CAPACITIES_MAX)
			return moe_error_set(err, -EINVAL, "--capacity: more than %d found", CAPACITIES_MAX);
		add_capacity(ret, (uint32_t)capacity);
	}
	return 0;
}

/* What the file names, or an eighth, a quarter and half of the experts. */
static void default_capacities(struct capacities *ret, const struct trace_case *one)
{
	for (uint32_t i = 0; i < one->n_runs; i++)
		add_capacity(ret, one->runs[i].capacity);
	if (ret->n == 0)
		for (uint32_t part = 8; part >= 2; part /= 2)
			add_capacity(ret, DIV_UP(one->trace.experts, part));
}

/* A policy's name lives as long as the program. */
static int find_policy(const char *word, enum sim_mode mode, const char **ret, enum sim_mode *ret_mode,
		       struct moe_error *err)
{
	const struct policy_ops *ops = policy_find(word);
	const int found = sim_mode_find(word);

	*ret_mode = found >= SIM_BELADY ? (enum sim_mode)found : mode;
	*ret = ops ? ops->name : found >= SIM_BELADY ? sim_mode_name(*ret_mode) : NULL;
	return *ret ? 0
		    : moe_error_set(err, -EINVAL, "--policy: '%s' found, one of %s, belady, belady-pinned expected",
				    word, policy_names());
}

static int wrong_mode(const char *word, struct moe_error *err)
{
	return moe_error_set(err, -EINVAL, "--mode: '%s' found, %s expected", word, sim_mode_names());
}

/* Of policies that have no atomic form the other modes are run; it is an error where none of them has one. */
static int plan_mode(struct runs *runs, enum sim_mode mode, const char *policies, const struct capacities *c,
		     const json_t *wished, struct moe_error *err)
{
	const uint32_t before = runs->n;
	const char *name = NULL;
	char word[NAME_MAX_BYTES];
	bool left_out = false;
	int r = 0;

	while (r == 0 && next_word(&policies, word)) {
		enum sim_mode its;

		r = find_policy(word, mode, &name, &its, err);
		if (r == 0 && its == SIM_ATOMIC && !sim_has_atomic(name)) {
			fprintf(stderr, "moectl simulate: %s has no atomic form and is left out of that mode\n", name);
			left_out = true;
			continue;
		}
		for (uint32_t i = 0; r == 0 && i < c->n; i++)
			r = add_run(runs,
				    &(struct run){.policy = name,
						  .mode = its,
						  .mode_name = sim_mode_name(its == SIM_ATOMIC ? its : SIM_PINNED),
						  .capacity = c->of[i]},
				    false, wished, err);
	}
	if (r == 0 && left_out && runs->n == before && c->n > 0)
		r = moe_error_set(err, -EINVAL, "--mode atomic: policy '%s' found, one of %s expected", name,
				  SIM_ATOMIC_NAMES);
	return r;
}

static int plan_wished(struct runs *runs, const struct run_wishes *wishes, const struct capacities *c,
		       struct moe_error *err)
{
	const char *modes = wishes->modes ? wishes->modes : wishes->policies ? "pinned" : MODES_DEFAULT;
	char word[NAME_MAX_BYTES], all[256];
	int r = 0;

	/* As policy_frames_names() has them, without blanks. */
	all[0] = '\0';
	for (size_t i = 0; policy_at(i); i++)
		if (!policy_at(i)->slots_only)
			snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? "," : "",
				 policy_at(i)->name);
	while (r == 0 && next_word(&modes, word)) {
		const int mode = sim_mode_find(word);
		const char *others = mode == SIM_ATOMIC ? ATOMIC_DEFAULT : all;

		if (mode < 0)
			return wrong_mode(word, err);
		r = plan_mode(runs, (enum sim_mode)mode,
			      mode >= SIM_BELADY ? word
			      : wishes->policies ? wishes->policies
						 : others,
			      c, wishes->params, err);
	}
	return r;
}

/* As the file has them; of capacities that were asked for each once. */
static int plan_named(struct runs *runs, const struct trace_case *one, const struct run_wishes *wishes,
		      const struct capacities *c, struct moe_error *err)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < one->n_runs; i++) {
		const struct trace_run *of = &one->runs[i];
		struct run run = {.policy = of->policy,
				  .mode = of->mode,
				  .mode_name = of->mode_name,
				  .capacity = of->capacity,
				  .evictions = of->evictions && !wishes->capacities};

		for (uint32_t j = 0; r == 0 && j < (wishes->capacities ? c->n : 1); j++) {
			run.params = json_loads(of->params, 0, NULL);
			if (wishes->capacities)
				run.capacity = c->of[j];
			r = run.params ? add_run(runs, &run, !wishes->capacities, wishes->params, err)
				       : moe_error_set(err, -ENOMEM, "simulate: no memory");
		}
	}
	return r;
}

int runs_check(const struct run_wishes *wishes, struct moe_error *err)
{
	const char *policies = wishes->policies, *modes = wishes->modes, *name;
	struct capacities c = {0};
	char word[NAME_MAX_BYTES];
	enum sim_mode mode;
	int r = wishes->capacities ? read_capacities(&c, wishes->capacities, err) : 0;

	while (r == 0 && next_word(&policies, word))
		r = find_policy(word, SIM_PINNED, &name, &mode, err);
	while (r == 0 && next_word(&modes, word))
		if (sim_mode_find(word) < 0)
			r = wrong_mode(word, err);
	return r;
}

int runs_plan(struct runs *ret, const struct trace_case *one, const struct run_wishes *wishes, struct moe_error *err)
{
	struct capacities c = {0};
	int r = wishes->capacities ? read_capacities(&c, wishes->capacities, err) : 0;

	if (r < 0)
		return r;
	if (one->n_runs == 0 || wishes->policies || wishes->modes) {
		if (!wishes->capacities)
			default_capacities(&c, one);
		r = plan_wished(ret, wishes, &c, err);
	} else {
		r = plan_named(ret, one, wishes, &c, err);
	}
	return r == 0 ? simulate_params_used(ret, wishes->params, err) : r;
}

void runs_free(struct runs *runs)
{
	for (uint32_t i = 0; i < runs->n; i++) {
		json_decref(runs->runs[i].document);
		json_decref(runs->runs[i].params);
	}
	free(runs->runs);
	*runs = (struct runs){0};
}

/* -- running ------------------------------------------------------------------------------------------------------ */

static json_t *counts_document(const struct sim_counts *c)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "hits_unique", (json_int_t)c->hits_unique,
			 "misses_unique", (json_int_t)c->misses_unique, "hits_pairs", (json_int_t)c->hits_pairs,
			 "misses_pairs", (json_int_t)c->misses_pairs, "copies", (json_int_t)c->copies, "cold",
			 (json_int_t)c->cold, "insertions", (json_int_t)c->insertions, "evictions",
			 (json_int_t)c->evictions, "bypasses", (json_int_t)c->bypasses);
}

static void log_eviction(void *userdata, uint32_t event, int32_t victim, int32_t incoming)
{
	json_array_append_new(userdata, json_pack("[i,i,i]", (int)event, victim, incoming));
}

/* "final": what is cached at the end. */
static json_t *layer_document(const struct sim_counts *counts, const bool *final, uint32_t experts)
{
	json_t *document = counts_document(counts), *left = json_array();

	for (uint32_t e = 0; e < experts; e++)
		if (final[e])
			json_array_append_new(left, json_integer(e));
	json_object_set_new(document, "final", left);
	return document;
}

static int run_layers(struct run *run, const struct sim_trace *trace, const struct run_wishes *wishes, bool *final,
		      bool *missed, json_t *layers, json_t *logs, struct moe_error *err)
{
	int r = 0;

	for (uint32_t layer = 0; r == 0 && layer < trace->layers; layer++) {
		struct sim_params p = {.mode = run->mode,
				       .policy = run->policy,
				       .tuning = run->tuning,
				       .capacity = run->capacity,
				       .calibration = wishes->calibration,
				       .missed = missed};
		struct sim_counts counts;

		if (logs) {
			p.evicted = log_eviction;
			p.userdata = json_array();
			json_array_append_new(logs, p.userdata);
		}
		r = sim_layer(trace, layer, &p, &counts, final, err);
		if (r == 0)
			sim_add(&run->total, &counts);
		if (r == 0 && wishes->json)
			json_array_append_new(layers, layer_document(&counts, final, trace->experts));
	}
	return r;
}

static int run_one(struct run *run, const struct sim_trace *trace, const struct run_wishes *wishes, bool *final,
		   bool *missed, struct moe_error *err)
{
	json_t *layers = json_array(), *logs = NULL;
	int r;

	if (wishes->json && (wishes->evictions || run->evictions) && run->mode == SIM_PINNED)
		logs = json_array();
	r = run_layers(run, trace, wishes, final, missed, layers, logs, err);

	if (r == 0 && wishes->rates)
		r = cost_run(trace, missed, wishes->rates, &run->cost, err);
	if (r == 0 && wishes->json)
		run->document = json_pack("{s:s,s:s,s:i,s:o,s:o,s:O}", "policy", run->policy, "mode", run->mode_name,
					  "capacity", (int)run->capacity, "params",
					  run_params(run, wishes->calibration), "total", counts_document(&run->total),
					  "per_layer", layers);
	if (run->document && logs)
		json_object_set(run->document, "evictions_t_victim_incoming", logs);
	if (run->document && wishes->rates)
		json_object_set_new(run->document, "cost", simulate_cost_document(&run->cost));
	json_decref(layers);
	json_decref(logs);
	return r == 0 && wishes->json && !run->document ? moe_error_set(err, -ENOMEM, "simulate: no memory") : r;
}

/* Of all tokens. */
static size_t count_ids(const struct sim_trace *t)
{
	size_t n = 0;

	for (size_t place = 0; place < (size_t)t->steps * t->layers; place++)
		n += (size_t)t->tokens[place] * t->topk;
	return n;
}

int runs_run(struct runs *runs, const struct trace_case *one, const struct run_wishes *wishes, struct moe_error *err)
{
	bool *final = calloc(one->trace.experts, sizeof *final);
	bool *missed = wishes->rates ? calloc(count_ids(&one->trace) + 1, sizeof *missed) : NULL;
	int r = final && (missed || !wishes->rates) ? 0 : moe_error_set(err, -ENOMEM, "simulate: no memory");

	for (uint32_t i = 0; r == 0 && i < runs->n; i++)
		r = run_one(&runs->runs[i], &one->trace, wishes, final, missed, err);
	free(final);
	free(missed);
	return r;
}
