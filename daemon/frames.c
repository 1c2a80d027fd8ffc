/* SPDX-License-Identifier: MIT */
#include "daemon/frames-internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* Reads for hints at a time: what is really needed never waits behind more. */
#define PREFETCHES_MAX 2
/* Asks that get their frames in one turn of the reactor: rings are served in between. */
#define SERVED_MAX 32

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

static void read_for(struct frame *frame, const struct frames_ask *ask, uint64_t rank)
{
	frame->rank = rank;
	if (!ask || frame->reader)
		return;
	frame->reader = ask->user;
	frame->class = ask->class;
	ask->user->busy[ask->class]++;
}

/* There is a free frame. Without an ask it is for a hint. */
static uint32_t place(struct frames *f, uint32_t record, const struct frames_ask *ask, uint64_t rank)
{
	const uint32_t number = f->free[--f->n_free];
	const uint64_t now = now_ns();

	if (ask)
		ask->user->read_ns = now;
	f->frame[number] = (struct frame){.record = record, .state = FRAME_READING, .ahead = !ask, .unused = !ask};
	read_for(&f->frame[number], ask, rank);
	f->record[record].frame = number;
	f->n_reading++;
	f->p.read(f->p.userdata, &(struct frames_read){.record = record,
						       .frame = number,
						       .rank = rank,
						       .slots = ask ? &ask->user->slots : NULL,
						       .shared = turns_shared(f, ask ? ask->user : NULL, now)});
	return number;
}

/* What is being read for a hint, or for one who has waited less, is needed now. */
static void hurry(struct frames *f, uint32_t number, const struct frames_ask *ask, uint64_t rank)
{
	struct frame *frame = &f->frame[number];

	f->n_prefetching -= frame->ahead;
	frame->ahead = false;
	if (rank >= frame->rank)
		return;
	read_for(frame, ask, rank);
	if (f->p.hurry)
		f->p.hurry(f->p.userdata, number, rank);
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
	ask->user->pinned[ask->class] -= ask->n;
}

static void mark_used(struct frames *f, const struct frames_ask *ask)
{
	for (uint32_t i = 0; i < ask->n; i++)
		f->record[ask_record(f, ask, i)].used = f->pass;
}

/* Of what an ask wants. */
struct need {
	uint32_t missing, reading, idle; /* in no frame; in frames, not READY yet; READY and held by nobody */
};

static struct need need_of(const struct frames *f, const struct frames_ask *ask)
{
	struct need need = {0};

	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t number = f->record[ask_record(f, ask, i)].frame;
		const struct frame *frame = number == FRAMES_NONE ? NULL : &f->frame[number];

		need.missing += !frame;
		need.reading += frame && frame->state == FRAME_READING;
		need.idle += frame && frame->state == FRAME_READY && frame->pins + frame->leases == 0;
	}
	return need;
}

/* What is in frames is held, and what is on its way comes as the user's next. */
static void take_found(struct frames *f, const struct frames_ask *ask, uint64_t *at)
{
	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t number = f->record[ask_record(f, ask, i)].frame;

		if (number == FRAMES_NONE)
			continue;
		pin(f, number);
		if (f->frame[number].state == FRAME_READING)
			hurry(f, number, ask, turns_rank(ask->class, ++*at));
	}
}

static void take_missing(struct frames *f, const struct frames_ask *ask, uint64_t *at)
{
	for (uint32_t i = 0; i < ask->n; i++) {
		const uint32_t record = ask_record(f, ask, i);

		if (f->record[record].frame != FRAMES_NONE)
			continue;
		if (f->n_free == 0)
			evict(f, order_first(f, UINT64_MAX));
		pin(f, place(f, record, ask, turns_rank(ask->class, ++*at)));
	}
}

/* Frames for all of its records, or nothing has changed. */
static bool take(struct frames *f, struct frames_ask *ask, struct need need)
{
	uint64_t at = turns_begin(f, ask->user, ask->class);

	if (need.missing > f->n_free + f->n_idle - need.idle)
		return false;
	f->now = ask->row;
	take_found(f, ask, &at);
	order_request(f, ask);
	take_missing(f, ask, &at);
	ask->user->pinned[ask->class] += ask->n;
	ask->missing = need.missing + need.reading;
	if (ask->missing)
		ask->user->end[ask->class] = at;
	mark_used(f, ask);
	f->p.counters->hits += ask->n - ask->missing;
	f->p.counters->misses += ask->missing;
	return true;
}

/* What its frames hold is all READY, or reads are under way. */
static bool taken(struct frames *f, struct frames_ask *ask)
{
	ask->state = ask->missing ? ASK_READS : ASK_READY;
	if (ask->missing) {
		ask_list_push(&f->reading, ask);
		ask->user->busy[ask->class]++;
	}
	return !ask->missing;
}

static void no_longer_reading(struct frames *f, struct frames_ask *ask)
{
	ask_list_remove(&f->reading, ask);
	ask->user->busy[ask->class]--;
}

/* It need not wait for its turn: there is all that it wants, or nobody is before it. */
static bool goes_first(struct frames *f, const struct frames_ask *ask, struct need need)
{
	const struct frames_ask *head = ask->user->waiting[ask->class].head;

	/* Nor does who is smaller than what its user asked for before, and would keep that from its room for ever. */
	if (turns_full(f, ask) || (head && turns_full(f, head)))
		return false;
	if (turns_open(f, ask->class))
		return need.missing + need.reading == 0 ||
		       (!ask->user->waiting[ask->class].head && !turns_sated(ask->user, ask->class));
	return !f->paused && need.missing + need.reading == 0 && f->passed++ < FRAMES_PASSES_MAX;
}

static void wait_in_line(struct frames *f, struct frames_ask *ask)
{
	ask->state = ASK_WAITS;
	ask_list_push(&ask->user->waiting[ask->class], ask);
	f->n_waiting++;
}

static void leave_line(struct frames *f, struct frames_ask *ask)
{
	ask_list_remove(&ask->user->waiting[ask->class], ask);
	f->n_waiting--;
}

bool frames_ask(struct frames *f, struct frames_ask *ask)
{
	assert(ask->n > 0 && ask->n <= f->p.experts && ask->class < FRAMES_CLASSES);
	const struct need need = need_of(f, ask);
	const bool first = goes_first(f, ask, need);

	f->pass += ask->wraps;
	ask->asked_ns = now_ns();
	if (first && take(f, ask, need)) {
		if (taken(f, ask))
			return true;
	} else {
		if (first)
			turns_block(f, ask->class);
		wait_in_line(f, ask);
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
		leave_line(f, ask);
	else if (ask->state == ASK_READS)
		no_longer_reading(f, ask);
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
	struct frames_ask *ask = f->reading.head, *next;
	struct ask_list off = {0};

	for (; ask; ask = next) {
		next = ask->next;
		if (!asks_for(f, ask, record) || (--ask->missing > 0 && !failed))
			continue;
		no_longer_reading(f, ask);
		ask_list_push(&off, ask);
	}
	return off.head;
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
	turns_read_done(f, frame);
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

/* Only while no ask waits for frames and what asks read is there; whose user has all that it may have waits without. */
static bool follow_hint(struct frames *f)
{
	uint32_t record, victim;

	if (f->paused || f->reading.head || f->n_prefetching >= PREFETCHES_MAX)
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
	place(f, record, NULL, FRAMES_RANK_HINT);
	return true;
}

/* Those of the class whose turn it is. False: one of them waits for frames, or all that may be served were. */
static bool serve(struct frames *f, uint32_t class, uint32_t *served)
{
	struct frames_ask *ask;

	while ((ask = turns_next(f, class))) {
		if (*served == SERVED_MAX)
			return false;
		if (!take(f, ask, need_of(f, ask))) {
			turns_block(f, class);
			return false;
		}
		f->blocked[class] = false;
		++*served;
		leave_line(f, ask);
		if (ask->missing == 0) /* no read counts for its user, but its turn does */
			ask->user->end[class] = turns_begin(f, ask->user, class) + 1;
		if (taken(f, ask))
			end_waiting(f, ask, 0);
	}
	f->blocked[class] = false;
	return true;
}

bool frames_pump(struct frames *f)
{
	uint32_t served = 0;
	bool any;

	for (uint32_t class = 0; class < FRAMES_CLASSES && !f->paused; class ++)
		if (!serve(f, class, &served))
			return served > 0;
	any = served > 0;
	while (follow_hint(f))
		any = true;
	return any;
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

static void lease(struct frames *f, struct frame *frame)
{
	if (frame->pins + frame->leases == 0)
		order_hold(f, frame->record);
	f->n_leased += frame->leases++ == 0;
	use(f, frame);
}

/* The place that the user has reserved is now this one. */
void frames_lease(struct frames *f, struct frames_user *user, uint32_t record)
{
	assert(f->n_reserved > 0 && user->leases > 0);
	f->n_reserved--;
	assert(f->frame[f->record[record].frame].state == FRAME_READY);
	lease(f, &f->frame[f->record[record].frame]);
}

bool frames_lease_again(struct frames *f, struct frames_user *user, uint32_t record)
{
	if (record >= f->p.rows * f->p.experts || f->record[record].frame == FRAMES_NONE)
		return false;
	lease(f, &f->frame[f->record[record].frame]);
	user->leases++;
	return true;
}

void frames_unlease(struct frames *f, struct frames_user *user, uint32_t record)
{
	struct frame *frame = &f->frame[f->record[record].frame];

	assert(frame->leases > 0 && user->leases > 0);
	user->leases--;
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
	ret->waiting = f->n_waiting;
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
	assert(!f->reading.head && f->n_waiting == 0 && f->n_reserved == 0);
	while (f->users) { /* for whom something was being read */
		struct frames_user *next = f->users->next;

		assert(f->users->sessions == 0);
		free(f->users);
		f->users = next;
	}
	free(f->frame);
	free(f->record);
	free(f->row);
	free(f->free);
	free(f->policies);
	free(f);
	return NULL;
}
