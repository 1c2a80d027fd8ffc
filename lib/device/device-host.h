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
	HOST_CALL,
	HOST_EXPERTS,
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
			int (*wait)(void *arg);
			void *arg;
		} call;
		struct device_experts experts;
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
uint64_t host_event_time_ns(struct device_event *event);
uint64_t host_event_next_turn(struct device_event *event);
uint64_t host_event_last_turn(struct device_event *event);
void host_event_reach(struct device_event *event, uint64_t turn, int error);
int host_event_wait_turn(struct device_event *event, uint64_t turn, uint64_t timeout_ns);

/* device-host-experts.c: 0 or -ENOMEM. */
int host_experts(const struct kernels *kernels, struct host_scratch *scratch, const struct device_experts *work);

#endif
