/* SPDX-License-Identifier: MIT */
/* heat-map - pictures of made-up counts: what was never used is blank, what was used at all is not; widths; SVG. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"
#include "tools/moectl/heat-map.h"

static struct heat_map map;
static json_t *model;

static void load(const char *json)
{
	struct moe_error err = {0};

	model = json_loads(json, 0, NULL);
	require(model && heat_map_new(&map, model, &err) == 0, "a map: %s", err.text);
}

static void unload(void)
{
	heat_map_free(&map);
	json_decref(model);
}

static char *picture(unsigned columns, enum heat_style style, bool svg)
{
	static char *text;
	static size_t bytes;
	FILE *to = open_memstream(&text, &bytes);

	if (svg)
		heat_map_svg(&map, to);
	else
		heat_map_print(&map, columns, style, to);
	fclose(to);
	return text;
}

static void test_levels(void)
{
	char *text;

	load("{\"name\": \"m\", \"experts\": 8, \"layers\": [{\"layer\": 1, \"pairs\": [0, 1, 24, 25, 50, 75, 99, "
	     "100], "
	     "\"copies\": [0, 0, 0, 0, 0, 0, 0, 0]}, {\"layer\": 60, \"pairs\": [0, 0, 0, 0, 0, 0, 0, 60], \"copies\": "
	     "[0, 0, 0, 0, 0, 0, 1, 40]}]}");
	text = picture(80, HEAT_ASCII, false);
	ok(strncmp(text, "    1  ..+*###\n   60       .#\n", 30) == 0,
	   "levels are shares of the hottest: pairs and copies");
	ok(strstr(text, "475 uses of 2 x 8 experts, 1 a cell\n7 never used\n"), "the sum stands below");
	free(text);
	ok(heat_map_fold(&map, 14) == 1 && heat_map_fold(&map, 13) == 2 && heat_map_fold(&map, 0) == 8, "folds");
	text = picture(10, HEAT_ASCII, false);
	ok(strncmp(text, "    1 .*#\n", 5) == 0 && strchr(text, '\n') - text <= 10, "a cell of several has their mean");
	free(text);
	text = picture(80, HEAT_COLOURS, false);
	ok(strstr(text, "\033[38;5;196m\u2588\033[0m"), "the hottest is red");
	free(text);
	text = picture(80, HEAT_BLOCKS, false);
	ok(strstr(text, "\u2588") && !strchr(text, '\033'), "blocks without colours");
	free(text);
	unload();
}

static void test_widths(void)
{
	json_t *layer = json_pack("{s:i, s:o, s:o}", "layer", 0, "pairs", json_array(), "copies", json_array());
	bool fits = true;
	char *text;

	for (int i = 0; i < 257; i++) {
		json_array_append_new(json_object_get(layer, "pairs"), json_integer(i));
		json_array_append_new(json_object_get(layer, "copies"), json_integer(1));
	}
	model = json_pack("{s:s, s:i, s:[o]}", "name", "m", "experts", 257, "layers", layer);
	require(heat_map_new(&map, model, NULL) == 0, "257 experts");
	for (unsigned columns = 8; columns < 300; columns++) {
		text = picture(columns, HEAT_ASCII, false);
		fits &= strchr(text, '\n') - text <= (long)columns;
		free(text);
	}
	ok(fits, "no line of the map is wider than asked for");
	unload();
}

static void test_svg(void)
{
	char *text;

	load("{\"name\": \"a<b&\\\"c\\u0007\", \"experts\": 3, \"layers\": [{\"layer\": 0, \"pairs\": [2, 2, 0], "
	     "\"copies\": [0, 0, 0]}]}");
	text = picture(0, 0, true);
	ok(strstr(text, "a&#60;b&#38;&#34;c: 4 uses"), "a name is escaped");
	ok(strstr(text, "<rect x=\"40\" y=\"40\" width=\"20\" height=\"10\" fill=\"#bd0026\"/>"),
	   "equal neighbours are one");
	ok(strncmp(text, "<svg ", 5) == 0 && strcmp(text + strlen(text) - 7, "</svg>\n") == 0, "it is one element");
	free(text);
	unload();
}

static void test_wrong(void)
{
	static const char *const wrong[] = {
		"{}",
		"{\"name\": \"m\", \"experts\": 2, \"layers\": []}",
		"{\"name\": \"m\", \"experts\": 2, \"layers\": [{\"layer\": 0, \"pairs\": [1], \"copies\": [1, 2]}]}",
		"{\"name\": \"m\", \"experts\": 2, \"layers\": [{\"layer\": 0, \"pairs\": [1, 2]}]}",
		"{\"experts\": 1, \"layers\": [{\"layer\": 0, \"pairs\": [1], \"copies\": [1]}]}",
	};
	char *text;

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct moe_error err = {0};
		json_t *document = json_loads(wrong[i], 0, NULL);

		ok(heat_map_new(&map, document, &err) == -EPROTO, "refused: %s", wrong[i]);
		json_decref(document);
	}
	load("{\"name\": \"m\", \"experts\": 1, \"layers\": [{\"layer\": 0, \"pairs\": [0], \"copies\": [0]}]}");
	text = picture(80, HEAT_ASCII, false);
	ok(strncmp(text, "    0  \n", 8) == 0, "nothing used: blank");
	free(text);
	unload();
}

int main(void)
{
	test_levels();
	test_widths();
	test_svg();
	test_wrong();
	return tap_done();
}
