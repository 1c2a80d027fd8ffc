/* SPDX-License-Identifier: MIT */
#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void write_text(struct moe_error *err, int code, const char *format, va_list args)
{
	err->code = code;
	vsnprintf(err->text, sizeof err->text, format, args);
}

int moe_error_set(struct moe_error *err, int code, const char *format, ...)
{
	va_list args;

	assert(code < 0);
	if (err) {
		va_start(args, format);
		write_text(err, code, format, args);
		va_end(args);
	}
	return code;
}

int moe_error_sys(struct moe_error *err, int code, const char *format, ...)
{
	va_list args;

	assert(code < 0);
	if (err) {
		char words[96];
		size_t used;

		va_start(args, format);
		write_text(err, code, format, args);
		va_end(args);
		used = strlen(err->text);
		snprintf(err->text + used, sizeof err->text - used, ": %s", strerror_r(-code, words, sizeof words));
	}
	return code;
}
