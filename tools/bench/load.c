/* SPDX-License-Identifier: MIT */
/* load - time to load a model folder, beside O_DIRECT reads of the same files in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bench.h"

int bench_load(const struct options *o)
{
	char *path = o->path ? realpath(o->path, NULL) : NULL;
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	uint64_t bytes = 0, begin;
	double raw, rate;
	int r;

	if (!path) {
		snprintf(err.text, sizeof err.text, "load: DIR is missing or does not exist");
		return bench_fail(&err);
	}
	raw = limit_disk(path, &bytes);
	r = raw < 0 ? (int)raw : moe_open(&client, o->socket, &err);
	if (raw < 0)
		snprintf(err.text, sizeof err.text, "%s: O_DIRECT reads: %s", path, strerror(-(int)raw));
	begin = now_ns();
	if (r == 0)
		r = moe_load(client, path, "moe-bench-load", NULL, NULL, &err);
	rate = (double)bytes / (double)(now_ns() - begin);
	if (r == 0)
		r = moe_unload(client, "moe-bench-load", &err);
	if (r == 0)
		printf(o->json ? "{\"gb_per_s\": %.3f, \"limit_gb_per_s\": %.3f, \"share\": %.3f, \"bytes\": %.0f}\n"
			       : "loaded and hashed at %.2f GB/s; bare O_DIRECT reads %.2f GB/s; ratio %.2f (%.0f "
				 "bytes)\n",
		       rate, raw, rate / raw, (double)bytes);
	moe_close(client);
	free(path);
	return r < 0 ? bench_fail(&err) : 0;
}
