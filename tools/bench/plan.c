/* SPDX-License-Identifier: MIT */
/*
 * plan - how long planning takes: the shape of DeepSeek-V3 on 32 GPUs, each policy in turn.
 *
 * Beside it, in each round, the loads of all slots are sorted once: what a planner of any kind has to do at least, and
 * the measure in which its time is told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "bench.h"
#include "placement/balance.h"
#include "placement/eplb.h"

#define LAYERS 58
#define EXPERTS 256
#define SLOTS 288
#define GROUPS 8
#define NODES 4
#define GPUS 32

enum { ROW_EPLB, ROW_EPLB_GLOBAL, ROW_DYNAMIC, ROW_SWIFT, ROW_FLASHLB, ROWS };

static const char *const names[ROWS] = {"eplb", "eplb-global", "dynamic", "swift", "flashlb"};

struct bench_plan {
	struct placement from;
	double *weight, *work;   /* [layers][experts], [layers][slots] */
	float *sorted;           /* [layers][slots] */
	double *times[ROWS + 1]; /* nanoseconds; the last: sorting */
};

/* Steep loads, the same in each run: one expert in ten does most. */
static void draw(const struct bench_plan *b)
{
	uint64_t state = 42;

	for (size_t i = 0; i < (size_t)LAYERS * EXPERTS; i++) {
		double u, power = 1;

		state = state * 6364136223846793005u + 1442695040888963407u;
		u = (double)(state >> 40) / (1 << 24);
		for (uint32_t k = 0; k < 10; k++)
			power *= u;
		b->weight[i] = (double)(uint64_t)(power * 99900) + 1;
	}
	for (size_t i = 0; i < (size_t)LAYERS * SLOTS; i++) {
		const int32_t e = b->from.at[i];

		b->work[i] = b->weight[i / SLOTS * EXPERTS + (uint32_t)e] / (e < SLOTS - EXPERTS ? 2 : 1);
	}
}

static int by_value(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static double time_sort(const struct bench_plan *b)
{
	uint64_t began;

	for (size_t i = 0; i < (size_t)LAYERS * SLOTS; i++)
		b->sorted[i] = (float)b->work[i];
	began = now_ns();
	for (uint32_t l = 0; l < LAYERS; l++)
		qsort(b->sorted + (size_t)l * SLOTS, SLOTS, sizeof *b->sorted, by_value);
	return (double)(now_ns() - began);
}

static int time_eplb(const struct bench_plan *b, bool global, double *ret, struct moe_error *err)
{
	const struct eplb_problem p = {LAYERS, EXPERTS,  SLOTS, global ? 1 : GROUPS, global ? 1 : NODES,
				       GPUS,   b->weight};
	const uint64_t began = now_ns();
	struct eplb_plan plan;
	const int r = eplb_plan(&plan, &p, err);

	*ret = (double)(now_ns() - began);
	if (r == 0)
		eplb_plan_fini(&plan);
	return r;
}

static int time_balance(const struct bench_plan *b, enum balance_policy policy, double *ret, struct moe_error *err)
{
	const struct balance_problem p = {.from = &b->from, .stages = 1, .work = b->work};
	const uint64_t began = now_ns();
	struct balance_plan plan;
	const int r = balance_plan(&plan, policy, &p, err);

	*ret = (double)(now_ns() - began);
	if (r == 0)
		balance_plan_fini(&plan);
	return r;
}

static int measure(const struct bench_plan *b, uint32_t samples, struct moe_error *err)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < samples; i++) {
		b->times[ROWS][i] = time_sort(b);
		r = time_eplb(b, false, &b->times[ROW_EPLB][i], err);
		if (r == 0)
			r = time_eplb(b, true, &b->times[ROW_EPLB_GLOBAL][i], err);
		if (r == 0)
			r = time_balance(b, BALANCE_DYNAMIC, &b->times[ROW_DYNAMIC][i], err);
		if (r == 0)
			r = time_balance(b, BALANCE_SWIFT, &b->times[ROW_SWIFT][i], err);
		if (r == 0)
			r = time_balance(b, BALANCE_FLASHLB, &b->times[ROW_FLASHLB][i], err);
	}
	return r;
}

static void print(const struct bench_plan *b, const struct options *o)
{
	const struct summary sort = summarise(b->times[ROWS], o->samples);
	json_t *rows = json_array(), *document;

	if (!o->json)
		printf("%d layers of %d experts, %d slots on %d GPUs; sorting all loads once: %.2f ms\n"
		       "POLICY        BEST MS  MEDIAN MS  IN SORTS\n",
		       LAYERS, EXPERTS, SLOTS, GPUS, sort.p50 / 1e6);
	for (uint32_t i = 0; i < ROWS; i++) {
		const struct summary s = summarise(b->times[i], o->samples);

		if (!o->json)
			printf("%-12s  %7.2f  %9.2f  %8.1f\n", names[i], s.best / 1e6, s.p50 / 1e6, s.p50 / sort.p50);
		json_array_append_new(rows, json_pack("{s:s, s:{s:f, s:f}, s:f}", "policy", names[i], "ms", "best",
						      s.best / 1e6, "median", s.p50 / 1e6, "sorts", s.p50 / sort.p50));
	}
	document = json_pack("{s:i, s:i, s:i, s:i, s:{s:f, s:f}, s:o}", "layers", LAYERS, "experts", EXPERTS, "slots",
			     SLOTS, "gpus", GPUS, "sort_ms", "best", sort.best / 1e6, "median", sort.p50 / 1e6, "rows",
			     rows);
	if (o->json) {
		json_dumpf(document, stdout, JSON_COMPACT);
		putchar('\n');
	}
	json_decref(document);
}

int bench_plan(const struct options *o)
{
	_cleanup_free_ double *weight = calloc((size_t)LAYERS * EXPERTS, sizeof *weight);
	_cleanup_free_ double *work = calloc((size_t)LAYERS * SLOTS, sizeof *work);
	_cleanup_free_ float *sorted = calloc((size_t)LAYERS * SLOTS, sizeof *sorted);
	_cleanup_free_ double *times = calloc((size_t)(ROWS + 1) * o->samples, sizeof *times);
	struct bench_plan b = {.weight = weight, .work = work, .sorted = sorted};
	struct moe_error err = {0};
	int r;

	if (!weight || !work || !sorted || !times)
		return bench_fail(&err);
	r = placement_initial(&b.from, LAYERS, GPUS, SLOTS / GPUS, EXPERTS, &err);
	if (r < 0)
		return bench_fail(&err);
	for (uint32_t i = 0; i <= ROWS; i++)
		b.times[i] = times + (size_t)i * o->samples;
	draw(&b);
	r = measure(&b, o->samples, &err);
	if (r == 0)
		print(&b, o);
	placement_fini(&b.from);
	return r < 0 ? bench_fail(&err) : 0;
}
