/* SPDX-License-Identifier: MIT */
#include "daemon/holes.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/loop.h"

#define STACK_BYTES (64u << 10)
#define SHARED_THREADS 32 /* beyond them what is shared stands in its last holder's line */

/* In `waiting` until it is made: while one of a line waits there is one thread for that, else none. */
struct job {
	struct job *next;
	const void *line;
	struct charge charge;
	bool taken; /* a thread is at it */
	size_t n;
	struct hole list[HOLES_EACH];
};

struct holes {
	struct loop *loop;
	uint32_t open; /* the reactor's: jobs that were not collected */
	pthread_mutex_t lock;
	pthread_cond_t ends;         /* a thread does */
	struct job *waiting, **last; /* the oldest first */
	struct job *made;
	uint32_t threads;
	bool ended;
	atomic_bool any_made;
};

struct digger {
	struct holes *holes;
	const void *line;
};

int holes_new(struct holes **ret, struct loop *loop, struct moe_error *err)
{
	struct holes *h = calloc(1, sizeof *h);

	if (!h)
		return moe_error_sys(err, -ENOMEM, "holes");
	h->loop = loop;
	h->last = &h->waiting;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->ends, NULL);
	*ret = h;
	return 0;
}

static void close_files(const struct hole *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close_fd(list[i].fd);
}

static void dig(const struct hole *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		memfd_drop_pages(list[i].fd, list[i].at, list[i].bytes);
	close_files(list, n);
}

static struct job *job_of(const struct holes *h, const void *line)
{
	struct job *job = h->waiting;

	while (job && job->line != line)
		job = job->next;
	return job;
}

/* With the lock held, as the next one. */
static void remove_waiting(struct holes *h, struct job *job)
{
	struct job **at = &h->waiting;

	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
	if (!*at)
		h->last = at;
}

static void move_to_made(struct holes *h, struct job *job)
{
	remove_waiting(h, job);
	job->next = h->made;
	h->made = job;
	atomic_store(&h->any_made, true);
}

/* The lock is let go of only while the job that is made stands in its line. */
static void *run(void *arg)
{
	struct digger *digger = arg;
	struct holes *h = digger->holes;
	const void *line = digger->line;
	struct job *job;

	free(digger);
	pthread_mutex_lock(&h->lock);
	while ((job = job_of(h, line))) {
		job->taken = true;
		pthread_mutex_unlock(&h->lock);
		dig(job->list, job->n);
		pthread_mutex_lock(&h->lock);
		move_to_made(h, job);
		if (!h->ended) /* else the loop may have gone */
			loop_wake(h->loop);
	}
	h->threads--;
	pthread_cond_signal(&h->ends);
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

/* False: there is no memory, or no thread. */
static bool start(struct holes *h, const void *line)
{
	struct digger *digger = malloc(sizeof *digger);
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;
	int r;

	if (!digger)
		return false;
	*digger = (struct digger){h, line};
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, MAX((size_t)PTHREAD_STACK_MIN, (size_t)STACK_BYTES));
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, run, digger);
	pthread_attr_destroy(&attr);
	if (r != 0)
		free(digger);
	return r == 0;
}

/* False: by nobody. */
static bool leave_to_thread(struct holes *h, const struct hole *list, size_t n, const struct charge *charge,
			    bool shared)
{
	struct job *job = calloc(1, sizeof *job);
	bool alone;

	if (!job)
		return false;
	job->charge = *charge;
	job->n = n;
	memcpy(job->list, list, n * sizeof *list);
	pthread_mutex_lock(&h->lock);
	job->line = shared && h->threads < SHARED_THREADS ? (const void *)job : charge->account;
	alone = !job_of(h, job->line);
	h->threads += alone;
	*h->last = job;
	h->last = &job->next;
	pthread_mutex_unlock(&h->lock);
	if (!alone || start(h, job->line))
		return true;
	pthread_mutex_lock(&h->lock); /* nobody has seen it */
	remove_waiting(h, job);
	h->threads--;
	pthread_mutex_unlock(&h->lock);
	free(job);
	return false;
}

void holes_make(struct holes *h, const struct hole *list, size_t n, struct charge *charge, bool shared)
{
	assert(n <= HOLES_EACH);
	if (h && !h->ended && leave_to_thread(h, list, n, charge, shared)) {
		*charge = (struct charge){0};
		h->open++;
		return;
	}
	if (h && !h->ended)
		dig(list, n);
	else
		close_files(list, n);
	charge_close(charge);
}

bool holes_collect(struct holes *h)
{
	struct job *job, *next;

	if (!atomic_load_explicit(&h->any_made, memory_order_acquire))
		return false;
	pthread_mutex_lock(&h->lock);
	job = h->made;
	h->made = NULL;
	atomic_store(&h->any_made, false);
	pthread_mutex_unlock(&h->lock);
	for (; job; job = next) {
		next = job->next;
		charge_close(&job->charge);
		free(job);
		h->open--;
	}
	return true;
}

bool holes_none(const struct holes *h)
{
	return h->open == 0;
}

/* With the lock held: what no thread is at yet. */
static void close_waiting(struct holes *h)
{
	for (struct job *job = h->waiting, *next; job; job = next) {
		next = job->next;
		if (job->taken)
			continue;
		close_files(job->list, job->n);
		move_to_made(h, job);
	}
}

void holes_end(struct holes *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->ended = true;
	close_waiting(h);
	pthread_mutex_unlock(&h->lock);
}

struct holes *holes_free(struct holes *h)
{
	if (!h)
		return NULL;
	holes_end(h);
	pthread_mutex_lock(&h->lock);
	while (h->threads > 0)
		pthread_cond_wait(&h->ends, &h->lock);
	pthread_mutex_unlock(&h->lock);
	holes_collect(h);
	pthread_cond_destroy(&h->ends);
	pthread_mutex_destroy(&h->lock);
	free(h);
	return NULL;
}
