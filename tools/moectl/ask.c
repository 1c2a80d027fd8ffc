/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>

#include "moectl.h"

int fail(const struct moe_error *err)
{
	fprintf(stderr, "moectl: %s\n", err->text);
	return EXIT_FAILED;
}

json_t *ask(const struct arguments *arg, enum moe_document what)
{
	struct moe_client *client;
	struct moe_error err = {0};
	json_error_t wrong;
	json_t *document = NULL;
	char *text = NULL;

	if (moe_open(&client, arg->socket, &err) < 0) {
		fail(&err);
		return NULL;
	}
	if (moe_query(client, what, &text, &err) < 0) {
		fail(&err);
	} else {
		document = json_loads(text, 0, &wrong);
		if (!document)
			fprintf(stderr, "moectl: the daemon's answer is not JSON: %s\n", wrong.text);
	}
	free(text);
	moe_close(client);
	return document;
}
