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
#include "output.h"

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
	struct output out;
	int r = output_open(&out, path);

	if (r == 0) {
		heat_map_svg(map, out.to);
		r = output_end(&out, 0);
	}
	if (r < 0)
		fprintf(stderr, "moectl: %s: %s\n", path, strerror(-r));
	return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

/* Where it is from. Without a step of a router, also after --forget, what the daemon counts stands for it. */
static void print_origin(const struct heat_map *map, const json_t *model)
{
	const json_int_t steps = json_integer_value(json_object_get(model, "steps"));
	const json_int_t saved = json_integer_value(json_object_get(model, "saved_steps"));
	const char *folder = json_string_value(json_object_get(model, "folder"));

	if (!map->lasts || steps == 0) {
		puts("no step is counted yet, or was since --forget: these are pairs of the pool and copies since the "
		     "load");
		return;
	}
	printf("from %lld steps, halved every %lld; ", (long long)steps,
	       (long long)json_integer_value(json_object_get(model, "halved_every")));
	if (!folder)
		puts("only in memory (StateDirectory=)");
	else if (saved == 0)
		printf("not yet saved in %s\n", folder);
	else
		printf("saved in %s, %lld steps ago\n", folder, (long long)(steps - saved));
}

static void print_map(const struct heat_map *map, const json_t *model)
{
	heat_map_print(map, columns_of(stdout), style_of(), stdout);
	print_origin(map, model);
}

static int forget(struct moe_client *client, const struct arguments *arg, struct moe_error *err)
{
	return moe_forget_heat(client, arg->words[0], err);
}

int verb_heat(const struct arguments *arg)
{
	json_t *document = arg->forget ? NULL : ask(arg, MOE_DOCUMENT_HEAT);
	const json_t *model = document ? find_model(document, arg->words[0]) : NULL;
	struct moe_error err = {0};
	struct heat_map map;
	int r = EXIT_FAILED;

	if (arg->forget)
		return tell(arg, forget);
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
			print_map(&map, model);
		heat_map_free(&map);
	}
	json_decref(document);
	return r;
}
