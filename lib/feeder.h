/* SPDX-License-Identifier: MIT */
/*
 * feeder - the one thread of a session that stands between the daemon, whose answers wake threads, and the device,
 * whose streams wait for words.
 *
 * Law. No stream ever calls into the host; where a step's copies depend on the daemon, its stream waits for a word, and
 * the feeder writes that word in every case: when the answers have come, when they were failures, when the daemon is
 * gone, and at the latest when the job's time is up. So a wait that nobody would end does not exist, and what a stream
 * does after a word that brought nothing is thrown away, because the step was failed before the word was written.
 *
 * A job is a small machine that is run whenever something that it waits for may have come. It never waits itself. Jobs
 * are run in the order in which they were given, and one that has nothing to do does not hold up the others. A job's
 * memory is its owner's, who gives it and then leaves it alone until feeder_wait has said that it is over.
 */
#ifndef LIB_FEEDER_H
#define LIB_FEEDER_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "queue.h"

struct feeder;
struct feeder_job;

/* What a job that is not over waits for: one of the two, or both. */
struct feeder_need {
	struct queue_op *op;  /* the end of a request, or NULL */
	const uint32_t *word; /* that a stream writes, or NULL */
	uint32_t value;
	bool behind; /* told to a job: an earlier one waits for a word; one stream writes all of them in order ... */
	bool apart;  /* ... but for this one */
};

struct feeder_job {
	/* Runs the job as far as it goes; true: it is over. `late`: its time is up, it is to end now, whatever came. */
	bool (*run)(struct feeder_job *job, bool late, struct feeder_need *ret);
	uint64_t left_ns; /* until it is late, or UINT64_MAX; it is not spent while this process stands still */
	struct feeder_job *next;
	uint32_t over; /* 1: it is; futex word */
};

/* -ENOMEM, or that no thread can be started. */
int feeder_new(struct feeder **ret, struct queue *queue, const struct device_ops *ops, struct moe_error *err);
struct feeder *feeder_free(struct feeder *feeder); /* all jobs are over; takes NULL, returns NULL */

/* Any thread. */
void feeder_give(struct feeder *feeder, struct feeder_job *job);

/* 0: the job is over and its memory free to be used; -ETIMEDOUT. timeout_ns 0: no limit. */
int feeder_wait(struct feeder_job *job, uint64_t timeout_ns);
bool feeder_is_over(const struct feeder_job *job);

#endif
