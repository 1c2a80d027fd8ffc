/* SPDX-License-Identifier: MIT */
/* models - the models of a start: what each is called, and whether a daemon could load them beside each other. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/path.h"
#include "base/text.h"
#include "base/util.h"
#include "settings/settings.h"
#include "uapi/moe_manifest.h"

const char *settings_model_name(const char *path, const char *name)
{
	return name && *name ? name : strrchr(path, '/') + 1;
}

const char *settings_model_place(char to[SETTINGS_PLACE], const struct settings *s, uint32_t i)
{
	const struct settings_model *m = &s->models[i];
	const char *name = m->name ? m->name : "";

	if (m->file)
		snprintf(to, SETTINGS_PLACE, "%s:%u: Model=%s%s%s", m->file, m->line, name, m->name ? ":" : "",
			 m->path);
	else
		snprintf(to, SETTINGS_PLACE, "--model %s%s%s", m->path, *name ? " --name " : "", name);
	return text_clean(to);
}

/* Of UTF-8: the first character that a terminal would obey, U+0080 to U+009F among them; NULL: none. */
static const uint8_t *control_character(const char *name)
{
	for (const uint8_t *p = (const uint8_t *)name; *p; p++)
		if (*p < 0x20 || *p == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0))
			return p;
	return NULL;
}

int settings_check_word(const char *name, struct moe_error *err)
{
	const uint8_t *control;

	if (!text_is_utf8(name))
		return moe_error_set(err, -EINVAL, "the model's name is not UTF-8; give another one with --name");
	control = control_character(name);
	if (control)
		return moe_error_set(err, -EINVAL,
				     "the model's name has a control character (0x%02x) at byte %zu; give another one "
				     "with --name",
				     *control, (size_t)(control - (const uint8_t *)name));
	if (!*name || strlen(name) >= MOE_NAME_BYTES)
		return moe_error_set(err, -EINVAL,
				     "model name '%.80s': found %zu bytes, 1 to %d expected; give one with --name",
				     name, strlen(name), MOE_NAME_BYTES - 1);
	if (strchr(name, '/'))
		return moe_error_set(err, -EINVAL, "model name '%s': no slash expected; give another one with --name",
				     name);
	return 0;
}

/* Its folder, by its own name: NULL where there is none. */
static char *folder_of(const struct settings_model *m, const char *root)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof path, "%s%s", root, m->path) < (int)sizeof path ? path_real(path) : NULL;
}

int settings_check_model(const struct settings *s, uint32_t i, const char *root, struct moe_error *err)
{
	_cleanup_free_ char *path = folder_of(&s->models[i], root);
	char place[SETTINGS_PLACE], other[SETTINGS_PLACE];
	struct moe_error why;
	const char *name;

	if (!path)
		return 0;
	name = settings_model_name(path, s->models[i].name);
	if (settings_check_word(name, &why) < 0)
		return moe_error_set(err, why.code, "%.240s: %s", settings_model_place(place, s, i), why.text);
	for (uint32_t k = 0; k < i; k++) {
		_cleanup_free_ char *before = folder_of(&s->models[k], root);

		if (!before || strcmp(name, settings_model_name(before, s->models[k].name)) != 0)
			continue;
		if (strcmp(path, before) == 0)
			return 1;
		return moe_error_set(err, -EEXIST,
				     "%.180s: the name '%s' is that of another model of the start (%.180s); give "
				     "another one with --name, or Model=NAME:PATH",
				     settings_model_place(place, s, i), name, settings_model_place(other, s, k));
	}
	return 0;
}

int settings_check_models(const struct settings *s, const char *root, struct moe_error *err)
{
	int r = 0;

	for (uint32_t i = 0; r >= 0 && i < s->n_models; i++)
		r = settings_check_model(s, i, root, err);
	return MIN(r, 0);
}
