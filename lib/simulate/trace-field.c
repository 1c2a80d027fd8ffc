/* SPDX-License-Identifier: MIT */
#include "simulate/trace-field.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"
#include "base/util.h"

#define PLACE_TEXT 200
#define WHOLE_MAX 9007199254740992.0 /* 2^53: beyond it a double skips whole numbers */

/* Names and parts of the text are quoted, and a text is one line. */
static void tame(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 127)
			*text = '?';
}

/* As much of it as has room. */
__attribute__((format(printf, 3, 4))) static void append(char *to, size_t *at, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(to + *at, PLACE_TEXT - *at, format, args);
	va_end(args);
	*at = MIN(*at + (size_t)(n > 0 ? n : 0), PLACE_TEXT - 1);
}

int trace_wrong(const struct trace_at *at, const char *field, struct moe_error *err, const char *format, ...)
{
	char place[PLACE_TEXT], why[PLACE_TEXT];
	size_t n = 0;
	va_list args;

	append(place, &n, "%s", at->file);
	if (at->id)
		append(place, &n, ": case %.40s", at->id);
	if (at->line)
		append(place, &n, ": line %u", at->line);
	if (at->array)
		append(place, &n, ": %s", at->array);
	for (unsigned i = 0; at->array && i < at->depth; i++)
		append(place, &n, "[%zu]", at->index[i]);
	if (field)
		append(place, &n, "%s%s", at->array ? "." : ": ", field);
	va_start(args, format);
	vsnprintf(why, sizeof why, format, args);
	va_end(args);
	tame(place);
	tame(why);
	return moe_error_set(err, -EINVAL, "%s: %s", place, why);
}

const char *trace_kind(const json_t *value)
{
	static __thread char number[32];

	if (json_is_integer(value)) {
		snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
		return number;
	}
	if (json_is_real(value) && fabs(json_real_value(value)) > WHOLE_MAX) {
		snprintf(number, sizeof number, "%g", json_real_value(value));
		return number;
	}
	return !value                  ? "nothing"
	       : json_is_object(value) ? "an object"
	       : json_is_array(value)  ? "an array"
	       : json_is_string(value) ? "a string"
	       : json_is_real(value)   ? "a fraction"
				       : "true, false or null";
}

/* An integer, or as other languages write one: 16.0. */
static bool whole(const json_t *value, json_int_t *ret)
{
	const double number = json_real_value(value);

	*ret = json_is_integer(value) ? json_integer_value(value) : -1;
	if (json_is_real(value) && number >= 0 && number <= WHOLE_MAX && number == (double)(json_int_t)number)
		*ret = (json_int_t)number;
	return *ret >= 0;
}

int trace_number(const struct trace_at *at, const json_t *object, const char *field, uint64_t min, uint64_t max,
		 uint64_t *ret, struct moe_error *err)
{
	const json_t *value = json_object_get(object, field);
	json_int_t n;

	if (!whole(value, &n) || (uint64_t)n < min || (uint64_t)n > max)
		return trace_wrong(at, field, err, "%s found, %llu to %llu expected", trace_kind(value),
				   (unsigned long long)min, (unsigned long long)max);
	*ret = (uint64_t)n;
	return 0;
}

int trace_ids(const struct trace_at *at, const json_t *ids, uint32_t topk, uint32_t experts, int32_t *ret,
	      uint32_t *ret_n, struct moe_error *err)
{
	const size_t n = json_array_size(ids);

	if (!json_is_array(ids))
		return trace_wrong(at, NULL, err, "%s found, an array of ids expected", trace_kind(ids));
	if (n > topk)
		return trace_wrong(at, NULL, err, "%zu ids found, %u (topk) at most expected", n, topk);
	for (size_t k = 0; k < n; k++) {
		const json_t *one = json_array_get(ids, k);
		json_int_t id;

		if (!whole(one, &id) || id >= experts)
			return trace_wrong(at, NULL, err, "id %zu: %s found, 0 to %u expected", k, trace_kind(one),
					   experts - 1);
		for (size_t j = 0; j < k; j++)
			if (ret[j] == id)
				return trace_wrong(at, NULL, err, "expert %d twice in one token", (int)id);
		ret[k] = (int32_t)id;
	}
	*ret_n = (uint32_t)n;
	return 0;
}
