/* SPDX-License-Identifier: MIT */
/*
 * simulate - runs of the simulator for moectl: which there are, what came out, and three ways to show it.
 *
 * Law: who asks for nothing of a file that names runs gets these; what is asked for goes before what the file names.
 * Results of one case are in the order of its runs.
 */
#ifndef TOOLS_MOECTL_SIMULATE_H
#define TOOLS_MOECTL_SIMULATE_H

#include <jansson.h>
#include <stdio.h>

#include "simulate/cost.h"
#include "simulate/trace-file.h"

#define RUN_LABEL 32
#define RUN_NAME 64

/* One run: belady and belady-pinned are modes whose policy has their name. */
struct run {
	const char *policy;
	enum sim_mode mode;
	const char *mode_name; /* in the document */
	json_t *params;        /* as the file has them, or --param; NULL: nobody says */
	struct sim_tuning tuning;
	char label[RUN_LABEL]; /* "kept 0.9": what is not the policy's own */
	uint32_t capacity;
	bool evictions; /* their log goes into the document */
	struct sim_counts total;
	struct cost cost; /* where rates were given */
	json_t *document; /* of --json, in the vectors' words; else NULL */
};

struct runs {
	struct run *runs;
	uint32_t n, room;
};

/* What was asked for: lists with commas, or NULL. */
struct run_wishes {
	const char *policies, *capacities, *modes;
	const json_t *params;           /* of --param: numbers by name, or NULL */
	const uint64_t *calibration;    /* [layers][experts] or NULL */
	const struct cost_rates *rates; /* or NULL */
	bool json, evictions;
};

/* What is wrong with the words whatever the trace is: 0 or -EINVAL. */
int runs_check(const struct run_wishes *wishes, struct moe_error *err);
/* The runs of one case, not yet run; -EINVAL, -ENOMEM. Frees nothing on failure: runs_free() does. */
int runs_plan(struct runs *ret, const struct trace_case *one, const struct run_wishes *wishes, struct moe_error *err);
int runs_run(struct runs *runs, const struct trace_case *one, const struct run_wishes *wishes, struct moe_error *err);
void runs_free(struct runs *runs);

/* -- simulate-params.c -------------------------------------------------------------------------------------------- */

/* "kept=0.9,period=32": an object; -EINVAL. */
int simulate_params(json_t **ret, const char *list, struct moe_error *err);

/* Those of `all` that the run's policy has go before its own, and its tuning is what they say. -EINVAL, -ENOMEM. */
int run_tune(struct run *run, const json_t *all, struct moe_error *err);

/* -EINVAL: one of `all` that no run has. */
int simulate_params_used(const struct runs *runs, const json_t *all, struct moe_error *err);

/* In the vectors' words. */
json_t *run_params(const struct run *run, bool calibrated);

/* -- simulate-cost.c ---------------------------------------------------------------------------------------------- */

/* "expert=13M,link=25,device=2000,cpu=200": bytes, then GB/s. -EINVAL. */
int simulate_rates(struct cost_rates *ret, const char *list, struct moe_error *err);
json_t *simulate_cost_document(const struct cost *cost);
void simulate_cost_table(const struct runs *runs, FILE *to);

/* -- simulate-show.c ---------------------------------------------------------------------------------------------- */

/* Distinct experts of an event: the mean of all events of all layers, and the most. */
double trace_width(const struct sim_trace *trace, uint32_t *ret_most);

/* "lru", "lru, atomic", "ema, kept 0.9". */
const char *run_name(const struct run *run, char to[RUN_NAME]);

void simulate_table(const struct runs *runs, const struct trace_case *one, const char *format, FILE *to);
json_t *simulate_document(const struct runs *runs, const struct trace_case *one, const char *format);

/* Shares found; with `costs` also, one chart for each rule, the time of a step by design. */
void simulate_chart(const struct runs *runs, const struct trace_case *one, bool costs, FILE *to);

#endif
