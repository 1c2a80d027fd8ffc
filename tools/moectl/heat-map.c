/* SPDX-License-Identifier: MIT */
#include "heat-map.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "heat-lasts.h"

#define LABEL 6 /* columns in front of a line: a layer's number */

static const char *const ascii[HEAT_LEVELS] = {" ", ".", "+", "*", "#"};
static const char *const blocks[HEAT_LEVELS] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
static const int colours[HEAT_LEVELS] = {0, 24, 37, 178, 196};
static const char *const fills[HEAT_LEVELS] = {"#f4f4f4", "#c6dbef", "#6baed6", "#fd8d3c", "#bd0026"};

static int read_layer(struct heat_map *map, unsigned at, const json_t *layer)
{
	const json_t *pairs = json_object_get(layer, map->lasts ? "heat" : "pairs");
	const json_t *copies = map->lasts ? NULL : json_object_get(layer, "copies");

	if (json_array_size(pairs) != map->experts || (!map->lasts && json_array_size(copies) != map->experts))
		return -EPROTO;
	map->numbers[at] = (unsigned)json_integer_value(json_object_get(layer, "layer"));
	for (unsigned i = 0; i < map->experts; i++) {
		const double uses = json_number_value(json_array_get(pairs, i)) +
				    json_number_value(json_array_get(copies, i));

		map->uses[(size_t)at * map->experts + i] = uses;
		map->total += uses;
	}
	return 0;
}

int heat_map_new(struct heat_map *ret, const json_t *model, struct moe_error *err)
{
	const json_t *layers = json_object_get(model, "layers");
	struct heat_map map = {
		.name = json_string_value(json_object_get(model, "name")),
		.layers = (unsigned)json_array_size(layers),
		.experts = (unsigned)json_integer_value(json_object_get(model, "experts")),
		.lasts = heat_lasts(layers),
	};
	int r = map.name && map.layers && map.experts ? 0 : -EPROTO;

	map.numbers = calloc(map.layers + 1, sizeof *map.numbers);
	map.uses = calloc((size_t)map.layers * map.experts + 1, sizeof *map.uses);
	if (!map.numbers || !map.uses)
		r = -ENOMEM;
	for (unsigned i = 0; i < map.layers && r == 0; i++)
		r = read_layer(&map, i, json_array_get(layers, i));
	if (r < 0) {
		heat_map_free(&map);
		return moe_error_sys(err, r, "heat: the daemon's document");
	}
	*ret = map;
	return 0;
}

void heat_map_free(struct heat_map *map)
{
	free(map->numbers);
	free(map->uses);
	*map = (struct heat_map){0};
}

unsigned heat_map_fold(const struct heat_map *map, unsigned columns)
{
	const unsigned room = columns > LABEL + 1 ? columns - LABEL : 1;

	return (map->experts + room - 1) / room;
}

/* The mean of `fold` experts from `first` on, or of as many as there are. */
static double cell(const struct heat_map *map, unsigned layer, unsigned first, unsigned fold)
{
	const unsigned end = first + fold < map->experts ? first + fold : map->experts;
	double sum = 0;

	for (unsigned i = first; i < end; i++)
		sum += map->uses[(size_t)layer * map->experts + i];
	return sum / (end - first);
}

static double hottest(const struct heat_map *map, unsigned fold)
{
	double most = 0;

	for (unsigned l = 0; l < map->layers; l++)
		for (unsigned i = 0; i < map->experts; i += fold)
			most = fmax(most, cell(map, l, i, fold));
	return most;
}

static unsigned level(double uses, double most)
{
	return uses > 0 ? 1 + (unsigned)fmin(uses / most * (HEAT_LEVELS - 1), HEAT_LEVELS - 2) : 0;
}

static unsigned never(const struct heat_map *map)
{
	unsigned n = 0;

	for (size_t i = 0; i < (size_t)map->layers * map->experts; i++)
		n += map->uses[i] == 0;
	return n;
}

static void print_cell(unsigned at, enum heat_style style, FILE *to)
{
	if (style == HEAT_ASCII)
		fputs(ascii[at], to);
	else if (style == HEAT_BLOCKS || !at)
		fputs(blocks[at], to);
	else
		fprintf(to, "\033[38;5;%dm%s\033[0m", colours[at], blocks[HEAT_LEVELS - 1]);
}

void heat_map_print(const struct heat_map *map, unsigned columns, enum heat_style style, FILE *to)
{
	const unsigned fold = heat_map_fold(map, columns);
	const double most = hottest(map, fold);

	for (unsigned l = 0; l < map->layers; l++) {
		fprintf(to, "%*u ", LABEL - 1, map->numbers[l]);
		for (unsigned i = 0; i < map->experts; i += fold)
			print_cell(level(cell(map, l, i, fold), most), style, to);
		fputc('\n', to);
	}
	fputs("never ", to);
	for (unsigned i = 0; i < HEAT_LEVELS; i++)
		print_cell(i, style, to);
	fprintf(to, " %.0f, the hottest\n", most);
	fprintf(to, "%.0f uses of %u x %u experts, %u a cell\n%u never used\n", map->total, map->layers, map->experts,
		fold, never(map));
}

static void write_xml(const char *text, FILE *to)
{
	for (; *text; text++) {
		if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
			fprintf(to, "&#%d;", *text);
		else if ((unsigned char)*text >= ' ')
			fputc(*text, to);
	}
}

/* Cells of one level that touch are one rectangle. */
static void svg_row(const struct heat_map *map, unsigned l, double most, unsigned side, FILE *to)
{
	const double *row = &map->uses[(size_t)l * map->experts];

	for (unsigned i = 0, end; i < map->experts; i = end) {
		const unsigned at = level(row[i], most);

		for (end = i + 1; end < map->experts && level(row[end], most) == at; end++)
			continue;
		if (at)
			fprintf(to, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" fill=\"%s\"/>\n", 40 + i * side,
				40 + l * side, (end - i) * side, side, fills[at]);
	}
}

void heat_map_svg(const struct heat_map *map, FILE *to)
{
	const unsigned side = map->experts > 128 ? 5 : 10;
	const unsigned width = map->experts * side, height = map->layers * side;
	const double most = hottest(map, 1);

	fprintf(to,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" font-family=\"sans-serif\" "
		"font-size=\"12\">\n",
		(width > 420 ? width : 420) + 60, height + 80);
	fputs("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"40\" y=\"20\">", to);
	write_xml(map->name, to);
	fprintf(to, ": %.0f uses of %u x %u experts, %u never used</text>\n", map->total, map->layers, map->experts,
		never(map));
	fprintf(to, "<rect x=\"40\" y=\"40\" width=\"%u\" height=\"%u\" fill=\"%s\"/>\n", width, height, fills[0]);
	for (unsigned l = 0; l < map->layers; l++) {
		if (l % 10 == 0)
			fprintf(to, "<text x=\"34\" y=\"%u\" text-anchor=\"end\">%u</text>\n", 40 + l * side + side,
				map->numbers[l]);
		svg_row(map, l, most, side, to);
	}
	fprintf(to, "<text x=\"40\" y=\"%u\">never</text>\n", height + 64);
	for (unsigned i = 0; i < HEAT_LEVELS; i++)
		fprintf(to, "<rect x=\"%u\" y=\"%u\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", 80 + 14 * i,
			height + 54, fills[i]);
	fprintf(to, "<text x=\"156\" y=\"%u\">%.0f, the hottest</text>\n</svg>\n", height + 64, most);
}
