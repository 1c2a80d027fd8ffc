/* SPDX-License-Identifier: MIT */
/*
 * estate - what a daemon leaves to its successor: models and sessions as named files with the keeper (handover.h).
 *
 * A model with epoch E is mE.manifest, mE.pool0 .., mE.books (registry.h) and mE.tally1 (tally.h); a session with
 * number N is sN.journal, sN.client, sN.daemon, sN.bell, sN.data, sN.slots (arenas, where the client has registered
 * them) and sN.sock, its connection: while the keeper holds that, the client does not see that the daemon has died.
 * `service` holds the numbers that go on, and `registrar` is the file that clients lock: the same one, whoever serves.
 *
 * Law: something is kept whole or not at all. A session counts once its connection is kept, which is given last and
 * taken away first; a connection on which the daemon died between a message and its answer is closed: the client sees
 * the end, as it would without a keeper. What is not sound the successor
 * gives back, and says why; where it lacks memory or descriptors it takes nothing, and a later one may.
 */
#ifndef DAEMON_ESTATE_H
#define DAEMON_ESTATE_H

#include "daemon/handover.h"
#include "daemon/registry.h"
#include "daemon/session.h"

#define ESTATE_MAGIC 0x31747365656f6dull /* "moeest1" */
#define ESTATE_VERSION 1

/* In the file `service`. */
struct estate_page {
	uint64_t magic;
	uint32_t version, restarts;
	uint64_t next_session, next_epoch;
};

/* The page of the daemon before, or a new one; mapped for good. NULL: no memory. */
struct estate_page *estate_open(struct handover *handover, struct moe_error *err);

/* The file that clients lock while they register memory with GPU drivers, from the daemon before or new: an fd or
 * -errno. Nothing can be written into it. */
int estate_registrar(struct handover *handover, struct moe_error *err);

/* 0, or -errno and nothing is kept: entry->kept says so as well. */
int estate_keep_model(struct handover *handover, struct entry *entry);
/* What the keeper has not taken, where it has room now. */
void estate_keep_late(struct handover *handover, struct registry *registry);
/* Once more what can be lost without the model: where it is kept already nothing happens. */
void estate_keep_measured(struct handover *handover, const struct entry *entry);
void estate_drop_model(struct handover *handover, const struct entry *entry);
int estate_keep_session(struct handover *handover, const struct session *session, int sock);
int estate_keep_arena(struct handover *handover, const struct session *session, uint32_t kind, int fd);
void estate_drop_session(struct handover *handover, const struct session *session);

/* A model again from what is left of it and its books: both are taken over, also on failure. Its epoch is `epoch`. */
int estate_adopt_model(struct registry *registry, struct store_left *left, int books_fd, uint64_t epoch,
		       struct loop *loop, const struct host *host, struct moe_error *err);

/* An error for want of means: another daemon, or this one later, may succeed. */
bool estate_lacks_means(int r);

/* Takes all models that are whole into the registry. 0, or -errno for want of means. */
int estate_take_models(struct handover *handover, struct registry *registry, struct loop *loop, const struct host *host,
		       struct moe_error *err);

/* The next session and its connection, which is then the caller's: 1; 0: no more; -errno for want of means. Models come
 * first. */
int estate_take_session(struct handover *handover, struct registry *registry, struct accounts *accounts,
			struct loop *loop, struct session **ret, int *ret_sock, struct moe_error *err);

#endif
