/* SPDX-License-Identifier: MIT */
#include "daemon/http-library.h"

#include <errno.h>

#include "base/error.h"
#include "base/exports.h"
#include "base/util.h"

#define LIBRARY "libmicrohttpd.so.12" /* of 0.9.71 as of 1.0 */
#define ENTRY(function) EXPORT(struct http_library, function)

static const struct export functions[] = {HTTP_LIBRARY_FUNCTIONS(ENTRY)};

int http_library_load(struct http_library *ret, struct moe_error *err)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	const char *missing;

	if (!library) {
		moe_error_set(err, -ENOENT, "--metrics: %s; install libmicrohttpd12, or leave the option out",
			      dlerror());
		dlerror(); /* gives the memory of the words back */
		return -ENOENT;
	}
	missing = exports_find(library, functions, ARRAY_LEN(functions), ret);
	if (missing)
		return moe_error_set(err, -ENOENT, "--metrics: %s has no %s; version 0.9.71 or later expected", LIBRARY,
				     missing);
	return 0;
}
