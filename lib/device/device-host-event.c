/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/util.h"
#include "device/device-host.h"

int host_event_new(struct device *device, struct device_event **ret, struct moe_error *err)
{
	struct device_event *event = calloc(1, sizeof *event);
	pthread_condattr_t clock;

	if (!event)
		return moe_error_set(err, -ENOMEM, "host device: no memory for an event");
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&event->lock, NULL);
	pthread_cond_init(&event->reached_more, &clock);
	pthread_condattr_destroy(&clock);
	*ret = event;
	return 0;
}

struct device_event *host_event_free(struct device_event *event)
{
	if (event) {
		pthread_cond_destroy(&event->reached_more);
		pthread_mutex_destroy(&event->lock);
		free(event);
	}
	return NULL;
}

uint64_t host_event_next_turn(struct device_event *event)
{
	uint64_t turn;

	pthread_mutex_lock(&event->lock);
	turn = ++event->recorded;
	pthread_mutex_unlock(&event->lock);
	return turn;
}

uint64_t host_event_last_turn(struct device_event *event)
{
	uint64_t turn;

	pthread_mutex_lock(&event->lock);
	turn = event->recorded;
	pthread_mutex_unlock(&event->lock);
	return turn;
}

void host_event_reach(struct device_event *event, uint64_t turn, int error)
{
	pthread_mutex_lock(&event->lock);
	if (turn > event->reached) {
		event->reached = turn;
		event->error = error;
		event->time_ns = now_ns();
	}
	pthread_cond_broadcast(&event->reached_more);
	pthread_mutex_unlock(&event->lock);
}

int host_event_wait_turn(struct device_event *event, uint64_t turn, uint64_t timeout_ns)
{
	const uint64_t end = timeout_ns ? now_ns() + timeout_ns : 0;
	const struct timespec until = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)};
	int r = 0;

	pthread_mutex_lock(&event->lock);
	while (event->reached < turn && r == 0)
		r = timeout_ns ? -pthread_cond_timedwait(&event->reached_more, &event->lock, &until)
			       : -pthread_cond_wait(&event->reached_more, &event->lock);
	if (event->reached >= turn)
		r = event->error;
	pthread_mutex_unlock(&event->lock);
	return r;
}

int host_event_query(struct device_event *event)
{
	int r;

	pthread_mutex_lock(&event->lock);
	r = event->reached < event->recorded ? -EBUSY : event->error;
	pthread_mutex_unlock(&event->lock);
	return r;
}

int host_event_wait(struct device_event *event, uint64_t timeout_ns)
{
	return host_event_wait_turn(event, host_event_last_turn(event), timeout_ns);
}

static uint64_t reached_ns(struct device_event *event)
{
	uint64_t ns;

	pthread_mutex_lock(&event->lock);
	ns = event->time_ns;
	pthread_mutex_unlock(&event->lock);
	return ns;
}

uint64_t host_event_elapsed_ns(struct device_event *from, struct device_event *to)
{
	const uint64_t begin = reached_ns(from), end = reached_ns(to);

	return end > begin ? end - begin : 0;
}
