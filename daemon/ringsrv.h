/* SPDX-License-Identifier: MIT */
/*
 * ringsrv - the ring server: the only reader of client memory.
 *
 * Law: an entry is copied out once (64 bytes), and only the copy is looked at; ids and weights likewise. Tails and
 * heads that a client wrote are loaded once and checked before use; a client that breaks the ring's law is cut off
 * (session->broken), never trusted and never waited for. Activations are handed to the pool in place: they are data and
 * decide nothing. Per session the ring server is the only producer of the completion queue.
 */
#ifndef DAEMON_RINGSRV_H
#define DAEMON_RINGSRV_H

#include <stdbool.h>

#include "daemon/session.h"
#include "uapi/moe_trace.h"

/* Claims at most `entries` of what was published and reaps what was retired. True when there was something;
 * *ret_copied += bytes of ids and weights. */
bool ringsrv_poll(struct session *session, struct sched *sched, uint32_t entries, uint64_t *ret_copied);

/* From *at on, along poll_next, at most *polls sessions: the first where ringsrv_poll may find something, or NULL. *at
 * is then the next one, and *polls what is left. */
struct session *ringsrv_seek(struct session **at, uint32_t *polls);

/* A request that came through the kernel module, with its tag there: claims it. False: there is no room for it now, or
 * this turn has read enough. *read: bytes of routing, of all requests of the turn. */
bool ringsrv_enter(struct session *session, struct sched *sched, const struct moe_sqe *sqe, uint32_t tag, uint64_t seq,
		   uint64_t *read);

/* Whether there is something to claim; the same, looked at several times. */
bool ringsrv_pending(const struct session *session);
bool ringsrv_await(const struct session *session, uint32_t polls);

/* Reaps what was retired, before a time without polls. False: the client broke the ring's law. */
bool ringsrv_settle(struct session *session);

/* Of a session that session_revive has made: what its last daemon left of its requests, by the journal's law. A client
 * that broke the ring's law meanwhile is cut off (session->broken). */
void ringsrv_revive(struct session *session, struct sched *sched);

/* Requests whose answers the client has not taken: what it has is reaped later, when there is work. */
uint32_t ringsrv_in_flight(const struct session *session);

/* DONE -> COMPLETED, or, when the session has died, -> REAPED. */
void ringsrv_complete(struct request *request);

/* DONE -> REAPED for a request of a session that is dying; of one that is left it stays in flight in the journal. */
void ringsrv_drop(struct request *request);

/* COMPLETED -> REAPED for all that a dead client will not retire any more. */
void ringsrv_drop_completed(struct session *session);

/* A session of a tiered model (of any other: nothing) shares the frames with other users. -ENOMEM. */
int ringsrv_tier_join(struct session *session);
/* What a request of it takes while it waits for records; 0 for one of another model. */
uint64_t ringsrv_tier_bytes(const struct session *session);
void ringsrv_tier_leave(struct session *session);

/* Of a tiered model's session that is dead: its requests that wait for records, and its leases, let go of them. */
void ringsrv_tier_kill(struct session *session);

/* Whether the client must ring the doorbell. */
void ringsrv_park(struct session *session, bool parked);

/* A snapshot of the client's counters of one layer, and the adding of all of them to the model's when it leaves. */
void ringsrv_read_ghosts(const struct session *session, struct moe_ghost_stats *ret);
void ringsrv_read_stats(const struct session *session, uint32_t layer, struct moe_layer_stats *ret);
void ringsrv_retire_stats(struct session *session);

/* What the client's steps of a layer waited, added to a histogram. */
void ringsrv_add_waits(const struct session *session, uint32_t layer, struct histogram *to);
/* What the client's routers have chosen since the last call goes to the model's heat. Returns how many counters had to
 * be looked at for that, 0 where there was nothing new. */
uint32_t ringsrv_take_heat(struct session *session);

/* A snapshot of the client's counters of one mode. */
void ringsrv_read_mode(const struct session *session, enum moe_stats_mode mode, struct moe_mode_stats *ret);

/* The tap (moe_ring.h): wanted from now on, or not any more. -EOPNOTSUPP: the region has none, or the client does
 * not know of it (`knows`: it has said so elsewhere); -EDQUOT, -ENOMEM. */
int ringsrv_tap_open(struct session *session, bool knows);
void ringsrv_tap_close(struct session *session);
/* The next route, copied out and checked, into room for SESSION_TAP_BYTES. False: there is none now, or the client
 * broke the ring's law. */
bool ringsrv_tap_take(struct session *session, struct moe_route *to);
/* How many had no room, as the client says, since the last call. */
uint64_t ringsrv_tap_lost(struct session *session);

/* to += from, field by field; levels (slots, active_max) take the larger. A group counts its pairs once: only the fills
 * and times of ranks other than 0 are added (`rank0` false). */
void layer_stats_add(struct moe_layer_stats *to, const struct moe_layer_stats *from, bool rank0);

#endif
