/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/uring.h"
#include "doctor.h"
#include "kernels/kernels.h"
#include "moectl.h"

static const char *const verdict_names[] = {"ok", "note", "problem"};

void check(struct report *r, enum verdict verdict, const char *what, const char *fix, const char *format, ...)
{
	char found[512];
	va_list args;

	va_start(args, format);
	vsnprintf(found, sizeof found, format, args);
	va_end(args);
	r->problems += verdict == PROBLEM;
	json_array_append_new(r->checks, json_pack("{s:s, s:s, s:s, s:s}", "check", what, "verdict",
						   verdict_names[verdict], "found", found, "fix", fix ? fix : ""));
}

static void check_kernel(struct report *r, const struct host *h)
{
	int major = 0, minor = 0;

	sscanf(h->kernel, "%d.%d", &major, &minor);
	if (major * 1000 + minor >= 6001)
		check(r, FINE, "kernel", NULL, "%s", h->kernel);
	else
		check(r, NOTE, "kernel", "install Linux 6.1 or later", "%s: older than the tested floor, 6.1",
		      h->kernel);
}

/* What is there, and what this kernel has not. */
static void check_io_uring(struct report *r)
{
	const int64_t there = uring_probe();
	char found[512] = "", missing[256] = "";

	if (there < 0) {
		const enum uring_cause cause = uring_cause((int)there, found, sizeof found);

		check(r, PROBLEM, "io_uring", uring_fix(cause), "%s", found);
		return;
	}
	for (int i = 0; i < URING_FEATURES; i++) {
		char *list = there >> i & 1 ? found : missing;
		const size_t room = there >> i & 1 ? sizeof found : sizeof missing, used = strlen(list);

		snprintf(list + used, room - used, "%s%s%s%s%s", used ? ", " : "", uring_facts[i].name,
			 list == missing ? " (Linux " : "", list == missing ? uring_facts[i].since : "",
			 list == missing ? ")" : "");
	}
	check(r, FINE, "io_uring", NULL, "%s", found);
	if (*missing)
		check(r, FINE, "io_uring, not here", NULL, "%s", missing);
}

/* The level that auto takes, and whether the one asked for could run. */
static void check_cpu(struct report *r, const char *asked)
{
	const char *why;
	enum isa isa = isa_detect(&why);

	check(r, isa == ISA_REF ? PROBLEM : FINE, "cpu level",
	      isa == ISA_REF ? "a CPU with AVX2 and FMA is the minimum" : NULL, "%s: %s", kernels_get(isa)->variant,
	      why);
	if (asked && isa_from_name(asked, &isa) == 0)
		check(r, FINE, "--isa", NULL, "%s runs here: %s", asked, kernels_get(isa)->variant);
	else if (asked)
		check(r, PROBLEM, "--isa", "--isa auto", "%s: %s", asked, isa_why_not(asked));
}

/* What the pool's default number of threads comes from. */
static void check_cores(struct report *r, const struct host *h)
{
	uint32_t cores = 0, cpus = 0;

	for (uint32_t i = 0; i < h->n_nodes; i++) {
		cores += h->nodes[i].n_cores;
		cpus += h->nodes[i].n_cpus;
	}
	if (h->cpu_quota > 0 && h->cpu_quota < cores)
		check(r, NOTE, "cpu quota", "raise cpu.max of the daemon's cgroup (CPUQuota= of the unit)",
		      "%.2f CPUs' worth of time for %u cores: the pool takes %u threads", h->cpu_quota, cores,
		      h->cpu_quota < 1 ? 1 : (uint32_t)h->cpu_quota);
	else
		check(r, FINE, "cpu quota", NULL, "none that binds: one thread for each of %u cores (%u CPUs)", cores,
		      cpus);
}

static void check_huge(struct report *r, const struct host_node *n, const char *size, int64_t total, int64_t free_pages,
		       long kib)
{
	char what[64], fix[192];

	snprintf(what, sizeof what, "huge pages %s, node %d", size, n->id);
	snprintf(fix, sizeof fix, "echo N > /sys/devices/system/node/node%d/hugepages/hugepages-%ldkB/nr_hugepages",
		 n->id, kib);
	if (total < 0)
		check(r, NOTE, what, "mount /sys, or boot with huge pages enabled", "unknown");
	else if (total == 0)
		check(r, NOTE, what, fix, "none reserved");
	else
		check(r, FINE, what, NULL, "%lld reserved, %lld free", (long long)total, (long long)free_pages);
}

static void check_nodes(struct report *r, const struct host *h)
{
	for (uint32_t i = 0; i < h->n_nodes; i++) {
		const struct host_node *n = &h->nodes[i];
		char what[32], total[SHOW_TEXT], available[SHOW_TEXT];

		snprintf(what, sizeof what, "node %d", n->id);
		check(r, n->n_cpus ? FINE : NOTE, what, n->n_cpus ? NULL : "widen the CPU affinity of the daemon",
		      "%u CPUs, %s memory, %s free", n->n_cpus, show_bytes(total, (double)n->mem_total),
		      show_bytes(available, (double)n->mem_free));
		check_huge(r, n, "1 GiB", n->huge_1g_total, n->huge_1g_free, 1048576);
		check_huge(r, n, "2 MiB", n->huge_2m_total, n->huge_2m_free, 2048);
	}
}

static void check_memory(struct report *r, const struct host *h)
{
	char size[SHOW_TEXT];

	if (!*h->thp_shmem)
		check(r, NOTE, "transparent huge shmem", "mount /sys", "unknown");
	else if (strcmp(h->thp_shmem, "deny") == 0)
		check(r, NOTE, "transparent huge shmem",
		      "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "denied");
	else
		check(r, FINE, "transparent huge shmem", NULL, "shmem_enabled is %s", h->thp_shmem);
	if (h->mem_limit >= 0)
		check(r, NOTE, "cgroup memory limit", "raise memory.max of the daemon's cgroup if models do not fit",
		      "%s", show_bytes(size, (double)h->mem_limit));
	else
		check(r, FINE, "cgroup memory limit", NULL, "none");
	if (h->memlock >= 0 && h->memlock < (64 << 20))
		check(r, NOTE, "RLIMIT_MEMLOCK", "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
		      "%s: reads use unregistered buffers", show_bytes(size, (double)h->memlock));
	else
		check(r, FINE, "RLIMIT_MEMLOCK", NULL, "%s",
		      h->memlock < 0 ? "unlimited" : show_bytes(size, (double)h->memlock));
}

static void check_pools(struct report *r, const json_t *models)
{
	const json_t *model, *pool;
	size_t i, j;

	json_array_foreach (models, i, model)
		json_array_foreach (json_object_get(model, "pools"), j, pool) {
			const char *better = get_text(pool, "better");
			char what[128], size[SHOW_TEXT];

			snprintf(what, sizeof what, "pages of %s, node %.0f", get_text(model, "name"),
				 get_number(pool, "node"));
			check(r, *better ? NOTE : FINE, what, better, "rung %s, %s", get_text(pool, "rung"),
			      show_bytes(size, get_number(pool, "bytes")));
		}
}

static void check_daemon(struct report *r, const struct arguments *arg)
{
	struct moe_error err = {0};
	struct moe_client *client;
	char *text = NULL;
	json_t *models;

	if (moe_open(&client, arg->socket, &err) < 0) {
		check(r, NOTE, "daemon", "moe-expertd --model DIR", "%s", err.text);
		return;
	}
	check(r, FINE, "daemon", NULL, "answers");
	if (moe_query(client, MOE_DOCUMENT_MODELS, &text, &err) == 0) {
		models = json_loads(text, 0, NULL);
		check_pools(r, json_object_get(models, "models"));
		check_disks(r, json_object_get(models, "models"));
		json_decref(models);
		free(text);
	}
	moe_close(client);
}

static void print_report(const struct report *r)
{
	const json_t *line;
	size_t i;

	json_array_foreach (r->checks, i, line) {
		printf("%-8s %-28s %s\n", get_text(line, "verdict"), get_text(line, "check"), get_text(line, "found"));
		if (*get_text(line, "fix"))
			printf("%-8s %-28s -> %s\n", "", "", get_text(line, "fix"));
	}
}

int verb_doctor(const struct arguments *arg)
{
	struct report r = {0};
	struct host *host;
	enum isa isa;

	if (arg->isa && isa_from_name(arg->isa, &isa) == -EINVAL) {
		fprintf(stderr, "moectl: --isa %s: %s\n", arg->isa, isa_why_not(arg->isa));
		return EXIT_USAGE;
	}
	host = calloc(1, sizeof *host);
	if (!host)
		return EXIT_FAILED;
	r.checks = json_array();
	host_read(host, false);
	check_kernel(&r, host);
	check_io_uring(&r);
	check_cpu(&r, arg->isa);
	check_cores(&r, host);
	check_nodes(&r, host);
	check_numa_balancing(&r, host);
	check_memory(&r, host);
	check_transparent(&r);
	check_gpu(&r);
	check_daemon(&r, arg);
	free(host);
	if (arg->json) {
		json_t *document = json_pack("{s:O, s:i}", "checks", r.checks, "problems", r.problems);

		print_json(document);
		json_decref(document);
	} else {
		print_report(&r);
	}
	json_decref(r.checks);
	return r.problems ? EXIT_FAILED : EXIT_DONE;
}
