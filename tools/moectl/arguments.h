/* SPDX-License-Identifier: MIT */
/*
 * arguments - the words of moectl's command line, sorted into options, a verb and what follows it.
 *
 * Law: pure: nothing is printed and nothing is asked here but for what getopt says of a wrong option. What verbs there
 * are, and how many words each takes, main.c knows.
 */
#ifndef TOOLS_ARGUMENTS_H
#define TOOLS_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#define ARGUMENTS_WATCH_MIN 0.05
#define ARGUMENTS_WATCH_MAX 86400
#define ARGUMENTS_OPTIONS 32 /* at most */

#define ARGUMENTS_COUNT_MAX 65536

/* Of plan. A count is 0 when it was not given. */
struct plan_arguments {
	const char *weights, *cases, *from, *map;
	uint32_t replicas, groups, nodes, gpus;
	bool transfers;
};

struct arguments {
	char given[ARGUMENTS_OPTIONS + 1]; /* a letter for each option, as in `arguments_options`, each once */
	const char *socket;
	bool json, watch, prometheus, figures, once, fix, yes, together, evictions, forget;
	double interval; /* seconds, of --watch */
	const char *name, *isa, *config, *root, *svg, *huge_pages, *verb;
	struct plan_arguments plan;
	const char *policy;                                            /* of plan and simulate */
	const char *capacity, *mode, *calibrate, *cost, *param;        /* of simulate */
	const char *model, *output, *seconds, *steps, *max_bytes, *to; /* of trace */
	int n;
	char **words;                   /* what follows the verb */
	const char *wrong, *wrong_word; /* of ARGUMENTS_WRONG: why; the word may be NULL */
};

enum arguments_result { ARGUMENTS_VERB, ARGUMENTS_HELP, ARGUMENTS_VERSION, ARGUMENTS_WRONG };

/* The name of the option with this letter, "--watch"; NULL: none has it. */
const char *arguments_option(char letter);

/* Whether it must be followed by a value. */
bool arguments_wants_value(char letter);

/* ARGUMENTS_HELP: ret->verb is the one to be explained, or NULL. */
enum arguments_result arguments_parse(struct arguments *ret, int argc, char **argv);

#endif
