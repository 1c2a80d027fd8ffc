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

#define NAME_MAX_BYTES METRICS_LABEL_MAX /* of a key's step or a label's name */

struct walk {
	struct metrics_sample sample;
	struct metrics_label labels[METRICS_LABELS_MAX];
	void (*take)(void *userdata, const struct metrics_sample *sample);
	void *userdata;
};

struct writer {
	FILE *out;
	const struct metrics_family *begun; /* its HELP and TYPE are written */
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

static void push_label(struct walk *w, const char *name, const json_t *value, const char *member)
{
	struct metrics_label *label = &w->labels[w->sample.n_labels];

	if (w->sample.n_labels == METRICS_LABELS_MAX || (!member && !json_is_string(value) && !json_is_integer(value)))
		return;
	snprintf(label->name, sizeof label->name, "%s", name);
	label->value = value;
	label->member = member;
	w->sample.n_labels++;
}

/* -- the text ----------------------------------------------------------------------------------------------------- */

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

const char *metrics_label_text(const struct metrics_label *label, char *to, size_t size)
{
	if (label->member)
		return label->member;
	if (json_is_string(label->value))
		return json_string_value(label->value);
	snprintf(to, size, "%" JSON_INTEGER_FORMAT, json_integer_value(label->value));
	return to;
}

static void write_labels(FILE *out, const struct metrics_sample *sample)
{
	for (unsigned i = 0; i < sample->n_labels; i++) {
		char text[METRICS_LABEL_MAX];

		fprintf(out, "%c%s=\"", i ? ',' : '{', sample->labels[i].name);
		write_escaped(out, metrics_label_text(&sample->labels[i], text, sizeof text));
		fputc('"', out);
	}
	if (sample->n_labels)
		fputc('}', out);
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
void metrics_value_text(const struct metrics_sample *sample, char *to, size_t size)
{
	const struct metrics_family *f = sample->family;
	const json_t *value = sample->value;
	const json_int_t n = json_is_boolean(value) ? json_is_true(value) : json_integer_value(value);
	const uint64_t u = (uint64_t)n;

	if (f->unit == METRICS_ONE)
		snprintf(to, size, "1");
	else if (f->unit == METRICS_READY)
		snprintf(to, size, "%d", strcmp(json_string_value(value), "ready") == 0);
	else if (f->unit == METRICS_NS)
		snprintf(to, size, "%llu.%09llu", (unsigned long long)(u / 1000000000u),
			 (unsigned long long)(u % 1000000000u));
	else if (json_is_real(value))
		snprintf(to, size, "%.17g", json_real_value(value));
	else if (f->type == METRICS_COUNTER)
		snprintf(to, size, "%llu", (unsigned long long)u);
	else
		snprintf(to, size, "%lld", (long long)n);
}

static void write_sample(void *userdata, const struct metrics_sample *sample)
{
	const struct metrics_family *f = sample->family;
	struct writer *w = userdata;
	char text[METRICS_VALUE_MAX];

	if (w->begun != f)
		fprintf(w->out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
			f->type == METRICS_COUNTER ? "counter" : "gauge");
	w->begun = f;
	fputs(f->name, w->out);
	write_labels(w->out, sample);
	metrics_value_text(sample, text, sizeof text);
	fprintf(w->out, " %s\n", text);
}

/* -- the way to the values ---------------------------------------------------------------------------------------- */

static void give(struct walk *w, const json_t *value)
{
	if (!is_value(w->sample.family, value))
		return;
	w->sample.value = value;
	w->take(w->userdata, &w->sample);
}

/* The keys in `split`, each with the last step of its name as the label. */
static void write_info(struct walk *w, const json_t *object)
{
	const char *key = w->sample.family->split;
	const unsigned before = w->sample.n_labels;

	while (key) {
		const char *comma = strchr(key, ',');
		char path[NAME_MAX_BYTES];
		const char *dot;

		snprintf(path, sizeof path, "%.*s", comma ? (int)(comma - key) : (int)strlen(key), key);
		dot = strrchr(path, '.');
		push_label(w, dot ? dot + 1 : path, look_up(object, path), NULL);
		key = comma ? comma + 1 : NULL;
	}
	give(w, NULL);
	w->sample.n_labels = before;
}

static void write_object(struct walk *w, const json_t *object)
{
	const struct metrics_family *f = w->sample.family;
	const json_t *value = look_up(object, f->key), *member;
	const char *name;

	if (f->unit == METRICS_ONE) {
		if (object)
			write_info(w, object);
		return;
	}
	if (!f->split) {
		give(w, value);
		return;
	}
	json_object_foreach ((json_t *)value, name, member) {
		const unsigned before = w->sample.n_labels;

		push_label(w, f->split, NULL, name);
		give(w, member);
		w->sample.n_labels = before;
	}
}

static void walk(struct walk *w, const json_t *object, const struct metrics_step *step, unsigned steps);

/* One element of a list, by its labels. */
static void walk_into(struct walk *w, const json_t *element, const char *member, const struct metrics_step *step,
		      unsigned steps)
{
	const unsigned before = w->sample.n_labels;

	for (unsigned i = 0; i < 2 && step->label[i]; i++)
		push_label(w, step->label[i], step->key[i] ? look_up(element, step->key[i]) : NULL,
			   step->key[i] ? NULL : member);
	walk(w, element, step + 1, steps - 1);
	w->sample.n_labels = before;
}

static void walk(struct walk *w, const json_t *object, const struct metrics_step *step, unsigned steps)
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

void metrics_walk(const struct metrics_family *family, const struct metrics_documents *documents,
		  void (*take)(void *userdata, const struct metrics_sample *sample), void *userdata)
{
	const struct metrics_way *way = &metrics_ways[family->scope];
	struct walk w = {.sample.family = family, .take = take, .userdata = userdata};

	w.sample.labels = w.labels;
	walk(&w, documents->of[way->document], way->step, METRICS_STEPS);
}

int metrics_write(char **ret, const struct metrics_documents *documents, struct moe_error *err)
{
	struct writer w = {0};
	char *text = NULL;
	size_t bytes;
	bool failed;

	w.out = open_memstream(&text, &bytes);
	if (!w.out)
		return moe_error_sys(err, -ENOMEM, "metrics");
	for (size_t i = 0; i < metrics_n_families; i++)
		metrics_walk(&metrics_families[i], documents, write_sample, &w);
	failed = ferror(w.out);
	if (fclose(w.out) != 0 || failed) {
		free(text);
		return moe_error_sys(err, -ENOMEM, "metrics");
	}
	*ret = text;
	return 0;
}
