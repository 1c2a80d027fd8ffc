/* SPDX-License-Identifier: MIT */
/*
 * heat-map - a model's layers and experts as a picture: in lines of a terminal, or as SVG.
 *
 * Law: pure. A cell's use is its heat that lasts, or, where there is none, its pairs and copies; its level is its share
 * of the hottest one's, and what was used at all is never blank. Folded to a width, a cell stands for neighbours: the
 * mean of them.
 */
#ifndef TOOLS_HEAT_MAP_H
#define TOOLS_HEAT_MAP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "moe-error.h"

#define HEAT_LEVELS 5 /* 0: never used */

struct heat_map {
	const char *name; /* the document's */
	unsigned layers, experts;
	unsigned *numbers; /* [layers]: of the layers */
	double *uses;      /* [layers][experts] */
	double total;
	bool lasts; /* uses are pairs that routers chose, aged */
};

enum heat_style { HEAT_ASCII, HEAT_BLOCKS, HEAT_COLOURS };

/* `model`: an element of the heat document's "models", which outlives the map. -EPROTO: not as it should be;
 * -ENOMEM. */
int heat_map_new(struct heat_map *ret, const json_t *model, struct moe_error *err);
void heat_map_free(struct heat_map *map);

/* So many experts in a cell, for lines of at most `columns`. */
unsigned heat_map_fold(const struct heat_map *map, unsigned columns);
void heat_map_print(const struct heat_map *map, unsigned columns, enum heat_style style, FILE *to);
void heat_map_svg(const struct heat_map *map, FILE *to);

#endif
