/* SPDX-License-Identifier: MIT */
/*
 * config - what the daemon's configuration files say, and where each value is from, as the daemon itself reads them.
 *
 * It needs no daemon and asks none: what a daemon that runs was told on its command line goes before this.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "kernels/kernels.h"
#include "moectl.h"
#include "settings/settings.h"

#define TEXT_BYTES 8192 /* sixteen models */

struct warnings {
	json_t *list;
};

static void warn(const char *text, void *userdata)
{
	struct warnings *w = userdata;

	fprintf(stderr, "moectl: warning: %s\n", text);
	json_array_append_new(w->list, text_json(text));
}

/* -- for a person ------------------------------------------------------------------------------------------------- */

static void print_row(const char *key, const char *value, const char *from)
{
	printf("  %-16s %-28s %s\n", key, value, from);
}

static void print_models(const struct settings *s)
{
	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct settings_model *m = &s->models[i];
		char value[TEXT_BYTES], place[TEXT_BYTES];

		snprintf(value, sizeof value, "%s%s%s", m->name ? m->name : "", m->name ? ":" : "", m->path);
		snprintf(place, sizeof place, "%s:%u", m->file, m->line);
		print_row(i == 0 ? settings_table[SETTING_MODEL].key : "", value, place);
	}
}

static void print_settings(const struct settings *s)
{
	const char *section = "";

	for (int i = 0; i < SETTINGS; i++) {
		const struct setting_def *d = &settings_table[i];
		char to[TEXT_BYTES], words[TEXT_BYTES + 2], place[TEXT_BYTES];

		if (strcmp(d->section, section) != 0)
			printf("[%s]\n", d->section);
		section = d->section;
		if (i == SETTING_MODEL && s->n_models > 0) {
			print_models(s);
			continue;
		}
		settings_text(s, (enum setting)i, to, sizeof to);
		/* What is no value cannot be taken for one. */
		snprintf(words, sizeof words, s->values[i].text || d->preset ? "%s" : "(%s)", to);
		print_row(d->key, words, settings_origin(s, (enum setting)i, place, sizeof place));
	}
}

/* -- for a script ------------------------------------------------------------------------------------------------- */

static const char *type_name(enum setting_type type)
{
	static const char *const names[] = {
		[SETTING_TYPE_PATH] = "path",   [SETTING_TYPE_MODEL] = "model", [SETTING_TYPE_NUMBER] = "number",
		[SETTING_TYPE_OCTAL] = "octal", [SETTING_TYPE_BYTES] = "bytes", [SETTING_TYPE_BOOL] = "bool",
		[SETTING_TYPE_WORD] = "word",   [SETTING_TYPE_TEXT] = "text",
	};

	return names[type];
}

/* null where only words say what it is */
static json_t *value_json(const struct settings *s, enum setting which, const char *text)
{
	const struct setting_def *d = &settings_table[which];

	if (which == SETTING_MODEL) {
		json_t *list = json_array();

		for (uint32_t i = 0; i < s->n_models; i++)
			json_array_append_new(list,
					      json_pack("{s:o, s:o, s:o, s:i}", "path", text_json(s->models[i].path),
							"name", text_json(s->models[i].name), "file",
							text_json(s->models[i].file), "line", (int)s->models[i].line));
		return list;
	}
	if (!s->values[which].text && !d->preset)
		return json_null();
	switch (d->type) {
	case SETTING_TYPE_NUMBER:
	case SETTING_TYPE_BYTES:
		return json_integer((json_int_t)s->values[which].number);
	case SETTING_TYPE_BOOL:
		return json_boolean(s->values[which].number);
	default:
		return text_json(text);
	}
}

static json_t *setting_json(const struct settings *s, enum setting which)
{
	const struct setting_def *d = &settings_table[which];
	const struct setting_value *v = &s->values[which];
	char to[TEXT_BYTES], range[128], option[64];
	json_t *value = value_json(s, which, settings_text(s, which, to, sizeof to));

	snprintf(option, sizeof option, "--%s%s%s", d->option, d->part ? " " : "", d->part ? d->part : "");
	return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s?, s:s, s:b, s:s, s:s, s:{s:s, s:o, s:i}}", "section",
			 d->section, "key", d->key, "value", value, "default", d->preset ? d->preset : d->computed,
			 "type", type_name(d->type), "unit", d->unit, "range",
			 settings_range(which, range, sizeof range), "reload", d->live, "option", option, "help",
			 d->help, "from", "kind", v->kind == SETTINGS_FROM_FILE ? "file" : "default", "file",
			 text_json(v->file), "line", (int)v->line);
}

static void print_document(const struct settings *s, json_t *warnings)
{
	json_t *files = json_array(), *list = json_array(), *document;

	for (uint32_t i = 0; i < s->n_files; i++)
		json_array_append_new(files, text_json(s->files[i]));
	for (int i = 0; i < SETTINGS; i++)
		json_array_append_new(list, setting_json(s, (enum setting)i));
	document = json_pack("{s:o, s:o, s:O}", "files", files, "settings", list, "warnings", warnings);
	print_json(document);
	json_decref(document);
}

static const char *isa_wrong(const char *level)
{
	enum isa isa;

	return isa_from_name(level, &isa) < 0 ? isa_why_not(level) : NULL;
}

/* Of another machine's files only that there is such a level: it is that machine's CPU that counts. */
static const char *isa_unknown(const char *level)
{
	enum isa isa;

	return isa_from_name(level, &isa) == -EINVAL ? isa_why_not(level) : NULL;
}

int config_load(struct settings *s, const struct arguments *arg, struct moe_error *err)
{
	struct stat st;
	int r = 0;

	if (arg->root && stat(arg->root, &st) < 0)
		r = moe_error_sys(err, -errno, "--root %s", arg->root);
	else if (arg->root && !S_ISDIR(st.st_mode))
		r = moe_error_set(err, -ENOTDIR, "--root %s: a folder expected", arg->root);
	if (r < 0)
		return r;
	r = settings_load(s, arg->config, arg->root ? arg->root : "", err);

	return r < 0 ? r : settings_check(s, arg->root ? isa_unknown : isa_wrong, err);
}

int verb_config(const struct arguments *arg)
{
	struct warnings w = {.list = json_array()};
	struct moe_error err = {0};
	struct settings s;
	int r;

	settings_init(&s);
	s.warn = warn;
	s.userdata = &w;
	r = config_load(&s, arg, &err);
	if (r == 0)
		r = settings_check_models(&s, arg->root ? arg->root : "", &err);
	if (r < 0)
		r = fail(&err);
	else if (arg->json)
		print_document(&s, w.list);
	else
		print_settings(&s);
	settings_free(&s);
	json_decref(w.list);
	return r;
}
