/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
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
	{"top", verb_top, 0, "top [--watch=SECONDS] [--once]", "who computes what just now, on a screen of its own"},
	{"heat", verb_heat, 1, "heat MODEL [--svg FILE]", "which experts are used: layers x experts, as a picture"},
	{"models", verb_models, 0, "models", "loaded models: shape, digest, page sizes"},
	{"sessions", verb_sessions, 0, "sessions", "attached workers"},
	{"load", verb_load, 1, "load DIR [--name NAME]", "bring a Hugging Face folder into memory"},
	{"unload", verb_unload, 1, "unload NAME", "give a model's memory back"},
	{"config", verb_config, 0, "config [--config FILE | --root DIR]",
	 "what the configuration files say, and where each value is from"},
	{"doctor", verb_doctor, 0, "doctor [--isa LEVEL]", "check this machine; print what to type for each problem"},
};

static void print_help(void)
{
	printf("Usage: moectl [--socket PATH] VERB [OPTION]...\nShow and steer moe-expertd.\n\n");
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		printf("  %-36s %s\n", verbs[i].usage, verbs[i].help);
	printf("\n  --socket PATH   the daemon's socket (default $MOE_EXPERTD_SOCKET, else %s)\n"
	       "  --json          print the daemon's JSON document\n"
	       "  --config FILE   config: read this one and no other (default: $MOE_EXPERTD_CONFIG, else those of\n"
	       "                  expertd.conf(5))\n"
	       "  --root DIR      config: read the files of the system below DIR\n"
	       "  --watch[=SECONDS] stats: again and again, every second or so often; top: how often\n"
	       "  --once          top: one frame, as text\n"
	       "  --prometheus    stats: print what Prometheus reads\n"
	       "  --svg FILE      heat: write the picture there; - is standard output\n"
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

static int run_verb(const struct arguments *arg)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		if (strcmp(arg->verb, verbs[i].name) != 0)
			continue;
		if (arg->n != verbs[i].words)
			return usage("usage", verbs[i].usage);
		return verbs[i].run(arg);
	}
	return usage("unknown verb", arg->verb);
}

int main(int argc, char **argv)
{
	struct arguments arg;
	int r;

	switch (arguments_parse(&arg, argc, argv)) {
	case ARGUMENTS_HELP:
		print_help();
		return EXIT_DONE;
	case ARGUMENTS_VERSION:
		printf("moectl %s\n", MOE_EXPERT_VERSION);
		return EXIT_DONE;
	case ARGUMENTS_WRONG:
		return usage(arg.wrong, arg.wrong_word);
	case ARGUMENTS_VERB:
		break;
	}
	signal(SIGPIPE, SIG_IGN);
	r = run_verb(&arg);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "moectl: cannot write the output: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	return r;
}
