/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moectl.h"

static const struct verb {
	const char *name;
	int (*run)(const struct arguments *);
	int words;
	const char *usage, *help;
} verbs[] = {
	{"status", verb_status, 0, "status", "is the daemon ready, what runs"},
	{"stats", verb_stats, 0, "stats [--watch[=SECONDS]]",
	 "pairs by path, hit rate, fills: per layer, model, session"},
	{"models", verb_models, 0, "models", "loaded models: shape, digest, page sizes"},
	{"sessions", verb_sessions, 0, "sessions", "attached workers"},
	{"load", verb_load, 1, "load DIR [--name NAME]", "bring a Hugging Face folder into memory"},
	{"unload", verb_unload, 1, "unload NAME", "give a model's memory back"},
	{"doctor", verb_doctor, 0, "doctor [--isa LEVEL]", "check this machine; print what to type for each problem"},
};

static void print_help(void)
{
	printf("Usage: moectl [--socket PATH] VERB [OPTION]...\nShow and steer moe-expertd.\n\n");
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		printf("  %-28s %s\n", verbs[i].usage, verbs[i].help);
	printf("\n  --socket PATH   the daemon's socket (default $MOE_EXPERTD_SOCKET, else %s)\n"
	       "  --json          print the daemon's JSON document\n"
	       "  --isa LEVEL     doctor: could the kernels run at it? auto, ref, avx2, avx512, amx\n"
	       "  -h, --help      this text\n"
	       "  --version       version and exit\n\n"
	       "Exit status: 0 done, 1 failed, 2 usage.\n"
	       "Example: moectl stats --watch=2\n",
	       MOE_SOCKET_DEFAULT);
}

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moectl: %s%s%s; see moectl --help\n", text, word ? ": " : "", word ? word : "");
	return EXIT_USAGE;
}

static int run_verb(struct arguments *arg, int n, char **words)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		if (strcmp(words[0], verbs[i].name) != 0)
			continue;
		if (n - 1 != verbs[i].words)
			return usage("usage", verbs[i].usage);
		arg->n = n - 1;
		arg->words = words + 1;
		return verbs[i].run(arg);
	}
	return usage("unknown verb", words[0]);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
		{"watch", optional_argument, NULL, 'w'},  {"name", required_argument, NULL, 'n'},
		{"isa", required_argument, NULL, 'i'},    {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},      {0},
	};
	struct arguments arg = {.interval = 1};
	int id;

	while ((id = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (id) {
		case 's':
			arg.socket = optarg;
			break;
		case 'j':
			arg.json = true;
			break;
		case 'w':
			arg.watch = true;
			if (optarg)
				arg.interval = strtod(optarg, NULL);
			if (!(arg.interval >= 0.05 && arg.interval <= 86400))
				return usage("--watch takes seconds from 0.05 to 86400", optarg);
			break;
		case 'n':
			arg.name = optarg;
			break;
		case 'i':
			arg.isa = optarg;
			break;
		case 'h':
			print_help();
			return EXIT_DONE;
		case 'V':
			printf("moectl %s\n", MOE_EXPERT_VERSION);
			return EXIT_DONE;
		default:
			return usage("wrong option", NULL);
		}
	}
	if (optind == argc)
		return usage("a verb is missing", NULL);
	signal(SIGPIPE, SIG_IGN);
	id = run_verb(&arg, argc - optind, argv + optind);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "moectl: cannot write the output: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	return id;
}
