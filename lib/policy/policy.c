/* SPDX-License-Identifier: MIT */
#include "policy/policy.h"

#include <string.h>

#include "base/util.h"

static const struct policy_ops *const policies[] = {
	&policy_lru,       &policy_lfu,      &policy_lfu_decay, &policy_lfru,  &policy_ema,
	&policy_mrs,       &policy_arc,      &policy_s3_fifo,   &policy_sieve, &policy_ebco_soft,
	&policy_ebco_hard, &policy_original, &policy_static,
};

const struct policy_ops *policy_at(size_t i)
{
	return i < ARRAY_LEN(policies) ? policies[i] : NULL;
}

uint32_t policy_index(const struct policy_ops *policy)
{
	uint32_t i = 0;

	while (policies[i] != policy)
		i++;
	return i;
}

const struct policy_ops *policy_find(const char *name)
{
	if (!name)
		name = POLICY_DEFAULT;
	for (size_t i = 0; i < ARRAY_LEN(policies); i++)
		if (strcmp(policies[i]->name, name) == 0)
			return policies[i];
	return NULL;
}

/* tests/test-policy.c compares both with the table. */
#define FRAMES_NAMES "lru, lfu, lfu-decay, lfru, ema, mrs, arc, s3-fifo, sieve, ebco-soft, ebco-hard"

const char *policy_names(void)
{
	return FRAMES_NAMES ", original, static";
}

const char *policy_frames_names(void)
{
	return FRAMES_NAMES;
}
