/* SPDX-License-Identifier: MIT */
/*
 * heat-lasts - which of a heat document's lists say how hot an expert is.
 *
 * Law: "heat", what routers chose, over daemons and sessions, as soon as any layer has some; of older daemons, or older
 * clients alone, none does, and the pairs that the pool computed and the copies into slots stand for it.
 */
#ifndef TOOLS_HEAT_LASTS_H
#define TOOLS_HEAT_LASTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* `layers`: those of an element of the document's "models". */
static inline bool heat_lasts(const json_t *layers)
{
	const json_t *layer, *value;
	size_t i, e;

	json_array_foreach (layers, i, layer)
		json_array_foreach (json_object_get(layer, "heat"), e, value)
			if (json_number_value(value) > 0)
				return true;
	return false;
}

#endif
