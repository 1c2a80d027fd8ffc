/* SPDX-License-Identifier: MIT */
#include "feeder.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "base/util.h"

#define NAP_BOTH_NS 50000     /* where requests and words, or two streams' words, are waited for: no sleep sees both */
#define NAP_NS 2000000        /* how often a job that waits for a word looks whether its stream still lives */
#define STOOD_NS 100000000    /* no round of the thread takes that long, unless the process stood still */
#define NAP_QUEUE_NS 20000000 /* the same of requests, for deadlines; the queue itself wakes sooner */

struct feeder {
	struct queue *queue;
	const struct device_ops *ops;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct feeder_job *given, **given_end; /* under the lock */
	bool stopping;                         /* the same */
	struct feeder_job *jobs;               /* the thread's own: those that are not over, in order */
	uint64_t looked_ns;                    /* the same: up to when their time is spent */
};

/* Takes what was given to the end of the thread's list; sleeps while there is nothing at all. False: it is to end. */
static bool take_jobs(struct feeder *f)
{
	struct feeder_job **end = &f->jobs;
	bool goes_on;

	while (*end)
		end = &(*end)->next;
	pthread_mutex_lock(&f->lock);
	while (!f->jobs && !f->given && !f->stopping)
		pthread_cond_wait(&f->more, &f->lock);
	if (!f->jobs)
		f->looked_ns = now_ns();
	*end = f->given;
	f->given = NULL;
	f->given_end = &f->given;
	goes_on = f->jobs || !f->stopping;
	pthread_mutex_unlock(&f->lock);
	return goes_on;
}

/* The owner may use the memory again at once. */
static void end_job(struct feeder_job *job)
{
	/* Partner: the acquire load in feeder_is_over. */
	__atomic_store_n(&job->over, 1, __ATOMIC_RELEASE);
	futex_wake(&job->over, FUTEX_ALL);
}

/* Runs all jobs once. *ret is what the first ones of those that are left wait for; `apart`: more than one stream is to
 * write a word. */
static void run_jobs(struct feeder *f, struct feeder_need *ret)
{
	struct feeder_job **at = &f->jobs;
	bool behind = false;

	*ret = (struct feeder_need){0};
	while (*at) {
		struct feeder_job *job = *at;
		struct feeder_need need = {.behind = behind};

		if (job->run(job, job->left_ns == 0, &need)) {
			*at = job->next;
			end_job(job);
			continue;
		}
		assert(need.op || need.word);
		if (!ret->op)
			ret->op = need.op;
		ret->apart |= ret->word && need.word && !need.behind;
		if (!ret->word) {
			ret->word = need.word;
			ret->value = need.value;
		}
		behind |= need.word && !need.apart;
		at = &job->next;
	}
}

/* A worker that stood still (a debugger, a frozen container) has not waited for the daemon meanwhile: that costs its
 * jobs no more than STOOD_NS. */
static void spend(struct feeder *f)
{
	const uint64_t now = now_ns(), spent = MIN(now - f->looked_ns, (uint64_t)STOOD_NS);

	f->looked_ns = now;
	for (struct feeder_job *job = f->jobs; job; job = job->next)
		if (job->left_ns != UINT64_MAX)
			job->left_ns -= MIN(job->left_ns, spent);
}

/* Until one of the two may have come, something of another job's since `since`, or what was given; or briefly. */
static void sleep_for(struct feeder *f, const struct feeder_need *need, uint32_t since)
{
	if (need->op)
		queue_wait_any(f->queue, need->op, since, need->word ? NAP_BOTH_NS : NAP_QUEUE_NS);
	else if (need->word)
		f->ops->word_wait(need->word, need->value, need->apart ? NAP_BOTH_NS : NAP_NS);
}

static void *feeder_main(void *arg)
{
	struct feeder *f = arg;
	struct feeder_need need;
	uint32_t since = queue_events(f->queue);

	while (take_jobs(f)) {
		run_jobs(f, &need);
		sleep_for(f, &need, since);
		spend(f);
		since = queue_events(f->queue); /* before the jobs look: what comes from now on is not missed */
	}
	return NULL;
}

int feeder_new(struct feeder **ret, struct queue *queue, const struct device_ops *ops, struct moe_error *err)
{
	struct feeder *f = calloc(1, sizeof *f);
	int r;

	if (!f)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory");
	f->queue = queue;
	f->ops = ops;
	f->given_end = &f->given;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->more, NULL);
	r = thread_start(&f->thread, feeder_main, f);
	if (r < 0) {
		free(f);
		return moe_error_sys(err, r, "moe_attach: cannot start the feeder's thread");
	}
	*ret = f;
	return 0;
}

struct feeder *feeder_free(struct feeder *f)
{
	if (!f)
		return NULL;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_signal(&f->more);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	assert(!f->jobs && !f->given);
	pthread_cond_destroy(&f->more);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return NULL;
}

void feeder_give(struct feeder *f, struct feeder_job *job)
{
	job->next = NULL;
	job->over = 0;
	pthread_mutex_lock(&f->lock);
	*f->given_end = job;
	f->given_end = &job->next;
	pthread_cond_signal(&f->more);
	pthread_mutex_unlock(&f->lock);
	queue_kick(f->queue);
}

bool feeder_is_over(const struct feeder_job *job)
{
	return __atomic_load_n(&job->over, __ATOMIC_ACQUIRE);
}

int feeder_wait(struct feeder_job *job, uint64_t timeout_ns)
{
	const uint64_t end = timeout_ns ? now_ns() + timeout_ns : 0;

	while (!feeder_is_over(job)) {
		const uint64_t now = timeout_ns ? now_ns() : 0;

		if (timeout_ns && now >= end)
			return -ETIMEDOUT;
		futex_wait(&job->over, 0, timeout_ns ? end - now : 0);
	}
	return 0;
}
