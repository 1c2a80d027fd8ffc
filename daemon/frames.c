/* SPDX-License-Identifier: MIT */
#include "daemon/frames-internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* Reads for hints at a time: what is really needed never waits behind more. */
#define PREFETCHES_MAX 2

/* -- frames ------------------------------------------------------------------------------------------------------- */

static void empty(struct frames *f, uint32_t number)
{
	struct frame *frame = &f->frame[number];

	f->p.table[number] = 0;
	/* A process that is killed leaves its stores in their order: no byte is read into the frame before this. */
	__asm__ volatile("" ::: "memory");
	f->record[frame->record].frame = FRAMES_NONE;
	if (f->p.gone)
		f->p.gone(f->p.userdata, frame->record);
	*frame = (struct frame){.record = FRAMES_NONE};
	f->free[f->n_free++] = number;
}

static void evict(struct frames *f, uint32_t record)
{
	const uint32_t number = f->record[record].frame;

	assert(f->frame[number].state == FRAME_READY && f->frame[number].pins + f->frame[number].leases == 0);
	order_evict(f, record);
	f->p.counters->evictions++;
	f->p.counters->prefetch_wasted += f->frame[number].unused;
	empty(f, number);
}

/* There is a free frame. */
static uint32_t place(struct frames *f, uint32_t record, bool urgent)
{
	const uint32_t number = f->free[--f->n_free];

	f->frame[number] = (struct frame){
		.record = record, .state = FRAME_READING, .ahead = !urgent, .unused = !urgent};
	f->record[record].frame = number;
	f->n_reading++;
	f->p.read(f->p.userdata, record, number, urgent);
	return number;
}

/* What was read for a hint is needed now. */
static void hurry(struct frames *f, uint32_t number)
{
	struct frame *frame = &f->frame[number];

	if (frame->state != FRAME_READING || !frame->ahead)
		return;
	frame->ahead = false;
	f->n_prefetching--;
	if (f->p.hurry)
		f->p.hurry(f->p.userdata, number);
}

static void use(struct frames *f, struct frame *frame)
{
	f->p.counters->prefetch_used += frame->unused;
	frame->unused = false;
}

static void pin(struct frames *f, uint32_t number)
{
	struct frame *frame = &f->frame[number];

	if (frame->state == FRAME_READY && frame->pins + frame->leases == 0)
		order_hold(f, frame->record);
	frame->pins++;
	use(f, frame);
}

static void unpin(struct frames *f, uint32_t number)
{
	struct frame *frame = &f->frame[number];

	assert(frame->pins > 0);
	if (--frame->pins + frame->leases == 0 && frame->state == FRAME_READY)
		order_idle(f, frame->record);
}

/* -- asks --------------------------------------------------------------------------------------------------------- */

static uint32_t ask_record(const struct frames *f, const struct frames_ask *ask, uint32_t i)
{
	return ask->row * f->p.experts + ask->experts[i];
}

static void unpin_all(struct frames *f, const struct frames_ask *ask)
{
	for (uint32_t i = 0; i < ask->n; i++)
		unpin(f, f->record[ask_record(f, ask, i)].frame);
}

static void mark_used(struct frames *f, const struct frames_ask *ask)
{
	for (uint32_t i = 0; i < ask->n; i++)
		f->record[ask_record(f, ask, i)].used = f->pass;
}

/* Frames for all of its records, or nothing has changed. */
static bool take(struct frames *f, struct frames_ask *ask)
{
	uint32_t missing = 0, own = 0;

	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t number = f->record[ask_record(f, ask, i)].frame;
		const struct frame *frame = number == FRAMES_NONE ? NULL : &f->frame[number];

		missing += !frame;
		own += frame && frame->state == FRAME_READY && frame->pins + frame->leases == 0;
	}
	if (missing > f->n_free + f->n_idle - own)
		return false;
	f->now = ask->row;
	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t number = f->record[ask_record(f, ask, i)].frame;

		if (number == FRAMES_NONE)
			continue;
		pin(f, number);
		hurry(f, number);
	}
	order_request(f, ask);
	ask->missing = 0;
	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t record = ask_record(f, ask, i);

		if (f->record[record].frame == FRAMES_NONE) {
			if (f->n_free == 0)
				evict(f, order_first(f, UINT64_MAX));
			pin(f, place(f, record, true));
		}
		ask->missing += f->frame[f->record[record].frame].state != FRAME_READY;
	}
	mark_used(f, ask);
	f->p.counters->hits += ask->n - ask->missing;
	f->p.counters->misses += ask->missing;
	return true;
}

static void list_push(struct frames_ask **list, struct frames_ask *ask)
{
	while (*list)
		list = &(*list)->next;
	ask->next = NULL;
	*list = ask;
}

static void list_remove(struct frames_ask **list, const struct frames_ask *ask)
{
	while (*list != ask)
		list = &(*list)->next;
	*list = ask->next;
}

static bool others_wait(const struct frames *f, uint32_t class)
{
	bool any = f->paused;

	for (uint32_t i = 0; i <= class; i++)
		any |= f->waiting[i] != NULL;
	return any;
}

/* What its frames hold is all READY, or reads are under way. */
static bool taken(struct frames *f, struct frames_ask *ask)
{
	ask->state = ask->missing ? ASK_READS : ASK_READY;
	if (ask->missing) {
		ask->next = f->reading;
		f->reading = ask;
	}
	return !ask->missing;
}

bool frames_ask(struct frames *f, struct frames_ask *ask)
{
	assert(ask->n > 0 && ask->n <= f->p.experts && ask->class < FRAMES_CLASSES);
	f->pass += ask->wraps;
	ask->asked_ns = now_ns();
	if (!others_wait(f, ask->class) && take(f, ask)) {
		if (taken(f, ask))
			return true;
	} else {
		ask->state = ASK_WAITS;
		list_push(&f->waiting[ask->class], ask);
	}
	f->p.counters->waits++;
	return false;
}

void frames_release(struct frames *f, struct frames_ask *ask)
{
	assert(ask->state == ASK_READY);
	ask->state = ASK_NONE;
	unpin_all(f, ask);
}

void frames_cancel(struct frames *f, struct frames_ask *ask)
{
	if (ask->state == ASK_WAITS)
		list_remove(&f->waiting[ask->class], ask);
	else if (ask->state == ASK_READS)
		list_remove(&f->reading, ask);
	if (ask->state == ASK_READS || ask->state == ASK_READY)
		unpin_all(f, ask);
	ask->state = ASK_NONE;
}

static void end_waiting(struct frames *f, struct frames_ask *ask, int status)
{
	f->p.counters->wait_ns += now_ns() - ask->asked_ns;
	ask->ready(ask, status);
}

/* -- reads -------------------------------------------------------------------------------------------------------- */

static bool asks_for(const struct frames *f, const struct frames_ask *ask, uint32_t record)
{
	if (ask->row != record / f->p.experts)
		return false;
	for (uint32_t i = 0; i < ask->n; i++)
		if (ask_record(f, ask, i) == record)
			return true;
	return false;
}

/* Those that need the record and have, with it, all or none: taken off the list, for whom `ready` is to be called. */
static struct frames_ask *take_off(struct frames *f, uint32_t record, bool failed)
{
	struct frames_ask **at = &f->reading, *off = NULL, **end = &off;

	while (*at) {
		struct frames_ask *ask = *at;

		if (!asks_for(f, ask, record) || (--ask->missing > 0 && !failed)) {
			at = &ask->next;
			continue;
		}
		*at = ask->next;
		ask->next = NULL;
		*end = ask;
		end = &ask->next;
	}
	return off;
}

static void call_ready(struct frames *f, struct frames_ask *list, int status)
{
	while (list) {
		struct frames_ask *ask = list;

		list = ask->next;
		end_waiting(f, ask, status);
	}
}

static void fail(struct frames *f, uint32_t number, int status)
{
	struct frames_ask *off = take_off(f, f->frame[number].record, true);

	for (struct frames_ask *ask = off; ask; ask = ask->next) {
		ask->state = ASK_NONE;
		unpin_all(f, ask);
	}
	f->p.counters->failures++;
	f->record[f->frame[number].record].used = 0;
	assert(f->frame[number].pins + f->frame[number].leases == 0);
	empty(f, number);
	call_ready(f, off, status);
}

void frames_read_done(struct frames *f, uint32_t number, int status, uint64_t bytes)
{
	struct frame *frame = &f->frame[number];
	struct frames_ask *off;

	assert(number < f->p.frames && frame->state == FRAME_READING);
	f->n_reading--;
	f->n_prefetching -= frame->ahead;
	f->p.counters->reads++;
	f->p.counters->read_bytes += bytes;
	if (status) {
		fail(f, number, status);
		return;
	}
	frame->state = FRAME_READY;
	__asm__ volatile("" ::: "memory");
	f->p.table[number] = frame->record + 1;
	order_admit(f, frame->record);
	if (frame->pins + frame->leases == 0)
		order_idle(f, frame->record);
	off = take_off(f, frame->record, false);
	for (struct frames_ask *ask = off; ask; ask = ask->next)
		ask->state = ASK_READY;
	call_ready(f, off, 0);
}

/* -- hints -------------------------------------------------------------------------------------------------------- */

/* Only while no ask waits and what asks read is there. */
static bool follow_hint(struct frames *f)
{
	uint32_t record, victim;

	if (f->paused || f->reading || others_wait(f, FRAMES_CLASSES - 1) || f->n_prefetching >= PREFETCHES_MAX)
		return false;
	victim = f->n_free ? FRAMES_NONE : order_first(f, f->pass);
	if (f->n_free == 0 && victim == FRAMES_NONE)
		return false;
	record = order_next_hint(f, f->n_reading ? FRAMES_HINT_WEAK : 0);
	if (record == FRAMES_NONE)
		return false;
	if (victim != FRAMES_NONE)
		evict(f, victim);
	f->n_prefetching++;
	f->p.counters->prefetches++;
	f->record[record].used = f->pass;
	place(f, record, false);
	return true;
}

bool frames_pump(struct frames *f)
{
	bool any = false;

	for (uint32_t class = 0; class < FRAMES_CLASSES && !f->paused; class ++) {
		struct frames_ask *ask;

		while ((ask = f->waiting[class])) {
			if (!take(f, ask))
				return any;
			any = true;
			f->waiting[class] = ask->next;
			if (taken(f, ask))
				end_waiting(f, ask, 0);
		}
	}
	while (follow_hint(f))
		any = true;
	return any;
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

bool frames_reserve_lease(struct frames *f)
{
	if (f->n_leased + f->n_reserved >= f->p.frames - f->p.experts)
		return false;
	f->n_reserved++;
	return true;
}

void frames_unreserve_lease(struct frames *f)
{
	assert(f->n_reserved > 0);
	f->n_reserved--;
}

static void lease(struct frames *f, struct frame *frame)
{
	if (frame->pins + frame->leases == 0)
		order_hold(f, frame->record);
	f->n_leased += frame->leases++ == 0;
	use(f, frame);
}

void frames_lease(struct frames *f, uint32_t record)
{
	frames_unreserve_lease(f);
	assert(f->frame[f->record[record].frame].state == FRAME_READY);
	lease(f, &f->frame[f->record[record].frame]);
}

bool frames_lease_again(struct frames *f, uint32_t record)
{
	if (record >= f->p.rows * f->p.experts || f->record[record].frame == FRAMES_NONE)
		return false;
	lease(f, &f->frame[f->record[record].frame]);
	return true;
}

void frames_unlease(struct frames *f, uint32_t record)
{
	struct frame *frame = &f->frame[f->record[record].frame];

	assert(frame->leases > 0);
	f->n_leased -= --frame->leases == 0;
	if (frame->pins + frame->leases == 0)
		order_idle(f, record);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

void frames_pause(struct frames *f, bool paused)
{
	f->paused = paused;
}

uint32_t frames_of(const struct frames *f, uint32_t record)
{
	return f->record[record].frame;
}

void frames_level(const struct frames *f, struct frames_level *ret)
{
	*ret = (struct frames_level){
		.frames = f->p.frames, .free = f->n_free, .reading = f->n_reading, .leased = f->n_leased};
	ret->ready = f->p.frames - f->n_free - f->n_reading;
	ret->pinned = ret->ready - f->n_idle;
	for (int i = 0; i < FRAMES_CLASSES; i++)
		for (const struct frames_ask *a = f->waiting[i]; a; a = a->next)
			ret->waiting++;
}

static int allocate(struct frames *f)
{
	const struct frames_params *p = &f->p;
	int r;

	f->frame = calloc(p->frames, sizeof *f->frame);
	f->record = calloc((size_t)p->rows * p->experts, sizeof *f->record);
	f->row = calloc(p->rows, sizeof *f->row);
	f->free = calloc(p->frames, sizeof *f->free);
	r = order_states(&f->policies, p, p->policy);
	if (!f->frame || !f->record || !f->row || !f->free)
		r = -ENOMEM;
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < p->rows; i++)
		f->row[i].policy = f->policies + i * order_state_bytes(p, p->policy);
	for (uint32_t i = 0; i < p->rows * p->experts; i++)
		f->record[i].frame = FRAMES_NONE;
	for (uint32_t i = p->frames; i-- > 0;) {
		f->frame[i].record = FRAMES_NONE;
		if (!p->table[i])
			f->free[f->n_free++] = i;
	}
	return 0;
}

static bool adopt_table(struct frames *f)
{
	const struct frames_params *p = &f->p;

	for (uint32_t i = 0; i < p->frames; i++) {
		const uint32_t record = p->table[i] - 1;

		if (p->table[i] == 0)
			continue;
		if (record >= p->rows * p->experts || f->record[record].frame != FRAMES_NONE)
			return false;
		f->record[record].frame = i;
		f->frame[i] = (struct frame){.record = record, .state = FRAME_READY};
	}
	for (uint32_t row = 0; row < p->rows; row++) {
		for (uint32_t e = 0; e < p->experts; e++)
			if (f->record[row * p->experts + e].frame != FRAMES_NONE) {
				order_admit(f, row * p->experts + e);
				order_idle(f, row * p->experts + e);
			}
		p->policy->settle(f->row[row].policy);
	}
	return true;
}

int frames_new(struct frames **ret, const struct frames_params *params)
{
	struct frames *f = calloc(1, sizeof *f);
	int r;

	if (!f)
		return -ENOMEM;
	f->p = *params;
	f->pass = 1;
	r = allocate(f);
	if (r == 0 && !adopt_table(f))
		r = -EINVAL;
	if (r < 0) {
		frames_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

struct frames *frames_free(struct frames *f)
{
	if (!f)
		return NULL;
	assert(!f->reading && f->n_reserved == 0);
	free(f->frame);
	free(f->record);
	free(f->row);
	free(f->free);
	free(f->policies);
	free(f);
	return NULL;
}
