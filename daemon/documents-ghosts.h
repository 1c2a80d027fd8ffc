/* SPDX-License-Identifier: MIT */
/* documents-ghosts - of a session: what its ghost caches found, and what its statistics suggest. */
#ifndef DAEMON_DOCUMENTS_GHOSTS_H
#define DAEMON_DOCUMENTS_GHOSTS_H

#include <jansson.h>

#include "daemon/session.h"

/* Adds ghosts (null without any) and advice to the object. `total`: the session's layers added up. */
void documents_add_ghosts(json_t *object, const struct session *session, const struct moe_layer_stats *total);

#endif
