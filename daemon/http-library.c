/* SPDX-License-Identifier: MIT */
#include "daemon/http-library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

#define LIBRARY "libmicrohttpd.so.12" /* of 0.9.71 as of 1.0 */
#define ENTRY(function) {#function, offsetof(struct http_library, function)},

static const struct entry {
	const char *name;
	size_t at;
} entries[] = {HTTP_LIBRARY_FUNCTIONS(ENTRY)};

int http_library_load(struct http_library *ret, struct moe_error *err)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		moe_error_set(err, -ENOENT, "--metrics: %s; install libmicrohttpd12, or leave the option out",
			      dlerror());
		dlerror(); /* gives the memory of the words back */
		return -ENOENT;
	}
	for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
		void *function = dlsym(library, entries[i].name);

		if (!function)
			return moe_error_set(err, -ENOENT, "--metrics: %s has no %s; version 0.9.71 or later expected",
					     LIBRARY, entries[i].name);
		memcpy((uint8_t *)ret + entries[i].at, &function, sizeof(function));
	}
	return 0;
}
