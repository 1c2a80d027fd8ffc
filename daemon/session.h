/* SPDX-License-Identifier: MIT */
/*
 * session - one attached worker: its ring, its arenas, its leases, its requests.
 *
 * Law: a session lives as long as its connection and, after that, until the pool has given back the last request that
 * touches its memory. When the connection ends, waiting requests are cancelled and leases are dropped at once; mappings
 * and model wait for the pool. Freeing asserts that the books balance: no request, no lease.
 *
 * Everything that a session can make the daemon hold is on its charge before it is there: at the attach its regions,
 * books and queue entries; with the data arena as many bytes of ids and weights as may be copied out of it at once. So
 * no request waits or fails because of another user.
 */
#ifndef DAEMON_SESSION_H
#define DAEMON_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/accounts.h"
#include "daemon/clientmem.h"
#include "daemon/guard.h"
#include "daemon/journal.h"
#include "daemon/loop.h"
#include "daemon/pollset.h"
#include "daemon/push.h"
#include "daemon/registry.h"
#include "daemon/request.h"
#include "daemon/routing.h"
#include "daemon/scheduler.h"
#include "daemon/times.h"
#include "uapi/moe_proto.h"

/* Ids and weights that one session may have copied before it waits for the pool: four of the largest requests. */
#define SESSION_COPIED_MAX (32u << 20)
/* Of a tap: 20,000 tokens of eight experts in one layer. It has no pages until it is wanted. */
#define SESSION_TAP_BYTES (1u << 20)

struct agreement;
struct frames_user;
struct holes;
struct modqueue;

struct session {
	/* What each poll of the rings looks at, together. */
	struct session *poll_next; /* of the pollset */
	struct clientmem client;   /* the client region */
	const char *broken;        /* the client broke the ring's law: why */
	bool dead;                 /* the connection is gone, or it is left */
	bool left;                 /* dead here, but the journal and the regions are the successor's */
	bool polled;               /* or parked */
	uint32_t entries, sq_head, cq_tail, cq_head;
	uint32_t polls, visited; /* visited: of its user's visits, the last to this one */
	uint32_t alone_seq;      /* as in the page's `alone` */
	uint64_t worked_ns;      /* when it had work last, to a few turns */

	struct session *next; /* of the service's */
	uint64_t drafted;     /* the document that has its piece of it (documents.c) */
	struct session *poll_prev;
	struct pollset *pollset;
	struct holes *holes; /* for its pages, at its end */

	uint64_t id;
	pid_t pid;
	uid_t uid;
	struct charge charge;
	struct entry *entry;
	struct moe_msg_attach attach; /* as asked, checked */
	struct moe_slice *slices;     /* of each layout: the session's own, then the whole */
	uint64_t attached_ns;

	int client_fd, daemon_fd;
	struct source doorbell; /* an eventfd, heard once: session_listen */
	struct loop *loop;
	struct moe_daemon_page *page;
	uint64_t daemon_bytes;
	uint64_t stats_offset; /* in the client region ... */
	uint64_t tap_offset;   /* ... too; 0: it has no tap */
	uint64_t waits_offset; /* ... too; 0: it has no histograms */
	uint64_t heat_offset;  /* ... too; 0: it has no heat */
	uint32_t *taken;       /* in the daemon region: of its heat, by this daemon and those before; or NULL */
	struct clientmem arenas[MOE_ARENA_SLOTS + 1];
	int data_fd;               /* of the data arena: what decides something is read by a call (ringsrv-claim.c) */
	struct push_slots *device; /* in the place of the slot arena, or NULL */
	uint64_t device_bytes;     /* 0: not there yet */
	bool timeline;             /* in that memory */
	bool unkept;               /* no keeper has it: it ends with this daemon */
	struct guard *guards[MOE_ARENA_SLOTS + 1]; /* 0: of the client region; then of the arenas */

	struct request *requests, *free_requests; /* [entries] */
	uint32_t requests_used;                   /* those from here on are free as well, and were never touched */
	struct request **completed;               /* [entries]: who stands at which place of the completion queue */
	struct times *times;                      /* without what steps waited */
	uint32_t in_flight;                       /* claimed and not reaped */
	uint64_t copied, copied_max;              /* bytes of ids and weights that they hold, and may hold */
	struct routing routing;                   /* of the next one, where that takes several turns */
	uint64_t pool_ns;                         /* that the pool worked on them */
	struct sched_client sched;

	struct journal journal;
	uint32_t leases_held;
	bool unrevived;                /* of a daemon before: ringsrv_revive has not taken its leases again */
	uint64_t *hinted;              /* [n_layers][bitset of experts] */
	uint64_t *ahead;               /* of a tiered model, behind them: as of frames_hint */
	uint16_t *chances;             /* of a tiered model, behind them: [experts] of the HINT that is claimed */
	uint32_t tier_row;             /* of a tiered model: the row that was asked for last, ... */
	struct frames_user *tier_user; /* ... and who asks; or NULL */

	struct modqueue *modqueue;   /* through which it is asked, and not by its ring; or NULL */
	struct session *module_next; /* of those that are */
	uint64_t module_turn;        /* of the modqueue, in which it last had no room */

	struct agreement *agreement; /* NULL: it takes no part in one */
	uint32_t member;             /* of it */

	bool tap_made, tapped; /* the tap has pages; tap_on is set */
	uint32_t tap_head;
	uint64_t tap_lost;

	enum moe_phase phase;
	bool dummy;
	uint64_t step, ops[MOE_OP_COUNT], failed, cancelled; /* failed: but for the cancelled */
};

/* What a session is made of in the keeper's hands (handover.h); -1: not there. */
struct session_fds {
	int client, daemon, doorbell, journal, arenas[MOE_ARENA_SLOTS + 1];
};

/* Makes regions, doorbell and journal, on the user's account. `attach` has been checked against the model. */
int session_new(struct session **ret, struct entry *entry, const struct moe_msg_attach *attach,
		struct accounts *accounts, uid_t uid, struct loop *loop, struct moe_error *err);

/* The session of a daemon that is no more, by its journal: `fds` are taken over, also on failure. Its requests are
 * ringsrv_revive's; until then its charge takes what the session had before, whatever the limits are. */
int session_revive(struct session **ret, struct registry *registry, struct session_fds *fds, struct accounts *accounts,
		   uid_t uid, struct loop *loop, struct moe_error *err);

/* Maps a client's arena after checking seals, size and that all of its pages are there. */
int session_add_arena(struct session *session, uint32_t kind, int fd, uint64_t bytes, struct moe_error *err);

/* The pages of the tap, which are on the account from then on. -EDQUOT, -ENOMEM. */
int session_make_tap(struct session *session);

/* Before the client has the regions: what the model's heat is now, or what `alike` was told of it (NULL: nobody). */
void session_tell_hottest(struct session *session, const struct session *alike);

/* The connection is gone: cancels what waits and drops the leases. The model is held until session_free, because the
 * pool may still read it. */
void session_kill(struct session *session, struct sched *sched);

/* As if the daemon were killed now: journal and regions stay as they are, for its successor, and the client sees
 * nothing. In this process the rest goes as after session_kill. */
void session_leave(struct session *session, struct sched *sched);

/* The session's own slice of a row's records, and all of them. */
static inline const struct moe_slice *session_slice(const struct session *session, uint32_t row)
{
	return &session->slices[resident_layout(session->entry->model, row)];
}

static inline const struct moe_slice *session_whole(const struct session *session, uint32_t row)
{
	return session_slice(session, row) + session->entry->model->manifest->n_layouts;
}

/* Forgets what the doorbell has rung and arms it again, if it is not armed. False: the kernel takes no poll now. */
bool session_listen(struct session *session);

/* True when the kernel could not give a page of the client's memory. */
bool session_lost_page(const struct session *session);

/* True while requests are with the pool. */
static inline bool session_busy(const struct session *session)
{
	return session->in_flight > 0;
}

/* Dead and not busy. The memory goes when the kernel has let go of the doorbell; what the client may have mapped for
 * longer by way of `holes` (NULL: it stays until the client is gone), and is on the account until then. */
void session_free(struct session *session, struct holes *holes);

/* A place for the lease, in memory and on the user's account: 0, -EDQUOT or -ENOMEM. */
int session_room_for_lease(struct session *session, uint64_t lease);

#endif
