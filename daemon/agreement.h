/* SPDX-License-Identifier: MIT */
/*
 * agreement - which phase the next step has, agreed on by the data-parallel ranks of a group (AGREE of moe_ring.h).
 *
 * Law: a round collects one wish of each member, and is decided when all are there: prefill if one wants prefill, else
 * decode if one wants that, else nothing. A member is (dp_rank, tp_rank). One that has ended, or that has kept others
 * waiting for as long as they said at their attach, is given up: the round is decided without it, those who waited are
 * told -EOWNERDEAD and who it was, and no round waits for it until it wishes again. Who is late for a round that was
 * decided without it is told -ESTALE, and joins the one that is being collected.
 *
 * A decision is in the journal of each member before the first of them is told: a daemon that is killed in between has
 * a successor that tells the others the same. So decided once, decided for all.
 *
 * A turn looks at few agreements, and only at those of which something has changed: who makes a thousand of them makes
 * nobody else's turn longer.
 */
#ifndef DAEMON_AGREEMENT_H
#define DAEMON_AGREEMENT_H

#include "daemon/loop.h"
#include "daemon/session.h"

struct agreement;

/* Of a service. */
struct agreements {
	struct agreement *first;
	struct agreement *dirty, **dirty_end; /* those with something to look at, in their order */
	struct loop *loop;
	struct source timer;
	uint64_t armed_ns; /* of the timer, 0: not */
	uint64_t due_ns;   /* when the next of them has waited for long enough, or sooner; 0: none waits */
	uint32_t turns;
};

int agreements_open(struct agreements *all, struct loop *loop, struct moe_error *err);
/* No session is left. */
void agreements_close(struct agreements *all);

/* A session that was attached with dp_size, new or of a daemon before; of the latter all join before the first turn. */
int agreement_join(struct agreements *all, struct session *session, struct moe_error *err);
/* It is dead: drops its request, if it waits. */
void agreement_part(struct session *session);

/* Of a claimed request: 0 or the completion's -errno. Then it is the agreement's until it is completed. */
int agreement_claim(struct session *session, const struct request *request);
void agreement_wait(struct session *session, struct request *request);

/* Decides what can be decided; true when there was something. */
bool agreements_turn(struct agreements *all);
/* Before the loop sleeps: it is woken when somebody has waited long enough. */
void agreements_park(struct agreements *all);

#endif
