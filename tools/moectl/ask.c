/* SPDX-License-Identifier: MIT */
/*
 * ask - questions and orders to the daemon, with an end to the waiting.
 *
 * The library waits as long as the daemon takes: a worker has nothing better to do. Who types a command has, and a
 * daemon that is stopped or hangs accepts a connection all the same, for its kernel does. So a thread asks, and who
 * waits for it in vain says so. That thread stays where it is: the program ends soon.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "daemon-pid.h"
#include "moectl.h"

#define PATIENCE_S 20 /* a busy machine is no daemon that hangs */

/* What is asked, by a thread that may outlive who wants to know. */
struct question {
	const struct arguments *arg;
	enum moe_document what;
	daemon_order *order; /* NULL: it is a document that is wanted */
	char *text;
	struct moe_error err;
	int r;
	bool answered;
	pthread_mutex_t lock;
	pthread_cond_t done;
};

int fail(const struct moe_error *err)
{
	fprintf(stderr, "moectl: %s\n", err->text);
	return EXIT_FAILED;
}

static void put(struct question *q)
{
	struct moe_client *client;

	q->r = moe_open(&client, q->arg->socket, &q->err);
	if (q->r < 0)
		return;
	q->r = q->order ? q->order(client, q->arg, &q->err) : moe_query(client, q->what, &q->text, &q->err);
	moe_close(client);
}

static void *run(void *userdata)
{
	struct question *q = userdata;

	put(q);
	pthread_mutex_lock(&q->lock);
	q->answered = true;
	pthread_cond_signal(&q->done);
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static bool wait_for_answer(struct question *q)
{
	struct timespec until;
	bool answered;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&q->lock);
	while (!q->answered && r == 0)
		r = pthread_cond_timedwait(&q->done, &q->lock, &until);
	answered = q->answered;
	pthread_mutex_unlock(&q->lock);
	return answered;
}

static int no_answer(const struct arguments *arg, struct moe_error *err)
{
	const struct daemon_listener l = daemon_listener(arg->socket);
	char who[32] = "", what[128];

	if (l.pid)
		snprintf(who, sizeof who, " (pid %d)", l.pid);
	if (l.stopped)
		snprintf(what, sizeof what, "it is stopped, and kill -CONT %d lets it go on", l.pid);
	else
		snprintf(what, sizeof what,
			 "its log may say what it does; if it hangs, systemctl restart moe-expertd, or kill it");
	return moe_error_set(err, -ETIMEDOUT, "%s: the daemon%s is there but has not answered for %d s: %s",
			     daemon_path(arg->socket), who, PATIENCE_S, what);
}

static struct question *question_new(const struct arguments *arg, daemon_order *order, enum moe_document what)
{
	struct question *q = calloc(1, sizeof *q);
	pthread_condattr_t clock;

	if (!q)
		return NULL;
	q->arg = arg;
	q->order = order;
	q->what = what;
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&q->done, &clock);
	pthread_condattr_destroy(&clock);
	return q;
}

static void question_free(struct question *q)
{
	pthread_cond_destroy(&q->done);
	pthread_mutex_destroy(&q->lock);
	free(q->text);
	free(q);
}

/* -ETIMEDOUT: the question is the thread's, for ever. */
static int put_in_time(struct question *q, struct moe_error *err)
{
	pthread_t thread;
	int r = pthread_create(&thread, NULL, run, q);

	if (r) {
		question_free(q);
		return moe_error_sys(err, -r, "cannot start a thread");
	}
	if (!wait_for_answer(q)) {
		pthread_detach(thread);
		return no_answer(q->arg, err);
	}
	pthread_join(thread, NULL);
	return 0;
}

static json_t *parse(char *text, struct moe_error *err)
{
	json_error_t wrong;
	json_t *document = json_loads(text, 0, &wrong);

	if (!document)
		moe_error_set(err, -EPROTO, "the daemon's answer is not JSON: %s", wrong.text);
	return document;
}

json_t *ask_quietly(const struct arguments *arg, enum moe_document what, struct moe_error *err)
{
	struct question *q = question_new(arg, NULL, what);
	json_t *document = NULL;

	if (!q)
		moe_error_sys(err, -ENOMEM, "cannot ask the daemon");
	if (!q || put_in_time(q, err) < 0)
		return NULL;
	if (q->r < 0)
		*err = q->err;
	else
		document = parse(q->text, err);
	question_free(q);
	return document;
}

json_t *ask_for_ever(const struct arguments *arg, enum moe_document what, struct moe_error *err)
{
	struct question q = {.arg = arg, .what = what};
	json_t *document = NULL;

	put(&q);
	if (q.r < 0)
		*err = q.err;
	else
		document = parse(q.text, err);
	free(q.text);
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

int tell(const struct arguments *arg, daemon_order *order)
{
	struct question *q = question_new(arg, order, 0);
	struct moe_error err = {0};
	int r;

	if (!q) {
		moe_error_sys(&err, -ENOMEM, "cannot tell the daemon");
		return fail(&err);
	}
	if (put_in_time(q, &err) < 0)
		return fail(&err);
	r = q->r < 0 ? fail(&q->err) : EXIT_DONE;
	question_free(q);
	return r;
}
