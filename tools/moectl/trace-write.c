/* SPDX-License-Identifier: MIT */
/* A trace in each of the forms that it may be written in. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trace.h"
#include "uapi/moe_ring.h"

static size_t place_of(const struct sim_trace *t, uint32_t step, uint32_t layer)
{
	return (size_t)step * t->layers + layer;
}

static uint32_t count_ids(const struct sim_trace *t, const int32_t *ids)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < t->topk; k++)
		n += ids[k] >= 0;
	return n;
}

static void put_ids(FILE *to, const struct sim_trace *t, const int32_t *ids)
{
	const char *between = "";

	fputc('[', to);
	for (uint32_t k = 0; k < t->topk; k++) {
		if (ids[k] < 0)
			continue;
		fprintf(to, "%s%d", between, ids[k]);
		between = ", ";
	}
	fputc(']', to);
}

static int write_json(FILE *to, const struct trace_case *one, struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;

	fprintf(to, "{\"layers\": %u, \"experts\": %u, \"topk\": %u, \"steps\": [", t->layers, t->experts, t->topk);
	for (uint32_t s = 0; s < t->steps; s++) {
		fprintf(to, "%s\n[", s ? "," : "");
		for (uint32_t l = 0; l < t->layers; l++) {
			const size_t place = place_of(t, s, l);

			fputs(l ? ", [" : "[", to);
			for (uint32_t i = 0; i < t->tokens[place]; i++) {
				fputs(i ? ", " : "", to);
				put_ids(to, t, t->ids + t->first[place] + (size_t)i * t->topk);
			}
			fputc(']', to);
		}
		fputc(']', to);
	}
	fputs("\n]}\n", to);
	return 0;
}

static void put_token(FILE *to, const struct sim_trace *t, uint32_t s, uint32_t l, uint32_t i)
{
	const size_t at = t->first[place_of(t, s, l)] + (size_t)i * t->topk;
	const char *between = "";

	fprintf(to, "{\"step\": %u, \"layer\": %u, \"token\": %u, \"experts\": ", s, l, i);
	put_ids(to, t, t->ids + at);
	if (t->weights) {
		fputs(", \"weights\": [", to);
		for (uint32_t k = 0; k < t->topk; k++) {
			if (t->ids[at + k] < 0)
				continue;
			fprintf(to, "%s%.9g", between, (double)t->weights[at + k]);
			between = ", ";
		}
		fputc(']', to);
	}
	fputs("}\n", to);
}

static int write_jsonl(FILE *to, const struct trace_case *one, struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;

	fprintf(to, "{\"layers\": %u, \"experts\": %u, \"topk\": %u}\n", t->layers, t->experts, t->topk);
	for (uint32_t s = 0; s < t->steps; s++)
		for (uint32_t l = 0; l < t->layers; l++)
			for (uint32_t i = 0; i < t->tokens[place_of(t, s, l)]; i++)
				put_token(to, t, s, l, i);
	return 0;
}

/* Of one layer; returns their sum. */
static uint64_t count_pairs(const struct sim_trace *t, uint32_t layer, uint64_t *loads)
{
	uint64_t pairs = 0;

	memset(loads, 0, t->experts * sizeof *loads);
	for (uint32_t s = 0; s < t->steps; s++) {
		const size_t place = place_of(t, s, layer);
		const int32_t *ids = t->ids + t->first[place];

		for (size_t i = 0; i < (size_t)t->tokens[place] * t->topk; i++) {
			if (ids[i] < 0)
				continue;
			loads[ids[i]]++;
			pairs++;
		}
	}
	return pairs;
}

json_t *trace_loads(const struct sim_trace *t)
{
	uint64_t *loads = malloc(t->experts * sizeof *loads);
	json_t *layers = json_array();

	for (uint32_t l = 0; loads && l < t->layers; l++) {
		json_t *layer;

		if (count_pairs(t, l, loads) == 0)
			continue;
		layer = json_array();
		for (uint32_t e = 0; e < t->experts; e++)
			json_array_append_new(layer, json_integer((json_int_t)loads[e]));
		json_array_append_new(layers, layer);
	}
	if (!loads) {
		json_decref(layers);
		layers = NULL;
	}
	free(loads);
	return layers;
}

static int write_loads(FILE *to, const struct trace_case *one, struct moe_error *err)
{
	json_t *layers = trace_loads(&one->trace), *layer;
	size_t l;

	if (!layers)
		return moe_error_set(err, -ENOMEM, "%s: no memory", one->id);
	fputs("[", to);
	json_array_foreach (layers, l, layer) {
		fputs(l ? ",\n" : "", to);
		json_dumpf(layer, to, 0);
	}
	fputs("]\n", to);
	json_decref(layers);
	return 0;
}

/* -- binary forms: numbers have the lowest byte first ------------------------------------------------------------- */

static void put_number(FILE *to, uint32_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		fputc((int)(value >> 8 * i & 0xff), to);
}

static void put_sequence(FILE *to, const struct sim_trace *t, uint32_t sequence)
{
	uint32_t first;
	const uint32_t steps = sim_sequence(t, sequence, &first);
	const size_t begin = place_of(t, first, 0) * t->topk, end = place_of(t, first + steps, 0) * t->topk;

	put_number(to, steps, 4);
	for (size_t i = begin; i < end; i++)
		fputc(t->ids[t->first[i / t->topk] + i % t->topk], to);
	for (size_t i = begin; i < end; i++) {
		const float weight = t->weights ? t->weights[t->first[i / t->topk] + i % t->topk] : 0;

		put_number(to, (uint32_t)lrintf(fminf(fmaxf(weight, 0), 1) * 65535.0f), 2);
	}
}

/* Sequences of one token a step. */
static int write_moetrc(FILE *to, const struct trace_case *one, struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;
	const size_t places = (size_t)t->steps * t->layers;

	if (t->experts > 256)
		return moe_error_set(err, -EINVAL, "%s: %u experts found; moetrc has 256 or less", one->id, t->experts);
	for (size_t p = 0; p < places; p++)
		if (t->tokens[p] != 1 || count_ids(t, t->ids + t->first[p]) != t->topk)
			return moe_error_set(
				err, -EINVAL,
				"%s: step %zu, layer %zu: %u tokens found; moetrc has one in each layer of "
				"each step, with all %u choices: write it as jsonl, json or binary",
				one->id, p / t->layers, p % t->layers, t->tokens[p], t->topk);
	fwrite("MOETRC1", 1, 8, to);
	put_number(to, t->layers, 4);
	put_number(to, t->experts, 4);
	put_number(to, t->topk, 4);
	put_number(to, sim_sequences(t), 4);
	for (uint32_t i = 0; i < sim_sequences(t); i++)
		put_sequence(to, t, i);
	return 0;
}

/* `first` is the first step of the sequence that step s is of. */
static void put_route(FILE *to, const struct sim_trace *t, uint32_t sequence, uint32_t first, uint32_t s, uint32_t l)
{
	const size_t place = place_of(t, s, l), pairs = (size_t)t->tokens[place] * t->topk;
	const uint64_t bytes = moe_route_bytes(t->tokens[place], t->topk);
	const struct moe_route route = {.bytes = (__u32)bytes,
					.kind = MOE_TRACE_ROUTE,
					.topk = (__u8)t->topk,
					.source = (__u16)sequence,
					.layer = (__u16)l,
					.step = s - first + 1u,
					.tokens = t->tokens[place],
					.phase = MOE_PHASE_NONE,
					.mode = MOE_STATS_DECODE};
	size_t at = sizeof route + 2 * pairs;

	fwrite(&route, sizeof route, 1, to);
	for (size_t i = 0; i < pairs; i++)
		put_number(to, (uint32_t)t->ids[t->first[place] + i], 2);
	for (; at < moe_route_weights(t->tokens[place], t->topk); at++)
		fputc(0, to);
	for (size_t i = 0; i < pairs; i++) {
		const float weight = t->weights ? t->weights[t->first[place] + i] : 0;

		fwrite(&weight, sizeof weight, 1, to);
	}
	for (at += 4 * pairs; at < bytes; at++)
		fputc(0, to);
}

/* A session of its own in the recording; counts its routes. */
static int put_session(FILE *to, const struct trace_case *one, uint32_t sequence, struct moe_trace_end *end,
		       struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;
	struct moe_trace_source source = {.bytes = sizeof source,
					  .kind = MOE_TRACE_SOURCE,
					  .source = (__u16)sequence,
					  .session = sequence + 1u,
					  .n_layers = t->layers,
					  .n_experts = t->experts,
					  .topk = t->topk};
	uint32_t first;
	const uint32_t steps = sim_sequence(t, sequence, &first);

	strncpy(source.model, one->id, sizeof source.model - 1);
	fwrite(&source, sizeof source, 1, to);
	for (uint32_t s = first; s < first + steps; s++)
		for (uint32_t l = 0; l < t->layers; l++) {
			const uint32_t tokens = t->tokens[place_of(t, s, l)];

			if (tokens > MOE_TOKENS_MAX)
				return moe_error_set(err, -EINVAL, "%s: step %u: %u tokens found, at most %d expected",
						     one->id, s, tokens, MOE_TOKENS_MAX);
			if (tokens)
				put_route(to, t, sequence, first, s, l);
			end->routes += tokens > 0;
		}
	return 0;
}

static int write_binary(FILE *to, const struct trace_case *one, struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;
	const struct moe_trace_head head = {
		.magic = MOE_TRACE_MAGIC, .version = MOE_TRACE_VERSION, .bytes = sizeof head};
	struct moe_trace_end end = {.bytes = sizeof end, .kind = MOE_TRACE_END};
	int r = 0;

	if (t->topk > MOE_TOPK_MAX || t->experts >= MOE_TRACE_NOBODY || t->layers > UINT16_MAX)
		return moe_error_set(err, -EINVAL, "%s: top %u of %u experts found, at most %d of %d expected", one->id,
				     t->topk, t->experts, MOE_TOPK_MAX, MOE_TRACE_NOBODY - 1);
	if (sim_sequences(t) > UINT16_MAX)
		return moe_error_set(err, -EINVAL, "%s: %u sequences found, a recording has room for %d sessions",
				     one->id, t->sequences, UINT16_MAX);
	fwrite(&head, sizeof head, 1, to);
	for (uint32_t i = 0; r == 0 && i < sim_sequences(t); i++)
		r = put_session(to, one, i, &end, err);
	fwrite(&end, sizeof end, 1, to);
	return r;
}

static const struct {
	const char *name;
	int (*write)(FILE *to, const struct trace_case *one, struct moe_error *err);
} forms[] = {
	{"binary", write_binary}, {"jsonl", write_jsonl}, {"json", write_json},
	{"moetrc", write_moetrc}, {"loads", write_loads},
};

bool trace_has_form(const char *form)
{
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (strcmp(form, forms[i].name) == 0)
			return true;
	return false;
}

const char *trace_forms(void)
{
	return "binary, jsonl, json, moetrc, loads or expert-map";
}

int trace_write(FILE *to, const struct trace_case *one, const char *form, struct moe_error *err)
{
	size_t i = 0;

	while (i < sizeof forms / sizeof *forms && strcmp(form, forms[i].name) != 0)
		i++;
	if (i == sizeof forms / sizeof *forms)
		return moe_error_set(err, -EINVAL, "--to %s: %s expected", form, trace_forms());
	return forms[i].write(to, one, err);
}
