/* SPDX-License-Identifier: MIT */
/* heat - which experts of which layers are used, as a picture. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "heat-map.h"
#include "moectl.h"

#define TEXT_COLUMNS 80 /* where the output is no terminal */

static unsigned columns_of(FILE *to)
{
	struct winsize size;

	return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : TEXT_COLUMNS;
}

static enum heat_style style_of(void)
{
	setlocale(LC_CTYPE, "");
	if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
		return HEAT_ASCII;
	return colours_wanted() ? HEAT_COLOURS : HEAT_BLOCKS;
}

static const json_t *find_model(const json_t *document, const char *name)
{
	const json_t *model;
	size_t i;

	json_array_foreach (json_object_get(document, "models"), i, model)
		if (strcmp(get_text(model, "name"), name) == 0)
			return model;
	fprintf(stderr, "moectl: no model '%s' is loaded: see moectl models\n", name);
	return NULL;
}

static int write_svg(const struct heat_map *map, const char *path)
{
	const bool out = strcmp(path, "-") == 0;
	FILE *to = out ? stdout : fopen(path, "we");
	bool failed;

	if (to) {
		heat_map_svg(map, to);
		failed = ferror(to) != 0;
		if (out)
			return EXIT_DONE; /* main() looks after stdout */
		if (fclose(to) == 0 && !failed)
			return EXIT_DONE;
	}
	fprintf(stderr, "moectl: %s: %s\n", path, strerror(errno));
	return EXIT_FAILED;
}

int verb_heat(const struct arguments *arg)
{
	json_t *document = ask(arg, MOE_DOCUMENT_HEAT);
	const json_t *model = document ? find_model(document, arg->words[0]) : NULL;
	struct moe_error err = {0};
	struct heat_map map;
	int r = EXIT_FAILED;

	if (model && arg->json) {
		json_dumpf(model, stdout, JSON_COMPACT);
		putchar('\n');
		r = EXIT_DONE;
	} else if (model && heat_map_new(&map, model, &err) < 0) {
		r = fail(&err);
	} else if (model) {
		r = EXIT_DONE;
		if (arg->svg)
			r = write_svg(&map, arg->svg);
		else
			heat_map_print(&map, columns_of(stdout), style_of(), stdout);
		heat_map_free(&map);
	}
	json_decref(document);
	return r;
}
