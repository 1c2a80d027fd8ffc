/* SPDX-License-Identifier: MIT */
/*
 * policy-loops - a policy's functions for one expert, as those of policy_ops for many.
 *
 * An event of 48 experts would be 180 calls by pointer, which cost more than lru itself does; the loops are compiled
 * with the policy, so that it is five (docs/decisions/0077-an-event-is-five-calls.md).
 */
#ifndef LIB_POLICY_LOOPS_H
#define LIB_POLICY_LOOPS_H

#include "policy/policy.h"

#define POLICY_REQUEST_EACH(name, request_one)                                                                         \
	static void name##_request_each(void *state, const int32_t *experts, const uint32_t *pairs, uint32_t n)        \
	{                                                                                                              \
		for (uint32_t i = 0; i < n; i++)                                                                       \
			request_one(state, experts[i], pairs ? pairs[i] : 1);                                          \
	}

#define POLICY_EACH(name, what, one)                                                                                   \
	static void name##_##what##_each(void *state, const int32_t *experts, uint32_t n)                              \
	{                                                                                                              \
		for (uint32_t i = 0; i < n; i++)                                                                       \
			one(state, experts[i]);                                                                        \
	}

#define POLICY_REPLACE(name, coldest_one, evict_one, admit_one)                                                        \
	static uint32_t name##_replace(void *state, const int32_t *incoming, uint32_t n, int32_t *ret_leaving)         \
	{                                                                                                              \
		for (uint32_t i = 0; i < n; i++) {                                                                     \
			if ((ret_leaving[i] = coldest_one(state)) < 0)                                                 \
				return i;                                                                              \
			evict_one(state, ret_leaving[i]);                                                              \
			admit_one(state, incoming[i]);                                                                 \
		}                                                                                                      \
		return n;                                                                                              \
	}

/* Defines name_request_each() and so on; the six functions are static ones of the same file. */
#define POLICY_LOOPS(name, request_one, hold_one, release_one, coldest_one, evict_one, admit_one)                      \
	POLICY_REQUEST_EACH(name, request_one)                                                                         \
	POLICY_EACH(name, hold, hold_one)                                                                              \
	POLICY_EACH(name, release, release_one)                                                                        \
	POLICY_REPLACE(name, coldest_one, evict_one, admit_one)

#define POLICY_LOOPS_OPS(name)                                                                                         \
	.request = name##_request_each, .hold = name##_hold_each, .release = name##_release_each,                      \
	.replace = name##_replace

#endif
