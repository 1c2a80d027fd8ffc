/* SPDX-License-Identifier: MIT */
/*
 * service-sessions - the sessions of a service: how they come, and how they go.
 *
 * Law: a session that is over is dead at once, and is freed only when nothing that it asked for is with the pool any
 * more; its peer, where it has one, is what ends it.
 */
#include "daemon/estate.h"
#include "daemon/guard.h"
#include "daemon/peer.h"
#include "daemon/service.h"

/* To free one takes a tenth of a millisecond: the rings have their turn between. */
#define BURIED_TURN 4

struct peer *service_peer_of(const struct service *s, const struct session *session)
{
	struct peer *peer = s->peers;

	while (peer && peer->session != session)
		peer = peer->next;
	return peer;
}

void service_cut_off(struct service *s, struct session *session, const char *why)
{
	struct peer *peer = service_peer_of(s, session);

	if (peer)
		peer_close(peer, why);
}

void service_cut_off_lost(struct service *s)
{
	s->guard_hits = guard_hits();
	for (struct session *session = s->sessions; session; session = session->next)
		if (!session->dead && session_lost_page(session))
			service_cut_off(s, session,
					"a page of its memory is lost: a hole without memory to fill it, or a fault");
}

/* Sessions of one user that name the same device have one budget for fills. */
static void share_budget(struct service *s, struct session *session)
{
	struct session *with = s->sessions;

	while (with && (with->attach.device != session->attach.device || with->uid != session->uid))
		with = with->next;
	if (with && session->attach.device)
		sched_share(&session->sched, &with->sched);
}

void service_add_session(struct service *s, struct session *session)
{
	const bool revived = session->id;

	share_budget(s, session);
	if (!revived)
		session->id = s->estate->next_session++;
	session->next = s->sessions;
	s->sessions = session;
	if (session->attach.client && s->modqueue.id)
		modqueue_join(&s->modqueue, session);
	pollset_add(&s->rings, session, revived);
	bus_note(s->bus);
}

void service_kill_session(struct service *s, struct session *session)
{
	taps_leave(&s->taps, session);
	if (!session->dead)
		drafts_see_end(&s->drafts, session);
	session_kill(session, s->sched);
	s->bury = true;
	bus_note(s->bus);
}

void service_leave_session(struct service *s, struct session *session)
{
	session_leave(session, s->sched);
	s->bury = true;
}

void service_bury(struct service *s)
{
	struct session **at = &s->sessions;
	uint32_t buried = 0;

	s->bury = false;
	while (*at) {
		struct session *session = *at;

		if (session->dead && !session_busy(session)) {
			if (buried++ == BURIED_TURN) {
				s->bury = true;
				break;
			}
			*at = session->next;
			drafts_forget(&s->drafts, session);
			heat_round_forget(&s->heat_round, session);
			sched_part(s->sched, &session->sched);
			session_free(session, s->holes);
			s->trim = !s->sessions;
		} else {
			at = &session->next;
		}
	}
	estate_keep_late(s->handover, &s->registry);
	bus_note(s->bus);
	if (!s->sessions)
		service_drained(s);
}
