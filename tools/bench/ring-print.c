/* SPDX-License-Identifier: MIT */
/* ring-print - the figures of `moe-bench ring` as a table, or as one JSON object. Microseconds. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "ring.h"

/* A floor below one nanosecond was not measured. */
static double over(double ns, double floor)
{
	return ns / MAX(floor, 1.0);
}

static double wake_floor(const struct ring_result *r)
{
	return MIN(r->futex.idle.p50, r->eventfd.idle.p50);
}

/* -- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *json_summary(const struct summary *s)
{
	return json_pack("{s:f, s:f, s:f}", "p50", s->p50 / 1e3, "p99", s->p99 / 1e3, "p999", s->p999 / 1e3);
}

static json_t *json_fills(const struct ring_result *r)
{
	json_t *fills = json_array();

	for (uint32_t i = 0; i < r->n_fills; i++) {
		const struct ring_fill *f = &r->fills[i];

		json_array_append_new(fills,
				      json_pack("{s:I, s:i, s:o, s:o, s:o, s:f}", "bytes", (json_int_t)f->bytes,
						"tp_size", (int)f->tp_size, "busy_us", json_summary(&f->trips.busy),
						"idle_us", json_summary(&f->trips.idle), "copy_us",
						json_summary(&f->copy), "share", over(f->copy.p50, f->trips.busy.p50)));
	}
	return fills;
}

static void print_json(const struct ring_result *r)
{
	json_t *o = json_pack(
		"{s:i, s:i, s:{s:o, s:o, s:f, s:f, s:f}, s:{s:o, s:f}, s:o, s:[{s:i, s:i, s:o, s:o}], s:{s:o, "
		"s:o, s:o, s:o, s:o}}",
		"sessions", (int)r->sessions, "beside", (int)r->beside, "nop", "busy_us", json_summary(&r->nop.busy),
		"idle_us", json_summary(&r->nop.idle), "busy_ratio", r->nop_ratio, "busy_p99_ratio",
		over(r->nop.busy.p99, r->memory.busy.p99), "idle_ratio", over(r->nop.idle.p50, wake_floor(r)), "agree",
		"busy_us", json_summary(&r->agree), "nop_ratio", over(r->agree.p50, r->nop.busy.p50), "fill",
		json_fills(r), "compute", "tokens", (int)r->tokens, "topk", (int)r->topk, "busy_us",
		json_summary(&r->compute.busy), "idle_us", json_summary(&r->compute.idle), "bare", "shm_us",
		json_summary(&r->memory.busy), "futex_us", json_summary(&r->futex.busy), "eventfd_us",
		json_summary(&r->eventfd.busy), "futex_idle_us", json_summary(&r->futex.idle), "eventfd_idle_us",
		json_summary(&r->eventfd.idle));

	if (r->module_ratio > 0)
		json_object_set_new(o, "kmod",
				    json_pack("{s:o, s:o, s:f}", "busy_us", json_summary(&r->module.busy), "idle_us",
					      json_summary(&r->module.idle), "ring_ratio", r->module_ratio));
	json_dumpf(o, stdout, JSON_REAL_PRECISION(6) | JSON_PRESERVE_ORDER);
	putchar('\n');
	json_decref(o);
}

/* -- table -------------------------------------------------------------------------------------------------------- */

static void line(const char *name, const struct summary *s, double floor, const char *unit)
{
	printf("%-34s %10.2f %10.2f %10.2f", name, s->p50 / 1e3, s->p99 / 1e3, s->p999 / 1e3);
	if (unit)
		printf("   %6.2f x %s", over(s->p50, floor), unit);
	putchar('\n');
}

static void fill_lines(const struct ring_fill *f)
{
	char name[64];

	snprintf(name, sizeof name, "bare copy of %.1f KiB", (double)f->bytes / 1024);
	line(name, &f->copy, 1, NULL);
	snprintf(name, sizeof name, "FILL of %.1f KiB", (double)f->bytes / 1024);
	line(name, &f->trips.busy, f->copy.p50, "the bare copy");
	line("  after 2 ms idle", &f->trips.idle, f->copy.p50, "the bare copy");
}

static void print_table(const struct ring_result *r)
{
	char name[64];

	if (r->beside)
		printf("beside %u programs that compute on the same CPUs\n", r->beside);
	printf("%-34s %10s %10s %10s   ratio of the p50\n", "round trip, us", "p50", "p99", "p99.9");
	line("bare shared memory", &r->memory.busy, 1, NULL);
	line("bare futex", &r->futex.busy, 1, NULL);
	line("bare eventfd", &r->eventfd.busy, 1, NULL);
	line("bare futex after 2 ms idle", &r->futex.idle, 1, NULL);
	line("bare eventfd after 2 ms idle", &r->eventfd.idle, 1, NULL);
	snprintf(name, sizeof name, "NOP, %u session%s", r->sessions, r->sessions > 1 ? "s" : "");
	line(name, &r->nop.busy, r->nop.busy.p50 / r->nop_ratio, "bare shared memory, by rounds");
	line("  after 2 ms idle", &r->nop.idle, wake_floor(r), "the better bare wake-up after idle");
	if (r->module_ratio > 0) {
		line("NOP by the kernel module", &r->module.busy, r->module.busy.p50 / r->module_ratio,
		     "a NOP by the ring, by rounds");
		line("  after 2 ms idle", &r->module.idle, r->nop.idle.p50, "the same by the ring");
	}
	line("agreement of one rank", &r->agree, r->nop.busy.p50, "a NOP");
	for (uint32_t i = 0; i < r->n_fills; i++)
		fill_lines(&r->fills[i]);
	snprintf(name, sizeof name, "COMPUTE of %u token, top %u", r->tokens, r->topk);
	line(name, &r->compute.busy, 1, NULL);
	line("  after 2 ms idle", &r->compute.idle, 1, NULL);
}

void ring_print(const struct ring_result *result, bool json)
{
	if (json)
		print_json(result);
	else
		print_table(result);
}
