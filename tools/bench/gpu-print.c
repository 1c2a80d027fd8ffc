/* SPDX-License-Identifier: MIT */
/* gpu-print - what `moe-bench device` has measured, for a person. */
#include <stdio.h>
#include <string.h>

#include "tools/bench/gpu.h"

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *word(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text ? text : "-";
}

static double best(const json_t *o, const char *key)
{
	return number(json_object_get(o, key), "best");
}

static void print_device(const json_t *d)
{
	printf("%s, compute capability %s, %.0f multiprocessors, %.1f GiB, CUDA %.0f.%.0f\n", word(d, "name"),
	       word(d, "capability"), number(d, "multiprocessors"), number(d, "memory_bytes") / (1u << 30),
	       (double)((int)number(d, "cuda") / 1000), (double)((int)number(d, "cuda") % 1000 / 10));
	if (json_is_true(json_object_get(d, "simulated")))
		printf("THE DRIVER IS SIMULATED: no figure below says anything about a GPU\n");
}

static void print_links(const json_t *rows)
{
	const json_t *each;
	size_t i;

	if (json_array_size(rows) > 0)
		printf("\nlink, GB/s        pinned   batched  zero copy   managed\n");
	json_array_foreach (rows, i, each)
		printf("  %8.2f MiB  %9.2f %9.2f  %9.2f %9.2f\n", number(each, "bytes") / (1 << 20),
		       best(each, "pinned_gbs"), best(each, "batched_gbs"), best(each, "zero_copy_gbs"),
		       best(each, "managed_gbs"));
}

static void print_times(const char *name, const json_t *us)
{
	printf("  %-14s p50 %8.2f us, p99 %8.2f us\n", name, number(us, "p50"), number(us, "p99"));
}

static void print_lane(const char *answers, const json_t *lane)
{
	if (!lane)
		return;
	printf("\nlane, empty request, %.0f steps, answers %s\n", number(lane, "steps"), answers);
	print_times("step", json_object_get(lane, "step_us"));
	print_times("its commands", json_object_get(lane, "work_us"));
	print_times("round trip", json_object_get(lane, "round_trip_us"));
	print_times("bare hop", json_object_get(lane, "bare_hop_us"));
}

static void print_answers(const json_t *rows)
{
	const json_t *each;
	size_t i;

	if (json_array_size(rows) > 0)
		printf("\nanswers, us p50       read in place   copied first\n");
	json_array_foreach (rows, i, each)
		printf("  %5.0f tokens %8.2f MiB %8.2f %14.2f\n", number(each, "tokens"),
		       number(each, "bytes") / (1 << 20), number(json_object_get(each, "read_us"), "p50"),
		       number(json_object_get(each, "copy_us"), "p50"));
}

static void print_fills(const json_t *rows)
{
	const json_t *each;
	size_t i;

	if (json_array_size(rows) > 0)
		printf("\nfills, GB/s                         copies      bare  share      step\n");
	json_array_foreach (rows, i, each)
		printf("  %-12.12s %-4s /%-2.0f %8.2f MiB %9.2f %9.2f %5.0f%% %9.2f\n", word(each, "model"),
		       word(each, "how"), number(each, "tp_size"), number(each, "bytes") / (1 << 20), best(each, "gbs"),
		       best(each, "bare_gbs"), 100 * number(each, "share"), best(each, "step_gbs"));
}

static void print_overlap(const json_t *rows)
{
	const json_t *each;
	size_t i;

	if (json_array_size(rows) > 0)
		printf("\noverlap, us    T_wait    device       CPU   T_ideal    T_step  over\n");
	json_array_foreach (rows, i, each)
		printf("  %4.0f x %.0f  %9.1f %9.1f %9.1f %9.1f %9.1f %5.2f\n", number(each, "tokens"),
		       number(each, "in_flight"), number(each, "t_wait_us"), number(each, "device_us"),
		       number(each, "cpu_us"), number(each, "t_ideal_us"), number(each, "t_step_us"),
		       number(each, "step_over_ideal"));
}

static void print_experts(const json_t *shape, const json_t *rows)
{
	const json_t *each;
	size_t i;

	if (json_array_size(rows) > 0)
		printf("\nexperts of %s (hidden %.0f, intermediate %.0f, %.0f experts, top %.0f)\n"
		       "  format         tokens  path          us      GB/s of read  TFLOP/s of dense\n",
		       word(shape, "name"), number(shape, "hidden"), number(shape, "inter"), number(shape, "experts"),
		       number(shape, "topk"));
	json_array_foreach (rows, i, each)
		printf("  %-14s %6.0f  %-7s %9.1f %9.1f %5.0f%% %9.2f %5.0f%%\n", word(each, "format"),
		       number(each, "tokens"), word(each, "path"), best(each, "us"), best(each, "weight_gbs"),
		       100 * number(each, "share_of_read"), best(each, "tflops"), 100 * number(each, "share_of_dense"));
}

static void print_notes(const char *title, const json_t *list)
{
	const json_t *each;
	size_t i;

	json_array_foreach (list, i, each)
		printf("%s%s: %s: %s\n", i ? "" : "\n", title, word(each, "what"), word(each, "why"));
}

static void print_goals(const json_t *goals)
{
	const json_t *each;
	size_t i;

	json_array_foreach (goals, i, each)
		printf("%s%-7s %s: %.3g, at %s %.3g\n", i ? "" : "\n",
		       json_is_true(json_object_get(each, "met")) ? "met" : "NOT MET", word(each, "what"),
		       number(each, "found"), word(each, "limit"), number(each, "expected"));
}

void gpu_print(const json_t *all)
{
	print_device(json_object_get(all, "device"));
	print_links(json_object_get(all, "link"));
	print_lane("read in place", json_object_get(all, "lane"));
	print_lane("copied first", json_object_get(all, "lane_copy"));
	print_answers(json_object_get(all, "answers"));
	print_fills(json_object_get(all, "fills"));
	print_overlap(json_object_get(all, "overlap"));
	print_experts(json_object_get(all, "shape"), json_object_get(all, "experts"));
	print_goals(json_object_get(all, "goals"));
	print_notes("absent", json_object_get(all, "absent"));
	print_notes("FAILED", json_object_get(all, "failed"));
}
