/* SPDX-License-Identifier: MIT */
#include "daemon/documents.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "daemon/documents-internal.h"

json_t *path_json(const char *path)
{
	_cleanup_free_ char *copy = strdup(path);

	return copy ? json_string(text_to_utf8(copy)) : NULL;
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

static json_t *model_heat_json(const struct service *s, const struct entry *e, json_t *layers)
{
	const struct moe_manifest *m = e->model->manifest;
	json_t *model = json_pack("{s:s, s:o, s:i, s:o}", "name", m->name, "digest", digest_json(m->digest), "experts",
				  (int)m->n_experts, "layers", layers);

	add_origin(model, s, e);
	return model;
}

/* -- in the making ------------------------------------------------------------------------------------------------ */

struct document {
	const struct service *service;
	uint32_t what;
	uint64_t number; /* sessions that have had their piece bear it, but where all is done at once */
	bool at_once;
	struct session *next;  /* the next that may want one */
	struct stats *stats;   /* of STATS and FIGURES */
	json_t *list;          /* of SESSIONS, and the models of HEAT */
	const struct entry *e; /* of HEAT, and the rest */
	uint32_t layer;
	json_t *layers;
	struct documents done;
};

static bool begin(struct document *d)
{
	const struct service *s = d->service;

	switch (d->what) {
	case MOE_QUERY_STATUS:
		d->done.status = status_json(s);
		return d->done.status;
	case MOE_QUERY_MODELS:
		d->done.models = models_json(s);
		return d->done.models;
	case MOE_QUERY_STATS:
	case DOCUMENT_FIGURES:
		d->stats = stats_begin(s);
		d->next = s->sessions;
		return d->stats;
	case MOE_QUERY_SESSIONS:
		d->next = s->sessions;
		break;
	default:
		d->e = s->registry.head;
	}
	d->list = json_array();
	return d->list;
}

int document_begin(struct document **ret, const struct service *service, uint32_t what, struct moe_error *err)
{
	static uint64_t numbers;
	struct document *d;

	if (what >= DOCUMENT_KINDS)
		return moe_error_set(err, -EINVAL, "query: document %u found, at most %u expected", what,
				     DOCUMENT_KINDS - 1);
	d = calloc(1, sizeof *d);
	if (d) {
		d->service = service;
		d->what = what;
		d->number = ++numbers;
	}
	if (!d || !begin(d)) {
		free(d);
		return moe_error_sys(err, -ENOMEM, "query");
	}
	*ret = d;
	return 0;
}

static void add_session(struct document *d, struct session *s)
{
	if (!d->at_once) /* another one may be in the making */
		s->drafted = d->number;
	if (d->stats)
		stats_add_session(d->stats, s, true);
	else
		json_array_append_new(d->list, session_json(s));
}

/* A list of sessions has few words of each: so many at once, so that those of few are of one moment. */
#define LISTED 8

/* False: there is none any more. */
static bool next_session(struct document *d)
{
	while (d->next && (d->next->dead || d->next->drafted == d->number))
		d->next = d->next->next;
	if (!d->next)
		return false;
	add_session(d, d->next);
	d->next = d->next->next;
	return true;
}

static bool next_heat(struct document *d)
{
	const struct entry *e = d->e;

	if (!e)
		return false;
	if (!d->layers)
		d->layers = json_array();
	if (d->layer < e->model->manifest->n_layers) {
		if (e->model->layer_index[d->layer] >= 0)
			json_array_append_new(d->layers, layer_heat_json(e, d->layer));
		d->layer++;
		return true;
	}
	json_array_append_new(d->list, model_heat_json(d->service, e, d->layers));
	d->layers = NULL;
	d->layer = 0;
	d->e = e->next;
	return true;
}

bool document_go_on(struct document *d)
{
	for (int i = 1; d->what == MOE_QUERY_SESSIONS && i < LISTED; i++)
		next_session(d);
	return next_session(d) || (d->stats && stats_add_layer(d->stats)) || next_heat(d);
}

void document_see_end(struct document *d, struct session *s)
{
	if (d->stats && s->drafted != d->number)
		stats_add_session(d->stats, s, false);
	s->drafted = d->number;
}

void document_forget(struct document *d, const struct session *s)
{
	if (d->next == s)
		d->next = s->next;
}

void document_end(struct document *d, struct documents *ret)
{
	const bool figures = d->what == DOCUMENT_FIGURES;

	*ret = d->done;
	if (d->stats)
		ret->stats = stats_end(d->stats);
	if (figures)
		*ret = (struct documents){status_json(d->service), ret->stats, models_json(d->service)};
	if (figures && !(ret->status && ret->stats && ret->models))
		documents_free(ret);
	json_decref(d->layers);
	json_decref(d->list);
	free(d);
}

json_t *document_end_one(struct document *d)
{
	const char *const name = d->what == MOE_QUERY_SESSIONS ? "sessions" : "models";
	json_t *list = d->list;
	struct documents done;

	d->list = NULL;
	document_end(d, &done);
	if (list)
		return json_pack("{s:o}", name, list);
	return done.status ? done.status : done.stats ? done.stats : done.models;
}

size_t document_flags(uint32_t what)
{
	return what == MOE_QUERY_HEAT ? JSON_COMPACT : JSON_INDENT(1); /* the former is large */
}

bool documents_make(const struct service *service, struct documents *ret)
{
	struct document *d;

	*ret = (struct documents){0};
	if (document_begin(&d, service, DOCUMENT_FIGURES, NULL) < 0)
		return false;
	d->at_once = true;
	while (document_go_on(d))
		;
	document_end(d, ret);
	return ret->stats;
}

void documents_free(struct documents *d)
{
	json_decref(d->status);
	json_decref(d->stats);
	json_decref(d->models);
	*d = (struct documents){0};
}
