/* SPDX-License-Identifier: MIT */
/*
 * exporter - answers Prometheus over HTTP: GET /metrics, and nothing else. Off unless the daemon is started with
 * --metrics.
 *
 * Law: HTTP is one thread's, libmicrohttpd's, and the service is the reactor's: the thread asks, the reactor makes the
 * documents between its turns (drafts.h) and hands them over, and the thread makes text of them. So a scraper costs the
 * reactor what `moectl stats` does, ten times a second at most, however many and however slow they are: what is younger
 * than that is given out again. Who does not get documents in time, because the reactor has ended or hangs, is answered
 * 503.
 *
 * Alternative files: exporter.c, or exporter-absent.c where the build has no libmicrohttpd.
 */
#ifndef DAEMON_EXPORTER_H
#define DAEMON_EXPORTER_H

#include <stdbool.h>

#include "daemon/documents.h"
#include "settings/exporter-address.h"

struct exporter;

/* Listens, and starts the thread, which wakes `loop` when it wants documents. mode: of a socket file. -EADDRINUSE, ...;
 * -ENOSYS: the build has no libmicrohttpd. */
int exporter_new(struct exporter **ret, const struct exporter_address *address, uint32_t mode, struct loop *loop,
		 struct moe_error *err);
/* The reactor's: true when documents are wanted now. Takes NULL. */
bool exporter_wants(const struct exporter *exporter);
/* Gives them, or that there is no memory for them (documents->json all NULL). Takes the references over. */
void exporter_give(struct exporter *exporter, struct documents *documents);
/* Ends the thread and, unless `leaves`, removes the socket file. Takes NULL, returns NULL. */
struct exporter *exporter_free(struct exporter *exporter, bool leaves);

#endif
