/* SPDX-License-Identifier: MIT */
/*
 * device-host - the back-end without an accelerator: a stream is a thread, a copy is a memcpy, device memory is a
 * memfd.
 *
 * What it promises is what device.h promises and no more: streams really run side by side, so that work which was not
 * ordered by an event really happens in the wrong order now and then. A stream's commands are a FIFO ring that grows;
 * when it cannot grow, the caller waits for room. A command that fails poisons its stream: what follows is skipped,
 * only records are still reached, and hand the error to whoever waits for them.
 */
#ifndef LIB_DEVICE_HOST_H
#define LIB_DEVICE_HOST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "kernels/kernels.h"

/* For tests: with a seed other than 0, streams of this process pause at random before and within their commands. */
void device_host_jitter(uint64_t seed);

/* For tests: the kernels of devices that are opened from here on (NULL: the best level that this CPU has). */
void device_host_kernels(const struct kernels *kernels);

/* -- between the files of this back-end --------------------------------------------------------------------------- */

enum host_command_kind {
	HOST_RECORD,
	HOST_WAIT,
	HOST_COPY,
	HOST_WAIT_WORD,
	HOST_WRITE_WORD,
	HOST_TAKE_WORD,
	HOST_EXPERTS,
	HOST_ADD,
};

struct host_command {
	enum host_command_kind kind;
	union {
		struct {
			struct device_event *event;
			uint64_t turn;
		} event;
		struct {
			uint8_t *to;
			const uint8_t *from;
			uint64_t pitch, width, rows;
		} copy;
		struct {
			uint32_t *word;
			uint32_t value;
			uint32_t *waiting;
		} word;
		struct device_experts experts;
		struct {
			float *y;
			const float *z;
			uint64_t n;
		} add;
	};
};

/* Memory that the experts' kernels work in; grows, is kept. */
struct host_scratch {
	void *memory;
	size_t bytes;
};

struct device_stream {
	struct device *device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more, room;
	struct host_command *ring; /* under the lock, as all that follows */
	uint32_t capacity, head, count;
	bool stopping;
	int error;
	struct host_scratch scratch; /* the thread's own */
	uint64_t jitter;             /* the same */
};

/* A record or a wait names a turn: the how-manieth record of this event it is about. */
struct device_event {
	pthread_mutex_t lock;
	pthread_cond_t reached_more;
	uint64_t recorded, reached; /* turns given out, turns reached */
	int error;                  /* of the stream when the latest turn was reached */
	uint64_t time_ns;           /* the same */
};

/* device-host-event.c */
int host_event_new(struct device *device, struct device_event **ret, struct moe_error *err);
struct device_event *host_event_free(struct device_event *event);
int host_event_query(struct device_event *event);
int host_event_wait(struct device_event *event, uint64_t timeout_ns);
uint64_t host_event_elapsed_ns(struct device_event *from, struct device_event *to);
uint64_t host_event_next_turn(struct device_event *event);
uint64_t host_event_last_turn(struct device_event *event);
void host_event_reach(struct device_event *event, uint64_t turn, int error);
int host_event_wait_turn(struct device_event *event, uint64_t turn, uint64_t timeout_ns);

/* device-host-word.c: the host's side of words; timeout_ns 0: no limit. */
void host_word_write(uint32_t *word, uint32_t value);
int host_word_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns);

/* device-host-experts.c: 0 or -ENOMEM. */
int host_experts(const struct kernels *kernels, struct host_scratch *scratch, const struct device_experts *work);

#endif
