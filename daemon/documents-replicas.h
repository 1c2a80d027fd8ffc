/* SPDX-License-Identifier: MIT */
/* documents-replicas - of a model's copies of hot experts: how many where, in how much memory, and what moves. */
#ifndef DAEMON_DOCUMENTS_REPLICAS_H
#define DAEMON_DOCUMENTS_REPLICAS_H

#include <jansson.h>

#include "daemon/service.h"

/* null: the model has none. */
json_t *documents_replicas(const struct service *s, const struct entry *e);

#endif
