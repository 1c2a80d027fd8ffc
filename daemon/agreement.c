/* SPDX-License-Identifier: MIT */
#include "daemon/agreement.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/ringsrv.h"

#define TURNS_PER_LOOK 64 /* at the clock, while somebody waits and the reactor does not sleep */
#define LOOKS_TURN 2
#define CLOCK_NS 500000u /* between two looks at all that wait */

struct agreement {
	struct agreement *next, *next_dirty;
	struct agreements *all;
	bool dirty;
	const struct entry *entry;
	uid_t uid;
	uint64_t group;
	uint32_t tp_size, dp_size;
	uint64_t given_up, lost; /* sets of members; lost: whom nobody has been told of */
	uint64_t round;          /* that is being collected */
	uint64_t due_ns;         /* when those who wait have waited for long enough; 0: nobody waits */
	struct journal_agreed last;
	struct session *members[MOE_AGREE_MAX]; /* NULL: not attached */
	struct request *waiting[MOE_AGREE_MAX];
	uint64_t rounds[MOE_AGREE_MAX]; /* that they wait for */
	struct {
		uint64_t session;
		pid_t pid;
	} who[MOE_AGREE_MAX]; /* is or was the member last */
};

static uint32_t n_members(const struct agreement *a)
{
	return a->tp_size * a->dp_size;
}

static uint64_t bit(uint32_t member)
{
	return (uint64_t)1 << member;
}

static uint64_t all_members(const struct agreement *a)
{
	return UINT64_MAX >> (MOE_AGREE_MAX - n_members(a));
}

/* -- what outlives the daemon ------------------------------------------------------------------------------------- */

/* Two places in turns: killed while it writes one, the other is whole. The round says that it is. */
static void keep(struct journal_page *page, const struct journal_agreed *agreed)
{
	struct journal_agreed *at = &page->agreed[agreed->round % ARRAY_LEN(page->agreed)];

	__atomic_store_n(&at->round, 0, __ATOMIC_RELEASE);
	__asm__ volatile("" ::: "memory");
	at->lost = agreed->lost;
	at->given_up = agreed->given_up;
	at->phase = agreed->phase;
	at->tokens = agreed->tokens;
	__asm__ volatile("" ::: "memory");
	__atomic_store_n(&at->round, agreed->round, __ATOMIC_RELEASE);
}

/* The last decision, in the journal of a member that has come since, or that a daemon was killed before: those who have
 * it may leave before the next one. */
static void know(const struct agreement *a, struct session *s)
{
	struct journal_page *page = s->journal.page;

	if (page->agreed[a->last.round % ARRAY_LEN(page->agreed)].round < a->last.round)
		keep(page, &a->last);
}

static void recall(struct agreement *a, const struct journal_page *page)
{
	for (size_t i = 0; i < ARRAY_LEN(page->agreed); i++)
		if (page->agreed[i].round > a->last.round) {
			a->last = page->agreed[i];
			a->given_up = a->last.given_up & all_members(a);
		}
	a->round = a->last.round + 1;
}

/* The claim's number tells a request from the one before; one that runs again after a kill has the same. */
static void note_claim(struct request *q)
{
	struct journal_page *page = q->session->journal.page;
	const uint64_t claim = page->slots[q - q->session->requests].counter + 1;
	const uint32_t now_ms = (uint32_t)(now_ns() / 1000000);

	q->claim_ns = now_ns();
	if (page->joined_claim == claim) {
		if (page->joined_ms)
			q->claim_ns -= (uint64_t)(uint32_t)(now_ms - page->joined_ms) * 1000000;
		return;
	}
	page->joined_round = 0;
	page->joined_ms = MAX(now_ms, 1u);
	__asm__ volatile("" ::: "memory");
	__atomic_store_n(&page->joined_claim, claim, __ATOMIC_RELEASE);
}

/* Which round a member joins that does not know: run again after a kill it is the same one. */
static uint64_t joined(const struct agreement *a, const struct request *q)
{
	struct journal_page *page = q->session->journal.page;

	if (page->joined_round == 0)
		__atomic_store_n(&page->joined_round, a->round, __ATOMIC_RELEASE);
	return page->joined_round;
}

/* -- what is to be looked at -------------------------------------------------------------------------------------- */

static void look_soon(struct agreement *a)
{
	struct agreements *all = a->all;

	if (a->dirty)
		return;
	a->dirty = true;
	a->next_dirty = NULL;
	*(all->dirty ? all->dirty_end : &all->dirty) = a;
	all->dirty_end = &a->next_dirty;
}

static struct agreement *take_dirty(struct agreements *all)
{
	struct agreement *a = all->dirty;

	all->dirty = a->next_dirty;
	a->dirty = false;
	return a;
}

/* It is no more. */
static void look_never(struct agreement *a)
{
	struct agreement **at = &a->all->dirty;

	if (!a->dirty)
		return;
	while (*at != a)
		at = &(*at)->next_dirty;
	*at = a->next_dirty;
	if (!*at)
		a->all->dirty_end = at;
}

/* Of all that have waited for long enough, and when the next one will have. */
static void look_at_clock(struct agreements *all)
{
	const uint64_t now = now_ns();

	if (now < all->due_ns)
		return;
	all->due_ns = 0;
	for (struct agreement *a = all->first; a; a = a->next)
		if (a->due_ns && now >= a->due_ns)
			look_soon(a);
		else if (a->due_ns)
			all->due_ns = all->due_ns ? MIN(all->due_ns, a->due_ns) : a->due_ns;
	if (all->due_ns)
		all->due_ns = MAX(all->due_ns, now + CLOCK_NS);
}

/* -- members ------------------------------------------------------------------------------------------------------ */

static struct agreement *find(struct agreements *all, const struct session *s)
{
	struct agreement *a = all->first;

	while (a && (a->entry != s->entry || a->uid != s->uid || a->group != s->attach.group))
		a = a->next;
	return a;
}

static struct agreement *found(struct agreements *all, const struct session *s)
{
	struct agreement *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->all = all;
	a->entry = s->entry;
	a->uid = s->uid;
	a->group = s->attach.group;
	a->tp_size = s->attach.tp_size;
	a->dp_size = s->attach.dp_size;
	a->round = 1;
	a->next = all->first;
	all->first = a;
	return a;
}

int agreement_join(struct agreements *all, struct session *s, struct moe_error *err)
{
	const uint32_t member = s->attach.dp_rank * s->attach.tp_size + s->attach.tp_rank;
	struct agreement *a = find(all, s);

	if (!a)
		a = found(all, s);
	if (!a)
		return moe_error_sys(err, -ENOMEM, "agreement of %u ranks", s->attach.dp_size);
	if (a->tp_size != s->attach.tp_size || a->dp_size != s->attach.dp_size || a->members[member])
		return moe_error_set(err, -EEXIST,
				     "data-parallel rank %u, tensor rank %u of group %llx is attached already",
				     s->attach.dp_rank, s->attach.tp_rank, (unsigned long long)a->group);
	s->agreement = a;
	s->member = member;
	a->members[member] = s;
	a->who[member].session = s->id;
	recall(a, s->journal.page);
	know(a, s);
	return 0;
}

static void dissolve(struct agreement *a)
{
	struct agreement **at = &a->all->first;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	look_never(a);
	free(a);
}

static struct request *take(struct agreement *a, uint32_t member)
{
	struct request *q = a->waiting[member];

	a->waiting[member] = NULL;
	return q;
}

void agreement_part(struct session *s)
{
	struct agreement *a = s->agreement;
	struct request *q;

	if (!a)
		return;
	s->agreement = NULL;
	q = take(a, s->member);
	if (q) {
		q->cqe.status = -ECANCELED;
		request_move(q, MOE_REQUEST_DONE);
		ringsrv_drop(q);
	}
	a->members[s->member] = NULL;
	a->who[s->member].pid = s->pid;
	a->who[s->member].session = s->id;
	a->lost |= bit(s->member) & ~a->given_up;
	a->given_up |= bit(s->member);
	for (uint32_t i = 0; i < n_members(a); i++)
		if (a->members[i]) {
			look_soon(a);
			return;
		}
	dissolve(a);
}

/* -- a round ------------------------------------------------------------------------------------------------------ */

int agreement_claim(struct session *s, const struct request *q)
{
	const struct moe_sqe *e = &q->sqe;
	uint64_t any = 0;

	for (size_t i = 0; i < ARRAY_LEN(e->agree.reserved); i++)
		any |= e->agree.reserved[i];
	if (!s->agreement || e->flags || e->count || e->layer || any || e->agree.phase > MOE_PHASE_DECODE ||
	    e->agree.tokens > MOE_TOKENS_MAX || (e->agree.phase == MOE_PHASE_NONE && e->agree.tokens))
		return -EINVAL;
	return s->agreement->waiting[s->member] ? -EALREADY : 0;
}

void agreement_wait(struct session *s, struct request *q)
{
	struct agreement *a = s->agreement;

	note_claim(q);
	a->waiting[s->member] = q;
	a->rounds[s->member] = q->sqe.agree.round;
	look_soon(a);
}

static void decide(struct agreement *a)
{
	struct journal_agreed *d = &a->last;

	*d = (struct journal_agreed){.round = a->round, .lost = a->lost, .given_up = a->given_up};
	for (uint32_t i = 0; i < n_members(a); i++) {
		const struct request *q = a->waiting[i];
		const uint32_t wish = q ? q->sqe.agree.phase : MOE_PHASE_NONE;

		if (wish == MOE_PHASE_NONE || (d->phase == MOE_PHASE_PREFILL && wish != MOE_PHASE_PREFILL))
			continue;
		d->tokens = d->phase == wish ? MAX(d->tokens, q->sqe.agree.tokens) : q->sqe.agree.tokens;
		d->phase = wish;
	}
	for (uint32_t i = 0; i < n_members(a); i++) {
		if (!a->members[i])
			continue;
		keep(a->members[i]->journal.page, d);
		crash_at(CRASH_AGREED);
	}
	a->lost = 0;
	a->round++;
}

static void enter_step(struct session *s, const struct request *q, const struct journal_agreed *d)
{
	struct journal_page *page = s->journal.page;

	s->phase = (enum moe_phase)d->phase;
	s->dummy = d->phase != MOE_PHASE_NONE && q->sqe.agree.phase != d->phase;
	s->step = d->round;
	page->phase = d->phase;
	page->dummy = s->dummy;
	page->step = s->step;
}

/* One that has waited for the round that was decided last, or for one that nobody remembers. */
static void tell(struct agreement *a, uint32_t member)
{
	const bool late = a->rounds[member] != a->last.round || a->last.given_up & bit(member);
	struct session *s = a->members[member];
	struct request *q = take(a, member);

	know(a, s);
	q->cqe.wait_ns = now_ns() - q->claim_ns;
	q->cqe.lease = a->last.round;
	q->cqe.offset = a->last.lost;
	q->cqe.status = late ? -ESTALE : a->last.lost ? -EOWNERDEAD : 0;
	if (q->cqe.status == 0) {
		q->cqe.pairs = a->last.tokens;
		q->cqe.bytes = a->last.phase;
		enter_step(s, q, &a->last);
	}
	request_move(q, MOE_REQUEST_DONE);
	ringsrv_complete(q);
}

/* Who waits for the round that is being collected. The rest has waited for one that was. */
static uint64_t collect(struct agreement *a)
{
	uint64_t here = 0;

	a->due_ns = 0;
	for (uint32_t i = 0; i < n_members(a); i++) {
		const struct request *q = a->waiting[i];

		if (!q)
			continue;
		if (a->rounds[i] == 0)
			a->rounds[i] = joined(a, q);
		if (a->rounds[i] != a->round) {
			tell(a, i);
			continue;
		}
		const uint64_t due = q->claim_ns + (uint64_t)a->members[i]->attach.agree_ms * 1000000;

		here |= bit(i);
		a->due_ns = a->due_ns ? MIN(a->due_ns, due) : due;
	}
	return here;
}

/* Those without whom the round is decided. */
static void log_lost(const struct agreement *a)
{
	for (uint32_t i = 0; i < n_members(a); i++) {
		const bool ended = !a->members[i];
		char rank[160];

		if (!(a->lost & bit(i)))
			continue;
		snprintf(rank, sizeof rank, "group %llx: data-parallel rank %u of %u (tensor rank %u, pid %d)",
			 (unsigned long long)a->group, i / a->tp_size, a->dp_size, i % a->tp_size,
			 ended ? a->who[i].pid : a->members[i]->pid);
		event_log(EVENT_RANK_LOST,
			  FACTS(.session = a->who[i].session, .pid = ended ? a->who[i].pid : a->members[i]->pid,
				.uid = a->uid, .model = a->entry->model->manifest->name, .count = a->round,
				.reason = rank),
			  "%s %s step %llu%s: the others go on without it", rank,
			  ended ? "has ended before" : "has kept", (unsigned long long)a->round,
			  ended ? "" : " waiting for too long");
	}
}

static void look(struct agreement *a)
{
	struct agreements *all = a->all;
	const uint64_t here = collect(a);
	uint64_t missing;

	a->given_up &= ~here;
	missing = all_members(a) & ~a->given_up & ~here;
	if (!here)
		return;
	if (missing && now_ns() < a->due_ns) {
		all->due_ns = all->due_ns ? MIN(all->due_ns, a->due_ns) : a->due_ns;
		return;
	}
	a->lost |= missing;
	log_lost(a);
	a->given_up |= missing;
	decide(a);
	for (uint32_t i = 0; i < n_members(a); i++)
		if (a->waiting[i])
			tell(a, i);
	a->due_ns = 0;
}

bool agreements_turn(struct agreements *all)
{
	bool any = false;

	if (!all->first)
		return false;
	if (all->due_ns && ++all->turns % TURNS_PER_LOOK == 0)
		look_at_clock(all);
	for (int i = 0; i < LOOKS_TURN && all->dirty; i++) {
		look(take_dirty(all));
		any = true;
	}
	return any;
}

/* -- time --------------------------------------------------------------------------------------------------------- */

static void timer_ready(struct source *source, uint32_t events)
{
	struct agreements *all = container_of(source, struct agreements, timer);
	uint64_t times;

	if (read(source->fd, &times, sizeof times) > 0)
		look_at_clock(all);
	all->armed_ns = 0;
}

void agreements_park(struct agreements *all)
{
	struct itimerspec at = {0};
	const uint64_t due = all->due_ns;

	if (!all->first)
		return;
	at.it_value.tv_sec = (time_t)(due / 1000000000u);
	at.it_value.tv_nsec = (long)(due % 1000000000u);
	if (due == all->armed_ns)
		return;
	all->armed_ns = due;
	timerfd_settime(all->timer.fd, TFD_TIMER_ABSTIME, &at, NULL);
}

int agreements_open(struct agreements *all, struct loop *loop, struct moe_error *err)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), r;

	if (fd < 0)
		return moe_error_sys(err, -errno, "timer of agreements");
	*all = (struct agreements){.loop = loop, .timer = {.fd = fd, .ready = timer_ready}};
	r = loop_add(loop, &all->timer, err);
	if (r < 0)
		all->timer.fd = (close_fd(fd), -1);
	return r;
}

void agreements_close(struct agreements *all)
{
	if (all->timer.fd >= 0)
		close_fd(all->timer.fd);
	all->timer.fd = -1;
}
