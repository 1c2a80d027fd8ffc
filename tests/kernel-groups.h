/* SPDX-License-Identifier: MIT */
/*
 * kernel-groups - what kernels do with groups of packed rows, for more tokens than a problem has: its tokens come
 * again.
 */
#ifndef TESTS_KERNEL_GROUPS_H
#define TESTS_KERNEL_GROUPS_H

#include "tests/kernel-problem.h"

#define GROUP_TOKENS_MOST 300

/* The groups of `tokens` tokens, which end at the wall; NULL where something before them was written. */
static inline const uint8_t *groups_pack(const struct problem *p, const struct kernel_ops *ops, const struct wall *wall,
					 size_t tokens)
{
	const size_t bytes = kernel_group_bytes(ops, p->cols), all = (tokens + KERNEL_GROUP - 1) / KERNEL_GROUP * bytes;
	uint8_t *groups = wall_before(wall, all), *before = wall_before(wall, all + 64);

	memset(before, 0xff, all + 64);
	for (size_t t = 0; t < tokens; t += KERNEL_GROUP) {
		const void *rows[KERNEL_GROUP];
		size_t n = 0;

		for (; n < KERNEL_GROUP && t + n < tokens; n++)
			rows[n] = p->packed[(t + n) % p->tokens];
		ops->groups->pack(p->cols, n, rows, groups + t / KERNEL_GROUP * bytes);
	}
	for (size_t i = 0; i < 64; i++)
		if (before[i] != 0xff)
			return NULL;
	return groups;
}

/* What groups of `tokens` tokens make of a problem, in buffers with a word behind each but the first, which ends at the
 * wall. NULL, or what is wrong. */
static inline const char *groups_run(const struct problem *p, const struct kernel_ops *ops, bool gated, size_t tokens,
				     float **out)
{
	static struct wall packs, outs;
	const uint8_t *groups;

	if (!packs.end) {
		packs = wall_new(((COLS_MAX + 64) * sizeof(uint16_t) * KERNEL_GROUP + KERNEL_HEAD) *
				 (GROUP_TOKENS_MOST / KERNEL_GROUP + 1));
		outs = wall_new((ROWS_MAX + 1) * sizeof(float) * (GROUP_TOKENS_MOST + 1));
	}
	groups = groups_pack(p, ops, &packs, tokens);
	if (!groups)
		return "something before a group was written";
	for (size_t t = 0; t < tokens; t++) {
		out[t] = wall_before(&outs, ((p->rows + 1) * (t + 1) - 1) * sizeof(float));
		for (size_t r = 0; r < p->rows + (t > 0); r++)
			memcpy(out[t] + r, &(uint32_t){CANARY}, sizeof(float));
	}
	if (gated)
		ops->groups->gate_up(&p->m[0], &p->m[1], p->rows, p->cols, &p->act, tokens, groups, out);
	else
		ops->groups->matmul(&p->m[0], p->rows, p->cols, tokens, groups, out);
	for (size_t t = 1; t < tokens; t++)
		if (memcmp(out[t] + p->rows, &(uint32_t){CANARY}, sizeof(float)) != 0)
			return "something behind a group's results was written";
	return NULL;
}

/* Whether tokens have the bits of `as`, which come again. */
static inline bool groups_same(const struct problem *p, float *const *out, size_t tokens, float *const *as)
{
	for (size_t t = 0; t < tokens; t++)
		if (memcmp(out[t], as[t % p->tokens], p->rows * sizeof(float)) != 0)
			return false;
	return true;
}

#endif
