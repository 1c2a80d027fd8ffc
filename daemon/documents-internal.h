/* SPDX-License-Identifier: MIT */
/* documents-internal - what the files of the documents share: each makes those of one noun. NULL: no memory. */
#ifndef DAEMON_DOCUMENTS_INTERNAL_H
#define DAEMON_DOCUMENTS_INTERNAL_H

#include <jansson.h>

#include "daemon/service.h"

static inline json_t *integer(uint64_t value)
{
	return json_integer((json_int_t)value);
}

/* A path may be any bytes; JSON is UTF-8. */
json_t *path_json(const char *path);
json_t *digest_json(const uint8_t *digest);

json_t *status_json(const struct service *service);
json_t *models_json(const struct service *service);
json_t *accounts_json(const struct service *service);
json_t *loading_json(const struct service *service); /* of the load in progress; null: there is none */

/* Of a model that is all there null. */
json_t *tier_json(const struct entry *entry);
json_t *session_json(const struct session *session);

/* The statistics in the making (documents-stats.c): begun, told of each session once, of those that have a part in it
 * (`there`) or of which only the sums are wanted; then layer by layer until there is none. NULL: no memory. */
struct stats;
struct stats *stats_begin(const struct service *service);
void stats_add_session(struct stats *stats, const struct session *session, bool there);
bool stats_add_layer(struct stats *stats);
json_t *stats_end(struct stats *stats);

#endif
