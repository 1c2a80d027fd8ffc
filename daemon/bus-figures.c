/* SPDX-License-Identifier: MIT */
/*
 * The figures of the one table (metrics/families.h) as properties of the manager, of models and of sessions.
 *
 * Names are made of the table's: moe_expertd_layer_steps_total is LayerStepsTotal. What an object has once is a number,
 * NaN while there is none; what it has several times an array of labels and numbers. They are explicit properties:
 * whoever wants one asks for it by name, since all of them at once, of all objects, would keep the reactor from its
 * rings. Documents are made ten times a second at most, whoever asks how often.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/bus-internal.h"
#include "daemon/rest.h"
#include "metrics/metrics.h"

#define FRESH_NS 100000000u
#define FIGURES_MAX 256
#define NAME_BYTES 80
#define PREFIX "moe_expertd_"

enum room { ROOM_MANAGER, ROOM_MODEL, ROOM_SESSION, ROOMS };

static const enum room room_of[METRICS_SCOPES] = {
	[METRICS_MODEL_GHOSTS] = ROOM_MODEL, [METRICS_MODEL_GHOST] = ROOM_MODEL, [METRICS_MODEL_BOUND] = ROOM_MODEL,
	[METRICS_DAEMON] = ROOM_MANAGER,     [METRICS_NODE] = ROOM_MANAGER,      [METRICS_USER] = ROOM_MANAGER,
	[METRICS_MODEL] = ROOM_MODEL,        [METRICS_LAYER] = ROOM_MODEL,       [METRICS_MODEL_NODE] = ROOM_MODEL,
	[METRICS_LAYER_TIME] = ROOM_MODEL,   [METRICS_MODE] = ROOM_SESSION,      [METRICS_SESSION] = ROOM_SESSION,
	[METRICS_TIME] = ROOM_SESSION,       [METRICS_GHOST] = ROOM_SESSION,
};
/* The steps of a way that lead to the object, and what they say of it (ROOM_MANAGER: nothing). */
static const char *const own_labels[ROOMS] = {"", "model", "session"};

/* Made once, and the same for every link. */
static char names[FIGURES_MAX][NAME_BYTES];
static sd_bus_vtable tables[ROOMS][FIGURES_MAX + 2];

struct taker {
	sd_bus_message *reply; /* NULL: one number */
	const char *own, *id;  /* the label that has to have this value; "": none has to */
	double value;
	int r;
};

static void make_name(char *to, const char *from)
{
	bool high = true;

	for (from += strlen(PREFIX); *from; from++) {
		if (*from != '_')
			*to++ = high ? (char)toupper((unsigned char)*from) : *from;
		high = *from == '_';
	}
	*to = '\0';
}

static double value_of(const struct metrics_sample *sample)
{
	char text[METRICS_VALUE_MAX];

	metrics_value_text(sample, text, sizeof text);
	return strtod(text, NULL);
}

static void take(void *userdata, const struct metrics_sample *sample)
{
	char text[METRICS_LABEL_MAX], labels[512] = "";
	struct taker *t = userdata;
	bool ours = !*t->own;

	for (unsigned i = 0; i < sample->n_labels; i++) {
		const struct metrics_label *label = &sample->labels[i];
		const char *value = metrics_label_text(label, text, sizeof text);
		const size_t used = strlen(labels);

		if (strcmp(label->name, t->own) == 0)
			ours = strcmp(value, t->id) == 0;
		else if (!*t->own || strcmp(label->name, "model") != 0) /* of a session: its object says it */
			snprintf(labels + used, sizeof labels - used, "%s%s=%s", used ? "," : "", label->name, value);
	}
	if (!ours)
		return;
	t->value = value_of(sample);
	if (t->reply && t->r >= 0) {
		char valid[sizeof labels];

		t->r = sd_bus_message_append(t->reply, "(sd)", bus_text(valid, sizeof valid, labels), t->value);
	}
}

/* One step for each list on the way; the manager is behind none. */
static bool is_single(const struct metrics_family *f)
{
	const struct metrics_way *way = &metrics_ways[f->scope];
	unsigned steps = 0;

	while (steps < METRICS_STEPS && way->step[steps].list)
		steps++;
	return !f->split && steps == (room_of[f->scope] == ROOM_MANAGER ? 0 : 1);
}

static const struct metrics_family *find_family(const char *property)
{
	for (size_t i = 0; i < MIN(metrics_n_families, (size_t)FIGURES_MAX); i++)
		if (strcmp(names[i], property) == 0)
			return &metrics_families[i];
	return NULL;
}

static bool freshen(struct bus *b)
{
	const uint64_t begun = now_ns();
	bool made;

	if (b->figures.status && begun < b->figures_ns)
		return true;
	documents_free(&b->figures);
	made = documents_make(b->service, &b->figures);
	b->figures_ns = MAX(begun + FRESH_NS, rest_after(begun));
	return made;
}

static int get_figure(sd_bus *link, const char *path, const char *interface, const char *property,
		      sd_bus_message *reply, void *userdata, sd_bus_error *ret_error)
{
	const struct metrics_family *f = find_family(property);
	struct bus *b = userdata;
	const struct entry *e = bus_find_model(b, path);
	const struct session *x = bus_find_session(b, path);
	struct taker t = {.own = "", .id = "", .value = NAN};
	char id[24];

	if (!f || !freshen(b))
		return -ENOMEM;
	t.own = own_labels[room_of[f->scope]];
	snprintf(id, sizeof id, "%llu", x ? (unsigned long long)x->id : 0);
	t.id = e ? e->model->manifest->name : id;
	t.reply = is_single(f) ? NULL : reply;
	if (t.reply)
		t.r = sd_bus_message_open_container(reply, 'a', "(sd)");
	if (t.r >= 0)
		metrics_walk(f, &(struct metrics_documents){{b->figures.status, b->figures.stats, b->figures.models}},
			     take, &t);
	if (t.r >= 0)
		t.r = t.reply ? sd_bus_message_close_container(reply) : sd_bus_message_append(reply, "d", t.value);
	return t.r;
}

/* -- where they are ----------------------------------------------------------------------------------------------- */

static int find_manager(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
			sd_bus_error *ret_error)
{
	*ret_found = userdata;
	return strcmp(path, BUS_ROOT) == 0;
}

static int find_model(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
		      sd_bus_error *ret_error)
{
	*ret_found = userdata;
	return bus_find_model(userdata, path) != NULL;
}

static int find_session(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
			sd_bus_error *ret_error)
{
	*ret_found = userdata;
	return bus_find_session(userdata, path) != NULL;
}

static void make_tables(void)
{
	size_t n[ROOMS] = {0};

	for (int i = 0; i < ROOMS; i++)
		tables[i][n[i]++] = (sd_bus_vtable)SD_BUS_VTABLE_START(0);
	for (size_t i = 0; i < MIN(metrics_n_families, (size_t)FIGURES_MAX); i++) {
		const struct metrics_family *f = &metrics_families[i];
		const enum room room = room_of[f->scope];

		make_name(names[i], f->name);
		tables[room][n[room]++] = (sd_bus_vtable)SD_BUS_PROPERTY(
			names[i], is_single(f) ? "d" : "a(sd)", get_figure, 0, SD_BUS_VTABLE_PROPERTY_EXPLICIT);
	}
	for (int i = 0; i < ROOMS; i++)
		tables[i][n[i]] = (sd_bus_vtable)SD_BUS_VTABLE_END;
}

static const char *const interfaces[ROOMS] = {BUS_NAME ".ManagerFigures1", BUS_NAME ".ModelFigures1",
					      BUS_NAME ".SessionFigures1"};

const char *bus_figures_interface(enum bus_kind kind)
{
	return kind == BUS_KIND_MODEL ? interfaces[1] : kind == BUS_KIND_SESSION ? interfaces[2] : NULL;
}

int bus_add_figures(struct bus *b)
{
	static const sd_bus_object_find_t find[ROOMS] = {find_manager, find_model, find_session};
	int r = 0;

	if (!names[0][0])
		make_tables();
	for (int i = 0; i < ROOMS && r >= 0; i++)
		r = sd_bus_add_fallback_vtable(b->link, NULL, BUS_ROOT, interfaces[i], tables[i], find[i], b);
	return r;
}
