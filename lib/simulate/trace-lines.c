/* SPDX-License-Identifier: MIT */
/* trace-lines - JSONL: all records are read, put in order, and laid out; only then is the least shape known. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "cache.h"
#include "model/json-memory.h"
#include "simulate/trace-build.h"
#include "simulate/trace-field.h"
#include "simulate/trace-json.h"

#define STEP_MAX ((uint64_t)1 << 53)
#define ROOM_FIRST 256

/* One token at one layer. */
struct record {
	uint64_t step, token;
	uint32_t layer, n;
	unsigned line;
	size_t first; /* of its ids */
};

struct lines {
	struct trace_at at;
	uint64_t layers, experts, topk; /* 0: the first line does not say */
	uint64_t deepest;               /* layers that the records need */
	bool weighted;                  /* as all records are */
	struct record *records;
	size_t n, room;
	int32_t *ids;
	float *weights;
	size_t n_ids, ids_room;
	int32_t token[CACHE_EXPERTS_MAX];
};

static bool grow(void *array, size_t *room, size_t need, size_t size)
{
	void **p = array, *grown;
	size_t n = *room ? *room : ROOM_FIRST;

	if (need <= *room)
		return true;
	while (n < need)
		n *= 2;
	grown = reallocarray(*p, n, size);
	if (!grown)
		return false;
	*p = grown;
	*room = n;
	return true;
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

static int add_record(struct lines *x, struct record record, const json_t *ids, struct moe_error *err)
{
	const uint32_t topk = x->topk ? (uint32_t)x->topk : CACHE_EXPERTS_MAX;
	const uint32_t experts = x->experts ? (uint32_t)x->experts : CACHE_EXPERTS_MAX;
	size_t ids_room = x->ids_room;
	int r = trace_ids(&x->at, ids, MIN(topk, experts), experts, x->token, &record.n, err);

	if (r < 0)
		return r;
	record.line = x->at.line;
	record.first = x->n_ids;
	/* One more, so that there is memory to point to where nobody has asked for anything. */
	if (!grow(&x->records, &x->room, x->n + 1, sizeof *x->records) ||
	    !grow(&x->weights, &ids_room, x->n_ids + record.n + 1, sizeof *x->weights) ||
	    !grow(&x->ids, &x->ids_room, x->n_ids + record.n + 1, sizeof *x->ids))
		return moe_error_set(err, -ENOMEM, "%s: no memory for %zu ids", x->at.file, x->n_ids);
	memcpy(x->ids + x->n_ids, x->token, record.n * sizeof *x->ids);
	x->n_ids += record.n;
	x->records[x->n++] = record;
	x->deepest = MAX(x->deepest, (uint64_t)record.layer + 1);
	return 0;
}

/* Those of the record that was just added. */
static int add_weights(struct lines *x, const json_t *weights, struct moe_error *err)
{
	const struct record *record = &x->records[x->n - 1];

	if (x->n == 1)
		x->weighted = weights != NULL;
	if (x->weighted != (weights != NULL))
		return trace_wrong(&x->at, "weights", err, "%s, and the tokens before have %s: all or none expected",
				   weights ? "found" : "none found", weights ? "none" : "some");
	if (!weights)
		return 0;
	if (!json_is_array(weights) || json_array_size(weights) != record->n)
		return trace_wrong(&x->at, "weights", err, "%zu found, one for each of %u experts expected",
				   json_array_size(weights), record->n);
	for (uint32_t k = 0; k < record->n; k++) {
		const json_t *one = json_array_get(weights, k);

		if (!json_is_number(one))
			return trace_wrong(&x->at, "weights", err, "%s found, a number expected", trace_kind(one));
		x->weights[record->first + k] = (float)json_number_value(one);
	}
	return 0;
}

static int read_record(struct lines *x, const json_t *object, struct moe_error *err)
{
	const uint64_t layers = x->layers ? x->layers : SIM_LAYERS_MAX;
	struct record record = {0};
	uint64_t layer = 0;
	int r = trace_number(&x->at, object, "step", 0, STEP_MAX, &record.step, err);

	if (r == 0)
		r = trace_number(&x->at, object, "layer", 0, layers - 1, &layer, err);
	if (r == 0)
		r = trace_number(&x->at, object, "token", 0, STEP_MAX, &record.token, err);
	record.layer = (uint32_t)layer;
	if (r == 0) {
		x->at.array = "experts";
		r = add_record(x, record, json_object_get(object, "experts"), err);
		x->at.array = NULL;
	}
	return r < 0 ? r : add_weights(x, json_object_get(object, "weights"), err);
}

/* {"tok", "layers"}: a step's only token, all of its layers. */
static int read_token(struct lines *x, const json_t *object, struct moe_error *err)
{
	const json_t *layers = json_object_get(object, "layers");
	const size_t n = json_array_size(layers);
	struct record record = {0};
	int r = trace_number(&x->at, object, "tok", 0, STEP_MAX, &record.step, err);

	if (r < 0)
		return r;
	if (!json_is_array(layers) || n < x->deepest || n < 1 || n > SIM_LAYERS_MAX || (x->layers && n != x->layers))
		return trace_wrong(&x->at, "layers", err, "%zu found, %llu expected", n,
				   (unsigned long long)(x->layers    ? x->layers
							: x->deepest ? x->deepest
								     : SIM_LAYERS_MAX));
	x->layers = n;
	x->at.array = "layers";
	x->at.depth = 1;
	for (x->at.index[0] = 0; r == 0 && x->at.index[0] < n; x->at.index[0]++) {
		record.layer = (uint32_t)x->at.index[0];
		r = add_record(x, record, json_array_get(layers, record.layer), err);
		if (r == 0)
			r = add_weights(x, NULL, err);
	}
	x->at.array = NULL;
	return r;
}

/* What the first line says of the shape, and no more. */
static int read_shape(struct lines *x, const json_t *object, struct moe_error *err)
{
	int r = 0;

	if (json_object_get(object, "layers"))
		r = trace_number(&x->at, object, "layers", 1, SIM_LAYERS_MAX, &x->layers, err);
	if (r == 0 && json_object_get(object, "experts"))
		r = trace_number(&x->at, object, "experts", 1, CACHE_EXPERTS_MAX, &x->experts, err);
	if (r == 0 && json_object_get(object, "topk"))
		r = trace_number(&x->at, object, "topk", 1, x->experts ? x->experts : CACHE_EXPERTS_MAX, &x->topk, err);
	return r;
}

static int read_line(struct lines *x, const char *text, size_t size, struct moe_error *err)
{
	json_error_t why;
	json_t *object;
	int r = json_memory_parse_any(&object, text, size, JSON_REJECT_DUPLICATES, &why);

	if (r == -ENOMEM)
		return moe_error_set(err, r, "%s: line %u: no memory", x->at.file, x->at.line);
	if (r < 0)
		return trace_wrong(&x->at, NULL, err, "%s", why.text);
	if (json_object_get(object, "step"))
		r = read_record(x, object, err);
	else if (json_object_get(object, "tok"))
		r = read_token(x, object, err);
	else if (json_is_object(object) && x->n == 0 && x->at.line == 1)
		r = read_shape(x, object, err);
	else
		r = trace_wrong(&x->at, NULL, err, "neither step nor tok found: %s expected",
				"{\"step\",\"layer\",\"token\",\"experts\"} or {\"tok\",\"layers\"}");
	json_decref(object);
	return r;
}

static bool blank(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!memchr(" \t\r", text[i], 3))
			return false;
	return true;
}

static int read_lines(struct lines *x, const struct trace_source *source, struct moe_error *err)
{
	const char *at = (const char *)source->data, *end = at + source->size;
	int r = 0;

	while (r == 0 && at < end) {
		const char *line_end = memchr(at, '\n', (size_t)(end - at));
		const size_t n = (size_t)((line_end ? line_end : end) - at);

		x->at.line++;
		if (!blank(at, n))
			r = read_line(x, at, n, err);
		at += n + 1;
	}
	return r;
}

/* -- laying out --------------------------------------------------------------------------------------------------- */

static int compare_records(const void *left, const void *right)
{
	const struct record *a = left, *b = right;

	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->layer != b->layer)
		return a->layer < b->layer ? -1 : 1;
	return a->token < b->token ? -1 : a->token > b->token;
}

/* The least shape that has room for all, where the first line did not say one. */
static void find_shape(struct lines *x)
{
	uint64_t layers = 0, topk = 1, experts = 0;

	for (size_t i = 0; i < x->n; i++) {
		layers = MAX(layers, x->records[i].layer + 1);
		topk = MAX(topk, x->records[i].n);
	}
	for (size_t i = 0; i < x->n_ids; i++)
		experts = MAX(experts, (uint64_t)x->ids[i] + 1);
	x->layers = x->layers ? x->layers : layers;
	x->topk = x->topk ? x->topk : topk;
	x->experts = x->experts ? x->experts : MAX(experts, x->topk);
}

static int lay_out(struct lines *x, struct sim_build *b, struct moe_error *err)
{
	size_t at = 0;
	int r = 0;

	sim_build_begin(b, (uint32_t)x->layers, (uint32_t)x->experts, (uint32_t)x->topk);
	while (r == 0 && at < x->n) {
		const uint64_t step = x->records[at].step;

		for (uint32_t layer = 0; r == 0 && layer < x->layers; layer++) {
			r = sim_build_place(b, err);
			for (; r == 0 && at < x->n; at++) {
				const struct record *one = &x->records[at];

				if (one->step != step || one->layer != layer)
					break;
				r = sim_build_token(b, x->ids + one->first,
						    x->weighted ? x->weights + one->first : NULL, one->n, err);
			}
		}
	}
	return r;
}

static int check_twice(const struct lines *x, struct moe_error *err)
{
	for (size_t i = 1; i < x->n; i++) {
		const struct record *one = &x->records[i], *before = one - 1;

		if (compare_records(before, one) == 0)
			return moe_error_set(err, -EINVAL,
					     "%s: line %u: step %llu, layer %u, token %llu found again, as in line %u",
					     x->at.file, MAX(one->line, before->line), (unsigned long long)one->step,
					     one->layer, (unsigned long long)one->token, MIN(one->line, before->line));
	}
	return 0;
}

int trace_lines_read(struct trace_file *ret, const struct trace_source *source, struct moe_error *err)
{
	struct lines *x = calloc(1, sizeof *x);
	struct sim_build b = {0};
	struct sim_trace trace;
	int r;

	if (!x)
		return moe_error_set(err, -ENOMEM, "%s: no memory", source->name);
	x->at.file = source->name;
	r = read_lines(x, source, err);
	/* A first line that says the shape, and nothing behind it: a trace of no steps. */
	if (r == 0 && x->n == 0 && !(x->layers && x->experts && x->topk))
		r = moe_error_set(err, -EINVAL, "%s: no tokens: %s expected", source->name,
				  "steps, cases, or lines with step or tok");
	if (r == 0 && x->n > 0) {
		qsort(x->records, x->n, sizeof *x->records, compare_records);
		r = check_twice(x, err);
	}
	if (r == 0) {
		find_shape(x);
		r = lay_out(x, &b, err);
	}
	if (r == 0)
		sim_build_finish(&b, &trace);
	sim_build_drop(&b);
	free(x->records);
	free(x->ids);
	free(x->weights);
	free(x);
	return r < 0 ? r : trace_file_single(ret, "JSONL", source, &trace, err);
}
