/* SPDX-License-Identifier: MIT */
/*
 * exports - the functions of a library that is loaded while the program runs, as a struct of pointers to them.
 *
 * A member of the struct has its function's name. Names are looked for as the library exports them: where a header
 * makes a name another one (cuda.h: cuMemAlloc is cuMemAlloc_v2), it is the other one.
 */
#ifndef BASE_EXPORTS_H
#define BASE_EXPORTS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct export
{
	const char *name;
	size_t at; /* its place in the struct */
	bool optional;
};

#define EXPORT_TEXT_OF(name) #name
#define EXPORT_TEXT(name) EXPORT_TEXT_OF(name)
#define EXPORT(type, function) {EXPORT_TEXT(function), offsetof(type, function), false},
#define EXPORT_OPTIONAL(type, function) {EXPORT_TEXT(function), offsetof(type, function), true},

/* Fills the struct at `ret`, with NULL for what is optional and missing. Returns NULL, or the name of the first needed
 * function that the library does not have. */
static inline const char *exports_find(void *library, const struct export *exports, size_t n, void *ret)
{
	for (size_t i = 0; i < n; i++) {
		void *function = dlsym(library, exports[i].name);

		if (!function && !exports[i].optional)
			return exports[i].name;
		memcpy((uint8_t *)ret + exports[i].at, &function, sizeof function);
	}
	return NULL;
}

#endif
