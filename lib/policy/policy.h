/* SPDX-License-Identifier: MIT */
/*
 * policy - in what order the experts of one layer leave: the replacement rule of a cache, of a tier's frames, and of
 * the simulator.
 *
 * A policy keeps an order of the cached experts from cold to hot, and nothing about slots: who calls owns the maps. An
 * expert is a member from admit() to evict() or remove(); a member that is held is never the coldest. One step of one
 * layer is one event:
 *
 *     route(), if the policy has it, with the tokens of the event
 *     hold() for each requested expert that is a member, and request() for each requested one, in ascending id
 *     coldest(), evict() and admit() for each fill, in ascending id of the incoming expert; admitted it is held
 *     release() for each of these that is held, in ascending id
 *     settle()
 *
 * Between settle() and the next request() holding and releasing is no event: frames hold what requests compute with,
 * and count nothing then. Each call costs O(1) or O(log E), but for three: lfru's and both ebco's order changes with
 * each event, and the first coldest() of one costs O(E); ebco's event costs O(U E) besides, and O(U) for each expert
 * of those whose sums are nearly the least. sieve and s3-fifo pass over what is held in their queues, once an event.
 * Nothing allocates; a state is one block of zeroed memory that the caller provides. Same calls, same answers: ranks
 * that see the same routing decide alike.
 */
#ifndef LIB_POLICY_H
#define LIB_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the router said: [tokens][topk], an id of -1 is none. */
struct policy_tokens {
	uint32_t tokens, topk;
	const int32_t *ids;
	const float *weights; /* NULL: not known, each of a token's counts the same */
};

/* More than a router gives, whose weights of a token are 1 or a few together. */
#define POLICY_WEIGHT_MAX 64

/* Of the at-th id. A tier serves many clients, and one that writes NaN or 1e38 would spoil the numbers for all of them,
 * for longer than it is there: what no router gives counts nothing. */
static inline double policy_weight(const struct policy_tokens *t, size_t at)
{
	if (!t->weights)
		return 1.0 / t->topk;
	return t->weights[at] > 0 && t->weights[at] <= POLICY_WEIGHT_MAX ? (double)t->weights[at] : 0;
}

struct policy_ops {
	const char *name;
	/* Only what stands at a token's first cache_topk positions is a request; the rest is computed but not
	 * counted. */
	bool first_choices;
	/* Fewer fills allowed than experts missing: true, those with most pairs are filled; false, the lowest ids. */
	bool by_heat;
	/* Does not make room whenever something is not held, or does not mind what is: no rule for frames. */
	bool slots_only;
	/* Its tables, and at worst an event's time, grow with the square of the experts. */
	bool by_pairs;
	/* The number in its rule, and what it may be; NULL: it has none. */
	const char *param;
	double param_value, param_min, param_max;
	bool param_whole;

	size_t (*bytes)(uint32_t n_experts, uint32_t n_slots);
	void (*init)(void *state, uint32_t n_experts, uint32_t n_slots);
	void (*tune)(void *state, double value); /* its number is another one: next after init(). NULL: it has none */

	void (*route)(void *state, const struct policy_tokens *tokens); /* NULL: it does not look at tokens */
	/* Of n experts, in the order of an event; pairs NULL: one each. */
	void (*request)(void *state, const int32_t *experts, const uint32_t *pairs, uint32_t n);
	void (*hold)(void *state, const int32_t *experts, uint32_t n);
	void (*release)(void *state, const int32_t *experts, uint32_t n);
	int32_t (*coldest)(void *state); /* the member that leaves next; -1: none may */
	void (*evict)(void *state, int32_t expert);
	void (*admit)(void *state, int32_t expert);
	/* coldest(), evict() and admit() for each of n; returns for how many somebody left, and who: ret_leaving[n]. */
	uint32_t (*replace)(void *state, const int32_t *incoming, uint32_t n, int32_t *ret_leaving);
	void (*settle)(void *state);

	/* A member is gone for other reasons: its fill failed, or its slot was given away by hand. */
	void (*remove)(void *state, int32_t expert);

	/* The order, cold to hot, into ret[n_slots]; returns how many. Between events only, and nothing is held.
	 * coldest() says after it what it would have said: at most, the keys are made that it would have made. */
	uint32_t (*sort)(void *state, int32_t *ret);
};

extern const struct policy_ops policy_lru, policy_lfu, policy_lfu_decay, policy_lfru, policy_ema, policy_mrs,
	policy_ebco_soft, policy_ebco_hard, policy_original, policy_static, policy_s3_fifo, policy_sieve, policy_arc;

/* Of clients' caches and of tiers, where nobody has chosen: docs/decisions/0076-the-rule-that-finds-most.md. */
#define POLICY_DEFAULT "ema"

/* NULL means POLICY_DEFAULT; NULL is returned for a name that does not exist. */
const struct policy_ops *policy_find(const char *name);

/* The i-th of the table, which only grows at its end; NULL: there is none. */
const struct policy_ops *policy_at(size_t i);
uint32_t policy_index(const struct policy_ops *policy);

/* "lru, lfu, ...": for error texts. frames: those only that are rules for frames. */
const char *policy_names(void);
const char *policy_frames_names(void);

#endif
