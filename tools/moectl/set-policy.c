/* SPDX-License-Identifier: MIT */
/* set-policy - by what the experts of a tiered model make room for each other from now on. */
#include "moectl.h"

static int set(struct moe_client *client, const struct arguments *arg, struct moe_error *err)
{
	return moe_set_policy(client, arg->words[0], arg->words[1], err);
}

int verb_set_policy(const struct arguments *arg)
{
	return tell(arg, set);
}
