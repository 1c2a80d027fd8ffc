/* SPDX-License-Identifier: MIT */
/*
 * closer - closes what strangers have sent.
 *
 * Law: closing another's file may wait for ever: close(2) asks the server of a FUSE file (FLUSH) and cannot be killed
 * then, and the last close of a TCP socket waits for SO_LINGER. The reactor therefore closes itself only what has
 * seals (memfds); each other message's descriptors are closed by a thread, of which each user has a few. A user of
 * whom too many of them wait sends no further ones and makes no connection; others are not held up by that. What waits
 * in a socket and was never taken has no FLUSH, only the last close. Memory waits for nobody, but a gibibyte of it
 * takes a tenth of a second to give back: who holds the last of a large memfd gives it back in a thread, too, and so
 * does who unloads a model.
 */
#ifndef DAEMON_CLOSER_H
#define DAEMON_CLOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* False: too many of this user's wait; take no descriptors, and no connection. */
bool closer_has_room(uid_t uid);

/* From any thread, at once: they are closed, or will be. `kept`: a memfd among them has another holder here. */
void closer_take(const int *fds, size_t n, uid_t uid, bool kept);

/* A mapping of a client's memory, of which it may be the last: unmapped at once, or soon. */
void closer_unmap(void *at, uint64_t bytes);

/* Whatever takes long to free, in a thread of its own: now where there is none. What is loaded next may want the
 * memory: true while some of it is still held. From any thread. */
void closer_free(void (*work)(void *what), void *what);
bool closer_is_freeing(void);

/* The heap gives back what it does not use, now and again when all that was begun here has ended: what its threads
 * still hold keeps pages that are free but for it. From any thread. */
void closer_trim(void);

/* A connection that was shut down and may hold descriptors in unread messages. */
void closer_take_socket(int sock, uid_t uid);

/* Now and then: what no thread could be had for. */
void closer_retry(void);

/* At the daemon's end: waits until none wait any more, a second at most: on a busy machine their threads begin late. */
void closer_settle(void);

#endif
