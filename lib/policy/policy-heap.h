/* SPDX-License-Identifier: MIT */
/*
 * policy-heap - experts by a key, the least at the root, of equal keys the lowest id; any of them is found at once.
 *
 * The heap owns no memory. A key may change only while its expert is not in the heap, or all of them before a rebuild.
 * No key is NaN.
 */
#ifndef LIB_POLICY_HEAP_H
#define LIB_POLICY_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define POLICY_HEAP_OUT UINT32_MAX

struct policy_heap {
	int32_t *expert;   /* [n_slots] */
	uint32_t *place;   /* [n_experts], POLICY_HEAP_OUT */
	const double *key; /* [n_experts] */
	uint32_t n;
};

static inline bool policy_heap_before(const struct policy_heap *h, int32_t a, int32_t b)
{
	return h->key[a] < h->key[b] || (h->key[a] == h->key[b] && a < b);
}

static inline void policy_heap_put(struct policy_heap *h, uint32_t at, int32_t expert)
{
	h->expert[at] = expert;
	h->place[expert] = at;
}

static inline void policy_heap_sink(struct policy_heap *h, uint32_t at)
{
	const int32_t expert = h->expert[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= h->n)
			break;
		if (child + 1 < h->n && policy_heap_before(h, h->expert[child + 1], h->expert[child]))
			child++;
		if (!policy_heap_before(h, h->expert[child], expert))
			break;
		policy_heap_put(h, at, h->expert[child]);
		at = child;
	}
	policy_heap_put(h, at, expert);
}

static inline void policy_heap_rise(struct policy_heap *h, uint32_t at)
{
	const int32_t expert = h->expert[at];

	while (at > 0 && policy_heap_before(h, expert, h->expert[(at - 1) / 2])) {
		policy_heap_put(h, at, h->expert[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	policy_heap_put(h, at, expert);
}

static inline void policy_heap_add(struct policy_heap *h, int32_t expert)
{
	h->expert[h->n] = expert;
	policy_heap_rise(h, h->n++);
}

/* Does nothing when it is not there. */
static inline void policy_heap_drop(struct policy_heap *h, int32_t expert)
{
	const uint32_t at = h->place[expert];
	int32_t last;

	if (at == POLICY_HEAP_OUT)
		return;
	h->place[expert] = POLICY_HEAP_OUT;
	last = h->expert[--h->n];
	if (last == expert)
		return;
	policy_heap_put(h, at, last);
	policy_heap_rise(h, at);
	policy_heap_sink(h, h->place[last]);
}

static inline void policy_heap_rebuild(struct policy_heap *h)
{
	for (uint32_t i = h->n / 2; i-- > 0;)
		policy_heap_sink(h, i);
}

static inline int32_t policy_heap_first(const struct policy_heap *h)
{
	return h->n ? h->expert[0] : -1;
}

/* All of them, least first: the heap is as before, `ret` [n] is a heap of its own meanwhile. */
static inline uint32_t policy_heap_sorted(const struct policy_heap *h, int32_t *ret)
{
	for (uint32_t i = 0; i < h->n; i++)
		ret[i] = h->expert[i];
	/* The root is the least of what is left: it goes to the end, so the order comes out backwards. */
	for (uint32_t n = h->n; n > 1;) {
		const int32_t least = ret[0], moved = ret[--n];
		uint32_t at = 0;

		for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
			if (child + 1 < n && policy_heap_before(h, ret[child + 1], ret[child]))
				child++;
			if (!policy_heap_before(h, ret[child], moved))
				break;
			ret[at] = ret[child];
		}
		ret[at] = moved;
		ret[n] = least;
	}
	for (uint32_t i = 0; i < h->n / 2; i++) {
		const int32_t swapped = ret[i];

		ret[i] = ret[h->n - 1 - i];
		ret[h->n - 1 - i] = swapped;
	}
	return h->n;
}

#endif
