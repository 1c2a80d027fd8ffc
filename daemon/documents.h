/* SPDX-License-Identifier: MIT */
/* documents - the JSON that `moectl` and scripts read: status, stats, models, sessions, heat. Keys are added, never
 * changed. */
#ifndef DAEMON_DOCUMENTS_H
#define DAEMON_DOCUMENTS_H

#include <jansson.h>

#include "daemon/service.h"

/* What metrics are made of (metrics/metrics.h); all NULL: nothing. */
struct documents {
	json_t *status, *stats, *models;
};

/* `what` is an enum moe_query. *ret is malloc'ed text; -EINVAL: no such document. */
int document_make(const struct service *service, uint32_t what, char **ret, struct moe_error *err);

/* False, and nothing, where there is no memory for them. */
bool documents_make(const struct service *service, struct documents *ret);
void documents_free(struct documents *documents);

#endif
