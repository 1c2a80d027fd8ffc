/* SPDX-License-Identifier: MIT */
/* recorded - routing that was recorded elsewhere: $MOE_TRACES, else ../shared/traces beside the source. */
#ifndef TESTS_RECORDED_H
#define TESTS_RECORDED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "simulate/moetrc.h"

/* False: there is no such file, or it is broken. As moetrc_parse has `together`. */
__attribute__((unused)) static bool recorded_load(struct sim_trace *ret, const char *name, bool together)
{
	const char *folder = getenv("MOE_TRACES"), *source = getenv("MOE_SOURCE");
	char path[4096];
	bool good = false;
	void *data;
	FILE *f;
	long size;

	if (folder)
		snprintf(path, sizeof path, "%s/%s", folder, name);
	else
		snprintf(path, sizeof path, "%s/../shared/traces/%s", source ? source : ".", name);
	f = fopen(path, "rb");
	if (!f)
		return false;
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	rewind(f);
	data = size > 0 ? malloc((size_t)size) : NULL;
	if (data && fread(data, 1, (size_t)size, f) == (size_t)size)
		good = moetrc_parse(ret, data, (size_t)size, together, NULL) == 0;
	free(data);
	fclose(f);
	return good;
}

#endif
