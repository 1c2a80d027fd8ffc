/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "moectl.h"

static void print_pool(const json_t *pool)
{
	char size[SHOW_TEXT], huge[SHOW_TEXT];

	printf("    node %.0f: %s on %s pages (%s huge)\n", get_number(pool, "node"),
	       show_bytes(size, get_number(pool, "bytes")), get_text(pool, "rung"),
	       show_bytes(huge, get_number(pool, "huge_bytes")));
	if (*get_text(pool, "better"))
		printf("      better: %s\n", get_text(pool, "better"));
}

/* Names with commas between them. */
static void join_texts(char to[SHOW_TEXT * 8], const json_t *texts)
{
	const json_t *text;
	size_t i, used = 0;

	to[0] = '\0';
	json_array_foreach (texts, i, text)
		if (used < SHOW_TEXT * 8)
			used += (size_t)snprintf(to + used, SHOW_TEXT * 8 - used, "%s%s", i ? ", " : "",
						 json_is_string(text) ? json_string_value(text) : "?");
}

/* Which layers differ: nothing to say where all are alike. */
static void print_layouts(const json_t *layouts)
{
	const json_t *layout;
	char size[SHOW_TEXT];
	size_t i;

	if (json_array_size(layouts) < 2)
		return;
	json_array_foreach (layouts, i, layout)
		printf("    %zu layers: gate and up %s, down %s, %s a record\n",
		       json_array_size(json_object_get(layout, "layers")), get_text(layout, "gate_up"),
		       get_text(layout, "down"), show_bytes(size, get_number(layout, "record_bytes")));
}

static void print_model(const json_t *m)
{
	const double read = get_number(m, "read_bytes"), ns = get_number(m, "read_ns");
	char size[SHOW_TEXT], record[SHOW_TEXT], time[SHOW_TEXT], all[SHOW_TEXT], formats[SHOW_TEXT * 8];
	const json_t *pool;
	size_t i;

	join_texts(formats, json_object_get(m, "formats"));
	printf("%s (%s, %s)\n", get_text(m, "name"), get_text(m, "family"), get_text(m, "path"));
	printf("    digest %s, epoch %.0f\n", get_text(m, "digest"), get_number(m, "epoch"));
	printf("    %.0f MoE layers of %.0f, %.0f experts, top %.0f, hidden %.0f, intermediate %.0f, %s, %s\n",
	       get_number(m, "moe_layers"), get_number(m, "layers"), get_number(m, "experts"), get_number(m, "topk"),
	       get_number(m, "hidden"), get_number(m, "inter"), formats, get_text(m, "activation"));
	print_layouts(json_object_get(m, "layouts"));
	printf("    %s read in %s (%.2f GB/s%s), loaded in %s; %s%s a record; %.0f sessions, %.0f leases\n",
	       show_bytes(size, read), show_time(time, ns), ns > 0 ? read / ns : 0,
	       json_is_true(json_object_get(m, "direct")) ? "" : ", buffered", show_time(all, get_number(m, "load_ns")),
	       json_array_size(json_object_get(m, "layouts")) > 1 ? "up to " : "",
	       show_bytes(record, get_number(m, "record_bytes")), get_number(m, "sessions"), get_number(m, "leases"));
	print_tier("    ", json_object_get(m, "tier"));
	print_replicas("    ", json_object_get(m, "replicas"));
	json_array_foreach (json_object_get(m, "pools"), i, pool)
		print_pool(pool);
}

static void print_loading(const json_t *loading)
{
	char state[SHOW_LOADING];

	printf("%s (%s)\n    is being loaded: %s\n", get_text(loading, "name"), get_text(loading, "path"),
	       show_loading(state, loading));
}

int verb_models(const struct arguments *arg)
{
	json_t *document = ask(arg, MOE_DOCUMENT_MODELS);
	const json_t *models = json_object_get(document, "models"), *loading = json_object_get(document, "loading");
	const json_t *model;
	size_t i;

	if (!document)
		return EXIT_FAILED;
	if (arg->json) {
		print_json(document);
	} else {
		if (json_array_size(models) == 0 && !json_is_object(loading))
			printf("no model is loaded: moectl load PATH\n");
		json_array_foreach (models, i, model)
			print_model(model);
		if (json_is_object(loading))
			print_loading(loading);
	}
	json_decref(document);
	return EXIT_DONE;
}
