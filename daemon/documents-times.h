/* SPDX-License-Identifier: MIT */
/* documents-times - how long a session's requests waited and worked: quantiles of its histograms. */
#ifndef DAEMON_DOCUMENTS_TIMES_H
#define DAEMON_DOCUMENTS_TIMES_H

#include <jansson.h>

#include "daemon/session.h"

/* {queue, compute, copy: {count, quantiles_ns: {SHARE: ns, null without any}}}; NULL: no memory. */
json_t *documents_times(const struct session *session);

#endif
