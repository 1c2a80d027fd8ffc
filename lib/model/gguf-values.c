/* SPDX-License-Identifier: MIT */
/*
 * The metadata of a GGUF header: values by their keys, sorted, each key once. Kept are numbers, truth values and short
 * strings; arrays and long strings are stepped over without being stored. An array of arrays is refused: no published
 * file has one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "model/gguf-cursor.h"

#define VALUE_BYTES_MIN 13u /* a key's length, type and one byte */

/* The file's names of value types. */
enum type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

static const uint8_t type_bytes[TYPES] = {
	[U8] = 1,  [I8] = 1,   [U16] = 2, [I16] = 2, [U32] = 4, [I32] = 4,
	[F32] = 4, [BOOL] = 1, [U64] = 8, [I64] = 8, [F64] = 8,
};

void gguf_value_clear(struct gguf_value *value)
{
	free(value->key);
	free(value->string);
}

/* Steps over an array: of numbers at once, of strings one by one; each has at least the 8 bytes of its length. */
static int skip_array(struct cursor *c, const char *key)
{
	const uint8_t *p;
	uint32_t type;
	uint64_t n, bytes;
	int r;

	r = cursor_u32(c, &type);
	if (r < 0)
		return r;
	r = cursor_u64(c, &n);
	if (r < 0)
		return r;
	if (type >= TYPES || type == ARRAY)
		return moe_error_set(c->err, -ENOTSUP,
				     "%s: metadata \"%s\": found an array of type %u; expected numbers or strings",
				     c->file, key, type);
	if (!checked_mul(&bytes, n, type == STRING ? 8 : type_bytes[type]) ||
	    !checked_range(c->at, bytes, c->file_bytes))
		return moe_error_set(c->err, -EINVAL,
				     "%s: metadata \"%s\": found an array of %llu in a file of %llu bytes; expected it "
				     "to lie in the file (is it truncated?)",
				     c->file, key, (unsigned long long)n, (unsigned long long)c->file_bytes);
	if (type != STRING)
		return cursor_take(c, bytes, &p);
	for (uint64_t i = 0; i < n; i++) {
		r = cursor_string(c, &p, &bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The number at p, `bytes` wide, sign-extended where `sign` says so. */
static uint64_t number(const uint8_t *p, unsigned bytes, bool sign)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)p[i] << 8 * i;
	if (sign && bytes < 8 && value >> (8 * bytes - 1))
		value |= ~(uint64_t)0 << 8 * bytes;
	return value;
}

static int read_scalar(struct cursor *c, uint32_t type, struct gguf_value *value)
{
	const uint8_t *p = NULL;
	float narrow;
	int r;

	r = cursor_take(c, type_bytes[type], &p);
	if (r < 0)
		return r;
	switch (type) {
	case F32:
		memcpy(&narrow, p, sizeof narrow);
		value->kind = GGUF_FLOAT;
		value->f = (double)narrow;
		break;
	case F64:
		memcpy(&value->f, p, sizeof value->f);
		value->kind = GGUF_FLOAT;
		break;
	case BOOL:
		value->kind = GGUF_BOOL;
		value->u = *p != 0;
		break;
	case I8:
	case I16:
	case I32:
	case I64:
		value->kind = GGUF_SIGNED;
		value->u = number(p, type_bytes[type], true);
		break;
	default:
		value->kind = GGUF_UNSIGNED;
		value->u = number(p, type_bytes[type], false);
	}
	return 0;
}

/* *keep tells whether the value is one to be kept. */
static int read_content(struct cursor *c, uint32_t type, struct gguf_value *value, bool *keep)
{
	const uint8_t *p = NULL;
	uint64_t bytes = 0;
	int r;

	*keep = false;
	if (type >= TYPES)
		return moe_error_set(c->err, -EINVAL, "%s: metadata \"%s\": found type %u; expected 0 to %u", c->file,
				     value->key, type, TYPES - 1);
	if (type == ARRAY)
		return skip_array(c, value->key);
	*keep = true;
	if (type != STRING)
		return read_scalar(c, type, value);
	r = cursor_string(c, &p, &bytes);
	if (r < 0)
		return r;
	*keep = bytes <= GGUF_KEPT_MAX && !memchr(p, 0, bytes);
	value->kind = GGUF_STRING;
	if (*keep) {
		value->string = strndup((const char *)p, bytes);
		if (!value->string)
			return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	}
	return 0;
}

static int read_value(struct cursor *c)
{
	_cleanup_(gguf_value_clear) struct gguf_value value = {0};
	bool keep;
	uint32_t type;
	int r;

	r = cursor_name(c, "metadata key", &value.key);
	if (r < 0)
		return r;
	r = cursor_u32(c, &type);
	if (r < 0)
		return r;
	r = read_content(c, type, &value, &keep);
	if (r < 0 || !keep)
		return r;
	c->found.values[c->found.n_values++] = value;
	value = (struct gguf_value){0};
	return 0;
}

static int compare_values(const void *a, const void *b)
{
	return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

int cursor_values(struct cursor *c, uint64_t count)
{
	int r;

	r = cursor_count(c, "metadata values", count, GGUF_VALUES_MAX, VALUE_BYTES_MIN);
	if (r < 0)
		return r;
	c->found.values = calloc(count ? count : 1, sizeof *c->found.values);
	if (!c->found.values)
		return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	for (uint64_t i = 0; i < count; i++) {
		r = read_value(c);
		if (r < 0)
			return r;
	}
	qsort(c->found.values, c->found.n_values, sizeof *c->found.values, compare_values);
	for (uint64_t i = 1; i < c->found.n_values; i++)
		if (compare_values(&c->found.values[i - 1], &c->found.values[i]) == 0)
			return moe_error_set(c->err, -EINVAL,
					     "%s: metadata \"%s\": found it twice; expected each key once", c->file,
					     c->found.values[i].key);
	return 0;
}

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key)
{
	const struct gguf_value wanted = {.key = (char *)key};

	if (gguf->n_values == 0)
		return NULL;
	return bsearch(&wanted, gguf->values, gguf->n_values, sizeof wanted, compare_values);
}
