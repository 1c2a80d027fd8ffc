/* SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "arguments.h"

static enum arguments_result wrong(struct arguments *arg, const char *text, const char *word)
{
	arg->wrong = text;
	arg->wrong_word = word;
	return ARGUMENTS_WRONG;
}

/* A whole number or a fraction, nothing behind it. */
static bool parse_interval(double *ret, const char *text)
{
	char *end;

	*ret = strtod(text, &end);
	return end != text && !*end && *ret >= ARGUMENTS_WATCH_MIN && *ret <= ARGUMENTS_WATCH_MAX;
}

/* Decimal digits and nothing else. */
static bool parse_count(uint32_t *ret, const char *text)
{
	uint32_t n = 0;

	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '9' || n > ARGUMENTS_COUNT_MAX)
			return false;
		n = 10 * n + (uint32_t)(*p - '0');
	}
	*ret = n;
	return n >= 1 && n <= ARGUMENTS_COUNT_MAX;
}

/* One of plan's. false: it is no count. */
static bool parse_plan(struct plan_arguments *plan, int id, const char *text)
{
	switch (id) {
	case 'W':
		plan->weights = text;
		return true;
	case 'C':
		plan->cases = text;
		return true;
	case 'F':
		plan->from = text;
		return true;
	case 'M':
		plan->map = text;
		return true;
	case 'T':
		plan->transfers = true;
		return true;
	case 'R':
		return parse_count(&plan->replicas, text);
	case 'G':
		return parse_count(&plan->groups, text);
	case 'N':
		return parse_count(&plan->nodes, text);
	default:
		return parse_count(&plan->gpus, text);
	}
}

static const struct option options[] = {
	{"socket", required_argument, NULL, 's'},
	{"json", no_argument, NULL, 'j'},
	{"watch", optional_argument, NULL, 'w'},
	{"name", required_argument, NULL, 'n'},
	{"isa", required_argument, NULL, 'i'},
	{"prometheus", no_argument, NULL, 'p'},
	{"figures", no_argument, NULL, 'E'},
	{"once", no_argument, NULL, 'o'},
	{"svg", required_argument, NULL, 'g'},
	{"config", required_argument, NULL, 'c'},
	{"root", required_argument, NULL, 'r'},
	{"fix", no_argument, NULL, 'f'},
	{"yes", no_argument, NULL, 'y'},
	{"huge-pages", required_argument, NULL, 'H'},
	{"policy", required_argument, NULL, 'P'},
	{"weights", required_argument, NULL, 'W'},
	{"replicas", required_argument, NULL, 'R'},
	{"groups", required_argument, NULL, 'G'},
	{"nodes", required_argument, NULL, 'N'},
	{"gpus", required_argument, NULL, 'D'},
	{"case", required_argument, NULL, 'C'},
	{"from", required_argument, NULL, 'F'},
	{"map", required_argument, NULL, 'M'},
	{"transfers", no_argument, NULL, 'T'},
	{"capacity", required_argument, NULL, 'k'},
	{"mode", required_argument, NULL, 'm'},
	{"calibrate", required_argument, NULL, 'b'},
	{"cost", required_argument, NULL, 'x'},
	{"param", required_argument, NULL, 'a'},
	{"together", no_argument, NULL, 't'},
	{"evictions", no_argument, NULL, 'e'},
	{"model", required_argument, NULL, 'L'},
	{"output", required_argument, NULL, 'O'},
	{"seconds", required_argument, NULL, 'S'},
	{"steps", required_argument, NULL, 'U'},
	{"max-bytes", required_argument, NULL, 'B'},
	{"to", required_argument, NULL, 'A'},
	{"forget", no_argument, NULL, 'z'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{0},
};

const char *arguments_option(char letter)
{
	static char name[32];

	for (size_t i = 0; options[i].name; i++) {
		if (options[i].val != letter)
			continue;
		snprintf(name, sizeof name, "--%s", options[i].name);
		return name;
	}
	return NULL;
}

bool arguments_wants_value(char letter)
{
	size_t i = 0;

	while (options[i].name && options[i].val != letter)
		i++;
	return options[i].has_arg == required_argument;
}

/* Where an option's text goes, or NULL. */
static const char **text_of(struct arguments *a, int id)
{
	const struct {
		char letter;
		const char **to;
	} texts[] = {
		{'s', &a->socket},    {'n', &a->name},       {'i', &a->isa},    {'c', &a->config},   {'r', &a->root},
		{'g', &a->svg},       {'H', &a->huge_pages}, {'P', &a->policy}, {'k', &a->capacity}, {'m', &a->mode},
		{'b', &a->calibrate}, {'L', &a->model},      {'O', &a->output}, {'S', &a->seconds},  {'U', &a->steps},
		{'B', &a->max_bytes}, {'x', &a->cost},       {'A', &a->to},     {'a', &a->param},
	};

	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].letter == id)
			return texts[i].to;
	return NULL;
}

enum arguments_result arguments_parse(struct arguments *ret, int argc, char **argv)
{
	bool help = false;
	int id;

	*ret = (struct arguments){.interval = 1};
	while ((id = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		const char **text = text_of(ret, id);

		if (id != '?' && !strchr(ret->given, id) && strlen(ret->given) < ARGUMENTS_OPTIONS)
			ret->given[strlen(ret->given)] = (char)id;
		if (text) {
			*text = optarg;
			continue;
		}
		switch (id) {
		case 'j':
			ret->json = true;
			break;
		case 'w':
			ret->watch = true;
			if (optarg && !parse_interval(&ret->interval, optarg))
				return wrong(ret, "--watch takes seconds from 0.05 to 86400", optarg);
			break;
		case 'o':
			ret->once = true;
			break;
		case 'p':
			ret->prometheus = true;
			break;
		case 'E':
			ret->figures = true;
			break;
		case 'f':
			ret->fix = true;
			break;
		case 'y':
			ret->yes = true;
			break;
		case 'W':
		case 'R':
		case 'G':
		case 'N':
		case 'D':
		case 'C':
		case 'F':
		case 'M':
		case 'T':
			if (!parse_plan(&ret->plan, id, optarg))
				return wrong(ret, "a number of replicas, groups, nodes or GPUs is 1 to 65536", optarg);
			break;
		case 't':
			ret->together = true;
			break;
		case 'e':
			ret->evictions = true;
			break;
		case 'z':
			ret->forget = true;
			break;
		case 'h':
			help = true;
			break;
		case 'V':
			return ARGUMENTS_VERSION;
		default:
			return wrong(ret, "wrong option", NULL);
		}
	}
	ret->verb = optind < argc ? argv[optind] : NULL;
	if (help)
		return ARGUMENTS_HELP;
	if (!ret->verb)
		return wrong(ret, "a verb is missing", NULL);
	if (ret->socket && !*ret->socket)
		return wrong(ret, "--socket names no socket: left out, the system's daemon is asked", NULL);
	if (ret->socket && strlen(ret->socket) >= sizeof((struct sockaddr_un *)0)->sun_path)
		return wrong(ret, "--socket takes a path of at most 107 bytes", ret->socket);
	if (ret->config && !*ret->config)
		return wrong(ret, "--config names no file: it takes a path, and left out the system's files are read",
			     NULL);
	if (ret->prometheus && (ret->json || ret->watch))
		return wrong(ret, "--prometheus prints one document of its own", ret->json ? "--json" : "--watch");
	if (ret->figures && (ret->json || ret->watch || ret->prometheus))
		return wrong(ret, "--figures is a form of its own: leave the other one out", NULL);
	if (ret->svg && ret->json)
		return wrong(ret, "--svg and --json are two forms of one thing: leave one of them out", NULL);
	if (ret->forget && (ret->svg || ret->json))
		return wrong(ret, "--forget prints nothing: leave it or the others out", ret->svg ? "--svg" : "--json");
	ret->n = argc - optind - 1;
	ret->words = argv + optind + 1;
	return ARGUMENTS_VERB;
}
