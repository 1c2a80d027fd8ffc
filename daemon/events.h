/* SPDX-License-Identifier: MIT */
/*
 * events - what the daemon says that an administrator may want to filter, count or be woken by.
 *
 * Law: the table (events.c) is the only place that says which events there are: each has a message id that never
 * changes, one level, and the fields that it always has. moe-expertd(8), MESSAGES, and the journal's catalog
 * (systemd/moe-expertd.catalog) say what the table says (tests/style/man.t). On a terminal an event is a line like any
 * other; the journal has it with its fields, whatever Verbose= says.
 *
 * What clients can cause as often as they like (`sums`) is told one by one EVENT_EACH times within EVENT_SUM_MS; of
 * what comes beyond that a sum is told when that time is over. After 10,000 messages in 30 s journald drops all that a
 * unit says, and with it what matters. Thread-safe.
 */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

enum event {
	EVENT_READY,
	EVENT_ENDING,
	EVENT_TAKEN_OVER,
	EVENT_MODEL_LOST,
	EVENT_SESSION_LOST,
	EVENT_LOADING,
	EVENT_LOADED,
	EVENT_LOAD_FAILED,
	EVENT_UNLOADED,
	EVENT_NEW_POLICY,
	EVENT_HEAT_LOST,
	EVENT_HEAT_UNSAVED,
	EVENT_HEAT_FORGOTTEN,
	EVENT_ATTACHED,
	EVENT_LEFT,
	EVENT_RANKS_DIFFER,
	EVENT_RANK_LOST,
	EVENT_DROPPED,
	EVENT_SUMMED,
	EVENT_LIMIT,
	EVENT_NO_MEMORY,
	EVENT_READ_FAILED,
	EVENT_STUCK,
	EVENT_RELOADED,
	EVENT_RELOAD_FAILED,
	EVENT_DRAINING,
	EVENT_DRAINED,
	EVENT_NO_METRICS,
	EVENT_PUSH_ENDED,
	EVENT_TRACE_BEGAN,
	EVENT_TRACE_ENDED,
	EVENT_DIED,
	EVENT_GIVEN_UP,
	EVENTS
};

/* Values for fields: MOE_MODEL, MOE_PATH, MOE_SESSION, MOE_PID, MOE_UID, MOE_BYTES, MOE_USEC, MOE_COUNT, MOE_REASON,
 * MOE_POLICY. */
enum event_field {
	EVENT_MODEL = 1 << 0,
	EVENT_PATH = 1 << 1,
	EVENT_SESSION = 1 << 2,
	EVENT_PID = 1 << 3,
	EVENT_UID = 1 << 4,
	EVENT_BYTES = 1 << 5,
	EVENT_USEC = 1 << 6,
	EVENT_COUNT = 1 << 7,
	EVENT_REASON = 1 << 8,
	EVENT_POLICY = 1 << 9,
};
#define EVENT_FIELDS 10

struct event_facts {
	const char *model, *path, *reason, *policy;
	uint64_t session, bytes, usec, count;
	int pid;
	uint32_t uid;
};
#define FACTS(...) (&(const struct event_facts){__VA_ARGS__})

struct event_def {
	const char *name, *id;
	enum log_level level;
	uint32_t fields; /* enum event_field */
	const char *help;
	bool sums;
};
#define EVENT_EACH 100
#define EVENT_SUM_MS 5000
extern const struct event_def events_table[EVENTS];
extern const char *const event_field_names[EVENT_FIELDS];

/* The text that follows is the line. `facts` has what the table says of this event; what else it has is not sent. */
void event_log(enum event event, const struct event_facts *facts, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* A timerfd that is armed when there is something to sum up; -1: none. */
void events_use_timer(int fd);
/* Tells the sums there are, with which their time is over. */
void events_tell_sums(void);

#endif
