/* SPDX-License-Identifier: MIT */
/* value - from a text to a value of a setting's type, and back to words for a person. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "settings/settings.h"

/* -- words -------------------------------------------------------------------------------------------------------- */

static const char *const bools[2][4] = {{"no", "false", "off", "0"}, {"yes", "true", "on", "1"}};

/* Index of `text` among words between blanks, or -1. */
static int word_index(const char *words, const char *text)
{
	const size_t length = strlen(text);

	for (int i = 0; *words; i++) {
		const size_t n = strcspn(words, " ");

		if (n == length && memcmp(words, text, n) == 0)
			return i;
		words += n + (words[n] == ' ');
	}
	return -1;
}

static void append(char *to, size_t size, const char *text, size_t n)
{
	const size_t used = strlen(to);

	snprintf(to + used, size - used, "%.*s", (int)n, text);
}

/* "auto, 1g, 2m, thp or 4k" */
static void list_words(char *to, size_t size, const char *words)
{
	to[0] = '\0';
	while (*words) {
		const size_t n = strcspn(words, " ");
		const char *rest = words + n + (words[n] == ' ');

		append(to, size, words, n);
		if (*rest)
			append(to, size, strchr(rest, ' ') ? ", " : " or ", 4);
		words = rest;
	}
}

const char *settings_range(enum setting which, char *to, size_t size)
{
	const struct setting_def *d = &settings_table[which];

	switch (d->type) {
	case SETTING_TYPE_PATH:
		snprintf(to, size, "an absolute path");
		break;
	case SETTING_TYPE_MODEL:
		snprintf(to, size, "an absolute path, or NAME:PATH");
		break;
	case SETTING_TYPE_NUMBER:
		snprintf(to, size, "%llu to %llu", (unsigned long long)d->min, (unsigned long long)d->max);
		break;
	case SETTING_TYPE_OCTAL:
		snprintf(to, size, "%04llo to %04llo", (unsigned long long)d->min, (unsigned long long)d->max);
		break;
	case SETTING_TYPE_BYTES:
		snprintf(to, size, "%llu to 1e18, with a suffix K, M, G or T", (unsigned long long)d->min);
		break;
	case SETTING_TYPE_BOOL:
		snprintf(to, size, "yes or no");
		break;
	case SETTING_TYPE_WORD:
		list_words(to, size, d->words);
		break;
	case SETTING_TYPE_TEXT:
		snprintf(to, size, "%s", d->words);
		break;
	}
	return to;
}

const char *settings_origin(const struct settings *s, enum setting which, char *to, size_t size)
{
	const struct setting_value *v = &s->values[which];

	if (v->kind == SETTINGS_FROM_FILE)
		snprintf(to, size, "%s:%u", v->file, v->line);
	else
		snprintf(to, size, "%s", v->kind == SETTINGS_FROM_OPTION ? "command line" : "default");
	return to;
}

const char *settings_text(const struct settings *s, enum setting which, char *to, size_t size)
{
	const struct setting_def *d = &settings_table[which];
	const char *text = s->values[which].text;

	to[0] = '\0';
	if (which == SETTING_MODEL && s->n_models > 0) {
		for (uint32_t i = 0; i < s->n_models; i++) {
			const struct settings_model *m = &s->models[i];

			if (i > 0)
				append(to, size, "\n", 1);
			if (m->name)
				append(to, size, m->name, strlen(m->name));
			append(to, size, ":", m->name ? 1 : 0);
			append(to, size, m->path, strlen(m->path));
		}
		return to;
	}
	if (!text || which == SETTING_MODEL)
		text = d->preset ? d->preset : d->computed;
	snprintf(to, size, "%s", text);
	return to;
}

/* -- types -------------------------------------------------------------------------------------------------------- */

static int refuse(struct moe_error *err, enum setting which, const char *text, const struct settings_from *from,
		  const char *expected)
{
	const struct setting_def *d = &settings_table[which];

	if (from->kind == SETTINGS_FROM_FILE)
		return moe_error_set(err, -EINVAL, "%s:%u: %s=%s: %s", from->file, from->line, d->key, text, expected);
	return moe_error_set(err, -EINVAL, "--%s%s%s '%s': %s", d->option, d->part ? " " : "", d->part ? d->part : "",
			     text, expected);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int parse_number(uint64_t *ret, const struct setting_def *d, const char *text, int base)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, base);
	if (!is_digit(*text) || errno || *end || value < d->min || value > d->max)
		return -EINVAL;
	*ret = value;
	return 0;
}

/* "123", "64M", "1.5T" are bytes; powers of 1024. */
static int parse_bytes(uint64_t *ret, const struct setting_def *d, const char *text)
{
	static const char suffixes[] = "KMGT";
	const size_t digits = strspn(text, "0123456789.");
	double factor = 1, value;
	const char *suffix = text[digits] ? strchr(suffixes, text[digits]) : NULL;
	char *end;

	for (const char *p = suffixes; suffix && p <= suffix; p++)
		factor *= 1024;
	value = strtod(text, &end) * factor;
	if (!is_digit(*text) || end != text + digits || text[digits + (suffix ? 1 : 0)] ||
	    !(value >= (double)d->min && value <= (double)d->max))
		return -EINVAL;
	*ret = (uint64_t)value;
	return 0;
}

static int parse_bool(uint64_t *ret, const char *text)
{
	for (uint64_t truth = 0; truth < 2; truth++)
		for (size_t i = 0; i < ARRAY_LEN(bools[0]); i++)
			if (strcmp(bools[truth][i], text) == 0) {
				*ret = truth;
				return 0;
			}
	return -EINVAL;
}

static int parse(uint64_t *ret, enum setting which, const char *text, const struct settings_from *from,
		 struct moe_error *err)
{
	const struct setting_def *d = &settings_table[which];
	char range[128], expected[192];
	int r = 0;

	settings_range(which, range, sizeof range);
	snprintf(expected, sizeof expected, "%s expected", range);
	switch (d->type) {
	case SETTING_TYPE_PATH:
		r = from->kind == SETTINGS_FROM_FILE && *text != '/' ? -EINVAL : 0;
		break;
	case SETTING_TYPE_MODEL:
	case SETTING_TYPE_TEXT:
		break;
	case SETTING_TYPE_NUMBER:
		r = parse_number(ret, d, text, 10);
		snprintf(expected, sizeof expected, "a number from %s expected", range);
		break;
	case SETTING_TYPE_OCTAL:
		r = parse_number(ret, d, text, 8);
		snprintf(expected, sizeof expected, "an octal number from %s expected", range);
		break;
	case SETTING_TYPE_BYTES:
		r = parse_bytes(ret, d, text);
		snprintf(expected, sizeof expected, "bytes expected, e.g. 512M or 1.5T");
		break;
	case SETTING_TYPE_BOOL:
		r = parse_bool(ret, text);
		break;
	case SETTING_TYPE_WORD:
		r = word_index(d->words, text);
		*ret = (uint64_t)MAX(r, 0);
		break;
	}
	return r < 0 ? refuse(err, which, text, from, expected) : 0;
}

/* -- values ------------------------------------------------------------------------------------------------------- */

static uint64_t default_number(enum setting which)
{
	const struct settings_from from = {.kind = SETTINGS_FROM_DEFAULT};
	const char *preset = settings_table[which].preset;
	uint64_t number = 0;

	if (preset && parse(&number, which, preset, &from, NULL) < 0)
		assert(!"a default that is not of its type");
	return number;
}

static void clear(struct settings *s, enum setting which)
{
	struct setting_value *v = &s->values[which];

	free(v->text);
	free(v->file);
	*v = (struct setting_value){.number = default_number(which)};
}

static void free_model(struct settings_model *m)
{
	free(m->path);
	free(m->name);
	free(m->file);
}

static void clear_models(struct settings *s)
{
	for (uint32_t i = 0; i < s->n_models; i++) {
		free_model(&s->models[i]);
	}
	s->n_models = 0;
}

void settings_init(struct settings *s)
{
	*s = (struct settings){0};
	for (int i = 0; i < SETTINGS; i++)
		clear(s, (enum setting)i);
}

void settings_free(struct settings *s)
{
	clear_models(s);
	for (int i = 0; i < SETTINGS; i++)
		clear(s, (enum setting)i);
	for (uint32_t i = 0; i < s->n_files; i++)
		free(s->files[i]);
	free(s->files);
	s->files = NULL;
	s->n_files = 0;
}

/* A name cannot have a slash in it, so a path is known by one before its first colon. */
static int make_model(struct settings_model *ret, const char *text, const struct settings_from *from,
		      struct moe_error *err)
{
	const size_t name = from->kind == SETTINGS_FROM_FILE && *text != '/' ? strcspn(text, ":") : 0;
	const char *path = name && text[name] ? text + name + 1 : text;

	if (from->kind == SETTINGS_FROM_FILE && *path != '/')
		return refuse(err, SETTING_MODEL, text, from, "an absolute path, or NAME:PATH, expected");
	*ret = (struct settings_model){
		.path = strdup(path),
		.name = path == text ? NULL : strndup(text, name),
		.file = from->file ? strdup(from->file) : NULL,
		.line = from->line,
	};
	if (ret->path && (path == text || ret->name) && (!from->file || ret->file))
		return 0;
	free_model(ret);
	return moe_error_sys(err, -ENOMEM, "--model %s", text);
}

static int add_model(struct settings *s, const char *text, const struct settings_from *from, struct moe_error *err)
{
	struct settings_model model;
	int r;

	if (s->n_models == SETTINGS_MODELS_MAX && s->values[SETTING_MODEL].kind >= from->kind)
		return refuse(err, SETTING_MODEL, text, from, "at most 16 models can be loaded at the start");
	r = make_model(&model, text, from, err);
	if (r < 0)
		return r;
	if (s->values[SETTING_MODEL].kind < from->kind)
		clear_models(s);
	s->models[s->n_models++] = model;
	return 0;
}

int settings_set(struct settings *s, enum setting which, const char *text, const struct settings_from *from,
		 struct moe_error *err)
{
	_cleanup_free_ char *copy = strdup(text), *file = from->file ? strdup(from->file) : NULL;
	const bool reset = !*text && from->kind == SETTINGS_FROM_FILE;
	struct setting_value *v = &s->values[which];
	uint64_t number = 0;
	int r = 0;

	if (!copy || (from->file && !file))
		return moe_error_sys(err, -ENOMEM, "%s", settings_table[which].key);
	if (!reset)
		r = parse(&number, which, text, from, err);
	if (r == 0 && which == SETTING_MODEL && reset)
		clear_models(s);
	else if (r == 0 && which == SETTING_MODEL)
		r = add_model(s, text, from, err);
	if (r < 0)
		return r;
	clear(s, which);
	if (!reset) {
		v->text = steal_ptr(copy);
		v->number = number;
	}
	v->kind = from->kind;
	v->file = steal_ptr(file);
	v->line = from->line;
	return 0;
}

int settings_name_model(struct settings *s, const char *name, struct moe_error *err)
{
	char *copy = strdup(name);

	if (!copy)
		return moe_error_sys(err, -ENOMEM, "--name %s", name);
	free(s->models[s->n_models - 1].name);
	s->models[s->n_models - 1].name = copy;
	return 0;
}

void settings_swap(struct settings *s, struct settings *from, enum setting which)
{
	const struct setting_value value = s->values[which];

	s->values[which] = from->values[which];
	from->values[which] = value;
	if (which == SETTING_MODEL) {
		const uint32_t n = s->n_models;

		for (uint32_t i = 0; i < SETTINGS_MODELS_MAX; i++) {
			const struct settings_model model = s->models[i];

			s->models[i] = from->models[i];
			from->models[i] = model;
		}
		s->n_models = from->n_models;
		from->n_models = n;
	}
}

bool settings_same(const struct settings *a, const struct settings *b, enum setting which)
{
	const char *x = a->values[which].text, *y = b->values[which].text;

	if (which == SETTING_MODEL) {
		bool same = a->n_models == b->n_models;

		for (uint32_t i = 0; same && i < a->n_models; i++) {
			const char *p = a->models[i].name, *q = b->models[i].name;

			same = strcmp(a->models[i].path, b->models[i].path) == 0 && strcmp(p ? p : "", q ? q : "") == 0;
		}
		return same;
	}
	if (settings_table[which].type == SETTING_TYPE_PATH || settings_table[which].type == SETTING_TYPE_TEXT) {
		x = x ? x : settings_table[which].preset;
		y = y ? y : settings_table[which].preset; /* or NULL: some have none */
		return x == y || (x && y && strcmp(x, y) == 0);
	}
	return a->values[which].number == b->values[which].number;
}
