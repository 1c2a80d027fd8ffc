/* SPDX-License-Identifier: MIT */
/*
 * fields - numbers and words out of config.json, each checked where it is read.
 *
 * A key that is absent or null has its default, or is an error when it has none. A value of another type or out of
 * range is an error that names file, key, what was found and what was expected. *ret is untouched on failure.
 */
#ifndef WORKER_FIELDS_H
#define WORKER_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct fields {
	const char *file; /* for errors */
	const json_t *json;
};

#define FIELD_REQUIRED UINT32_MAX

/* Largest count or size that a config may name: keeps products of two of them within 64 bits. */
#define FIELD_MAX (1u << 24)

bool fields_has(const struct fields *fields, const char *key);

/* `fallback` FIELD_REQUIRED: the key must be there. Values from `min` to FIELD_MAX. */
int fields_u32(const struct fields *fields, const char *key, uint32_t min, uint32_t fallback, uint32_t *ret,
	       struct moe_error *err);

/* A finite number; a NaN `fallback` makes the key required. */
int fields_real(const struct fields *fields, const char *key, double min, double max, double fallback, double *ret,
		struct moe_error *err);

int fields_bool(const struct fields *fields, const char *key, bool fallback, bool *ret, struct moe_error *err);

/* A string that lives as long as the JSON; NULL when absent. */
int fields_word(const struct fields *fields, const char *key, const char **ret, struct moe_error *err);

#endif
