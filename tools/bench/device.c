/* SPDX-License-Identifier: MIT */
/*
 * device - all that can be measured of a GPU in one run: what its link and memory carry, the library's fills, a lane's
 * round trip, the kernels of every family of formats, steps whose parts run side by side. What needs a daemon is left
 * out, and said to be, where none answers; a part that fails is noted, and the others go on.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/gpu.h"
#include "tools/patient.h"

struct goal {
	const char *what;
	double found, expected;
	bool at_most;
};

/* -- what it is --------------------------------------------------------------------------------------------------- */

static int attribute(const struct gpu *g, CUdevice_attribute what)
{
	int value = 0;

	return g->cu->cuDeviceGetAttribute(&value, what, g->device->id) == CUDA_SUCCESS ? value : 0;
}

static json_t *describe(const struct gpu *g)
{
	char name[128] = "", capability[16];
	size_t unused, total = 0;

	g->cu->cuDeviceGetName(name, sizeof name, g->device->id);
	g->cu->cuMemGetInfo(&unused, &total);
	snprintf(capability, sizeof capability, "%d.%d", attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
		 attribute(g, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
	return json_pack("{s:s, s:b, s:i, s:s, s:i, s:I, s:b}", "name", name, "simulated", g->simulated, "cuda",
			 g->cu->version, "capability", capability, "multiprocessors", (int)g->processors,
			 "memory_bytes", (json_int_t)total, "registers_read_only", g->device->reads_read_only);
}

/* -- goals -------------------------------------------------------------------------------------------------------- */

static double least(const json_t *rows, const char *key, const char *only, const char *is)
{
	double found = NAN;
	const json_t *each;
	size_t i;

	json_array_foreach (rows, i, each) {
		const double value = json_number_value(json_object_get(each, key));
		const char *word = only ? json_string_value(json_object_get(each, only)) : NULL;

		if (!only || (word && strcmp(word, is) == 0))
			found = isnan(found) ? value : MIN(found, value);
	}
	return found;
}

/* What was not measured has no goal. */
static json_t *judge(const json_t *all)
{
	const json_t *trip = json_object_get(json_object_get(all, "lane"), "round_trip_us");
	const json_t *experts = json_object_get(all, "experts");
	const struct goal goals[] = {
		{"a pull's share of bare pinned copies, the worst row",
		 least(json_object_get(all, "fills"), "share", "how", "pull"), 0.9, false},
		{"a lane's round trip, p50 in microseconds",
		 trip ? json_number_value(json_object_get(trip, "p50")) : NAN, 10, true},
		{"a step over the longest of copies, GPU and CPU, the best row",
		 least(json_object_get(all, "overlap"), "step_over_ideal", NULL, NULL), 1.1, true},
		{"decode's share of reading memory, the worst row", least(experts, "share_of_read", "path", "decode"),
		 0.8, false},
		{"prefill's share of dense bf16, the worst row", least(experts, "share_of_dense", "path", "prefill"),
		 0.6, false},
	};
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_LEN(goals); i++) {
		const struct goal *goal = &goals[i];
		const bool met = goal->at_most ? goal->found <= goal->expected : goal->found >= goal->expected;

		if (!isnan(goal->found))
			json_array_append_new(list, json_pack("{s:s, s:f, s:s, s:f, s:b}", "what", goal->what, "found",
							      goal->found, "limit", goal->at_most ? "most" : "least",
							      "expected", goal->expected, "met", met));
	}
	return list;
}

/* -- parts -------------------------------------------------------------------------------------------------------- */

static void say(const char *part, uint64_t began)
{
	fprintf(stderr, "moe-bench device: %s (after %.1f s)\n", part, (double)(now_ns() - began) / 1e9);
}

/* A part's failure is noted, once. */
static void settle(struct gpu *g, const char *part, int r, struct moe_error *err)
{
	if (r < 0) {
		gpu_note(g->failed, part, *err->text ? err->text : strerror(-r));
		fprintf(stderr, "moe-bench: %s: %s\n", part, *err->text ? err->text : strerror(-r));
	}
	*err = (struct moe_error){0};
}

static void run_with_daemon(struct gpu *g, json_t *all, uint64_t began)
{
	static const struct {
		const char *name;
		int (*run)(struct gpu *, struct moe_client *, json_t *, struct moe_error *);
	} parts[] = {{"lane", gpu_lane}, {"fills", gpu_fills}, {"overlap", gpu_overlap}};
	struct moe_client *client = NULL;
	struct moe_error err = {0};

	if (open_patiently(&client, g->o->socket, &err) < 0) {
		for (size_t i = 0; i < ARRAY_LEN(parts); i++)
			gpu_note(g->absent, parts[i].name, err.text);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		say(parts[i].name, began);
		settle(g, parts[i].name, parts[i].run(g, client, all, &err), &err);
	}
	moe_close(client);
}

static void run_all(struct gpu *g, json_t *all)
{
	const uint64_t began = now_ns();
	struct moe_error err = {0};

	say("links", began);
	settle(g, "links", gpu_links(g, all, &err), &err);
	run_with_daemon(g, all, began);
	say("experts", began);
	settle(g, "experts", gpu_experts(g, all, &err), &err);
	say("done", began);
	json_object_set_new(all, "goals", judge(all));
	json_object_set(all, "absent", g->absent);
	json_object_set(all, "failed", g->failed);
	json_object_set_new(all, "seconds", json_real((double)(now_ns() - began) / 1e9));
}

int bench_device(const struct options *o)
{
	struct moe_error err = {0};
	json_t *all = json_object();
	struct gpu g;
	int r = gpu_open(&g, o, &err);

	if (r < 0) {
		json_decref(all);
		gpu_close(&g);
		bench_fail(&err);
		return r == -EINVAL ? 2 : 1;
	}
	json_object_set_new(all, "device", describe(&g));
	run_all(&g, all);
	if (o->json) {
		json_dumpf(all, stdout, JSON_REAL_PRECISION(6));
		putchar('\n');
	} else {
		gpu_print(all);
	}
	r = json_array_size(g.failed) > 0;
	json_decref(all);
	gpu_close(&g);
	return r;
}
