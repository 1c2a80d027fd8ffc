/* SPDX-License-Identifier: MIT */
#include "top-fetch.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"

struct top_fetch {
	const struct arguments *arg;
	int fd;
	sem_t asked;
	bool busy; /* the caller's */
	struct top_documents documents;
	struct moe_error err;
	int r;
};

typedef json_t *asker(const struct arguments *, enum moe_document, struct moe_error *);

static int fetch(const struct arguments *arg, asker *asks, struct top_documents *ret, struct moe_error *err)
{
	struct top_documents d = {asks(arg, MOE_DOCUMENT_STATUS, err), NULL};

	if (d.status)
		d.stats = asks(arg, MOE_DOCUMENT_STATS, err);
	if (!d.stats) {
		top_documents_free(&d);
		return -EIO;
	}
	*ret = d;
	return 0;
}

int top_fetch_now(const struct arguments *arg, struct top_documents *ret, struct moe_error *err)
{
	return fetch(arg, ask_quietly, ret, err);
}

/* The screen tells how long the daemon has been silent. */
static void *run(void *userdata)
{
	struct top_fetch *f = userdata;
	const uint64_t one = 1;

	for (;;) {
		if (sem_wait(&f->asked) < 0)
			continue;
		f->r = fetch(f->arg, ask_for_ever, &f->documents, &f->err);
		if (write(f->fd, &one, sizeof one) < 0)
			return NULL;
	}
}

int top_fetch_new(struct top_fetch **ret, const struct arguments *arg, struct moe_error *err)
{
	struct top_fetch *f = calloc(1, sizeof *f);
	pthread_t thread;
	sigset_t all, before;
	int r;

	if (!f)
		return moe_error_sys(err, -ENOMEM, "top");
	f->arg = arg;
	f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	sem_init(&f->asked, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = f->fd < 0 ? errno : pthread_create(&thread, NULL, run, f);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r) {
		free(f);
		return moe_error_sys(err, -r, "top: cannot start a thread");
	}
	pthread_detach(thread);
	*ret = f;
	return 0;
}

int top_fetch_fd(const struct top_fetch *f)
{
	return f->fd;
}

bool top_fetch_ask(struct top_fetch *f)
{
	if (f->busy)
		return false;
	f->busy = true;
	sem_post(&f->asked);
	return true;
}

int top_fetch_take(struct top_fetch *f, struct top_documents *ret, struct moe_error *err)
{
	uint64_t n;

	if (read(f->fd, &n, sizeof n) != sizeof n)
		return -EAGAIN;
	f->busy = false;
	if (f->r < 0)
		*err = f->err;
	else
		*ret = f->documents;
	f->documents = (struct top_documents){0};
	return f->r;
}
