/* SPDX-License-Identifier: MIT */
/*
 * families - the one table of figures: of each its name, type, unit, meaning, whose it is and where in the documents it
 * stands. Prometheus' text, the figures on D-Bus and those of moectl are made of it; what the documents say in numbers
 * and is no name is in it (tests/test-figures.c). A model's totals are its layers', added up.
 */
#ifndef METRICS_FAMILIES_H
#define METRICS_FAMILIES_H

#include <stddef.h>

enum metrics_type { METRICS_COUNTER, METRICS_GAUGE };

enum metrics_document { METRICS_STATUS, METRICS_STATS, METRICS_MODELS, METRICS_DOCUMENTS };

/* Where the objects are that have a sample each: the way to them, and the labels that they get on it (families.c). */
enum metrics_scope {
	METRICS_DAEMON,
	METRICS_NODE,
	METRICS_USER,
	METRICS_MODEL,
	METRICS_MODEL_NODE,
	METRICS_LAYER,
	METRICS_SESSION,
	METRICS_MODE,
	METRICS_GHOST,
	METRICS_TIME,
	METRICS_LAYER_TIME,
	METRICS_MODEL_GHOSTS,
	METRICS_MODEL_GHOST,
	METRICS_MODEL_BOUND,
	METRICS_SCOPES,
};

enum metrics_unit {
	METRICS_PLAIN,
	METRICS_NS,    /* of the document: seconds here */
	METRICS_READY, /* the text "ready" is 1, another one 0 */
	METRICS_ONE,   /* always 1: what it says is in its labels, the keys in `split`, with commas between them */
};

struct metrics_family {
	const char *name;
	enum metrics_type type;
	enum metrics_scope scope;
	const char *key;   /* of the value in the object, with dots between steps */
	const char *split; /* the value is an object, and this the label of its members; else NULL */
	enum metrics_unit unit;
	const char *help;
};

/* A word for a person. */
extern const char *const metrics_scope_names[METRICS_SCOPES];

extern const struct metrics_family metrics_families[];
extern const size_t metrics_n_families;

/* A step: through `list` of the object, whose elements or members are the next objects. */
struct metrics_step {
	const char *list;
	const char *label[2]; /* of each element; NULL: no more */
	const char *key[2];   /* its value in the element; NULL: the member's name */
};

#define METRICS_STEPS 3

struct metrics_way {
	enum metrics_document document;
	struct metrics_step step[METRICS_STEPS]; /* list NULL: no more */
};

extern const struct metrics_way metrics_ways[METRICS_SCOPES];

#endif
