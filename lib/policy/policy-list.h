/* SPDX-License-Identifier: MIT */
/*
 * policy-list - a queue of experts from cold to hot in which any of them is found at once.
 *
 * prev and next are indexed by expert, so that unlinking costs O(1) and nothing is ever allocated. The list owns no
 * memory: both arrays belong to the policy's state.
 */
#ifndef LIB_POLICY_LIST_H
#define LIB_POLICY_LIST_H

#include <stdint.h>

#define POLICY_LIST_END (-1)
#define POLICY_LIST_OUT (-2) /* prev of an expert that is not in the list */

struct policy_list {
	int32_t *prev, *next; /* [n_experts] */
	int32_t cold, hot;    /* first and last, POLICY_LIST_END when empty */
};

static inline void policy_list_init(struct policy_list *list, int32_t *prev, int32_t *next, uint32_t n_experts)
{
	uint32_t i;

	*list = (struct policy_list){prev, next, POLICY_LIST_END, POLICY_LIST_END};
	for (i = 0; i < n_experts; i++)
		prev[i] = POLICY_LIST_OUT;
}

static inline void policy_list_append(struct policy_list *list, int32_t expert)
{
	list->prev[expert] = list->hot;
	list->next[expert] = POLICY_LIST_END;
	if (list->hot == POLICY_LIST_END)
		list->cold = expert;
	else
		list->next[list->hot] = expert;
	list->hot = expert;
}

/* Does nothing when the expert is not in the list. */
static inline void policy_list_unlink(struct policy_list *list, int32_t expert)
{
	int32_t before = list->prev[expert], after;

	if (before == POLICY_LIST_OUT)
		return;
	after = list->next[expert];
	if (before == POLICY_LIST_END)
		list->cold = after;
	else
		list->next[before] = after;
	if (after == POLICY_LIST_END)
		list->hot = before;
	else
		list->prev[after] = before;
	list->prev[expert] = POLICY_LIST_OUT;
}

/* The coldest, unlinked; POLICY_LIST_END (-1) when the list is empty. */
static inline int32_t policy_list_pop(struct policy_list *list)
{
	int32_t expert = list->cold;

	if (expert != POLICY_LIST_END)
		policy_list_unlink(list, expert);
	return expert;
}

static inline uint32_t policy_list_copy(const struct policy_list *list, int32_t *ret)
{
	uint32_t n = 0;
	int32_t at;

	for (at = list->cold; at != POLICY_LIST_END; at = list->next[at])
		ret[n++] = at;
	return n;
}

#endif
