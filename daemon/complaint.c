/* SPDX-License-Identifier: MIT */
#include "daemon/complaint.h"

#include <ctype.h>

static uint64_t take_unsaid(struct complaint *c, uint32_t i)
{
	const uint64_t unsaid = c->of[i].unsaid;

	c->of[i].unsaid = 0;
	c->unsaid -= unsaid;
	return unsaid;
}

/* The cause's place, or else one that is free, or that of the cause said longest ago. */
static uint32_t place_of(const struct complaint *c, uint32_t cause)
{
	uint32_t oldest = 0;

	for (uint32_t i = 0; i < COMPLAINT_CAUSES; i++)
		if (c->of[i].cause == cause)
			return i;
	for (uint32_t i = 0; i < COMPLAINT_CAUSES; i++) {
		if (!c->of[i].cause)
			return i;
		if (c->of[i].said_ns < c->of[oldest].said_ns)
			oldest = i;
	}
	return oldest;
}

/* FNV-1a. */
uint32_t complaint_cause(const char *line)
{
	uint32_t hash = 2166136261u;

	for (; *line; line++)
		if (!isdigit((unsigned char)*line))
			hash = (hash ^ (unsigned char)*line) * 16777619u;
	return hash ? hash : 1;
}

bool complaint_due(struct complaint *c, uint32_t cause, uint64_t now_ns, uint64_t *ret_unsaid)
{
	const uint32_t i = place_of(c, cause);

	if (c->of[i].cause == cause && now_ns - c->of[i].said_ns < COMPLAINT_NS) {
		c->of[i].unsaid++;
		c->unsaid++;
		return false;
	}
	c->of[i].cause = cause;
	c->of[i].said_ns = now_ns;
	*ret_unsaid = take_unsaid(c, i);
	return true;
}

uint64_t complaint_left(struct complaint *c, uint64_t now_ns)
{
	uint64_t left = 0;

	for (uint32_t i = 0; c->unsaid && i < COMPLAINT_CAUSES; i++) {
		if (!c->of[i].unsaid || now_ns - c->of[i].said_ns < COMPLAINT_NS)
			continue;
		c->of[i].said_ns = now_ns;
		left += take_unsaid(c, i);
	}
	return left;
}
