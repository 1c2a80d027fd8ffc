/* SPDX-License-Identifier: MIT */
/*
 * documents - the JSON that `moectl` and scripts read: status, stats, models, sessions, heat. Keys are added, never
 * changed.
 *
 * A document is made in pieces, each a session's or a layer's part, so that whoever makes one (drafts.h) can do other
 * things between. Sessions that come and end meanwhile make no sum wrong: what has ended before the first piece is
 * counted then, and of each other session its own numbers once, at its piece or at its end. All of it is the
 * reactor's.
 */
#ifndef DAEMON_DOCUMENTS_H
#define DAEMON_DOCUMENTS_H

#include <jansson.h>

#include "daemon/service.h"

/* Beside those of enum moe_query: what metrics are made of. */
#define DOCUMENT_FIGURES 0u
#define DOCUMENT_KINDS 6u

/* {"status", "stats", "models"} (metrics/metrics.h); all NULL: nothing. */
struct documents {
	json_t *status, *stats, *models;
};

/* One in the making. */
struct document;

/* -EINVAL: no such document; -ENOMEM. */
int document_begin(struct document **ret, const struct service *service, uint32_t what, struct moe_error *err);
/* One more piece. False: it is whole, or there is no memory for it. */
bool document_go_on(struct document *document);
/* A session whose numbers are about to be added to those of sessions that have ended. */
void document_see_end(struct document *document, struct session *session);
/* A session is about to be freed. */
void document_forget(struct document *document, const struct session *session);
/* Frees it. *ret is what it has become, or all NULL; of one that is not of figures the one that it is. */
void document_end(struct document *document, struct documents *ret);
json_t *document_end_one(struct document *document);

/* How the text of one is written: flags of json_dumps. */
size_t document_flags(uint32_t what);

/* The figures at once. False, and nothing, where there is no memory for them. */
bool documents_make(const struct service *service, struct documents *ret);
void documents_free(struct documents *documents);

#endif
