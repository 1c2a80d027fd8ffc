/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdlib.h>

#include "base/util.h"
#include "daemon/frames-internal.h"

/* Ranks are a class, and a virtual time in the rest. */
#define RANK_TIME_BITS 61

/* -- lists -------------------------------------------------------------------------------------------------------- */

void ask_list_push(struct ask_list *list, struct frames_ask *ask)
{
	ask->next = NULL;
	ask->prev = list->tail;
	if (list->tail)
		list->tail->next = ask;
	else
		list->head = ask;
	list->tail = ask;
}

void ask_list_remove(struct ask_list *list, struct frames_ask *ask)
{
	if (ask->prev)
		ask->prev->next = ask->next;
	else
		list->head = ask->next;
	if (ask->next)
		ask->next->prev = ask->prev;
	else
		list->tail = ask->prev;
	ask->next = ask->prev = NULL;
}

/* -- users -------------------------------------------------------------------------------------------------------- */

struct frames_user *frames_join(struct frames *f, uint32_t uid)
{
	struct frames_user *u = f->users;

	while (u && u->uid != uid)
		u = u->next;
	if (!u) {
		u = calloc(1, sizeof *u);
		if (!u)
			return NULL;
		u->uid = uid;
		u->next = f->users;
		f->users = u;
	}
	u->sessions++;
	return u;
}

/* What is read for a user is on its books to the end, though it goes and comes meanwhile. */
static void forget_idle(struct frames *f, struct frames_user *user)
{
	struct frames_user **at = &f->users;
	uint32_t busy = 0;

	for (uint32_t i = 0; i < FRAMES_CLASSES; i++)
		busy += user->busy[i];
	if (user->sessions > 0 || busy > 0)
		return;
	while (*at != user)
		at = &(*at)->next;
	*at = user->next;
	free(user);
}

void frames_leave(struct frames *f, struct frames_user *user)
{
	assert(user->sessions > 0);
	if (--user->sessions > 0)
		return;
	assert(user->leases == 0);
	for (uint32_t i = 0; i < FRAMES_CLASSES; i++)
		assert(!user->waiting[i].head);
	forget_idle(f, user);
}

/* -- turns -------------------------------------------------------------------------------------------------------- */

bool turns_open(const struct frames *f, uint32_t class)
{
	bool open = !f->paused;

	for (uint32_t i = 0; i <= class; i++)
		open &= !f->blocked[i];
	return open;
}

void turns_block(struct frames *f, uint32_t class)
{
	if (!f->blocked[class])
		f->passed = 0;
	f->blocked[class] = true;
}

bool turns_sated(const struct frames_user *user, uint32_t class)
{
	uint32_t busy = 0;

	for (uint32_t i = 0; i <= class; i++)
		busy += user->busy[i];
	return busy >= FRAMES_READS_MAX;
}

/* Places that a user may have, one at least: a share of what is left, as that of others who have some. */
static uint64_t share_of(uint64_t places, uint64_t others, uint32_t others_n)
{
	return MAX((places - MIN(others, places)) / (others_n + 2), 1u);
}

static uint32_t pinned_of(const struct frames_user *user, uint32_t class)
{
	uint32_t pinned = 0;

	for (uint32_t i = 0; i <= class; i++)
		pinned += user->pinned[i];
	return pinned;
}

/* One ask of a class may go beyond. */
bool turns_full(const struct frames *f, const struct frames_ask *ask)
{
	const uint32_t places = f->p.frames - f->n_leased, own = pinned_of(ask->user, ask->class);
	uint64_t others = 0;
	uint32_t there = 0, n = 0;

	if (ask->user->pinned[ask->class] == 0)
		return false;
	for (const struct frames_user *u = f->users; u; u = u->next) {
		const uint32_t pinned = pinned_of(u, FRAMES_CLASSES - 1);

		there += u != ask->user && u->sessions > 0;
		n += u != ask->user && pinned > 0;
		others += u != ask->user ? pinned : 0;
	}
	return there > 0 && own + ask->n > share_of(places, others, n) >> ask->class;
}

uint64_t turns_begin(const struct frames *f, const struct frames_user *user, uint32_t class)
{
	return MAX(user->end[class], f->time[class]);
}

uint64_t turns_rank(uint32_t class, uint64_t at)
{
	return (uint64_t) class << RANK_TIME_BITS | at;
}

static bool before(const struct frames *f, const struct frames_user *a, const struct frames_user *b, uint32_t class)
{
	const uint64_t a_at = turns_begin(f, a, class), b_at = turns_begin(f, b, class);

	return a_at != b_at ? a_at < b_at : a->waiting[class].head->asked_ns < b->waiting[class].head->asked_ns;
}

struct frames_ask *turns_next(const struct frames *f, uint32_t class)
{
	const struct frames_user *next = NULL;

	if (f->n_waiting == 0)
		return NULL;
	for (const struct frames_user *u = f->users; u; u = u->next)
		if (u->waiting[class].head && !turns_sated(u, class) && !turns_full(f, u->waiting[class].head) &&
		    (!next || before(f, u, next, class)))
			next = u;
	return next ? next->waiting[class].head : NULL;
}

bool turns_shared(const struct frames *f, const struct frames_user *user, uint64_t now)
{
	uint32_t others = 0;

	for (const struct frames_user *u = f->users; u; u = u->next)
		others += u != user && u->read_ns && now - u->read_ns < FRAMES_SHARED_NS;
	return others > (user ? 0 : 1);
}

void turns_read_done(struct frames *f, struct frame *frame)
{
	struct frames_user *user = frame->reader;
	uint64_t *time;

	if (!user)
		return;
	time = &f->time[frame->rank >> RANK_TIME_BITS]; /* maybe a more urgent class's: it was hurried */
	*time = MAX(*time, frame->rank & ((1ull << RANK_TIME_BITS) - 1));
	user->busy[frame->class]--;
	frame->reader = NULL;
	forget_idle(f, user);
}

/* -- places for leases -------------------------------------------------------------------------------------------- */

/* What the user may hold as the others are now, one at least. A frame that several have leased is one place. */
static uint64_t most_leases(const struct frames *f, const struct frames_user *user, uint32_t places, uint32_t taken)
{
	uint32_t others = 0, n = 0;

	for (const struct frames_user *u = f->users; u; u = u->next)
		if (u != user && u->leases > 0) {
			others = MIN(others + u->leases, taken);
			n++;
		}
	return share_of(places, others, n);
}

bool frames_reserve_lease(struct frames *f, struct frames_user *user)
{
	const uint32_t places = f->p.frames - f->p.experts, taken = f->n_leased + f->n_reserved;

	if (taken >= places)
		return false;
	if (taken >= MAX((places + 1) / 2, f->p.topk) && user->leases >= most_leases(f, user, places, taken))
		return false;
	f->n_reserved++;
	user->leases++;
	return true;
}

void frames_unreserve_lease(struct frames *f, struct frames_user *user)
{
	assert(f->n_reserved > 0 && user->leases > 0);
	f->n_reserved--;
	user->leases--;
}
