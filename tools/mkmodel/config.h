/* SPDX-License-Identifier: MIT */
/*
 * config - config.json as the family's published models have it: the same fields under the same names.
 */
#ifndef MKMODEL_CONFIG_H
#define MKMODEL_CONFIG_H

#include <jansson.h>

#include "tools/mkmodel/spec.h"

/* NULL when memory is short. `spec` has passed spec_check. */
json_t *config_new(const struct spec *spec);

#endif
