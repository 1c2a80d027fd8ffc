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

static void print_model(const json_t *m)
{
	const double read = get_number(m, "read_bytes"), ns = get_number(m, "load_ns");
	char size[SHOW_TEXT], record[SHOW_TEXT], time[SHOW_TEXT];
	const json_t *pool;
	size_t i;

	printf("%s (%s, %s)\n", get_text(m, "name"), get_text(m, "family"), get_text(m, "path"));
	printf("    digest %s, epoch %.0f\n", get_text(m, "digest"), get_number(m, "epoch"));
	printf("    %.0f MoE layers of %.0f, %.0f experts, top %.0f, hidden %.0f, intermediate %.0f, %s, %s\n",
	       get_number(m, "moe_layers"), get_number(m, "layers"), get_number(m, "experts"), get_number(m, "topk"),
	       get_number(m, "hidden"), get_number(m, "inter"), get_text(m, "type"), get_text(m, "activation"));
	printf("    %s read in %s (%.2f GB/s%s); %s a record; %.0f sessions, %.0f leases\n", show_bytes(size, read),
	       show_time(time, ns), ns > 0 ? read / ns : 0,
	       json_is_true(json_object_get(m, "direct")) ? "" : ", buffered",
	       show_bytes(record, get_number(m, "record_bytes")), get_number(m, "sessions"), get_number(m, "leases"));
	json_array_foreach (json_object_get(m, "pools"), i, pool)
		print_pool(pool);
}

int verb_models(const struct arguments *arg)
{
	json_t *document = ask(arg, MOE_DOCUMENT_MODELS);
	const json_t *models = json_object_get(document, "models"), *model;
	size_t i;

	if (!document)
		return EXIT_FAILED;
	if (arg->json) {
		print_json(document);
	} else {
		if (json_array_size(models) == 0)
			printf("no model is loaded: moectl load DIR\n");
		json_array_foreach (models, i, model)
			print_model(model);
	}
	json_decref(document);
	return EXIT_DONE;
}
