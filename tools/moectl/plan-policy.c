/* SPDX-License-Identifier: MIT */
#include "plan-policy.h"

#include <stdio.h>
#include <string.h>

#include "moectl.h"

static const struct plan_policy policies[] = {
	{"eplb", true, false, 0, 0},
	{"eplb-global", true, true, 0, 0},
	{"random", false, false, BALANCE_RANDOM, BALANCE_RANDOM},
	{"dynamic", false, false, BALANCE_DYNAMIC, BALANCE_DYNAMIC},
	{"dynamic_ep", false, false, BALANCE_DYNAMIC, BALANCE_DYNAMIC}, /* its old name, which published results have */
	{"swift", false, false, BALANCE_SWIFT, BALANCE_SWIFT_UPSTREAM},
	{"swift-exact", false, false, BALANCE_SWIFT, BALANCE_SWIFT},
	{"swift-upstream", false, false, BALANCE_SWIFT_UPSTREAM, BALANCE_SWIFT_UPSTREAM},
	{"flashlb", false, false, BALANCE_FLASHLB, BALANCE_FLASHLB},
	{"hot", .hot = true},
	{0},
};

const struct plan_policy *plan_policy_find(const char *name)
{
	for (const struct plan_policy *p = policies; p->name; p++)
		if (strcmp(name, p->name) == 0)
			return p;
	return NULL;
}

int plan_policy_unknown(const char *word)
{
	char names[256] = "";

	for (const struct plan_policy *p = policies; p->name; p++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
			 p == policies ? ""
			 : p[1].name   ? ", "
				       : " or ",
			 p->name);
	fprintf(stderr, "moectl: plan: --policy: '%s' found, %s expected; see moectl plan --help\n", word, names);
	return EXIT_USAGE;
}
