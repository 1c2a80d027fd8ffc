/* SPDX-License-Identifier: MIT */
/*
 * heat-round - the taking of what all sessions tell of their routers' choices, one session after the other.
 *
 * Law: a thousand sessions have so many counters that reading all of them takes a tenth of a second, and the rings wait
 * for none of it: a piece is a bounded number of counters, and while the rings have work a piece is followed by four
 * times its time without one. Who comes during a round has its turn in the next. The reactor's alone.
 */
#ifndef DAEMON_HEAT_ROUND_H
#define DAEMON_HEAT_ROUND_H

#include <stdbool.h>
#include <stdint.h>

struct session;

/* All zero: none is under way. */
struct heat_round {
	struct session *next; /* whose turn it is; NULL: it is over */
	uint64_t rest_ns;     /* no piece before */
};

/* Begins, also anew, with the first of a list. */
void heat_round_begin(struct heat_round *round, struct session *first);
/* A piece, at once. */
void heat_round_piece(struct heat_round *round);
/* A piece when it is time. `busy`: the rings had work just now. False: there is no round. */
bool heat_round_turn(struct heat_round *round, bool busy);
/* A session is about to be freed. */
void heat_round_forget(struct heat_round *round, const struct session *session);

#endif
