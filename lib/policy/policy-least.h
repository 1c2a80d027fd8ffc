/* SPDX-License-Identifier: MIT */
/*
 * policy-least - members by a key, of which the least is asked for, of equal ones the lowest id: a tournament of
 * sixteens. Keys stand by expert; of each sixteen of them the least is known, and of each sixteen of those.
 *
 * Only who may leave has a key here; anybody else's is infinite, and never the least. Setting a key is a store and a
 * mark: the sixteens that are marked are looked through when somebody asks, so that a key which is taken away and
 * comes back before that costs no search. Asking costs two or three looks at sixteen keys for each fill, without a
 * branch that could be foreseen wrongly; a look is eight instructions.
 *
 * The tournament owns no memory. No key is negative or NaN.
 */
#ifndef LIB_POLICY_LEAST_H
#define LIB_POLICY_LEAST_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

#define POLICY_LEAST_WAYS 16
#define POLICY_LEAST_MAX (POLICY_LEAST_WAYS * POLICY_LEAST_WAYS * POLICY_LEAST_WAYS) /* experts */

struct policy_least {
	double *key; /* [n_experts, rounded up] */
	double *low; /* of each sixteen keys; rounded up as well */
	uint32_t n_experts, n_low;
	uint64_t marked[POLICY_LEAST_MAX / POLICY_LEAST_WAYS / 64]; /* whose low may be wrong */
	double top[POLICY_LEAST_WAYS];                              /* of each sixteen lows, if there are more */
};

static inline uint32_t policy_least_rooms(uint32_t n)
{
	return ALIGN_UP(n, POLICY_LEAST_WAYS);
}

static inline size_t policy_least_bytes(uint32_t n_experts)
{
	const uint32_t rooms = policy_least_rooms(n_experts);

	return (rooms + policy_least_rooms(rooms / POLICY_LEAST_WAYS)) * sizeof(double);
}

/* `memory` is aligned to 8 and has room for policy_least_bytes(). */
static inline void policy_least_init(struct policy_least *l, void *memory, uint32_t n_experts)
{
	const uint32_t rooms = policy_least_rooms(n_experts), n_low = rooms / POLICY_LEAST_WAYS;

	*l = (struct policy_least){
		.key = memory, .low = (double *)memory + rooms, .n_experts = n_experts, .n_low = n_low};
	for (uint32_t i = 0; i < rooms + policy_least_rooms(n_low); i++)
		l->key[i] = INFINITY;
	for (uint32_t i = 0; i < POLICY_LEAST_WAYS; i++)
		l->top[i] = INFINITY;
}

/* -- keys --------------------------------------------------------------------------------------------------------- */

static inline bool policy_least_has(const struct policy_least *l, int32_t expert)
{
	return l->key[expert] < INFINITY;
}

static inline void policy_least_set(struct policy_least *l, int32_t expert, double key)
{
	const uint32_t at = (uint32_t)expert / POLICY_LEAST_WAYS;

	l->key[expert] = key;
	l->marked[at / 64] |= UINT64_C(1) << at % 64;
}

/* Does nothing when it is not there. */
static inline void policy_least_drop(struct policy_least *l, int32_t expert)
{
	policy_least_set(l, expert, INFINITY);
}

/* All who are here get the key that `from` has for them; [n_experts]. */
static inline void policy_least_renew(struct policy_least *l, const double *from)
{
	const __m256d none = _mm256_set1_pd(INFINITY);
	uint32_t i = 0;

	for (; i + 4 <= l->n_experts; i += 4) {
		const __m256d here = _mm256_cmp_pd(_mm256_loadu_pd(l->key + i), none, _CMP_LT_OQ);

		_mm256_storeu_pd(l->key + i, _mm256_blendv_pd(none, _mm256_loadu_pd(from + i), here));
	}
	for (; i < l->n_experts; i++)
		l->key[i] = l->key[i] < INFINITY ? from[i] : INFINITY;
	for (i = 0; i < l->n_low; i += 64)
		l->marked[i / 64] = l->n_low - i >= 64 ? UINT64_MAX : (UINT64_C(1) << (l->n_low - i)) - 1;
}

/* -- the least ---------------------------------------------------------------------------------------------------- */

/* Of sixteen, in all four places. */
static inline __m256d policy_least_of(const double *key)
{
	const __m256d left = _mm256_min_pd(_mm256_loadu_pd(key), _mm256_loadu_pd(key + 4));
	const __m256d right = _mm256_min_pd(_mm256_loadu_pd(key + 8), _mm256_loadu_pd(key + 12));
	const __m256d both = _mm256_min_pd(left, right);
	const __m256d half = _mm256_min_pd(both, _mm256_permute2f128_pd(both, both, 1));

	return _mm256_min_pd(half, _mm256_permute_pd(half, 5));
}

/* Whose of sixteen keys are not above `bound`, as bits. */
static inline uint32_t policy_least_under(const double *key, __m256d bound)
{
	uint32_t found = 0;

	for (int i = 0; i < POLICY_LEAST_WAYS; i += 4)
		found |= (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(key + i), bound, _CMP_LE_OQ)) << i;
	return found;
}

/* Where the first of sixteen is that is not above `bound`, which is in all four places. */
static inline uint32_t policy_least_at(const double *key, __m256d bound)
{
	return (uint32_t)__builtin_ctz(policy_least_under(key, bound));
}

static inline void policy_least_look(struct policy_least *l)
{
	const bool deep = l->n_low > POLICY_LEAST_WAYS;
	uint32_t tops = 0;

	for (uint32_t i = 0; i < l->n_low; i += 64) {
		for (uint64_t left = l->marked[i / 64]; left; left &= left - 1) {
			const uint32_t at = i + (uint32_t)__builtin_ctzll(left);

			l->low[at] = _mm256_cvtsd_f64(policy_least_of(l->key + (size_t)POLICY_LEAST_WAYS * at));
			tops |= 1u << at / POLICY_LEAST_WAYS;
		}
		l->marked[i / 64] = 0;
	}
	for (; deep && tops; tops &= tops - 1) {
		const uint32_t at = (uint32_t)__builtin_ctz(tops);

		l->top[at] = _mm256_cvtsd_f64(policy_least_of(l->low + (size_t)POLICY_LEAST_WAYS * at));
	}
}

/* Of equal ones the lowest id; -1: nobody has a key. */
static inline int32_t policy_least_first(struct policy_least *l)
{
	const bool deep = l->n_low > POLICY_LEAST_WAYS;
	uint32_t at = 0;
	__m256d least;

	policy_least_look(l);
	least = policy_least_of(deep ? l->top : l->low);
	if (deep)
		at = POLICY_LEAST_WAYS * policy_least_at(l->top, least);
	at += policy_least_at(l->low + at, least);
	at = POLICY_LEAST_WAYS * at + policy_least_at(l->key + (size_t)POLICY_LEAST_WAYS * at, least);
	return _mm256_cvtsd_f64(least) < INFINITY ? (int32_t)at : -1;
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

static inline bool policy_least_before(const struct policy_least *l, int32_t a, int32_t b)
{
	return l->key[a] < l->key[b] || (l->key[a] == l->key[b] && a < b);
}

/* Into ret, least first; returns how many. ret is a heap meanwhile, the greatest at its root. */
static inline uint32_t policy_least_sort(const struct policy_least *l, int32_t *ret)
{
	uint32_t n = 0, left, top;

	for (uint32_t e = 0; e < l->n_experts; e++)
		if (policy_least_has(l, (int32_t)e))
			ret[n++] = (int32_t)e;
	for (left = n, top = n / 2; left > 1;) {
		uint32_t at, child;
		int32_t moved;

		if (top > 0) {
			moved = ret[at = --top];
		} else {
			moved = ret[--left];
			ret[left] = ret[at = 0];
		}
		for (; (child = 2 * at + 1) < left; at = child) {
			child += child + 1 < left && policy_least_before(l, ret[child], ret[child + 1]);
			if (!policy_least_before(l, moved, ret[child]))
				break;
			ret[at] = ret[child];
		}
		ret[at] = moved;
	}
	return n;
}

#endif
