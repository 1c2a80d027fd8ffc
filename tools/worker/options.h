/* SPDX-License-Identifier: MIT */
/* options - the command line of moe-worker, parsed and checked. Strings belong to argv. */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "moe-expert.h"

enum command { COMMAND_GENERATE, COMMAND_SCORE };
enum experts_kind { EXPERTS_LOCAL, EXPERTS_CPU, EXPERTS_CACHE };
enum dense_place { DENSE_HOST, DENSE_DEVICE, DENSE_WITH_SLOTS /* replaced by one of the others */ };
enum n_copy_rule { N_COPY_COST, N_COPY_STAIRS, N_COPY_NUMBER, N_COPY_DEFAULT /* replaced by one of the others */ };

struct options {
	enum command command;
	const char *model, *experts_from, *prompt, *text, *ids, *daemon; /* NULL: not given */

	enum experts_kind experts;
	enum moe_mode mode;
	uint32_t tp, slots, cache_topk, update; /* the last two 0: the library's defaults */
	const char *policy;
	const char *device; /* NULL: the host */
	enum dense_place dense;
	bool graph;
	enum moe_fill fill;
	bool fill_given;
	uint32_t predict, ghosts;
	bool warm;
	enum moe_zero_copy zero_copy;
	enum moe_pages pages_fill;
	enum moe_answers answers;
	enum moe_share share;
	enum n_copy_rule n_copy_rule;
	uint32_t n_copy;
	uint32_t defer;
	uint32_t threads; /* of a private daemon, 0: its default */
	const char *pages, *isa;

	uint32_t tokens, window, limit; /* 0: the default, the whole text */
	uint64_t seed;
	double temperature, top_p;
	bool decode; /* score: a token a step */
	bool stats, json, verbose;
	uint64_t given; /* a bit for each option that was, for options.c */
};

static inline bool options_on_host(const struct options *options)
{
	return !options->device || strcmp(options->device, "host") == 0;
}

/* Where the routed experts come from. */
static inline const char *options_experts(const struct options *options)
{
	return options->experts_from ? options->experts_from : options->model;
}

extern const char options_help[];
extern const char *const experts_names[];
extern const char *const mode_names[];
extern const char *const dense_names[];
extern const char *const answers_names[];

/* 0; 1 when help or version was asked for and printed; -EINVAL after a line on stderr. */
int options_parse(struct options *ret, int argc, char **argv);

#endif
