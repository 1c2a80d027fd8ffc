/* SPDX-License-Identifier: MIT */
/*
 * ask - questions and orders to the daemon, with an end to the waiting.
 *
 * The library waits as long as the daemon takes, unless it is told otherwise: a worker has nothing better to do. Who
 * types a command has, and a daemon that is stopped or hangs accepts a connection all the same, for its kernel does. So
 * a question is given up; what takes as long as it takes (a load, a recording) waits on, but says once that it is in
 * vain.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "daemon-pid.h"
#include "moectl.h"

#define PATIENCE_S 20 /* a busy machine is no daemon that hangs */

int fail(const struct moe_error *err)
{
	fprintf(stderr, "moectl: %s\n", err->text);
	return EXIT_FAILED;
}

/* -- a daemon that is silent --------------------------------------------------------------------------------------- */

/* Who it is, and what to type. */
struct silent {
	char who[32], what[128];
};

static struct silent look_at(const struct arguments *arg)
{
	const struct daemon_listener l = daemon_listener(arg->socket);
	struct silent s = {0};

	if (l.pid)
		snprintf(s.who, sizeof s.who, " (pid %d)", l.pid);
	if (l.stopped)
		snprintf(s.what, sizeof s.what, "it is stopped, and kill -CONT %d lets it go on", l.pid);
	else
		snprintf(s.what, sizeof s.what,
			 "its log may say what it does; if it hangs, systemctl restart moe-expertd, or kill it");
	return s;
}

static int no_answer(const struct arguments *arg, struct moe_error *err)
{
	const struct silent s = look_at(arg);

	return moe_error_set(err, -ETIMEDOUT, "%s: the daemon%s is there but has not answered for %d s: %s",
			     daemon_path(arg->socket), s.who, PATIENCE_S, s.what);
}

static bool wait_on(void *userdata)
{
	struct long_wait *wait = userdata;
	const struct silent s = look_at(wait->arg);

	if (!wait->told)
		fprintf(stderr, "%smoectl: %s: no word from the daemon%s for %d s: %s. Still waiting; %s\n",
			wait->terminal ? "\r\033[K" : "", daemon_path(wait->arg->socket), s.who, PATIENCE_S, s.what,
			wait->leave);
	wait->told = true;
	return true;
}

int open_for_long(struct moe_client **ret, struct long_wait *wait, struct moe_error *err)
{
	const struct moe_patience patience = {sizeof patience, PATIENCE_S * 1000, wait_on, wait};

	return moe_open_patient(ret, wait->arg->socket, &patience, err);
}

/* -- questions and orders ------------------------------------------------------------------------------------------ */

/* A document, or an order that is not NULL. */
struct question {
	enum moe_document what;
	daemon_order *order;
};

static int put(const struct arguments *arg, struct question q, uint32_t patience_s, char **text, struct moe_error *err)
{
	const struct moe_patience patience = {.size = sizeof patience, .silent_ms = patience_s * 1000};
	struct moe_client *client;
	int r = moe_open_patient(&client, arg->socket, &patience, err);

	if (r == 0) {
		r = q.order ? q.order(client, arg, err) : moe_query(client, q.what, text, err);
		moe_close(client);
	}
	return r == -ETIMEDOUT && patience_s ? no_answer(arg, err) : r;
}

static json_t *parse(char *text, struct moe_error *err)
{
	json_error_t wrong;
	json_t *document = json_loads(text, 0, &wrong);

	if (!document)
		moe_error_set(err, -EPROTO, "the daemon's answer is not JSON: %s", wrong.text);
	free(text);
	return document;
}

json_t *ask_quietly(const struct arguments *arg, enum moe_document what, struct moe_error *err)
{
	char *text;

	return put(arg, (struct question){.what = what}, PATIENCE_S, &text, err) < 0 ? NULL : parse(text, err);
}

json_t *ask_for_ever(const struct arguments *arg, enum moe_document what, struct moe_error *err)
{
	char *text;

	return put(arg, (struct question){.what = what}, 0, &text, err) < 0 ? NULL : parse(text, err);
}

json_t *ask(const struct arguments *arg, enum moe_document what)
{
	struct moe_error err = {0};
	json_t *document = ask_quietly(arg, what, &err);

	if (!document)
		fail(&err);
	return document;
}

int tell(const struct arguments *arg, daemon_order *order)
{
	struct moe_error err = {0};

	return put(arg, (struct question){.order = order}, PATIENCE_S, NULL, &err) < 0 ? fail(&err) : EXIT_DONE;
}
