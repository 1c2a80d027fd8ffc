/* SPDX-License-Identifier: MIT */
#include "tools/worker/loaded.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/path.h"
#include "moe-expert.h"
#include "tools/patient.h"

static const char *name_if(const json_t *model, const char *key, const char *value)
{
	const char *found = json_string_value(json_object_get(model, key));

	return found && strcmp(found, value) == 0 ? json_string_value(json_object_get(model, "name")) : NULL;
}

static const char *find_by(const json_t *models, const char *key, const char *value)
{
	const char *name = NULL;
	const json_t *model;
	size_t i;

	json_array_foreach (models, i, model)
		if (!name)
			name = name_if(model, key, value);
	return name;
}

/* Its name in the daemon, whose document it is; NULL: no such model. */
static const char *find(const json_t *document, const char *path)
{
	const json_t *models = json_object_get(document, "models"), *loading = json_object_get(document, "loading");
	const char *folder = strrchr(path, '/') + 1, *name = find_by(models, "path", path);

	if (!name)
		name = find_by(models, "name", folder);
	if (!name)
		name = name_if(loading, "path", path);
	return name ? name : name_if(loading, "name", folder);
}

static int query(char **ret, const char *socket, struct moe_error *err)
{
	struct moe_client *client = NULL;
	int r = open_patiently(&client, socket, err);

	if (r == 0)
		r = moe_query(client, MOE_DOCUMENT_MODELS, ret, err);
	moe_close(client);
	return r;
}

int loaded_find(char **ret, const char *socket, const char *dir, struct moe_error *err)
{
	_cleanup_free_ char *text = NULL, *path = path_real(dir);
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
	name = find(document, path);
	if (!json_is_array(json_object_get(document, "models")))
		r = moe_error_set(err, -EPROTO, "%s: the list of models is not what was expected", socket);
	else if (!name)
		r = moe_error_set(err, -ENOENT, "%s: the daemon has not loaded %s; type: moectl load %s", socket, path,
				  path);
	else if (!(*ret = strdup(name)))
		r = moe_error_set(err, -ENOMEM, "no memory for a model's name");
	json_decref(document);
	return r;
}
