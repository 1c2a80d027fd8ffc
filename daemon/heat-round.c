/* SPDX-License-Identifier: MIT */
#include "daemon/heat-round.h"

#include "base/util.h"
#include "daemon/rest.h"
#include "daemon/ringsrv.h"
#include "daemon/session.h"

#define PIECE_CELLS 16384
#define LOOK_CELLS 32 /* what a look costs that finds nothing new */

void heat_round_begin(struct heat_round *r, struct session *first)
{
	r->next = first;
}

void heat_round_piece(struct heat_round *r)
{
	for (uint64_t cells = 0; r->next && cells < PIECE_CELLS; cells += LOOK_CELLS) {
		if (!r->next->dead)
			cells += ringsrv_take_heat(r->next);
		r->next = r->next->next;
	}
}

bool heat_round_turn(struct heat_round *r, bool busy)
{
	uint64_t now;

	if (!r->next)
		return false;
	now = now_ns();
	if (busy && now < r->rest_ns)
		return true;
	heat_round_piece(r);
	r->rest_ns = rest_after(now);
	return true;
}

void heat_round_forget(struct heat_round *r, const struct session *session)
{
	if (r->next == session)
		r->next = session->next;
}
