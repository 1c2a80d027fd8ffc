/* SPDX-License-Identifier: MIT */
/*
 * policy - in what order cached experts leave: the replacement rule of one layer's cache.
 *
 * A policy keeps an order of the cached experts from cold to hot, and nothing about slots: the cache (cache.h) owns the
 * maps and calls the policy. One step of one layer is one event:
 *
 *     request() for each requested expert, in ascending id, cached or not
 *     victim() and admit() in turn for each fill, in ascending id of the incoming expert
 *     settle()
 *
 * Each call costs O(1) or O(log C) over the event and allocates nothing; a policy's state is one block of memory that
 * the cache provides. Same calls, same answers: ranks that see the same routing decide alike.
 */
#ifndef LIB_POLICY_H
#define LIB_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy_ops {
	const char *name;
	/* Only what stands at a token's first cache_topk positions is a request; the rest is computed but not
	 * counted. */
	bool first_choices;
	/* Fewer fills allowed than experts missing: true, those with most pairs are filled; false, the lowest ids. */
	bool by_heat;

	size_t (*bytes)(uint32_t n_experts, uint32_t n_slots);
	void (*init)(void *state, uint32_t n_experts, uint32_t n_slots);

	void (*request)(void *state, int32_t expert, uint32_t pairs, bool cached);
	int32_t (*victim)(void *state); /* takes the expert that leaves out of the order; -1: none may leave */
	void (*admit)(void *state, int32_t expert);
	void (*settle)(void *state);

	/* Outside of events: a cached expert is gone (its fill failed, or its slot was given away by hand). */
	void (*remove)(void *state, int32_t expert);

	/* The order, cold to hot, into ret[n_slots]; returns how many. Between events only. */
	uint32_t (*sort)(const void *state, int32_t *ret);
};

extern const struct policy_ops policy_lru;
extern const struct policy_ops policy_original;

/* NULL means "lru"; NULL is returned for a name that does not exist. */
const struct policy_ops *policy_find(const char *name);

/* "lru, original": for error texts. */
const char *policy_names(void);

#endif
