/* SPDX-License-Identifier: MIT */
/* plan-policy - the policies of moectl plan, by their names. */
#ifndef TOOLS_PLAN_POLICY_H
#define TOOLS_PLAN_POLICY_H

#include <stdbool.h>

#include "placement/balance.h"

struct plan_policy {
	const char *name;
	bool eplb, global;
	enum balance_policy balance, of_case; /* of_case: as published results have it */
	bool hot;                             /* copies beside what is everywhere */
};

/* NULL: no policy has this name. */
const struct plan_policy *plan_policy_find(const char *name);

/* Of such a word: says to stderr what is expected, and returns the exit status. */
int plan_policy_unknown(const char *word);

#endif
