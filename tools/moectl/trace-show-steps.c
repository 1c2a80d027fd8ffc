/* SPDX-License-Identifier: MIT */
/* moectl trace show of what is no recording: a trace has its steps, and sequences where its form tells them. */
#include <stdlib.h>

#include "base/error.h"
#include "model/file.h"
#include "trace-layers.h"
#include "trace.h"

static int count(struct trace_layers *layers, const struct trace_case *one, struct moe_error *err)
{
	const struct sim_trace *t = &one->trace;
	int r = trace_layers_init(layers, t->layers, t->experts, one->id, err);

	for (size_t place = 0; r == 0 && place < (size_t)t->steps * t->layers; place++) {
		const uint32_t layer = (uint32_t)(place % t->layers);

		if (t->tokens[place] == 0)
			continue;
		r = trace_layers_place(layers, layer, t->tokens[place], one->id, err);
		for (size_t i = 0; r == 0 && i < (size_t)t->tokens[place] * t->topk; i++)
			trace_layers_choice(layers, layer, t->ids[t->first[place] + i]);
	}
	return r;
}

static json_t *steps_of(const struct sim_trace *t)
{
	json_t *ret = json_array();
	uint32_t first;

	for (uint32_t i = 0; i < sim_sequences(t); i++)
		json_array_append_new(ret, json_integer(sim_sequence(t, i, &first)));
	return ret;
}

static json_t *document(const struct trace_layers *layers, const struct trace_case *one, const char *format)
{
	const struct sim_trace *t = &one->trace;

	return json_pack("{s:s, s:s, s:{s:i, s:i, s:i, s:i}, s:b, s:o, s:o}", "id", one->id, "format", format, "shape",
			 "layers", (int)t->layers, "experts", (int)t->experts, "topk", (int)t->topk, "steps",
			 (int)t->steps, "weights", t->weights != NULL, "sequences", steps_of(t), "layers",
			 trace_layers_json(layers));
}

static void print(const struct trace_layers *layers, const struct trace_case *one, const char *format)
{
	const struct sim_trace *t = &one->trace;
	uint32_t first, least = UINT32_MAX, most = 0;
	char id[128];

	printf("%s (%s): %u layers of %u experts, top-%u, %u steps%s\n", file_clean(id, sizeof id, one->id), format,
	       t->layers, t->experts, t->topk, t->steps, t->weights ? "" : "; no weights");
	for (uint32_t i = 0; i < t->sequences; i++) {
		const uint32_t steps = sim_sequence(t, i, &first);

		least = steps < least ? steps : least;
		most = steps > most ? steps : most;
	}
	if (t->sequences > 1 && least == most)
		printf("%u sequences of %u steps\n", t->sequences, most);
	else if (t->sequences > 1)
		printf("%u sequences of %u to %u steps\n", t->sequences, least, most);
	trace_layers_print(layers);
}

int trace_show_steps(const struct arguments *arg, const struct trace_file *file)
{
	json_t *cases = json_array();
	struct moe_error err = {0};
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < file->n; i++) {
		struct trace_layers layers = {0};

		r = count(&layers, &file->cases[i], &err);
		if (r == 0 && arg->json)
			json_array_append_new(cases, document(&layers, &file->cases[i], file->format));
		else if (r == 0)
			print(&layers, &file->cases[i], file->format);
		trace_layers_fini(&layers);
	}
	if (r == 0 && arg->json && !file->several) {
		print_json(json_array_get(cases, 0));
	} else if (r == 0 && arg->json) {
		json_t *all = json_pack("{s:O}", "cases", cases);

		print_json(all);
		json_decref(all);
	}
	json_decref(cases);
	return r < 0 ? fail(&err) : EXIT_DONE;
}
