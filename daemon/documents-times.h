/* SPDX-License-Identifier: MIT */
/* documents-times - how long steps and requests waited and worked: quantiles of histograms (times.h). */
#ifndef DAEMON_DOCUMENTS_TIMES_H
#define DAEMON_DOCUMENTS_TIMES_H

#include <jansson.h>

#include "daemon/service.h"

/* {wait, queue, compute, copy: {count, quantiles_ns: {SHARE: ns, null without any}}}; NULL: no memory. */
json_t *documents_times(const struct times *times);
json_t *documents_session_times(const struct session *session);

void times_add(struct times *to, const struct times *from);

#endif
