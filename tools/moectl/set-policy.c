/* SPDX-License-Identifier: MIT */
/* set-policy - by what the experts of a tiered model make room for each other from now on. */
#include <stdio.h>

#include "moectl.h"

int verb_set_policy(const struct arguments *arg)
{
	struct moe_client *client;
	struct moe_error err = {0};
	int r = moe_open(&client, arg->socket, &err);

	if (r == 0) {
		r = moe_set_policy(client, arg->words[0], arg->words[1], &err);
		moe_close(client);
	}
	return r < 0 ? fail(&err) : EXIT_DONE;
}
