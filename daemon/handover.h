/* SPDX-License-Identifier: MIT */
/*
 * handover - file descriptors that outlive the daemon, by name.
 *
 * Law: one protocol, two keepers. What is put goes to whoever started the daemon: systemd's file descriptor store, or
 * the small process of `moe-expertd --keep` (daemon/keeper.h), which speaks the same protocol. The next daemon finds it
 * by name. A name is put once, until it is dropped; taking leaves it with the keeper. An open file has one name: a
 * keeper passes over a second one, without a word to the daemon. The keeper drops a socket by itself when its other end
 * has hung up; nothing else is watched, so memory stays until it is dropped.
 *
 * Nobody waits for a keeper: what it has no room for now (a service manager that is busy for seconds) waits in an
 * outbox (outbox.h), which the owner posts when the socket takes messages again. A daemon that is killed before leaves
 * the keeper with what it had until then: who is to be told that something is kept is told when it has gone
 * (handover_sent).
 *
 * A daemon that takes over drops nothing before it is known to start (handover_hold): one that cannot leaves all to the
 * next.
 *
 * A daemon without a keeper has a handover that keeps nothing, and so is NULL everywhere here.
 */
#ifndef DAEMON_HANDOVER_H
#define DAEMON_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

#define HANDOVER_FDS_MAX 8192            /* as FileDescriptorStoreMax= of the unit: what `--keep` holds */
#define HANDOVER_FDS_MODELS 256          /* of these, or a thirty-second of a smaller store: sessions leave them free */
#define HANDOVER_NAME_MAX 100            /* of [a-z0-9-.] */
#define HANDOVER_LISTEN_FD 3             /* where the keeper puts the first */
#define HANDOVER_FLUSH_NS 5000000000u    /* so long an end waits for a keeper that takes no messages */
#define HANDOVER_PATIENCE_NS 1000000000u /* and a client for the answer that it is kept */

/* All names travel in one environment string, which Linux cuts off at 128 KiB (MAX_ARG_STRLEN): a name costs its length
 * and one. */
#define HANDOVER_NAMES_BYTES_MAX (131072 - 64)

struct handover;

/* Takes over what the keeper hands back (LISTEN_FDS), close-on-exec, and connects to it (NOTIFY_SOCKET). It keeps as
 * many as FDSTORE says, which systemd sets since version 254, and the unit for older ones. 0 or -errno. */
int handover_new(struct handover **ret, struct moe_error *err);

/* In place of it, in a process that ends before: closes what it was handed. It stays kept. */
void handover_refuse(void);

/* False: put is -EOPNOTSUPP, and the rest has nothing to do. */
bool handover_keeps(const struct handover *h);

/* How many more it takes; sessions leave some of them free. */
uint32_t handover_room(const struct handover *h);

/* The fd stays the caller's. 0, -EINVAL (the name: other letters, or ".socket" at its end), -EEXIST, -ENOSPC (the
 * keeper's limit, or that of all names), -ENOMEM, -EMFILE or what sendmsg() says. That it has arrived is known after
 * handover_sync(). */
int handover_put(struct handover *h, int fd, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* 0 also when there is no such name. After an error the keeper may still have it. */
int handover_drop(struct handover *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The fd of that name from the run before: now the caller's, and still kept. -ENOENT: none, or taken already. */
int handover_take(struct handover *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The socket of a socket unit (systemd.socket(5)): an fd whose name ends in ".socket", as it does unless the unit says
 * otherwise. It is the service manager's: it is never put, dropped or discarded, and is no run before. -ENOENT. */
int handover_take_activated(struct handover *h);

/* True: something came from the run before. */
bool handover_succeeds(const struct handover *h);

/* From the first to the second of these what is dropped stays with the keeper, and its name taken; without the second
 * for good. */
void handover_hold(struct handover *h);
void handover_settle(struct handover *h);

/* Names that begin with `prefix` and are not yet taken, one a call, NULL at the end; *cursor is 0 at first. What is
 * taken, dropped or put in between does not disturb it. */
const char *handover_next(struct handover *h, const char *prefix, uint32_t *cursor);

/* To the keeper, -1: none. While messages wait, it is writable (POLLOUT) when there is room for one. */
int handover_socket(const struct handover *h);

/* Calls `waits` from put, drop or barrier whenever a message is left to wait; NULL: nobody. */
void handover_on_waiting(struct handover *h, void (*waits)(void *), void *userdata);

/* Sends what there is room for; how many messages still wait. */
uint32_t handover_post(struct handover *h);
uint32_t handover_waiting(const struct handover *h);

/* Whether what was put before `ns` (of now_ns()) has been sent: then it outlives this process. Also true of a keeper
 * that a message has waited for HANDOVER_PATIENCE_NS for: no answer waits longer. */
bool handover_sent(const struct handover *h, uint64_t ns);

/* Waits until none does, for an end that is near: 0, or -ETIMEDOUT after HANDOVER_FLUSH_NS. handover_free() does so. */
int handover_flush(struct handover *h);

/* An fd that hangs up (POLLHUP) when all messages before it have been handled. The fd or -errno. */
int handover_barrier(struct handover *h);

/* Waits for such a one, posting what waits. 0 or -errno (-ETIMEDOUT). */
int handover_sync(struct handover *h, uint64_t timeout_ns);

/* Closes what nobody has taken, and drops it. */
void handover_discard_rest(struct handover *h);

/* Tells the service manager, e.g. "READY=1". 0, also without one, or -errno: -EAGAIN, it has no room for a message now.
 * Waits for nobody. */
int handover_notify(struct handover *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How often at least the service manager wants to hear "WATCHDOG=1" from this process, in microseconds; 0: never. */
uint64_t handover_watchdog_us(const struct handover *h);

/* Closes what nobody has taken; the keeper keeps it. */
struct handover *handover_free(struct handover *h);

#endif
