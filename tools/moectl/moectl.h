/* SPDX-License-Identifier: MIT */
/*
 * moectl - shows and steers moe-expertd from the command line.
 *
 * Law: a shell, no policy: each verb is one file that asks the daemon, prints a table for a person or, with --json, the
 * daemon's document for a script. Exit status: 0 done, 1 failed, 2 usage, 77 cannot run here.
 */
#ifndef TOOLS_MOECTL_H
#define TOOLS_MOECTL_H

#include <jansson.h>
#include <stdbool.h>

#include "arguments.h"
#include "moe-expert.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* What moectl can do. */
struct verb {
	const char *name;
	int (*run)(const struct arguments *);
	int words; /* that follow it; -1: it looks after them itself */
	const char *usage, *help;
	const char *options; /* letters of those that it takes besides --socket; NULL: nothing is checked */
	const char *example; /* lines; NULL: none */
};
extern const struct verb verbs[]; /* main.c; ends with a name of NULL */

/* Each verb returns the exit status. */
int verb_status(const struct arguments *arg);
int verb_stats(const struct arguments *arg);
int verb_models(const struct arguments *arg);
int verb_sessions(const struct arguments *arg);
int verb_load(const struct arguments *arg);
int verb_unload(const struct arguments *arg);
int verb_set_policy(const struct arguments *arg);
int verb_trace(const struct arguments *arg);
int verb_config(const struct arguments *arg);
int verb_top(const struct arguments *arg);
int verb_heat(const struct arguments *arg);
int verb_completion(const struct arguments *arg);
int verb_simulate(const struct arguments *arg);
int verb_doctor(const struct arguments *arg);
int verb_plan(const struct arguments *arg);
/* moectl trace convert --to expert-map: the placement of `loads` (taken over), which are named `name`, by the
 * options of plan, into `path`. Returns the exit status. */
int plan_write_map(const struct arguments *arg, const char *name, json_t *loads, const char *path);

/* -- config.c: what a daemon would be configured by ---------------------------------------------------------------- */

struct settings;
/* The files that the command line means, with which a daemon would start: 0 or -errno. */
int config_load(struct settings *s, const struct arguments *arg, struct moe_error *err);

/* -- ask.c: one question to the daemon ---------------------------------------------------------------------------- */

/* Prints "moectl: TEXT" to stderr and returns EXIT_FAILED. */
int fail(const struct moe_error *err);

/* The parsed document, or NULL after fail(): also when the daemon does not answer in time. */
json_t *ask(const struct arguments *arg, enum moe_document what);
/* The same without a word to stderr; -ETIMEDOUT: somebody is there, and there was no answer in time. */
json_t *ask_quietly(const struct arguments *arg, enum moe_document what, struct moe_error *err);
/* The same as long as it takes. */
json_t *ask_for_ever(const struct arguments *arg, enum moe_document what, struct moe_error *err);

/* What is done at once. */
typedef int daemon_order(struct moe_client *client, const struct arguments *arg, struct moe_error *err);
/* Returns the exit status, after fail() if need be. */
int tell(const struct arguments *arg, daemon_order *order);

/* What takes as long as it takes. Where the daemon is silent meanwhile, this is said to stderr, once. */
struct long_wait {
	const struct arguments *arg;
	const char *leave; /* "Ctrl-C ...": what it does */
	bool terminal;     /* a line of progress is wiped away first */
	bool told;
};
/* moe_open; `wait` outlives the client. */
int open_for_long(struct moe_client **ret, struct long_wait *wait, struct moe_error *err);

/* -- show.c: values for a person ---------------------------------------------------------------------------------- */

double get_number(const json_t *object, const char *key);
const char *get_text(const json_t *object, const char *key);

#define SHOW_TEXT 32
/* Powers of 1000, as disks and links are measured: "1.25 GB". Returns `to`. */
char *show_bytes(char to[SHOW_TEXT], double bytes);
char *show_time(char to[SHOW_TEXT], double nanoseconds);
char *show_share(char to[SHOW_TEXT], double part, double whole);

#define SHOW_LOADING (4 * SHOW_TEXT)
/* How far a load is: "making memory for 1.25 GB", "34.0 % of 1.25 GB, 2.10 s to go". Returns `to`. */
char *show_loading(char to[SHOW_LOADING], const json_t *loading);

/* What a tiered model's frames have done; nothing of a model that is all there (null). */
void print_tier(const char *indent, const json_t *tier);
/* A model's copies of hot experts, if it may have any. */
void print_replicas(const char *indent, const json_t *replicas);

/* Whether standard output is a terminal that shows colours, and NO_COLOR does not forbid them. */
bool colours_wanted(void);

/* NULL, where there was no memory for it, ends moectl as failed. */
void print_json(const json_t *document);

/* Of names and words of others, which may be any bytes: '?' stands for what is not UTF-8. NULL becomes null. */
json_t *text_json(const char *text);

#endif
