/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/uring.h"
#include "daemon-pid.h"
#include "doctor.h"
#include "kernels/kernels.h"
#include "moectl.h"

static const char *const verdict_names[] = {"ok", "note", "problem"};

/* What had no room has been cut off: half a letter is none, and would make all others unreadable. */
static char *cut_letter(char *text)
{
	const size_t n = strlen(text);
	size_t at = n;

	while (at > 0 && n - at < 3 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
		at--;
	if (at > 0 && (unsigned char)text[at - 1] >= 0xc0) {
		const unsigned char first = (unsigned char)text[at - 1];
		const size_t letter = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

		if (n - (at - 1) < letter)
			text[at - 1] = '\0';
	}
	return text;
}

void check(struct report *r, enum verdict verdict, const char *what, const char *fix, const char *format, ...)
{
	char found[512], name[128];
	va_list args;

	va_start(args, format);
	vsnprintf(found, sizeof found, format, args);
	va_end(args);
	snprintf(name, sizeof name, "%s", what);
	r->problems += verdict == PROBLEM;
	json_array_append_new(r->checks, json_pack("{s:o, s:s, s:o, s:o}", "check", text_json(cut_letter(name)),
						   "verdict", verdict_names[verdict], "found",
						   text_json(cut_letter(found)), "fix", text_json(fix ? fix : "")));
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
		if (cause == URING_CAUSE_SYSCTL || cause == URING_CAUSE_GROUP)
			add_sysctl(r, "io_uring", "io-uring", "kernel.io_uring_disabled = 0");
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

static void check_huge(struct report *r, const struct host_node *n, uint64_t bytes, int64_t total, int64_t free_pages)
{
	char what[64], folder[128], fix[192];
	const bool large = bytes == HOST_HUGE_1G;

	snprintf(what, sizeof what, "huge pages %s, node %d", large ? "1 GiB" : "2 MiB", n->id);
	host_hugepages_path(folder, sizeof folder, n->id, bytes);
	snprintf(fix, sizeof fix, "echo N > %s/nr_hugepages", folder);
	if (total < 0 && large && lacks_1g(r->root))
		check(r, FINE, what, NULL,
		      "none: the CPU has no pages of that size, or hides them (no pdpe1gb in /proc/cpuinfo)");
	else if (total < 0)
		check(r, NOTE, what, "mount /sys, or boot with huge pages enabled", "unknown");
	else if (total == 0)
		check(r, NOTE, what, fix, "none reserved");
	else if (free_pages < 0)
		check(r, FINE, what, NULL, "%lld reserved", (long long)total);
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
		check_huge(r, n, HOST_HUGE_1G, n->huge_1g_total, n->huge_1g_free);
		check_huge(r, n, HOST_HUGE_2M, n->huge_2m_total, n->huge_2m_free);
	}
}

static void check_memory_limit(struct report *r, const struct host *h)
{
	char size[SHOW_TEXT];

	if (h->mem_limit >= 0)
		check(r, NOTE, "cgroup memory limit", "raise memory.max of the daemon's cgroup if models do not fit",
		      "%s", show_bytes(size, (double)h->mem_limit));
	else
		check(r, FINE, "cgroup memory limit", NULL, "none");
}

/* What a daemon would pass over, and say so in its log. */
struct passed_over {
	struct report *report;
	unsigned n;
};

static void note_line(const char *text, void *userdata)
{
	struct passed_over *p = userdata;
	char what[64];

	snprintf(what, sizeof what, "configuration, remark %u", ++p->n);
	check(p->report, NOTE, what, "mend that line; moectl config tells when it is right", "%s", text);
}

/* The files of expertd.conf(5), into `s`. */
static void check_settings(struct report *r, const struct arguments *arg, struct settings *s)
{
	struct passed_over passed = {.report = r};
	struct moe_error err = {0};

	settings_init(s);
	s->warn = note_line;
	s->userdata = &passed;
	if (config_load(s, arg, &err) < 0)
		check(r, PROBLEM, "configuration", "mend that place; moectl config tells when it is right", "%s",
		      err.text);
	else
		check(r, FINE, "configuration", NULL, "%u files, %u models", s->n_files, s->n_models);
	s->warn = NULL;
}

/* What has not been printed yet. */
static void print_report(struct report *r)
{
	for (; r->printed < json_array_size(r->checks); r->printed++) {
		const json_t *line = json_array_get(r->checks, r->printed);

		printf("%-8s %-28s %s\n", get_text(line, "verdict"), get_text(line, "check"), get_text(line, "found"));
		if (*get_text(line, "fix"))
			printf("%-8s %-28s -> %s\n", "", "", get_text(line, "fix"));
	}
}

static void print_document(const struct report *r)
{
	json_t *remedies = json_array(), *document;

	for (unsigned i = 0; i < r->remedies.n; i++) {
		const struct remedy *m = &r->remedies.list[i];

		if (remedy_is_there(m))
			continue;
		json_array_append_new(remedies, json_pack("{s:o, s:o, s:o, s:o}", "check", text_json(m->check), "file",
							  text_json(m->path), "text", text_json(m->text), "next",
							  text_json(m->next)));
	}
	document = json_pack("{s:O, s:i, s:o}", "checks", r->checks, "problems", r->problems, "remedies", remedies);
	print_json(document);
	json_decref(document);
}

static int check_all(struct report *r, const struct arguments *arg, struct host *host, struct settings *s,
		     struct moe_error *err)
{
	check_kernel(r, host);
	check_io_uring(r);
	check_cpu(r, arg->isa);
	check_cores(r, host);
	check_nodes(r, host);
	check_settings(r, arg, s);
	if (check_wanted(r, host, s, arg->huge_pages, daemon_listener(arg->socket).there, err) < 0)
		return err->code;
	check_numa_balancing(r, host);
	check_memory_limit(r, host);
	check_transparent(r, host);
	check_gpu(r);
	check_module(r, s);
	/* What this machine offers is no secret while the daemon is waited for. */
	if (!arg->json) {
		print_report(r);
		fflush(stdout);
	}
	check_daemon(r, arg, host, s);
	return 0;
}

static int report(struct report *r, const struct arguments *arg)
{
	unsigned failed = 0;

	if (arg->json) {
		print_document(r);
	} else {
		print_report(r);
		if (arg->fix)
			failed = remedies_offer(&r->remedies, arg->yes);
	}
	return r->problems || failed ? EXIT_FAILED : EXIT_DONE;
}

/* What no look at the machine could change. */
static int check_arguments(const struct arguments *arg)
{
	enum isa isa;

	if (arg->isa && isa_from_name(arg->isa, &isa) == -EINVAL) {
		fprintf(stderr, "moectl: --isa %s: %s\n", arg->isa, isa_why_not(arg->isa));
		return EXIT_USAGE;
	}
	if (arg->fix && arg->json) {
		fprintf(stderr, "moectl: --fix talks to a person; --json alone lists what it would write\n");
		return EXIT_USAGE;
	}
	if (arg->yes && !arg->fix) {
		fprintf(stderr, "moectl: --yes answers what --fix asks: it needs --fix\n");
		return EXIT_USAGE;
	}
	if (arg->fix && !arg->yes && !isatty(STDIN_FILENO)) {
		fprintf(stderr, "moectl: --fix asks before it writes, and there is no terminal to ask at; --yes writes "
				"without\n");
		return EXIT_USAGE;
	}
	return EXIT_DONE;
}

int verb_doctor(const struct arguments *arg)
{
	struct moe_error err = {0};
	struct settings settings;
	struct report *r;
	struct host *host;
	int code = check_arguments(arg);

	if (code != EXIT_DONE)
		return code;
	host = calloc(1, sizeof *host);
	r = calloc(1, sizeof *r);
	if (!host || !r) {
		free(host);
		free(r);
		fprintf(stderr, "moectl: no memory\n");
		return EXIT_FAILED;
	}
	r->root = arg->root ? arg->root : "";
	r->checks = json_array();
	host_read(host, false);
	if (*r->root)
		host_look_below(host, r->root);
	if (check_all(r, arg, host, &settings, &err) < 0) {
		fprintf(stderr, "moectl: --huge-pages %s: %s\n", arg->huge_pages, err.text);
		code = EXIT_USAGE;
	} else {
		code = report(r, arg);
	}
	settings_free(&settings);
	json_decref(r->checks);
	free(host);
	free(r);
	return code;
}
