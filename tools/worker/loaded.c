/* SPDX-License-Identifier: MIT */
#include "tools/worker/loaded.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "moe-expert.h"

/* NULL: no such model. */
static const char *find_by(const json_t *models, const char *key, const char *value)
{
	const json_t *model;
	size_t i;

	json_array_foreach (models, i, model) {
		const char *found = json_string_value(json_object_get(model, key));

		if (found && strcmp(found, value) == 0)
			return json_string_value(json_object_get(model, "name"));
	}
	return NULL;
}

static int query(char **ret, const char *socket, struct moe_error *err)
{
	struct moe_client *client = NULL;
	int r = moe_open(&client, socket, err);

	if (r == 0)
		r = moe_query(client, MOE_DOCUMENT_MODELS, ret, err);
	moe_close(client);
	return r;
}

int loaded_find(char **ret, const char *socket, const char *dir, struct moe_error *err)
{
	_cleanup_free_ char *text = NULL, *path = realpath(dir, NULL);
	const json_t *models;
	const char *name;
	json_error_t where;
	json_t *document;
	int r;

	if (!path)
		return moe_error_sys(err, -errno, "cannot find %s", dir);
	r = query(&text, socket, err);
	if (r < 0)
		return r;
	document = json_loads(text, 0, &where);
	models = json_is_array(document) ? document : json_object_get(document, "models");
	name = find_by(models, "path", path);
	if (!name)
		name = find_by(models, "name", strrchr(path, '/') + 1);
	if (!json_is_array(models))
		r = moe_error_set(err, -EPROTO, "%s: the list of models is not what was expected", socket);
	else if (!name)
		r = moe_error_set(err, -ENOENT, "%s: the daemon has not loaded %s; type: moectl load %s", socket, path,
				  path);
	else if (!(*ret = strdup(name)))
		r = moe_error_set(err, -ENOMEM, "no memory for a model's name");
	json_decref(document);
	return r;
}
