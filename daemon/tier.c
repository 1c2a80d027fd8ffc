/* SPDX-License-Identifier: MIT */
#include "daemon/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/complaint.h"
#include "daemon/events.h"
#include "daemon/reader.h"

struct tier {
	struct resident *model;
	struct frames *frames;
	struct frames_counters *counters;
	uint64_t read_before; /* by daemons before this one: bytes */
	int client_fds[MOE_POOLS_MAX];
	uint32_t *layouts; /* [frames]: of what was read there last, and one; 0: not known */
	uint32_t *refused; /* [frames]: reads that could not be asked for */
	uint32_t n_refused;
	struct complaint failed; /* reads, in the log */
};

/* -- reads -------------------------------------------------------------------------------------------------------- */

static void start_read(void *userdata, const struct frames_read *read)
{
	const uint32_t record = read->record, frame = read->frame;
	struct tier *t = userdata;
	struct reader_job *job = calloc(1, sizeof *job);
	const uint32_t layout = t->model->records[record].layout + 1;

	t->model->offsets[record] = frame * t->model->manifest->record_bytes;
	if (!job) {
		t->refused[t->n_refused++] = frame;
		return;
	}
	job->record = record;
	job->offset = t->model->offsets[record];
	job->rank = read->rank;
	job->slots = read->slots;
	job->shared = read->shared;
	job->zero = t->layouts[frame] != layout;
	t->layouts[frame] = layout;
	reader_read(t->model->reader, job);
}

static void hurry_read(void *userdata, uint32_t frame, uint64_t rank)
{
	struct tier *t = userdata;

	reader_hurry(t->model->reader, frame * t->model->manifest->record_bytes, rank);
}

static void lost_frame(void *userdata, uint32_t record)
{
	struct tier *t = userdata;

	t->model->offsets[record] = RESIDENT_NOWHERE;
}

static void say_failed(struct tier *t, const char *text)
{
	uint64_t unsaid;

	if (!complaint_due(&t->failed, complaint_cause(text), now_ns(), &unsaid))
		return;
	if (unsaid)
		event_log(EVENT_READ_FAILED, FACTS(.model = t->model->manifest->name, .count = unsaid, .reason = text),
			  "%s (and %llu failed reads before it)", text, (unsigned long long)unsaid);
	else
		event_log(EVENT_READ_FAILED, FACTS(.model = t->model->manifest->name, .reason = text), "%s", text);
}

/* What failed for causes that were said before. */
static void say_left(struct tier *t, uint64_t now)
{
	const uint64_t unsaid = complaint_left(&t->failed, now);

	if (unsaid)
		event_log(EVENT_READ_FAILED,
			  FACTS(.model = t->model->manifest->name, .count = unsaid, .reason = "as before"),
			  "%s: %llu more reads have failed for the causes above", t->model->manifest->name,
			  (unsigned long long)unsaid);
}

bool tier_poll(struct tier *t)
{
	struct reader_job *job;
	bool any = t->n_refused > 0;

	while (t->n_refused > 0)
		frames_read_done(t->frames, t->refused[--t->n_refused], -ENOMEM, 0);
	while ((job = reader_next_done(t->model->reader, false))) {
		const uint32_t frame = (uint32_t)(job->offset / t->model->manifest->record_bytes);

		any = true;
		if (job->status)
			say_failed(t, job->error);
		if (job->zero) /* it failed before anything came, and another layout's record may be left there */
			t->layouts[frame] = 0;
		frames_read_done(t->frames, frame, job->status, job->read_bytes);
		free(job);
	}
	if (t->failed.unsaid)
		say_left(t, now_ns());
	return frames_pump(t->frames) || any;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

struct frames *tier_frames(struct tier *t)
{
	return t->frames;
}

const struct frames_counters *tier_counters(const struct tier *t)
{
	return t->counters;
}

uint64_t tier_read_bytes(const struct tier *t)
{
	return t->counters->read_bytes - t->read_before;
}

int tier_client_fd(const struct tier *t, uint32_t pool)
{
	return t->client_fds[pool];
}

static void wake(void *userdata)
{
	loop_wake(userdata);
}

static int make_frames(struct tier *t, const struct policy_ops *policy, uint32_t *table, struct moe_error *err)
{
	struct resident *m = t->model;
	const struct frames_params params = {.rows = m->manifest->n_moe_layers,
					     .experts = m->manifest->n_experts,
					     .frames = m->frames,
					     .topk = m->manifest->topk,
					     .policy = policy,
					     .table = table,
					     .counters = t->counters,
					     .read = start_read,
					     .hurry = hurry_read,
					     .gone = lost_frame,
					     .userdata = t};
	int r = frames_new(&t->frames, &params);

	if (r == -E2BIG)
		return moe_error_set(
			err, r,
			"%s: policy %s is for at most %u experts in a layer and 1 GiB of tables: %u layers "
			"of %u found; any but ebco will do (TierPolicy=)",
			m->manifest->name, policy->name, FRAMES_BY_PAIRS_MAX, params.rows, params.experts);
	if (r < 0)
		return moe_error_sys(err, r, "%s: table of %u frames", m->manifest->name, m->frames);
	for (uint32_t i = 0; i < m->frames; i++) {
		if (!table[i])
			continue;
		m->offsets[table[i] - 1] = i * m->manifest->record_bytes;
		t->layouts[i] = m->records[table[i] - 1].layout + 1;
	}
	frames_pause(t->frames, true);
	return 0;
}

int tier_new(struct tier **ret, struct resident *model, const struct policy_ops *policy, uint32_t *table,
	     struct frames_counters *counters, struct loop *loop, struct moe_error *err)
{
	struct tier *t = calloc(1, sizeof *t);
	int r = -ENOMEM;

	if (t) {
		t->model = model;
		t->counters = counters;
		t->read_before = counters->read_bytes;
		for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
			t->client_fds[i] = -EBADF;
		t->layouts = calloc(model->frames, sizeof *t->layouts);
		t->refused = calloc(model->frames, sizeof *t->refused);
	}
	if (!t || !t->layouts || !t->refused)
		moe_error_sys(err, r, "%s: books of %u frames", model->manifest->name, model->frames);
	else
		r = make_frames(t, policy, table, err);
	if (r < 0) {
		tier_free(t);
		return r;
	}
	for (uint32_t i = 0; i < model->n_pools; i++)
		t->client_fds[i] = memfd_reopen_readonly(model->pools[i].fd);
	reader_set_wake(model->reader, wake, loop);
	*ret = t;
	return 0;
}

void tier_part(struct tier *t)
{
	if (t->model->reader)
		reader_set_wake(t->model->reader, NULL, NULL);
	say_left(t, UINT64_MAX);
}

struct tier *tier_free(struct tier *t)
{
	if (!t)
		return NULL;
	/* Nothing is written into the frames, and nobody is woken, any more. */
	t->model->reader = reader_free(t->model->reader);
	say_left(t, UINT64_MAX);
	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		if (t->client_fds[i] >= 0)
			close_fd(t->client_fds[i]);
	frames_free(t->frames);
	free(t->layouts);
	free(t->refused);
	free(t);
	return NULL;
}
