/* SPDX-License-Identifier: MIT */
#include "missbuf.h"

#include <errno.h>
#include <stddef.h>

void missbuf_init(struct missbuf *buffer)
{
	atomic_init(&buffer->state, MISSBUF_FREE);
	buffer->released = NULL;
}

bool missbuf_arrow(enum missbuf_state from, enum missbuf_state to)
{
	return (unsigned)from < MISSBUF_STATES && (unsigned)to == ((unsigned)from + 1) % MISSBUF_STATES;
}

int missbuf_move(struct missbuf *buffer, enum missbuf_state from, enum missbuf_state to)
{
	int seen = (int)from;

	if (!missbuf_arrow(from, to) || !atomic_compare_exchange_strong(&buffer->state, &seen, (int)to))
		return -EPROTO;
	return 0;
}

enum missbuf_state missbuf_state(struct missbuf *buffer)
{
	return (enum missbuf_state)atomic_load(&buffer->state);
}
