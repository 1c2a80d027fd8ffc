/* SPDX-License-Identifier: MIT */
#include "daemon/config-help.h"

#include <stdio.h>
#include <string.h>

#include "settings/settings.h"

#define COLUMN 25 /* where the words begin */
#define WIDTH 112

/* One entry: the option, and its words broken into lines. */
static void print_entry(const char *option, const char *words)
{
	int column = printf("  %s", option);

	while (*words) {
		int n = (int)strcspn(words, " ");

		if (column >= COLUMN && column + 1 + n > WIDTH) {
			printf("\n");
			column = 0;
		}
		if (column < COLUMN)
			column += printf("%*s%.*s", COLUMN - column, "", n, words);
		else
			column += printf(" %.*s", n, words);
		words += n;
		words += strspn(words, " ");
	}
	printf("\n");
}

/* --uid-limit: one option for several settings. */
static void print_parts(const struct setting_def *d, const struct setting_def *end)
{
	const char *computed = NULL;
	char option[64], names[256] = "", defaults[512] = "", words[1024];

	snprintf(option, sizeof option, "--%s %s", d->option, d->argument);
	for (const struct setting_def *p = d; p < end; p++) {
		const size_t n = strlen(names), m = strlen(defaults);

		snprintf(names + n, sizeof names - n, "%s%s", p == d ? "" : p + 1 == end ? " or " : ", ", p->part);
		/* Those of one reason follow each other. */
		if (p->computed && p + 1 < end && (p + 1)->computed)
			snprintf(defaults + m, sizeof defaults - m, "%s%s and ", m ? ", " : "", p->part);
		else if ((computed = p->computed))
			snprintf(defaults + m, sizeof defaults - m, "%s %s", p->part, computed);
		else
			snprintf(defaults + m, sizeof defaults - m, "%s%s %s", m ? ", " : "", p->part, p->preset);
	}
	snprintf(words, sizeof words, "one user may hold so many %s (default: %s); may be repeated", names, defaults);
	print_entry(option, words);
}

static void print_setting(const struct setting_def *d)
{
	const bool optional = *d->argument == '[';
	char option[64], words[1024];

	snprintf(option, sizeof option, "%s--%s%s%s", strcmp(d->option, "verbose") == 0 ? "-v, " : "", d->option,
		 optional ? "" : " ", d->argument);
	snprintf(words, sizeof words, "%s (default%s %s)", d->help, d->preset ? "" : ":",
		 d->preset ? d->preset : d->computed);
	print_entry(option, words);
}

void config_print_help(void)
{
	const struct setting_def *const end = settings_table + SETTINGS;

	printf("Usage: moe-expertd [OPTION]...\n"
	       "Own the expert weights of Mixture-of-Experts models once for all inference processes of this "
	       "machine.\n\n");
	for (const struct setting_def *d = settings_table, *next; d < end; d = next) {
		for (next = d + 1; next < end && strcmp(next->option, d->option) == 0; next++)
			;
		if (d->part)
			print_parts(d, next);
		else
			print_setting(d);
		if (strcmp(d->option, "model") == 0)
			print_entry("--name NAME", "name of the --model before it (default: the folder's name)");
	}
	print_entry("--config FILE",
		    "read this configuration, and no other file "
		    "(default: $MOE_EXPERTD_CONFIG, else those of expertd.conf(5); with --private none)");
	print_entry("--ready-fd N", "write \"READY\\n\" to this file descriptor when all models are loaded");
	print_entry("--private",
		    "end when the parent process or standard input does; remove the socket's folder if empty");
	print_entry("--keep",
		    "stay as a keeper of the daemon's memory: start it again when it dies, and on SIGUSR2 from the "
		    "program on disk; under systemd the unit does this");
	print_entry("-h, --help", "this text");
	print_entry("--version", "version and exit");
	printf("\nFiles may say the same (expertd.conf(5)); an option goes before them. `moectl config` shows what "
	       "they "
	       "say.\n"
	       "Exit status: 0 done, 1 failed, 2 usage, 77 cannot run here (io_uring, CPU, --push-cuda).\n"
	       "Example: moe-expertd --model /models/Qwen3-30B-A3B --pages 1g\n");
}
