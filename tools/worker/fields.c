/* SPDX-License-Identifier: MIT */
#include "tools/worker/fields.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"

static const json_t *value_of(const struct fields *fields, const char *key)
{
	const json_t *value = json_object_get(fields->json, key);

	return json_is_null(value) ? NULL : value;
}

/* -EINVAL with the value as it stands in the file. */
static int wrong(const struct fields *fields, const char *key, const json_t *value, const char *expected,
		 struct moe_error *err)
{
	_cleanup_free_ char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

	return moe_error_set(err, -EINVAL, "%s: %s: found %.80s, expected %s", fields->file, key, found ? found : "?",
			     expected);
}

bool fields_has(const struct fields *fields, const char *key)
{
	return value_of(fields, key) != NULL;
}

int fields_u32(const struct fields *fields, const char *key, uint32_t min, uint32_t fallback, uint32_t *ret,
	       struct moe_error *err)
{
	const json_t *value = value_of(fields, key);
	char expected[64];
	json_int_t n;

	snprintf(expected, sizeof(expected), "an integer from %u to %u", min, FIELD_MAX);
	if (!value) {
		if (fallback == FIELD_REQUIRED)
			return moe_error_set(err, -EINVAL, "%s: %s: missing, expected %s", fields->file, key, expected);
		*ret = fallback;
		return 0;
	}
	n = json_is_integer(value) ? json_integer_value(value) : -1;
	if (n < (json_int_t)min || n > (json_int_t)FIELD_MAX)
		return wrong(fields, key, value, expected, err);
	*ret = (uint32_t)n;
	return 0;
}

int fields_real(const struct fields *fields, const char *key, double min, double max, double fallback, double *ret,
		struct moe_error *err)
{
	const json_t *value = value_of(fields, key);
	char expected[96];
	double x;

	snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
	if (!value) {
		if (isnan(fallback))
			return moe_error_set(err, -EINVAL, "%s: %s: missing, expected %s", fields->file, key, expected);
		*ret = fallback;
		return 0;
	}
	x = json_number_value(value);
	if (!json_is_number(value) || !isfinite(x) || x < min || x > max)
		return wrong(fields, key, value, expected, err);
	*ret = x;
	return 0;
}

int fields_bool(const struct fields *fields, const char *key, bool fallback, bool *ret, struct moe_error *err)
{
	const json_t *value = value_of(fields, key);

	if (value && !json_is_boolean(value))
		return wrong(fields, key, value, "true or false", err);
	*ret = value ? json_is_true(value) : fallback;
	return 0;
}

int fields_word(const struct fields *fields, const char *key, const char **ret, struct moe_error *err)
{
	const json_t *value = value_of(fields, key);

	if (value && !json_is_string(value))
		return wrong(fields, key, value, "a string", err);
	*ret = value ? json_string_value(value) : NULL;
	return 0;
}
