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

#include "moe-error.h"

/* What a scraper is told that it gets. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* *ret is malloc'ed text. -ENOMEM; *ret is untouched then. A document may be NULL: its families have no sample. */
int metrics_write(char **ret, const json_t *status, const json_t *stats, const json_t *models, struct moe_error *err);

#endif
