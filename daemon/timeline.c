/* SPDX-License-Identifier: MIT */
#include "daemon/timeline.h"

static uint64_t *word_of(struct timeline *t, uint32_t number)
{
	return &t->come[number % MOE_TIMELINE_WINDOW / 64];
}

static uint64_t bit_of(uint32_t number)
{
	return (uint64_t)1 << number % 64;
}

bool timeline_awaits(const struct timeline *t, uint32_t number)
{
	return number - t->reached - 1 < MOE_TIMELINE_WINDOW &&
	       !(t->come[number % MOE_TIMELINE_WINDOW / 64] & bit_of(number));
}

bool timeline_come(struct timeline *t, uint32_t number)
{
	const uint32_t before = t->reached;

	*word_of(t, number) |= bit_of(number);
	while (*word_of(t, t->reached + 1) & bit_of(t->reached + 1)) {
		t->reached++;
		*word_of(t, t->reached) &= ~bit_of(t->reached);
	}
	return t->reached != before;
}
