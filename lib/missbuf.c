/* SPDX-License-Identifier: MIT */
#include "missbuf.h"

#include <errno.h>
#include <stddef.h>

#include "device/device.h"

void missbuf_init(struct missbuf *buffer, uint32_t *used)
{
	*buffer = (struct missbuf){.used = used};
	atomic_init(&buffer->state, MISSBUF_FREE);
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

int missbuf_fill(struct missbuf *buffer, uint32_t use)
{
	int r;

	if (device_word_reached(buffer->used, 2 * buffer->use - 1))
		missbuf_move(buffer, MISSBUF_READY, MISSBUF_IN_USE);
	if (device_word_reached(buffer->used, 2 * buffer->use))
		missbuf_move(buffer, MISSBUF_IN_USE, MISSBUF_FREE);
	r = missbuf_move(buffer, MISSBUF_FREE, MISSBUF_FILLING);
	if (r == 0)
		buffer->use = use;
	return r;
}

enum missbuf_state missbuf_state(struct missbuf *buffer)
{
	return (enum missbuf_state)atomic_load(&buffer->state);
}
