/* SPDX-License-Identifier: MIT */
#include "policy/policy.h"

#include <string.h>

#include "base/util.h"

static const struct policy_ops *const policies[] = {&policy_lru, &policy_original};

const struct policy_ops *policy_find(const char *name)
{
	size_t i;

	if (!name)
		return &policy_lru;
	for (i = 0; i < ARRAY_LEN(policies); i++)
		if (strcmp(policies[i]->name, name) == 0)
			return policies[i];
	return NULL;
}

const char *policy_names(void)
{
	return "lru, original";
}
