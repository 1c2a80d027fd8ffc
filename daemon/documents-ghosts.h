/* SPDX-License-Identifier: MIT */
/* documents-ghosts - of a session, and of a model: what ghost caches found, and what the statistics suggest. */
#ifndef DAEMON_DOCUMENTS_GHOSTS_H
#define DAEMON_DOCUMENTS_GHOSTS_H

#include <jansson.h>

#include "daemon/service.h"

/* Adds ghosts (null without any) and advice to the object. `total`: the session's layers added up. */
void documents_add_ghosts(json_t *object, const struct session *session, const struct moe_layer_stats *total);

/* The same of a model; `all`, `total`: of all its sessions, those that have ended as well. */
void documents_add_model_ghosts(json_t *object, const struct entry *entry, const struct model_ghosts *all,
				const struct moe_layer_stats *total);

#endif
