/* SPDX-License-Identifier: MIT */
#include "simulate/trace-json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cache.h"
#include "model/json-memory.h"
#include "simulate/moetrc.h"
#include "simulate/trace-build.h"
#include "simulate/trace-field.h"
#include "simulate/trace-params.h"

/* -- one trace ---------------------------------------------------------------------------------------------------- */

static int read_tokens(struct sim_build *b, struct trace_at *at, const json_t *tokens, int32_t *ids,
		       struct moe_error *err)
{
	uint32_t n;
	int r = 0;

	if (!json_is_array(tokens))
		return trace_wrong(at, NULL, err, "%s found, an array of tokens expected", trace_kind(tokens));
	at->depth = 3;
	for (at->index[2] = 0; r == 0 && at->index[2] < json_array_size(tokens); at->index[2]++) {
		r = trace_ids(at, json_array_get(tokens, at->index[2]), b->trace.topk, b->trace.experts, ids, &n, err);
		if (r == 0)
			r = sim_build_token(b, ids, NULL, n, err);
	}
	at->depth = 2;
	return r;
}

static int read_steps(struct sim_build *b, struct trace_at *at, const json_t *steps, int32_t *ids,
		      struct moe_error *err)
{
	int r = 0;

	if (!json_is_array(steps))
		return trace_wrong(at, "steps", err, "%s found, an array expected", trace_kind(steps));
	at->array = "steps";
	for (at->index[0] = 0; r == 0 && at->index[0] < json_array_size(steps); at->index[0]++) {
		const json_t *step = json_array_get(steps, at->index[0]);

		at->depth = 1;
		if (!json_is_array(step) || json_array_size(step) != b->trace.layers)
			return trace_wrong(at, NULL, err, "%zu layers found, %u expected", json_array_size(step),
					   b->trace.layers);
		at->depth = 2;
		for (at->index[1] = 0; r == 0 && at->index[1] < b->trace.layers; at->index[1]++) {
			r = sim_build_place(b, err);
			if (r == 0)
				r = read_tokens(b, at, json_array_get(step, at->index[1]), ids, err);
		}
	}
	return r;
}

static int read_trace(struct sim_trace *ret, struct trace_at at, const json_t *object, struct moe_error *err)
{
	uint64_t layers = 0, experts = 0, topk = 0;
	struct sim_build b = {0};
	int32_t *ids;
	int r = trace_number(&at, object, "layers", 1, SIM_LAYERS_MAX, &layers, err);

	if (r == 0)
		r = trace_number(&at, object, "experts", 1, CACHE_EXPERTS_MAX, &experts, err);
	if (r == 0)
		r = trace_number(&at, object, "topk", 1, experts, &topk, err);
	if (r < 0)
		return r;
	sim_build_begin(&b, (uint32_t)layers, (uint32_t)experts, (uint32_t)topk);
	ids = calloc(topk, sizeof *ids);
	r = ids ? read_steps(&b, &at, json_object_get(object, "steps"), ids, err)
		: moe_error_set(err, -ENOMEM, "%s: no memory", at.file);
	free(ids);
	if (r == 0)
		sim_build_finish(&b, ret);
	else
		sim_build_drop(&b);
	return r;
}

/* -- vectors ------------------------------------------------------------------------------------------------------ */

/* Belady's forms are policies of any mode, and modes of their own, which have the policy's name. */
static int read_mode(const struct trace_at *at, const char *policy, const char *mode, struct trace_run *ret,
		     struct moe_error *err)
{
	const int asked = sim_mode_find(mode), form = sim_mode_find(policy);
	const int found = form >= SIM_BELADY ? form : asked;

	if (asked < 0)
		return trace_wrong(at, "mode", err, "'%.40s' found, %s expected", mode, sim_mode_names());
	if (asked >= SIM_BELADY && asked != form)
		return trace_wrong(at, "policy", err, "'%.40s' found, %s expected as in mode", policy, mode);
	if (found == SIM_PINNED && !policy_find(policy))
		return trace_wrong(at, "policy", err, "'%.40s' found, one of %s, belady, belady-pinned expected",
				   policy, policy_names());
	ret->mode = (enum sim_mode)found;
	ret->mode_name = sim_mode_name((enum sim_mode)asked);
	return 0;
}

static int read_run(struct trace_run *ret, const struct trace_at *at, const json_t *object, struct moe_error *err)
{
	const char *policy = json_string_value(json_object_get(object, "policy"));
	const char *mode = json_string_value(json_object_get(object, "mode"));
	const json_t *params = json_object_get(object, "params");
	struct sim_tuning tuning;
	uint64_t capacity;
	int r;

	if (!policy || !mode)
		return trace_wrong(at, policy ? "mode" : "policy", err, "%s found, a string expected",
				   trace_kind(json_object_get(object, policy ? "mode" : "policy")));
	r = read_mode(at, policy, mode, ret, err);
	if (r == 0)
		r = trace_params(&tuning, at, policy, params, err);
	if (r == 0)
		r = trace_number(at, object, "capacity", 0, CACHE_EXPERTS_MAX, &capacity, err);
	if (r < 0)
		return r;
	ret->capacity = (uint32_t)capacity;
	ret->evictions = json_object_get(object, "evictions_t_victim_incoming") != NULL;
	ret->policy = strdup(policy);
	ret->params = params ? json_dumps(params, JSON_COMPACT) : strdup("{}");
	return ret->policy && ret->params ? 0 : moe_error_set(err, -ENOMEM, "%s: no memory", at->file);
}

static int read_runs(struct trace_case *one, struct trace_at at, const json_t *results, struct moe_error *err)
{
	const size_t n = json_array_size(results);
	int r = 0;

	if (results && !json_is_array(results))
		return trace_wrong(&at, "results", err, "%s found, an array expected", trace_kind(results));
	if (n == 0)
		return 0;
	one->runs = calloc(n, sizeof *one->runs);
	if (!one->runs)
		return moe_error_set(err, -ENOMEM, "%s: no memory for %zu results", at.file, n);
	at.array = "results";
	at.depth = 1;
	for (at.index[0] = 0; r == 0 && at.index[0] < n; at.index[0]++) {
		one->n_runs++; /* half-made ones are freed as well */
		r = read_run(&one->runs[at.index[0]], &at, json_array_get(results, at.index[0]), err);
	}
	return r;
}

static int read_case(struct trace_case *ret, struct trace_at at, const json_t *object, struct moe_error *err)
{
	const json_t *id = json_object_get(object, "id");
	char number[32] = "case";
	int r;

	if (id && !json_is_string(id) && !json_is_integer(id))
		return trace_wrong(&at, "id", err, "%s found, a string or a number expected", trace_kind(id));
	/* Without one it is known by its place. */
	if (json_is_integer(id))
		snprintf(number, sizeof number, "%lld", (long long)json_integer_value(id));
	else if (!id && at.array)
		snprintf(number, sizeof number, "%s[%zu]", at.array, at.index[0]);
	ret->id = strdup(json_is_string(id) ? json_string_value(id) : number);
	if (!ret->id)
		return moe_error_set(err, -ENOMEM, "%s: no memory", at.file);
	at = (struct trace_at){.file = at.file, .id = ret->id};
	r = read_trace(&ret->trace, at, json_object_get(object, "trace"), err);
	return r < 0 ? r : read_runs(ret, at, json_object_get(object, "results"), err);
}

static int read_cases(struct trace_file *ret, struct trace_at at, const json_t *cases, struct moe_error *err)
{
	const size_t n = json_array_size(cases);
	struct trace_file file = {.format = "vectors", .several = true};
	int r = 0;

	if (!json_is_array(cases) || n == 0)
		return trace_wrong(&at, "cases", err, "%s found, an array of cases expected",
				   n ? trace_kind(cases) : "none");
	file.cases = calloc(n, sizeof *file.cases);
	if (!file.cases)
		return moe_error_set(err, -ENOMEM, "%s: no memory for %zu cases", at.file, n);
	at.array = "cases";
	at.depth = 1;
	for (at.index[0] = 0; r == 0 && at.index[0] < n; at.index[0]++)
		r = read_case(&file.cases[file.n++], at, json_array_get(cases, at.index[0]), err);
	if (r == 0)
		*ret = file;
	else
		trace_file_free(&file);
	return r;
}

/* -- whole documents ---------------------------------------------------------------------------------------------- */

static int read_one_case(struct trace_file *ret, struct trace_at at, const json_t *object, struct moe_error *err)
{
	struct trace_file file = {.format = "vectors", .cases = calloc(1, sizeof *file.cases), .n = 1};
	int r = file.cases ? read_case(file.cases, at, object, err)
			   : moe_error_set(err, -ENOMEM, "%s: no memory", at.file);

	if (r == 0)
		*ret = file;
	else if (file.cases)
		trace_file_free(&file);
	return r;
}

static int read_document(struct trace_file *ret, const struct trace_source *source, const json_t *object,
			 struct moe_error *err)
{
	const struct trace_at at = {.file = source->name};
	struct sim_trace trace;
	int r;

	if (json_object_get(object, "cases"))
		return read_cases(ret, at, json_object_get(object, "cases"), err);
	if (json_object_get(object, "trace"))
		return read_one_case(ret, at, object, err);
	if (!json_object_get(object, "steps"))
		return trace_lines_read(ret, source, err);
	r = read_trace(&trace, at, object, err);
	return r < 0 ? r : trace_file_single(ret, "trace", source, &trace, err);
}

/* Whether the first line is an object of its own and others follow. */
static bool has_lines(const struct trace_source *source)
{
	const char *text = (const char *)source->data, *end = memchr(text, '\n', source->size);
	json_error_t why;
	json_t *first;
	size_t at;

	if (!end)
		return false;
	for (at = (size_t)(end - text); at < source->size && memchr(" \t\r\n", text[at], 4); at++)
		;
	if (at == source->size || json_memory_parse_any(&first, text, (size_t)(end - text), 0, &why) < 0)
		return false;
	json_decref(first);
	return true;
}

int trace_json_read(struct trace_file *ret, const struct trace_source *source, struct moe_error *err)
{
	json_error_t why;
	json_t *root;
	int r;

	if (has_lines(source))
		return trace_lines_read(ret, source, err);
	r = json_memory_parse_any(&root, (const char *)source->data, source->size, JSON_REJECT_DUPLICATES, &why);
	if (r == -ENOMEM)
		return moe_error_set(err, r, "%s: no memory", source->name);
	if (r < 0)
		return trace_wrong(&(struct trace_at){.file = source->name, .line = (unsigned)why.line}, NULL, err,
				   "%s", why.text);
	r = read_document(ret, source, root, err);
	json_decref(root);
	return r;
}
