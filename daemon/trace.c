/* SPDX-License-Identifier: MIT */
#include "daemon/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/closer.h"
#include "daemon/service.h"

#define BUFFER_BYTES (4u << 20)
#define MARKS_BYTES 4096 /* of a buffer, for what must not be lost: the end */
#define SOURCES_MAX 65535
#define PLACES (2 * (SOURCES_MAX + 1)) /* half of them stay free */
#define WAIT_S 5                       /* for the thread, at the end */

/* A session of the file, and where in its passes it is. */
struct trace_source {
	uint64_t session, step, steps;
	uint32_t layer;
};

struct trace {
	struct tap_sink sink;
	struct taps *taps;
	char model[MOE_NAME_BYTES];
	uint64_t max_bytes, max_steps, max_ns;
	uint64_t began_ns; /* of the monotonic clock */
	uint64_t laid;     /* bytes of the file, written or not */
	uint64_t routes, lost, steps;
	struct trace_source *sources;
	uint32_t n_sources;
	uint16_t *places; /* of a session's source, plus one; 0: free. At the number of its id, or behind it */
	bool listening;   /* for routes */
	bool added;       /* the sink is with the taps */
	enum moe_trace_reason reason;

	int fd;
	uid_t uid; /* whose it is */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	uint8_t *buffers[2]; /* one is filled, the other written */
	size_t used[2];      /* under the lock, as the three below */
	int filled;
	bool stopping;
	_Atomic int error;
	_Atomic uint64_t written;
	_Atomic bool over;
	_Atomic bool orphan; /* nobody is to be woken */
};

/* -- the thread --------------------------------------------------------------------------------------------------- */

static int write_all(struct trace *t, const uint8_t *data, size_t n)
{
	uint64_t at = atomic_load(&t->written);

	while (n > 0) {
		const ssize_t done = pwrite(t->fd, data, n, (off_t)at);

		if (done < 0 && errno != EINTR)
			return -errno;
		if (done <= 0)
			continue;
		data += done;
		n -= (size_t)done;
		at += (uint64_t)done;
		atomic_store(&t->written, at);
	}
	return 0;
}

/* The buffer that was filled, or -1: there will be none any more. The other one is empty. */
static int next_filled(struct trace *t)
{
	int b;

	pthread_mutex_lock(&t->lock);
	while (t->used[t->filled] == 0 && !t->stopping)
		pthread_cond_wait(&t->more, &t->lock);
	b = t->used[t->filled] > 0 ? t->filled : -1;
	if (b >= 0)
		t->filled = !t->filled;
	pthread_mutex_unlock(&t->lock);
	return b;
}

static void *trace_main(void *arg)
{
	struct trace *t = arg;
	int b, r = 0;

	while (r == 0 && (b = next_filled(t)) >= 0) {
		r = write_all(t, t->buffers[b], t->used[b]);
		pthread_mutex_lock(&t->lock);
		t->used[b] = 0;
		pthread_mutex_unlock(&t->lock);
	}
	atomic_store(&t->error, r);
	atomic_store(&t->over, true);
	if (!atomic_load(&t->orphan))
		loop_wake(t->taps->service->loop);
	return NULL;
}

/* -- records ------------------------------------------------------------------------------------------------------ */

/* False: there is no room. Whole records only, each in two parts: its head and what is behind it. */
static bool lay(struct trace *t, const void *head, size_t n, const void *rest, size_t n_rest, size_t room)
{
	bool good;

	pthread_mutex_lock(&t->lock);
	good = t->used[t->filled] + n + n_rest <= room;
	if (good) {
		uint8_t *to = t->buffers[t->filled] + t->used[t->filled];

		memcpy(to, head, n);
		if (n_rest)
			memcpy(to + n, rest, n_rest);
		t->used[t->filled] += n + n_rest;
		t->laid += n + n_rest;
	}
	pthread_mutex_unlock(&t->lock);
	return good;
}

/* The end has its room in the file as well. */
static bool lay_record(struct trace *t, const void *head, size_t n, const void *rest, size_t n_rest)
{
	if (t->laid + n + n_rest + sizeof(struct moe_trace_end) > t->max_bytes) {
		trace_stop(t, MOE_TRACE_BYTES);
		return false;
	}
	return lay(t, head, n, rest, n_rest, BUFFER_BYTES - MARKS_BYTES);
}

static uint64_t since_1970(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void lay_end(struct trace *t)
{
	const struct moe_trace_end end = {.bytes = sizeof end,
					  .kind = MOE_TRACE_END,
					  .reason = (__u8)t->reason,
					  .ended_ns = since_1970(),
					  .routes = t->routes,
					  .lost = t->lost};

	lay(t, &end, sizeof end, NULL, 0, BUFFER_BYTES);
}

static bool lay_source(struct trace *t, const struct session *s)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	struct moe_trace_source source = {
		.bytes = sizeof source,
		.kind = MOE_TRACE_SOURCE,
		.source = (__u16)t->n_sources,
		.session = s->id,
		.group = s->attach.group,
		.pid = (__u32)s->pid,
		.dp_rank = s->attach.dp_rank,
		.n_layers = m->n_layers,
		.n_experts = m->n_experts,
		.topk = m->topk,
	};

	memcpy(source.digest, m->digest, sizeof source.digest);
	memcpy(source.model, m->name, sizeof source.model);
	return lay_record(t, &source, sizeof source, NULL, 0);
}

/* Where a session's place is, or would be. */
static uint16_t *place_of(const struct trace *t, uint64_t session)
{
	uint64_t i = session % PLACES;

	while (t->places[i] && t->sources[t->places[i] - 1].session != session)
		i = (i + 1) % PLACES;
	return &t->places[i];
}

/* A new one where the file does not have it; NULL: there is no room now. */
static struct trace_source *find_source(struct trace *t, const struct session *s)
{
	uint16_t *place = place_of(t, s->id);
	struct trace_source *more;

	if (*place)
		return &t->sources[*place - 1];
	if (t->n_sources == SOURCES_MAX)
		return NULL;
	more = realloc(t->sources, (t->n_sources + 1) * sizeof *more);
	if (!more)
		return NULL;
	t->sources = more;
	if (!lay_source(t, s))
		return NULL;
	t->sources[t->n_sources] = (struct trace_source){.session = s->id};
	*place = (uint16_t)(t->n_sources + 1);
	return &t->sources[t->n_sources++];
}

/* -- as a sink ---------------------------------------------------------------------------------------------------- */

/* Of a group's ranks, which all route the same, the first one speaks. */
static bool trace_wants(struct tap_sink *sink, const struct session *s)
{
	const struct trace *t = container_of(sink, struct trace, sink);

	if (s->attach.group && s->attach.tp_rank)
		return false;
	return !*t->model || strcmp(t->model, s->entry->model->manifest->name) == 0;
}

/* As moe_trace.h says where a pass begins. */
static bool begins_pass(const struct trace_source *source, const struct moe_route *route)
{
	return source->steps == 0 || route->layer <= source->layer || route->step != source->step;
}

static void trace_route(struct tap_sink *sink, const struct session *s, const struct moe_route *route)
{
	struct trace *t = container_of(sink, struct trace, sink);
	struct trace_source *source = t->listening ? find_source(t, s) : NULL;
	struct moe_route head = *route;
	bool begins;

	if (!source) {
		t->lost += t->listening;
		return;
	}
	begins = begins_pass(source, route);
	if (begins && t->max_steps && source->steps == t->max_steps) {
		trace_stop(t, MOE_TRACE_STEPS);
		return;
	}
	head.source = (__u16)(source - t->sources);
	if (!lay_record(t, &head, sizeof head, route + 1, route->bytes - sizeof head)) {
		t->lost += t->listening;
		return;
	}
	source->steps += begins;
	source->layer = route->layer;
	source->step = route->step;
	t->steps = MAX(t->steps, source->steps);
	t->routes++;
}

static void lay_mark(struct trace *t, const struct session *s, enum moe_trace_kind kind, uint64_t lost)
{
	const struct trace_source *source = t->listening ? find_source(t, s) : NULL;

	if (source)
		lay_record(t,
			   &(struct moe_trace_mark){.bytes = sizeof(struct moe_trace_mark),
						    .kind = (__u8)kind,
						    .source = (__u16)(source - t->sources),
						    .lost = lost},
			   sizeof(struct moe_trace_mark), NULL, 0);
}

static void trace_lost(struct tap_sink *sink, const struct session *s, uint64_t routes)
{
	struct trace *t = container_of(sink, struct trace, sink);

	t->lost += t->listening ? routes : 0;
	lay_mark(t, s, MOE_TRACE_LOST, routes);
}

static void trace_left(struct tap_sink *sink, const struct session *s)
{
	struct trace *t = container_of(sink, struct trace, sink);

	if (*place_of(t, s->id))
		lay_mark(t, s, MOE_TRACE_LEFT, 0);
}

static void leave_taps(struct trace *t)
{
	if (t->added)
		taps_remove(t->taps, &t->sink);
	t->added = false;
}

static void trace_tick(struct tap_sink *sink)
{
	struct trace *t = container_of(sink, struct trace, sink);

	if (t->max_ns && trace_elapsed_ns(t) >= t->max_ns)
		trace_stop(t, MOE_TRACE_TIME);
	if (atomic_load(&t->over))
		trace_stop(t, MOE_TRACE_STOPPED);
	pthread_cond_signal(&t->more);
	if (!t->listening)
		leave_taps(t);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

/* As this machine knows the file: fstat(2) would ask a network's or a FUSE file's server, which may never answer. */
static int check_file(int fd, struct moe_error *err)
{
	const int flags = fcntl(fd, F_GETFL);
	struct statx st;

	if (flags < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE, &st) < 0)
		return moe_error_sys(err, -errno, "trace: cannot examine the file descriptor");
	if (!S_ISREG(st.stx_mode) || flags & O_PATH || (flags & O_ACCMODE) == O_RDONLY || flags & O_APPEND)
		return moe_error_set(err, -EINVAL,
				     "trace: a regular file that is open for writing, and not for appending, expected");
	if (st.stx_size > 0)
		return moe_error_set(err, -EINVAL, "trace: an empty file expected, %llu bytes found",
				     (unsigned long long)st.stx_size);
	return 0;
}

static int start_thread(struct trace *t, struct moe_error *err)
{
	const int r = -pthread_create(&t->thread, NULL, trace_main, t);

	return r < 0 ? moe_error_sys(err, r, "trace: no thread") : 0;
}

/* What the thread does not touch any more. */
static void trace_destroy(struct trace *t)
{
	closer_take(&t->fd, 1, t->uid, false);
	pthread_cond_destroy(&t->more);
	pthread_mutex_destroy(&t->lock);
	free(t->buffers[0]);
	free(t->buffers[1]);
	free(t->sources);
	free(t->places);
	free(t);
}

static struct trace *trace_alloc(struct taps *taps, const struct trace_params *p)
{
	struct trace *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->taps = taps;
	t->max_bytes = p->max_bytes ? p->max_bytes : MOE_TRACE_BYTES_DEFAULT;
	t->max_steps = p->max_steps;
	t->max_ns = p->max_ms > UINT64_MAX / 1000000 ? 0 : p->max_ms * 1000000;
	t->began_ns = now_ns();
	t->fd = -1;
	t->uid = p->uid;
	t->sink = (struct tap_sink){
		.wants = trace_wants, .route = trace_route, .lost = trace_lost, .left = trace_left, .tick = trace_tick};
	strncpy(t->model, p->model, sizeof t->model - 1);
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->more, NULL);
	t->buffers[0] = malloc(BUFFER_BYTES);
	t->buffers[1] = malloc(BUFFER_BYTES);
	t->places = calloc(PLACES, sizeof *t->places);
	return t;
}

int trace_start(struct trace **ret, struct taps *taps, int fd, const struct trace_params *params, struct moe_error *err)
{
	const struct moe_trace_head head = {
		.magic = MOE_TRACE_MAGIC, .version = MOE_TRACE_VERSION, .bytes = sizeof head, .began_ns = since_1970()};
	struct trace *t;
	int r = check_file(fd, err);

	if (r < 0)
		return r;
	if (params->max_bytes && params->max_bytes < sizeof head + sizeof(struct moe_trace_end))
		return moe_error_set(
			err, -EINVAL,
			"trace: a file of at most %llu bytes asked for (max_bytes, --max-bytes), at least %zu expected",
			(unsigned long long)params->max_bytes, sizeof head + sizeof(struct moe_trace_end));
	t = trace_alloc(taps, params);
	if (!t)
		return moe_error_sys(err, -ENOMEM, "trace");
	r = t->buffers[0] && t->buffers[1] && t->places ? 0 : moe_error_sys(err, -ENOMEM, "trace");
	if (r == 0) {
		t->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		r = t->fd < 0 ? moe_error_sys(err, -errno, "trace: file descriptor") : 0;
	}
	if (r == 0)
		r = taps_add(taps, &t->sink, err);
	t->added = t->listening = r == 0;
	if (r == 0) {
		lay(t, &head, sizeof head, NULL, 0, BUFFER_BYTES);
		r = start_thread(t, err); /* last: it may be in the file's write for ever, and is joined then */
	}
	if (r < 0) {
		if (t->added)
			taps_remove(taps, &t->sink);
		trace_destroy(t);
		return r;
	}
	*ret = t;
	return 0;
}

void trace_stop(struct trace *t, enum moe_trace_reason reason)
{
	if (!t->listening)
		return;
	t->listening = false;
	t->reason = reason;
	lay_end(t);
	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	pthread_mutex_unlock(&t->lock);
	pthread_cond_signal(&t->more);
}

bool trace_is_over(const struct trace *t)
{
	return !t->added && atomic_load(&t->over);
}

int trace_result(struct trace *t, struct moe_msg_traced *ret, struct moe_error *err)
{
	const int r = atomic_load(&t->error);

	*ret = (struct moe_msg_traced){.bytes = atomic_load(&t->written),
				       .routes = t->routes,
				       .steps = t->steps,
				       .lost = t->lost,
				       .sources = t->n_sources,
				       .reason = t->reason};
	if (r == 0)
		return 0;
	return moe_error_set(err, r,
			     "trace: cannot write after %llu bytes: %s; the file can be read up to its last whole "
			     "record",
			     (unsigned long long)ret->bytes, strerror(-r));
}

uint64_t trace_elapsed_ns(const struct trace *t)
{
	return now_ns() - t->began_ns;
}

uint64_t trace_max_bytes(const struct trace *t)
{
	return t->max_bytes;
}

double trace_progress(const struct trace *t)
{
	const double bytes = (double)t->laid / (double)t->max_bytes;
	const double steps = t->max_steps ? (double)t->steps / (double)t->max_steps : 0;
	const double time = t->max_ns ? (double)trace_elapsed_ns(t) / (double)t->max_ns : 0;

	return MIN(MAX(bytes, MAX(steps, time)), 1.0);
}

struct trace *trace_free(struct trace *t)
{
	struct timespec until;

	if (!t)
		return NULL;
	trace_stop(t, MOE_TRACE_STOPPED);
	leave_taps(t);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	if (pthread_timedjoin_np(t->thread, NULL, &until) == 0)
		trace_destroy(t);
	else /* a disk that hangs: what the thread has is left to it */
		atomic_store(&t->orphan, true);
	return NULL;
}
