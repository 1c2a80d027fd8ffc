/* SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const struct verb {
	const char *name;
	int (*run)(const struct options *);
	uint32_t samples;
	const char *usage, *help;
} verbs[] = {
	{"ring", bench_ring, 20000, "ring", "round trips through the daemon, beside bare ping-pongs"},
	{"compute", bench_compute, 200, "compute [--tokens N]", "the CPU pool, beside the streaming read limit"},
	{"load", bench_load, 1, "load DIR", "loading, beside bare O_DIRECT reads"},
	{"attach", bench_attach, 100, "attach [--hold N --seconds S]",
	 "time to attach; or N idle sessions for S seconds"},
};

static void print_help(void)
{
	printf("Usage: moe-bench VERB [OPTION]...\n"
	       "What moe-expertd reaches beside this machine's own limit, measured in the same run.\n\n");
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		printf("  %-32s %s\n", verbs[i].usage, verbs[i].help);
	printf("\n  --daemon PATH   the daemon's socket (default $MOE_EXPERTD_SOCKET, else %s)\n"
	       "  --model NAME    the loaded model (default: the only one)\n"
	       "  --samples N     how many (defaults differ by verb)\n"
	       "  --json          one JSON object a line\n"
	       "  -h, --help      this text\n"
	       "  --version       version and exit\n\n"
	       "Exit status: 0 done, 1 failed, 2 usage.\n",
	       MOE_SOCKET_DEFAULT);
}

int bench_fail(const struct moe_error *err)
{
	fprintf(stderr, "moe-bench: %s\n", *err->text ? err->text : "out of memory");
	return 1;
}

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moe-bench: %s '%s'; see moe-bench --help\n", text, word);
	return 2;
}

static int parse_count(uint32_t *ret, const char *text)
{
	char *end;
	const unsigned long value = strtoul(text, &end, 10);

	if (*end || end == text || *text == '-' || value == 0 || value > 10000000)
		return -1;
	*ret = (uint32_t)value;
	return 0;
}

static int run_verb(struct options *o, const char *word)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		if (strcmp(word, verbs[i].name) != 0)
			continue;
		if (!o->samples)
			o->samples = verbs[i].samples;
		return verbs[i].run(o);
	}
	return usage("unknown verb", word);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"daemon", required_argument, NULL, 'd'},  {"model", required_argument, NULL, 'm'},
		{"samples", required_argument, NULL, 'n'}, {"tokens", required_argument, NULL, 't'},
		{"hold", required_argument, NULL, 'H'},    {"seconds", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},          {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},       {0},
	};
	struct options o = {.tokens = 1, .seconds = 10};
	int id, bad = 0;

	while ((id = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (id) {
		case 'd':
			o.socket = optarg;
			break;
		case 'm':
			o.model = optarg;
			break;
		case 'n':
			bad = parse_count(&o.samples, optarg);
			break;
		case 't':
			bad = parse_count(&o.tokens, optarg);
			break;
		case 'H':
			bad = parse_count(&o.hold, optarg);
			break;
		case 's':
			o.seconds = strtod(optarg, NULL);
			bad = !(o.seconds > 0 && o.seconds < 1e6);
			break;
		case 'j':
			o.json = true;
			break;
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf("moe-bench %s\n", MOE_EXPERT_VERSION);
			return 0;
		default:
			return 2;
		}
		if (bad)
			return usage("not a sensible number:", optarg);
	}
	if (optind == argc) {
		fprintf(stderr, "moe-bench: a verb is missing; see moe-bench --help\n");
		return 2;
	}
	o.path = optind + 1 < argc ? argv[optind + 1] : NULL;
	if (optind + 1 + (strcmp(argv[optind], "load") == 0) < argc)
		return usage("unexpected argument", argv[argc - 1]);
	return run_verb(&o, argv[optind]);
}
