/* SPDX-License-Identifier: MIT */
/*
 * metrics - the daemon's documents as Prometheus reads them: text format 0.0.4.
 *
 * Law: pure, and of bounded size: what is exported is the table in families.c, a series for each model, layer, session,
 * mode, path, node and user that the documents have, never one for each expert. A value that a document lacks has no
 * sample; a name is never used for two things. Base units: seconds and bytes; what only grows ends in _total.
 */
#ifndef METRICS_METRICS_H
#define METRICS_METRICS_H

#include <jansson.h>

#include "metrics/families.h"
#include "moe-error.h"

/* What a scraper is told that it gets. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#define METRICS_LABELS_MAX 8
#define METRICS_LABEL_MAX 64
#define METRICS_VALUE_MAX 48

/* What it is all made of; any may be NULL: its families have no sample. */
struct metrics_documents {
	const json_t *of[METRICS_DOCUMENTS];
};

/* A label's value is a JSON text or integer, or NULL: the name of a member. */
struct metrics_label {
	char name[METRICS_LABEL_MAX];
	const json_t *value;
	const char *member;
};

struct metrics_sample {
	const struct metrics_family *family;
	const struct metrics_label *labels;
	unsigned n_labels;
	const json_t *value; /* of METRICS_ONE: NULL */
};

/* Each sample of a family that the documents have; it is gone after the call. */
void metrics_walk(const struct metrics_family *family, const struct metrics_documents *documents,
		  void (*take)(void *userdata, const struct metrics_sample *sample), void *userdata);

/* The label's value: its own text, or `to`. The sample's in base units. */
const char *metrics_label_text(const struct metrics_label *label, char *to, size_t size);
void metrics_value_text(const struct metrics_sample *sample, char *to, size_t size);

/* All families as text. *ret is malloc'ed. -ENOMEM; *ret is untouched then. */
int metrics_write(char **ret, const struct metrics_documents *documents, struct moe_error *err);

#endif
