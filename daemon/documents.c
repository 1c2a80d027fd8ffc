/* SPDX-License-Identifier: MIT */
#include "daemon/documents.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "daemon/documents-internal.h"

json_t *path_json(const char *path)
{
	json_t *text = json_string(path);
	char *copy = text ? NULL : strdup(path);

	if (text || !copy)
		return text;
	for (char *p = copy; *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	text = json_string(copy);
	free(copy);
	return text;
}

json_t *digest_json(const uint8_t *digest)
{
	char hex[2 * MOE_DIGEST_BYTES + 1];

	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	return json_string(hex);
}

/* -- heat ---------------------------------------------------------------------------------------------------------- */

static json_t *layer_heat_json(const struct entry *e, uint32_t layer)
{
	const uint32_t experts = e->model->manifest->n_experts;
	const struct heat_cell *row = &e->heat[(size_t)e->model->layer_index[layer] * experts];
	const uint32_t *lasting = e->lasting ? &e->lasting->page->cells[row - e->heat] : NULL;
	json_t *pairs = json_array(), *copies = json_array(), *heat = json_array();

	for (uint32_t i = 0; i < experts; i++) {
		json_array_append_new(pairs, integer(row[i].pairs));
		json_array_append_new(copies, integer(row[i].copies));
		json_array_append_new(heat, integer(lasting ? lasting[i] : 0));
	}
	return json_pack("{s:i, s:o, s:o, s:o}", "layer", (int)layer, "pairs", pairs, "copies", copies, "heat", heat);
}

/* Where it is from: its age in steps. */
static void add_origin(json_t *to, const struct service *s, const struct entry *e)
{
	const struct heats_table *t = e->lasting;

	json_object_set_new(to, "steps", integer(t ? t->page->steps : 0));
	json_object_set_new(to, "saved_steps", integer(t ? t->page->saved_steps : 0));
	json_object_set_new(to, "halved_every", integer(s->heats.every));
	json_object_set_new(to, "folder", s->heats.folder ? path_json(s->heats.folder) : json_null());
}

static json_t *heat_json(const struct service *s)
{
	json_t *models = json_array();

	for (const struct entry *e = s->registry.head; e; e = e->next) {
		const struct moe_manifest *m = e->model->manifest;
		json_t *layers = json_array(), *model;

		for (uint32_t l = 0; l < m->n_layers; l++)
			if (e->model->layer_index[l] >= 0)
				json_array_append_new(layers, layer_heat_json(e, l));
		model = json_pack("{s:s, s:o, s:i, s:o}", "name", m->name, "digest", digest_json(m->digest), "experts",
				  (int)m->n_experts, "layers", layers);
		add_origin(model, s, e);
		json_array_append_new(models, model);
	}
	return json_pack("{s:o}", "models", models);
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

int document_make(const struct service *service, uint32_t what, char **ret, struct moe_error *err)
{
	size_t flags = JSON_INDENT(1);
	json_t *document;
	char *text;

	switch (what) {
	case MOE_QUERY_STATUS:
		document = status_json(service);
		break;
	case MOE_QUERY_STATS:
		document = stats_json(service);
		break;
	case MOE_QUERY_MODELS:
		document = models_json(service);
		break;
	case MOE_QUERY_SESSIONS:
		document = json_pack("{s:o}", "sessions", sessions_array(service));
		break;
	case MOE_QUERY_HEAT:
		document = heat_json(service);
		flags = JSON_COMPACT; /* it is large */
		break;
	default:
		return moe_error_set(err, -EINVAL, "query: document %u found, 1 to 5 expected", what);
	}
	text = document ? json_dumps(document, flags) : NULL;
	json_decref(document);
	if (!text)
		return moe_error_sys(err, -ENOMEM, "query");
	*ret = text;
	return 0;
}

bool documents_make(const struct service *service, struct documents *ret)
{
	*ret = (struct documents){status_json(service), stats_json(service), models_json(service)};
	if (ret->status && ret->stats && ret->models)
		return true;
	documents_free(ret);
	return false;
}

void documents_free(struct documents *d)
{
	json_decref(d->status);
	json_decref(d->stats);
	json_decref(d->models);
	*d = (struct documents){0};
}
