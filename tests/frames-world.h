/* SPDX-License-Identifier: MIT */
/*
 * frames-world - frames whose reads are the test's own, and plain books beside them of what they were told and have
 * asked for; the first law that is broken is noted.
 */
#ifndef TESTS_FRAMES_WORLD_H
#define TESTS_FRAMES_WORLD_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/frames.h"
#include "tests/tap.h"

#define ROWS 5u
#define EXPERTS 6u
#define RECORDS (ROWS * EXPERTS)
#define FRAMES_MAX 32u
#define ASKS 24u
#define USERS 3u

/* What the frames have been told and have asked for. */
struct world {
	struct frames *frames;
	struct frames_user *user[USERS];
	struct frames_counters counters;
	uint32_t table[FRAMES_MAX];
	uint32_t n_frames;
	uint32_t at[RECORDS];      /* by read and gone */
	bool reading[FRAMES_MAX];  /* a read was asked for and has not ended */
	uint64_t rank[FRAMES_MAX]; /* the latest */
	bool shared;               /* as the latest read said, */
	const uint32_t *slots;     /* this, too */
	uint64_t mine[2][ROWS];    /* what two who hint have hinted */
	uint32_t pins[RECORDS];    /* plain books: of READY asks */
	uint32_t leases[RECORDS];
	uint64_t n_gone, n_reads;
	uint32_t gone[256]; /* in their order, the latest 256 */
	const char *wrong;  /* the first law that was broken */
};

struct test_ask {
	struct world *world;
	bool open, ready;
	int status; /* of `ready`; 1: not called */
	struct frames_ask *ask;
};

static void blame(struct world *w, const char *what)
{
	if (!w->wrong)
		w->wrong = what;
}

static void on_read(void *userdata, const struct frames_read *read)
{
	struct world *w = userdata;
	const uint32_t record = read->record, frame = read->frame;

	if (record >= RECORDS || frame >= w->n_frames)
		blame(w, "a read of what is not there");
	else if (w->at[record] != FRAMES_NONE)
		blame(w, "a read of a record that has a frame");
	else if (w->reading[frame])
		blame(w, "a frame given away while something is read into it");
	for (uint32_t i = 0; i < RECORDS; i++)
		if (w->at[i] == frame)
			blame(w, "a frame given away that has a record");
	if (w->table[frame])
		blame(w, "a read into a frame whose table entry stands");
	w->at[record] = frame;
	w->reading[frame] = true;
	w->rank[frame] = read->rank;
	w->shared = read->shared;
	w->slots = read->slots;
	w->n_reads++;
}

static void on_hurry(void *userdata, uint32_t frame, uint64_t rank)
{
	struct world *w = userdata;

	if (!w->reading[frame] || w->rank[frame] <= rank)
		blame(w, "a read is hurried that is over, or would come first as it is");
	w->rank[frame] = rank;
}

static void on_gone(void *userdata, uint32_t record)
{
	struct world *w = userdata;

	if (w->pins[record] || w->leases[record])
		blame(w, "a pinned record has lost its frame");
	w->gone[w->n_gone++ % ARRAY_LEN(w->gone)] = record;
	w->at[record] = FRAMES_NONE;
}

static const struct policy_ops *world_policy = &policy_lru;

static void begin(struct world *w, uint32_t n_frames, uint32_t n_there)
{
	const struct frames_params params = {.rows = ROWS,
					     .experts = EXPERTS,
					     .frames = n_frames,
					     .policy = world_policy,
					     .table = w->table,
					     .counters = &w->counters,
					     .read = on_read,
					     .hurry = on_hurry,
					     .gone = on_gone,
					     .userdata = w};

	*w = (struct world){.n_frames = n_frames};
	memset(w->at, 0xff, sizeof w->at);
	for (uint32_t i = 0; i < n_there; i++) {
		w->table[i] = i + 1;
		w->at[i] = i;
	}
	if (frames_new(&w->frames, &params) < 0)
		exit(1);
}

/* A user comes when it first asks for something, and stays. */
static struct frames_user *user_of(struct world *w, uint32_t user)
{
	if (!w->user[user])
		w->user[user] = frames_join(w->frames, 1000 + user);
	return w->user[user];
}

/* The first user stays. */
static void others_leave(struct world *w)
{
	for (uint32_t i = 1; i < USERS; i++) {
		if (w->user[i])
			frames_leave(w->frames, w->user[i]);
		w->user[i] = NULL;
	}
}

static void end(struct world *w)
{
	others_leave(w);
	if (w->user[0])
		frames_leave(w->frames, w->user[0]);
	frames_free(w->frames);
}

static void on_ready(struct frames_ask *ask, int status);

static struct test_ask asks[ASKS];

static struct test_ask *owner(const struct frames_ask *ask)
{
	for (uint32_t i = 0; i < ASKS; i++)
		if (asks[i].ask == ask)
			return &asks[i];
	return NULL;
}

static uint32_t record_at(const struct frames_ask *ask, uint32_t i)
{
	return ask->row * EXPERTS + ask->experts[i];
}

/* From now on its records must be there, and stay. */
static void check_ready(struct test_ask *t)
{
	struct world *w = t->world;

	for (uint32_t i = 0; i < t->ask->n; i++) {
		const uint32_t record = record_at(t->ask, i), frame = w->at[record];

		if (frame == FRAMES_NONE || w->reading[frame] || frames_of(w->frames, record) != frame)
			blame(w, "an ask is ready and a record of it is not");
		else if (w->table[frame] != record + 1)
			blame(w, "a record that is ready is not in the table");
		w->pins[record]++;
	}
	t->ready = true;
}

static void on_ready(struct frames_ask *ask, int status)
{
	struct test_ask *t = owner(ask);

	if (!t || !t->open || t->ready || t->status != 1) {
		blame(t ? t->world : asks[0].world, "ready for an ask that does not wait");
		return;
	}
	t->status = status;
	if (status == 0)
		check_ready(t);
}

static void open_ask_of(struct world *w, struct test_ask *t, uint32_t user, uint32_t row, uint64_t experts,
			uint32_t class, bool wraps)
{
	struct frames_ask *ask = calloc(1, sizeof *ask + EXPERTS * sizeof ask->experts[0]);

	if (!ask)
		exit(1);
	*ask = (struct frames_ask){
		.user = user_of(w, user), .row = row, .class = class, .wraps = wraps, .ready = on_ready};
	for (uint32_t e = 0; e < EXPERTS; e++)
		if (experts >> e & 1)
			ask->experts[ask->n++] = e;
	*t = (struct test_ask){.world = w, .open = true, .status = 1, .ask = ask};
	if (frames_ask(w->frames, ask)) {
		t->status = 0;
		check_ready(t);
	}
}

static void close_ask(struct test_ask *t)
{
	struct world *w = t->world;

	for (uint32_t i = 0; t->ready && i < t->ask->n; i++)
		w->pins[record_at(t->ask, i)]--;
	if (t->ready)
		frames_release(w->frames, t->ask);
	else if (t->status == 1)
		frames_cancel(w->frames, t->ask);
	free(t->ask);
	*t = (struct test_ask){0};
}

static void end_read(struct world *w, uint32_t frame, int status)
{
	w->reading[frame] = false;
	frames_read_done(w->frames, frame, status, 100);
}

/* All reads, in the order of the frames. */
static void end_reads(struct world *w)
{
	for (uint32_t i = 0; i < w->n_frames; i++)
		if (w->reading[i])
			end_read(w, i, 0);
}

#endif
