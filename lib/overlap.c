/* SPDX-License-Identifier: MIT */
#include "overlap.h"

#include <assert.h>

static void share_out(struct overlap *o, uint64_t now_ns)
{
	if (now_ns <= o->seen_ns)
		return;
	if (o->n > 0)
		o->each_ns += (now_ns - o->seen_ns) / o->n;
	o->seen_ns = now_ns;
}

uint64_t overlap_enter(struct overlap *o, uint64_t now_ns)
{
	share_out(o, now_ns);
	o->n++;
	return o->each_ns;
}

uint64_t overlap_leave(struct overlap *o, uint64_t entered, uint64_t now_ns)
{
	assert(o->n > 0 && entered <= o->each_ns);
	share_out(o, now_ns);
	o->n--;
	return o->each_ns - entered;
}
