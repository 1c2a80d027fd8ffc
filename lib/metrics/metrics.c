/* SPDX-License-Identifier: MIT */
#include "metrics/metrics.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "metrics/families.h"

#define NAME_MAX_BYTES 64 /* of a key's step or a label's name */
#define LABELS_MAX 8

/* A label's value is a JSON text or integer; NULL: the name of a member. */
struct label {
	char name[NAME_MAX_BYTES];
	const json_t *value;
	const char *member;
};

struct writer {
	FILE *out;
	const struct metrics_family *family;
	bool begun; /* HELP and TYPE are written */
	struct label labels[LABELS_MAX];
	unsigned n_labels;
};

/* Steps with dots between them, each a member of the object before. */
static const json_t *look_up(const json_t *object, const char *path)
{
	while (object && path) {
		const char *dot = strchr(path, '.');
		const size_t length = dot ? (size_t)(dot - path) : strlen(path);
		char step[NAME_MAX_BYTES];

		snprintf(step, sizeof step, "%.*s", (int)length, path);
		object = json_object_get(object, step);
		path = dot ? dot + 1 : NULL;
	}
	return object;
}

static void push_label(struct writer *w, const char *name, const json_t *value, const char *member)
{
	struct label *label = &w->labels[w->n_labels];

	if (w->n_labels == LABELS_MAX || (!member && !json_is_string(value) && !json_is_integer(value)))
		return;
	snprintf(label->name, sizeof label->name, "%s", name);
	label->value = value;
	label->member = member;
	w->n_labels++;
}

/* Backslash and newline, and in a label's value the quotation mark. */
static void write_escaped(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '\n')
			fputs("\\n", out);
		else if (*text == '\\' || *text == '"')
			fprintf(out, "\\%c", *text);
		else
			fputc(*text, out);
	}
}

static void write_labels(const struct writer *w)
{
	for (unsigned i = 0; i < w->n_labels; i++) {
		const struct label *label = &w->labels[i];

		fprintf(w->out, "%c%s=\"", i ? ',' : '{', label->name);
		if (label->member)
			write_escaped(w->out, label->member);
		else if (json_is_string(label->value))
			write_escaped(w->out, json_string_value(label->value));
		else
			fprintf(w->out, "%" JSON_INTEGER_FORMAT, json_integer_value(label->value));
		fputc('"', w->out);
	}
	if (w->n_labels)
		fputc('}', w->out);
}

static bool is_value(const struct metrics_family *f, const json_t *value)
{
	switch (f->unit) {
	case METRICS_ONE:
		return true;
	case METRICS_READY:
		return json_is_string(value);
	case METRICS_NS:
		return json_is_integer(value);
	default:
		return json_is_number(value) || json_is_boolean(value);
	}
}

/* Counters are 64 bits without a sign, which JSON's integers have: a client's may be any number. */
static void write_value(const struct writer *w, const json_t *value)
{
	const json_int_t n = json_is_boolean(value) ? json_is_true(value) : json_integer_value(value);
	const uint64_t u = (uint64_t)n;

	if (w->family->unit == METRICS_ONE)
		fputs(" 1\n", w->out);
	else if (w->family->unit == METRICS_READY)
		fprintf(w->out, " %d\n", strcmp(json_string_value(value), "ready") == 0);
	else if (w->family->unit == METRICS_NS)
		fprintf(w->out, " %llu.%09llu\n", (unsigned long long)(u / 1000000000u),
			(unsigned long long)(u % 1000000000u));
	else if (json_is_real(value))
		fprintf(w->out, " %.17g\n", json_real_value(value));
	else if (w->family->type == METRICS_COUNTER)
		fprintf(w->out, " %llu\n", (unsigned long long)u);
	else
		fprintf(w->out, " %lld\n", (long long)n);
}

static void write_sample(struct writer *w, const json_t *value)
{
	const struct metrics_family *f = w->family;

	if (!is_value(f, value))
		return;
	if (!w->begun)
		fprintf(w->out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
			f->type == METRICS_COUNTER ? "counter" : "gauge");
	w->begun = true;
	fputs(f->name, w->out);
	write_labels(w);
	write_value(w, value);
}

/* The keys in `split`, each with the last step of its name as the label. */
static void write_info(struct writer *w, const json_t *object)
{
	const char *key = w->family->split;
	const unsigned before = w->n_labels;

	while (key) {
		const char *comma = strchr(key, ',');
		char path[NAME_MAX_BYTES];
		const char *dot;

		snprintf(path, sizeof path, "%.*s", comma ? (int)(comma - key) : (int)strlen(key), key);
		dot = strrchr(path, '.');
		push_label(w, dot ? dot + 1 : path, look_up(object, path), NULL);
		key = comma ? comma + 1 : NULL;
	}
	write_sample(w, NULL);
	w->n_labels = before;
}

static void write_object(struct writer *w, const json_t *object)
{
	const struct metrics_family *f = w->family;
	const json_t *value = look_up(object, f->key), *member;
	const char *name;

	if (f->unit == METRICS_ONE) {
		if (object)
			write_info(w, object);
		return;
	}
	if (!f->split) {
		write_sample(w, value);
		return;
	}
	json_object_foreach ((json_t *)value, name, member) {
		const unsigned before = w->n_labels;

		push_label(w, f->split, NULL, name);
		write_sample(w, member);
		w->n_labels = before;
	}
}

static void walk(struct writer *w, const json_t *object, const struct metrics_step *step, unsigned steps);

/* One element of a list, by its labels. */
static void walk_into(struct writer *w, const json_t *element, const char *member, const struct metrics_step *step,
		      unsigned steps)
{
	const unsigned before = w->n_labels;

	for (unsigned i = 0; i < 2 && step->label[i]; i++)
		push_label(w, step->label[i], step->key[i] ? look_up(element, step->key[i]) : NULL,
			   step->key[i] ? NULL : member);
	walk(w, element, step + 1, steps - 1);
	w->n_labels = before;
}

static void walk(struct writer *w, const json_t *object, const struct metrics_step *step, unsigned steps)
{
	const json_t *list = steps && step->list ? look_up(object, step->list) : NULL, *element;
	const char *name;
	size_t i;

	if (!steps || !step->list) {
		write_object(w, object);
	} else if (json_is_array(list)) {
		json_array_foreach (list, i, element)
			walk_into(w, element, NULL, step, steps);
	} else {
		json_object_foreach ((json_t *)list, name, element)
			walk_into(w, element, name, step, steps);
	}
}

int metrics_write(char **ret, const json_t *status, const json_t *stats, const json_t *models, struct moe_error *err)
{
	const json_t *documents[METRICS_DOCUMENTS] = {
		[METRICS_STATUS] = status, [METRICS_STATS] = stats, [METRICS_MODELS] = models};
	struct writer w = {0};
	char *text = NULL;
	size_t bytes;
	bool failed;

	w.out = open_memstream(&text, &bytes);
	if (!w.out)
		return moe_error_sys(err, -ENOMEM, "metrics");
	for (size_t i = 0; i < metrics_n_families; i++) {
		const struct metrics_way *way = &metrics_ways[metrics_families[i].scope];

		w.family = &metrics_families[i];
		w.begun = false;
		walk(&w, documents[way->document], way->step, METRICS_STEPS);
	}
	failed = ferror(w.out);
	if (fclose(w.out) != 0 || failed) {
		free(text);
		return moe_error_sys(err, -ENOMEM, "metrics");
	}
	*ret = text;
	return 0;
}
