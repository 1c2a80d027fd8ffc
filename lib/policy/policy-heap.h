/* SPDX-License-Identifier: MIT */
/*
 * policy-heap - members by a key, the least at the root, of equal keys the lowest id; any is found at once. Each
 * has four below it, so that a hundred are four deep.
 *
 * What is held may stay where it is: whoever looks for the coldest puts it aside when it stands at the root, and not
 * before, so that holding and releasing what nobody comes across costs nothing. A key in the heap may be less than what
 * the member's key is by now, never more: then the root is sunk by its new key before it is believed.
 *
 * The heap owns no memory. No key is negative or NaN, so that the bits of two compare as the numbers do.
 */
#ifndef LIB_POLICY_HEAP_H
#define LIB_POLICY_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define POLICY_HEAP_OUT UINT32_MAX

#define POLICY_HEAP_WAYS 4

struct policy_heap_entry {
	double key;
	int64_t expert;
};

struct policy_heap {
	struct policy_heap_entry *entry; /* [n_slots] */
	uint32_t *place;                 /* [n_experts], POLICY_HEAP_OUT */
	bool *held;                      /* [n_experts] */
	uint32_t n;
};

/* Of one expert, and of one slot. */
#define POLICY_HEAP_EXPERT_BYTES (sizeof(uint32_t) + sizeof(bool))
#define POLICY_HEAP_SLOT_BYTES sizeof(struct policy_heap_entry)

/* `memory` is aligned to 8 and has room for all of that. */
static inline void policy_heap_init(struct policy_heap *h, void *memory, uint32_t n_experts, uint32_t n_slots)
{
	h->entry = memory;
	h->place = (uint32_t *)(h->entry + n_slots);
	h->held = (bool *)(h->place + n_experts);
	h->n = 0;
	for (uint32_t i = 0; i < n_experts; i++) {
		h->place[i] = POLICY_HEAP_OUT;
		h->held[i] = false;
	}
}

/* Key and id in one number, so that the comparison needs no branch: which way it goes cannot be foreseen. */
static inline bool policy_heap_before(struct policy_heap_entry a, struct policy_heap_entry b)
{
	uint64_t left, right;

	memcpy(&left, &a.key, sizeof left);
	memcpy(&right, &b.key, sizeof right);
	return ((unsigned __int128)left << 64 | (uint64_t)a.expert) <
	       ((unsigned __int128)right << 64 | (uint64_t)b.expert);
}

static inline void policy_heap_put(struct policy_heap *h, uint32_t at, struct policy_heap_entry entry)
{
	h->entry[at] = entry;
	h->place[entry.expert] = at;
}

/* `moved` goes to `at` or above, not above `top`. */
static inline void policy_heap_rise(struct policy_heap *h, uint32_t at, uint32_t top, struct policy_heap_entry moved)
{
	while (at > top && policy_heap_before(moved, h->entry[(at - 1) / POLICY_HEAP_WAYS])) {
		policy_heap_put(h, at, h->entry[(at - 1) / POLICY_HEAP_WAYS]);
		at = (at - 1) / POLICY_HEAP_WAYS;
	}
	policy_heap_put(h, at, moved);
}

/* The least of those below `at`, of which there is one at least. */
static inline uint32_t policy_heap_child(const struct policy_heap *h, uint32_t at)
{
	const struct policy_heap_entry *e = h->entry;
	const uint32_t first = POLICY_HEAP_WAYS * at + 1;
	uint32_t low = first, high = first + 2;

	if (first + POLICY_HEAP_WAYS > h->n) {
		for (uint32_t i = first + 1; i < h->n; i++)
			low = policy_heap_before(e[i], e[low]) ? i : low;
		return low;
	}
	low += policy_heap_before(e[first + 1], e[first]);
	high += policy_heap_before(e[first + 3], e[first + 2]);
	return policy_heap_before(e[high], e[low]) ? high : low;
}

/* `moved` goes to `at` or below: first all the way down, since what sinks was a leaf or is as great as one mostly. */
static inline void policy_heap_sink(struct policy_heap *h, uint32_t at, struct policy_heap_entry moved)
{
	const uint32_t top = at;

	while (POLICY_HEAP_WAYS * at + 1 < h->n) {
		const uint32_t child = policy_heap_child(h, at);

		policy_heap_put(h, at, h->entry[child]);
		at = child;
	}
	policy_heap_rise(h, at, top, moved);
}

static inline void policy_heap_add(struct policy_heap *h, int32_t expert, double key)
{
	policy_heap_rise(h, h->n++, 0, (struct policy_heap_entry){key, expert});
}

/* Without an order: before a rebuild. */
static inline void policy_heap_append(struct policy_heap *h, int32_t expert)
{
	policy_heap_put(h, h->n++, (struct policy_heap_entry){0, expert});
}

/* Does nothing when it is not there. */
static inline void policy_heap_drop(struct policy_heap *h, int32_t expert)
{
	const uint32_t at = h->place[expert];
	struct policy_heap_entry last;

	if (at == POLICY_HEAP_OUT)
		return;
	h->place[expert] = POLICY_HEAP_OUT;
	last = h->entry[--h->n];
	if (at == h->n)
		return;
	if (at > 0 && policy_heap_before(last, h->entry[(at - 1) / POLICY_HEAP_WAYS]))
		policy_heap_rise(h, at, 0, last);
	else
		policy_heap_sink(h, at, last);
}

/* Puts those aside that are held: what is left has no order. */
static inline void policy_heap_aside(struct policy_heap *h)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < h->n; i++) {
		const struct policy_heap_entry entry = h->entry[i];

		if (h->held[entry.expert])
			h->place[entry.expert] = POLICY_HEAP_OUT;
		else
			h->entry[n++] = entry;
	}
	h->n = n;
}

/* After entries have come without an order, or all keys have changed. */
static inline void policy_heap_rebuild(struct policy_heap *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		h->place[h->entry[i].expert] = i;
	for (uint32_t i = (h->n + POLICY_HEAP_WAYS - 2) / POLICY_HEAP_WAYS; i-- > 0;)
		policy_heap_sink(h, i, h->entry[i]);
}

/* The least that is not held, or -1. `key`, if there is one, has what the keys are by now. */
static inline int32_t policy_heap_coldest(struct policy_heap *h, const double *key)
{
	while (h->n > 0) {
		struct policy_heap_entry root = h->entry[0];

		if (key && root.key < key[root.expert]) {
			root.key = key[root.expert];
			policy_heap_sink(h, 0, root);
		} else if (h->held[root.expert]) {
			policy_heap_drop(h, (int32_t)root.expert);
		} else {
			return (int32_t)root.expert;
		}
	}
	return -1;
}

/* Whether a leaves before b. `key` as above. */
static inline bool policy_heap_colder(const struct policy_heap *h, const double *key, int32_t a, int32_t b)
{
	const double left = key ? key[a] : h->entry[h->place[a]].key, right = key ? key[b] : h->entry[h->place[b]].key;

	return left < right || (left == right && a < b);
}

/* All of them into ret, least first, by what their keys are by now. The heap stays as it is, with the keys it has, so
 * that who looks at the order changes nothing of what comes after: ret is a heap of its own, the greatest at its root.
 */
static inline uint32_t policy_heap_sort(const struct policy_heap *h, const double *key, int32_t *ret)
{
	uint32_t left = h->n, top = h->n / 2;

	for (uint32_t i = 0; i < h->n; i++)
		ret[i] = (int32_t)h->entry[i].expert;
	while (left > 1) {
		uint32_t at, child;
		int32_t moved;

		if (top > 0) {
			moved = ret[at = --top];
		} else {
			moved = ret[--left];
			ret[left] = ret[at = 0];
		}
		for (; (child = 2 * at + 1) < left; at = child) {
			child += child + 1 < left && policy_heap_colder(h, key, ret[child], ret[child + 1]);
			if (!policy_heap_colder(h, key, moved, ret[child]))
				break;
			ret[at] = ret[child];
		}
		ret[at] = moved;
	}
	return h->n;
}

#endif
