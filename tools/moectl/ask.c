/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "moectl.h"

int fail(const struct moe_error *err)
{
	fprintf(stderr, "moectl: %s\n", err->text);
	return EXIT_FAILED;
}

json_t *ask_quietly(const struct arguments *arg, enum moe_document what, struct moe_error *err)
{
	struct moe_client *client;
	json_error_t wrong;
	json_t *document = NULL;
	char *text = NULL;

	if (moe_open(&client, arg->socket, err) < 0)
		return NULL;
	if (moe_query(client, what, &text, err) == 0) {
		document = json_loads(text, 0, &wrong);
		if (!document)
			moe_error_set(err, -EPROTO, "the daemon's answer is not JSON: %s", wrong.text);
	}
	free(text);
	moe_close(client);
	return document;
}

json_t *ask(const struct arguments *arg, enum moe_document what)
{
	struct moe_error err = {0};
	json_t *document = ask_quietly(arg, what, &err);

	if (!document)
		fail(&err);
	return document;
}
