/* SPDX-License-Identifier: MIT */
/* documents - the JSON that `moectl` and scripts read: status, stats, models, sessions. Keys are added, never
 * changed. */
#ifndef DAEMON_DOCUMENTS_H
#define DAEMON_DOCUMENTS_H

#include "daemon/service.h"

/* `what` is an enum moe_query. *ret is malloc'ed text; -EINVAL: no such document. */
int document_make(const struct service *service, uint32_t what, char **ret, struct moe_error *err);

#endif
