/* SPDX-License-Identifier: MIT */
#include "daemon/events.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/timerfd.h>

#include "base/util.h"

#define TEXT_BYTES 2048

const char *const event_field_names[EVENT_FIELDS] = {
	"MOE_MODEL", "MOE_PATH", "MOE_SESSION", "MOE_PID",    "MOE_UID",
	"MOE_BYTES", "MOE_USEC", "MOE_COUNT",   "MOE_REASON", "MOE_POLICY",
};

#define WHO (EVENT_SESSION | EVENT_PID | EVENT_UID | EVENT_MODEL)

/* In the order in which the manual has them. Ids were made by chance and are never used for anything else. */
const struct event_def events_table[EVENTS] = {
	[EVENT_READY] = {"ready", "cc486cbd9d514372bedb55bf7fd01c3e", LOG_LEVEL_INFO, EVENT_PATH | EVENT_COUNT,
			 "all models are loaded, MOE_COUNT of them; workers are served at the socket MOE_PATH"},
	[EVENT_ENDING] = {"ending", "47bee5c10b2f4b1d90558534f3affa5b", LOG_LEVEL_INFO, EVENT_REASON,
			  "the daemon ends, by a signal"},
	[EVENT_TAKEN_OVER] = {"taken-over", "a388f8953d0e46b888d9fb5a8d307261", LOG_LEVEL_NOTICE, EVENT_COUNT,
			      "models and MOE_COUNT sessions of the daemon before go on, without a read"},
	[EVENT_MODEL_LOST] = {"model-lost", "c30ff4db61d54a03b2c430ae793b0c4f", LOG_LEVEL_WARNING, EVENT_REASON,
			      "a model of the daemon before cannot be taken over"},
	[EVENT_SESSION_LOST] = {"session-lost", "819040fd362743deb948d891cc98f3ac", LOG_LEVEL_WARNING,
				EVENT_SESSION | EVENT_REASON, "a session of the daemon before cannot go on"},
	[EVENT_LOADING] = {"loading", "0beba22268224cb0822b75076897a409", LOG_LEVEL_INFO, EVENT_PATH,
			   "a model's load has begun"},
	[EVENT_LOADED] = {"loaded", "a84d12b11aa9449bbc1b42fc8fbcad12", LOG_LEVEL_INFO,
			  EVENT_MODEL | EVENT_PATH | EVENT_BYTES | EVENT_USEC,
			  "a model is loaded: MOE_BYTES of memory, after MOE_USEC microseconds"},
	[EVENT_LOAD_FAILED] = {"load-failed", "7a621ed9d61349a093355fca94d7f034", LOG_LEVEL_ERR,
			       EVENT_PATH | EVENT_REASON, "a model could not be loaded"},
	[EVENT_UNLOADED] = {"unloaded", "05eecc0923c54dc3bbd80362c7c33b42", LOG_LEVEL_INFO, EVENT_MODEL,
			    "a model's memory was given back"},
	[EVENT_NEW_POLICY] = {"policy", "03ecd918ded94f45b97e8c6f193c69f8", LOG_LEVEL_NOTICE,
			      EVENT_MODEL | EVENT_POLICY,
			      "somebody has given the tiered model MOE_MODEL another policy"},
	[EVENT_HEAT_LOST] = {"heat-lost", "10ba6d2c9a7d41fba3a536f230e06268", LOG_LEVEL_WARNING,
			     EVENT_MODEL | EVENT_REASON, "what was saved of a model's heat cannot be used"},
	[EVENT_HEAT_UNSAVED] = {"heat-unsaved", "7252316b930a4b8fbde28a1cad1f1419", LOG_LEVEL_WARNING,
				EVENT_PATH | EVENT_REASON, "a model's heat cannot be saved in the folder MOE_PATH"},
	[EVENT_HEAT_FORGOTTEN] = {"heat-forgotten", "46bca67386594d648c0479ea43c129e5", LOG_LEVEL_NOTICE, EVENT_MODEL,
				  "somebody has let the heat of MOE_MODEL begin anew"},
	[EVENT_ATTACHED] = {"attached", "7ac5550dde7944a18d673695c18a2072", LOG_LEVEL_DEBUG, WHO, "a session begins",
			    .sums = true},
	[EVENT_LEFT] = {"left", "7b1caaf3411b49e8a10ef8eb41b1965b", LOG_LEVEL_DEBUG, WHO, "a session ends",
			.sums = true},
	[EVENT_RANKS_DIFFER] = {"ranks-differ", "9876804494604c8c9a04814631ff5e7e", LOG_LEVEL_WARNING,
				EVENT_PID | EVENT_UID | EVENT_MODEL | EVENT_REASON,
				"ranks that say that they are of one group have other weights", .sums = true},
	[EVENT_RANK_LOST] = {"rank-lost", "5b2191621c5d43a282c1739418dc675e", LOG_LEVEL_WARNING,
			     WHO | EVENT_COUNT | EVENT_REASON,
			     "a step was agreed on without a data-parallel rank, the MOE_COUNT-th of its group",
			     .sums = true},
	[EVENT_DROPPED] =
		{"dropped", "76ca80d9de0a4f9f91d8c9fd43e4dc5b", LOG_LEVEL_WARNING,
		 EVENT_SESSION | EVENT_PID | EVENT_UID | EVENT_REASON,
		 "a connection was closed because its client broke the protocol, asked too much or left answers unread",
		 .sums = true},
	[EVENT_SUMMED] = {"summed", "6f128bf780124fdd89936dbfd2d588be", LOG_LEVEL_INFO, EVENT_COUNT | EVENT_REASON,
			  "MOE_COUNT more events of the name MOE_REASON were not told one by one"},
	[EVENT_LIMIT] = {"limit", "98b5231d69d94bcf830b5932d65ea9d0", LOG_LEVEL_WARNING, EVENT_UID | EVENT_REASON,
			 "a user has met a limit for the first time"},
	[EVENT_NO_MEMORY] = {"no-memory", "e743cb37df8b44c885c11b8b6db866d3", LOG_LEVEL_WARNING, 0,
			     "there was no memory for a connection", .sums = true},
	[EVENT_READ_FAILED] = {"read-failed", "d316166c5c944447925eb09f6eeea867", LOG_LEVEL_ERR,
			       EVENT_MODEL | EVENT_COUNT | EVENT_REASON,
			       "records of a tiered model cannot be read, after MOE_COUNT untold failures"},
	[EVENT_STUCK] = {"stuck", "2aa74319521a4c04bcdd1c7c06667f54", LOG_LEVEL_ERR, EVENT_REASON,
			 "the CPU pool does not move: the watchdog is pinged no more"},
	[EVENT_RELOADED] = {"reloaded", "94562ee3ae2d44f8b7e89ed537a0ab88", LOG_LEVEL_NOTICE, EVENT_COUNT,
			    "the configuration was read again, MOE_COUNT settings have changed"},
	[EVENT_RELOAD_FAILED] = {"reload-failed", "e5916a07f70a408487a1b0673c3f17fb", LOG_LEVEL_ERR, EVENT_REASON,
				 "the configuration is wrong; what was in force stays"},
	[EVENT_DRAINING] = {"draining", "a53746edad1e47239473ff1bf2fb4456", LOG_LEVEL_NOTICE, 0,
			    "no session is taken in any more"},
	[EVENT_DRAINED] = {"drained", "a73df230585b4bf8b5d0e99388c40ace", LOG_LEVEL_NOTICE, 0,
			   "the last session has left"},
	[EVENT_NO_METRICS] = {"no-metrics", "fb28193de8b746208e0ceb0d359464b6", LOG_LEVEL_WARNING, EVENT_REASON,
			      "a daemon that took over serves without its metrics"},
	[EVENT_PUSH_ENDED] = {"push-ended", "3159b1b398874d70ba86ed63368c90fc", LOG_LEVEL_ERR, EVENT_REASON,
			      "nothing is pushed into GPUs any more"},
	[EVENT_TRACE_BEGAN] = {"trace-began", "674bdaaa50bc3107d04c3f3486d4f84c", LOG_LEVEL_NOTICE, EVENT_MODEL,
			       "what the routers of a model choose, or of all, is recorded from now on"},
	[EVENT_TRACE_ENDED] = {"trace-ended", "9b8d810ff947c06a3e0601735d2aab38", LOG_LEVEL_NOTICE,
			       EVENT_MODEL | EVENT_BYTES | EVENT_COUNT | EVENT_REASON,
			       "a recording has ended, with MOE_COUNT routes in MOE_BYTES"},
	[EVENT_DIED] = {"died", "93810dbfd66249bbbc8d9f10f8d5e9c9", LOG_LEVEL_WARNING,
			EVENT_COUNT | EVENT_USEC | EVENT_REASON,
			"the keeper's daemon has died; the next one begins in MOE_USEC, with MOE_COUNT descriptors"},
	[EVENT_GIVEN_UP] = {"given-up", "879aaac47dcb458f995c490da47220b7", LOG_LEVEL_ERR, EVENT_COUNT | EVENT_REASON,
			    "the keeper's daemon dies again and again: MOE_COUNT kept descriptors are let go"},
};

/* "" and 0 stand for what is not known. */
static const char *text_of(enum event_field field, const struct event_facts *f, char to[32])
{
	uint64_t number = 0;

	switch (field) {
	case EVENT_MODEL:
		return f->model ? f->model : "";
	case EVENT_PATH:
		return f->path ? f->path : "";
	case EVENT_REASON:
		return f->reason ? f->reason : "";
	case EVENT_POLICY:
		return f->policy ? f->policy : "";
	case EVENT_SESSION:
		number = f->session;
		break;
	case EVENT_PID:
		number = (uint64_t)f->pid;
		break;
	case EVENT_UID:
		number = f->uid;
		break;
	case EVENT_BYTES:
		number = f->bytes;
		break;
	case EVENT_USEC:
		number = f->usec;
		break;
	case EVENT_COUNT:
		number = f->count;
		break;
	}
	snprintf(to, 32, "%" PRIu64, number);
	return to;
}

/* -- sums --------------------------------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	int timer;
	struct {
		uint64_t since_ns, more;
		uint32_t told;
	} of[EVENTS];
} sums = {.lock = PTHREAD_MUTEX_INITIALIZER, .timer = -1};

/* Under the lock: its time is over. */
static uint64_t begin_sum(enum event event, uint64_t now)
{
	const uint64_t more = sums.of[event].more;

	sums.of[event].since_ns = now;
	sums.of[event].told = 0;
	sums.of[event].more = 0;
	return more;
}

static void tell_sum(enum event event, uint64_t more)
{
	const char *name = events_table[event].name;

	if (more)
		event_log(EVENT_SUMMED, FACTS(.count = more, .reason = name), "%s: %" PRIu64 " more in a short time",
			  name, more);
}

/* Under the lock: one more, the first of a sum wakes who tells it. */
static void add_to_sum(enum event event)
{
	const struct itimerspec after = {.it_value = {EVENT_SUM_MS / 1000, (long)(EVENT_SUM_MS % 1000) * 1000000}};

	if (sums.of[event].more++ == 0 && sums.timer >= 0)
		timerfd_settime(sums.timer, 0, &after, NULL);
}

/* False: it goes into a sum. */
static bool is_told(enum event event)
{
	const uint64_t now = now_ns();
	uint64_t more = 0;
	bool told;

	if (!events_table[event].sums)
		return true;
	pthread_mutex_lock(&sums.lock);
	if (now - sums.of[event].since_ns >= EVENT_SUM_MS * (uint64_t)1000000)
		more = begin_sum(event, now);
	told = sums.of[event].told < EVENT_EACH;
	if (told)
		sums.of[event].told++;
	else
		add_to_sum(event);
	pthread_mutex_unlock(&sums.lock);
	tell_sum(event, more);
	return told;
}

void events_use_timer(int fd)
{
	pthread_mutex_lock(&sums.lock);
	sums.timer = fd;
	pthread_mutex_unlock(&sums.lock);
}

void events_tell_sums(void)
{
	const uint64_t now = now_ns();

	for (int i = 0; i < EVENTS; i++) {
		uint64_t more;

		pthread_mutex_lock(&sums.lock);
		more = sums.of[i].more ? begin_sum((enum event)i, now) : 0;
		pthread_mutex_unlock(&sums.lock);
		tell_sum((enum event)i, more);
	}
}

/* -- events ------------------------------------------------------------------------------------------------------- */

void event_log(enum event event, const struct event_facts *facts, const char *format, ...)
{
	const struct event_def *def = &events_table[event];
	struct log_field fields[EVENT_FIELDS + 1];
	char message[TEXT_BYTES], numbers[EVENT_FIELDS][32];
	unsigned n = 0;
	va_list args;

	if (!is_told(event))
		return;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	fields[n++] = (struct log_field){"MOE_EVENT", def->name};
	for (unsigned i = 0; i < EVENT_FIELDS; i++)
		if (def->fields & 1u << i)
			fields[n++] = (struct log_field){event_field_names[i],
							 text_of((enum event_field)(1u << i), facts, numbers[i])};
	log_fields(def->level, def->id, fields, n, message);
}
