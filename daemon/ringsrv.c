/* SPDX-License-Identifier: MIT */
#include "daemon/ringsrv-internal.h"

#include <errno.h>
#include <string.h>

#include "base/futex.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/agreement.h"
#include "daemon/crash.h"
#include "daemon/modqueue.h"

/* Of ids, weights and books that are read for one session before the next one, and the sockets, have their turn. */
#define TURN_BYTES ROUTING_PIECE
#define LITTLE_BYTES 4096 /* of an entry, which is taken all the same */
/* A look at cq_head takes its cache line from the client, which is about to write it: it waits for so many completions,
 * or so many polls, no more than the loop makes before it may sleep (SPINS_TURN there): else a head that breaks the law
 * would stay unseen. */
#define RETIRED_MAX 8
#define RETIRED_POLLS 64
/* Sleepers of a session that a completion wakes: the library has one. To wake a thread takes microseconds, in which
 * others wait; its user pays for it in turns, as for so many bytes that are copied. */
#define WAKES_MAX 4
#define WAKE_BYTES 4096

static struct moe_client_page *client_page(const struct session *s)
{
	return client_at(&s->client, 0);
}

/* -- completion --------------------------------------------------------------------------------------------------- */

static void count_served(struct session *s, const struct request *q)
{
	struct served_layer *served = &s->entry->served[q->sqe.layer];

	if (s->dummy || q->cqe.status < 0)
		return;
	if (q->sqe.op == MOE_OP_COMPUTE) {
		served->computes++;
		served->pairs += q->cqe.pairs;
		served->work_ns += q->cqe.work_ns;
		served->wait_ns += q->cqe.wait_ns;
	} else if (q->sqe.op == MOE_OP_FILL && q->sqe.flags & MOE_SQE_LEASE) {
		served->leases++;
	} else if (q->sqe.op == MOE_OP_FILL) {
		served->fills += q->sqe.fill.from == 0; /* of one in ranges, the first */
		served->fill_bytes += q->cqe.bytes;
	}
}

static void count_times(struct session *s, const struct request *q)
{
	const bool computes = q->sqe.op == MOE_OP_COMPUTE;
	const enum times_part part = computes ? TIMES_COMPUTE : TIMES_COPY;
	struct times *layer;

	if (s->dummy || q->cqe.status < 0 || (!computes && (q->sqe.op != MOE_OP_FILL || q->sqe.flags & MOE_SQE_LEASE)))
		return;
	layer = &s->entry->tally->layers[q->sqe.layer];
	histogram_add_alone(&s->times->part[TIMES_QUEUE], q->cqe.wait_ns);
	histogram_add_alone(&s->times->part[part], q->cqe.work_ns);
	histogram_add_alone(&layer->part[TIMES_QUEUE], q->cqe.wait_ns);
	histogram_add_alone(&layer->part[part], q->cqe.work_ns);
}

/* Those with an expert. Where there are more of them than experts they were counted when they were read. */
static uint64_t count_pairs(struct heat_cell *row, const int32_t *ids, uint64_t pairs, uint32_t n_experts)
{
	const uint32_t *counts = routing_counts(ids, pairs, n_experts);
	uint64_t seen = 0;

	for (uint32_t i = 0; counts && i < n_experts; i++) {
		heat_more(&row[i].pairs, counts[i]);
		seen += counts[i];
	}
	for (uint64_t i = 0; !counts && i < pairs; i++)
		if (ids[i] >= 0) {
			heat_more(&row[ids[i]].pairs, 1);
			seen++;
		}
	return seen;
}

/* Before its ids are dropped. */
static void count_heat(struct session *s, const struct request *q)
{
	const struct resident *model = s->entry->model;
	const struct moe_sqe *e = &q->sqe;
	struct heat_cell *row;
	uint64_t seen;

	if (s->dummy || q->cqe.status < 0 || (e->op != MOE_OP_COMPUTE && e->op != MOE_OP_FILL))
		return;
	row = &s->entry->heat[(size_t)model->layer_index[e->layer] * model->manifest->n_experts];
	if (e->op == MOE_OP_FILL) {
		if (e->fill.from == 0)
			heat_more(&row[e->fill.expert].copies, 1);
		return;
	}
	seen = count_pairs(row, q->compute.ids, (uint64_t)e->count * e->compute.topk, model->manifest->n_experts);
	if (s->entry->mover)
		mover_saw(s->entry->mover, seen, s->entry->heat);
}

/* NULL: all are in flight. One that no request has used yet costs a session no memory. */
static ALWAYS_INLINE struct request *next_free(struct session *s)
{
	if (!s->free_requests && s->requests_used < s->entries)
		s->free_requests = &s->requests[s->requests_used++];
	return s->free_requests;
}

static void reap(struct session *s, struct request *q)
{
	request_move(q, MOE_REQUEST_REAPED);
	ringsrv_drop_routing(s, q);
	ringsrv_tier_done(s, q);
	request_move(q, MOE_REQUEST_FREE);
	q->next = s->free_requests;
	s->free_requests = q;
	s->in_flight--;
}

uint32_t ringsrv_in_flight(const struct session *s)
{
	const uint32_t taken = __atomic_load_n(&client_page(s)->cq_head, __ATOMIC_RELAXED) - s->cq_head;

	return s->in_flight - MIN(taken, s->cq_tail - s->cq_head);
}

void ringsrv_drop(struct request *q)
{
	if (q->tag && !q->session->left)
		modqueue_commit(q->modqueue, q->tag - 1, &(struct moe_cqe){.status = -ENOTCONN});
	if (!q->session->left)
		journal_drop(&q->session->journal, slot_of(q));
	reap(q->session, q);
}

void ringsrv_drop_completed(struct session *s)
{
	for (; s->cq_head != s->cq_tail; s->cq_head++)
		reap(s, s->completed[s->cq_head & (s->entries - 1)]);
}

static void count_leases(struct session *s, const struct request *q)
{
	const enum journal_effect effect = journal_effect(&s->journal, slot_of(q));
	const int more = effect == JOURNAL_LEND ? 1 : effect == JOURNAL_RELEASE ? -1 : 0;

	s->leases_held += (uint32_t)more;
	s->entry->model->leases += (uint32_t)more;
	if (effect == JOURNAL_RELEASE && s->entry->tier)
		ringsrv_tier_released(s, s->journal.page->slots[slot_of(q)].lease);
}

static void count_ended(struct session *s, const struct request *q)
{
	s->journal.page->failed = s->failed += q->cqe.status < 0 && q->cqe.status != -ECANCELED;
	s->journal.page->cancelled = s->cancelled += q->cqe.status == -ECANCELED;
	if (q->sqe.op < MOE_OP_COUNT)
		s->journal.page->ops[q->sqe.op] = ++s->ops[q->sqe.op];
	count_served(s, q);
	count_times(s, q);
	count_leases(s, q);
}

static struct moe_cqe *session_cqes(const struct session *s)
{
	return (struct moe_cqe *)((uint8_t *)s->page + MOE_RING_PAGE);
}

/* A lone request's client looks beside the queue. The one after the next request must not find its seq there, left from
 * 2^32 requests ago: it becomes that of one that has long been given out, since recovery believes it. */
static ALWAYS_INLINE void give_out(struct session *s, const struct request *q, uint32_t seq)
{
	if (q->alone) {
		journal_give_out(&s->page->alone, &q->cqe, seq);
		s->alone_seq = seq;
		crash_at(CRASH_ALONE);
	} else if (s->alone_seq == seq + 1) {
		journal_put(&s->page->alone.seq, s->alone_seq = seq - 1);
	}
	journal_give_out(&session_cqes(s)[(seq - 1) & (s->entries - 1)], &q->cqe, seq);
	crash_at(CRASH_SEQ);
}

static NOINLINE void count_completed(struct session *s, struct request *q)
{
	request_move(q, MOE_REQUEST_COMPLETED);
	count_heat(s, q);
	ringsrv_drop_routing(s, q);
	ringsrv_tier_done(s, q);
	count_ended(s, q);
}

/* Not inlined: who polls has no use for it. */
static NOINLINE void wake_client(struct session *s)
{
	const long woken = futex_wake(&s->page->cq_tail, WAKES_MAX);

	if (woken > 0)
		s->charge.account->poll.debt += (uint64_t)woken * WAKE_BYTES;
}

/* Of its answer nobody will hear: what it would have lent is not lent. */
static void take_back(struct session *s, const struct request *q)
{
	if (journal_effect(&s->journal, slot_of(q)) == JOURNAL_LEND && s->entry->tier)
		ringsrv_tier_take_back(s, q);
	journal_set_effect(&s->journal, slot_of(q), JOURNAL_NONE, 0);
}

/* What the module takes is answered: there is nothing to be retired by the client. */
static NOINLINE void complete_by_module(struct session *s, struct request *q)
{
	/* A disk's words for a server that is away would say here that nobody serves the queue. */
	if (q->cqe.status == -ENOTCONN || q->cqe.status == -ESHUTDOWN || q->cqe.status == -EHOSTDOWN)
		q->cqe.status = -EIO;
	journal_commits(&s->journal, slot_of(q));
	crash_at(CRASH_CQE);
	if (modqueue_commit(q->modqueue, q->tag - 1, &q->cqe) < 0)
		take_back(s, q);
	crash_at(CRASH_TAIL);
	journal_committed(&s->journal, slot_of(q));
	count_completed(s, q);
	request_move(q, MOE_REQUEST_RETIRED);
	reap(s, q);
}

/* From the sight of an entry to its answer, where nobody has to be asked: one function, and what others need of it is
 * out of its way. The client waits for each instruction of it. */
static ALWAYS_INLINE void complete(struct session *s, struct request *q)
{
	if (s->dead) {
		ringsrv_drop(q);
		return;
	}
	if (q->tag) {
		complete_by_module(s, q);
		return;
	}
	journal_last(&s->journal, slot_of(q));
	crash_at(CRASH_LAST);
	give_out(s, q, s->cq_tail + 1);
	s->completed[s->cq_tail & (s->entries - 1)] = q;
	__atomic_store_n(&s->page->cq_tail, ++s->cq_tail, __ATOMIC_RELEASE);
	crash_at(CRASH_TAIL);
	/* Partner: the fence between the client's cq_wait store and its last look at cq_tail. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&client_page(s)->cq_wait, __ATOMIC_RELAXED))
		wake_client(s);
	/* The books come after: the client waits for none of them. */
	journal_end(&s->journal, slot_of(q), s->cq_tail);
	count_completed(s, q);
}

void ringsrv_complete(struct request *q)
{
	complete(q->session, q);
}

/* -- claim and reap ----------------------------------------------------------------------------------------------- */

/* Of the entry that comes next. */
static uint64_t entry_offset(const struct session *s)
{
	return MOE_RING_PAGE + (s->sq_head & (s->entries - 1)) * sizeof(struct moe_sqe);
}

/* By two words, as the journal will read them: a wider load would wait for narrower stores. */
static void copy_alone(struct moe_sqe *ret, const struct moe_client_page *page)
{
	typedef uint64_t words __attribute__((vector_size(16), aligned(8), may_alias));
	const words *from = (const words *)page->alone;
	words *to = (words *)ret;

	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = (words){page->alone[6], 0};
}

/* The one copy that counts; what the client writes there afterwards is of no interest. */
static void copy_entry(struct session *s, struct request *q)
{
	const struct moe_client_page *page = client_page(s);
	const uint32_t number = s->sq_head + 1;

	q->alone = number != 0 && __atomic_load_n(&page->sq_alone, __ATOMIC_RELAXED) == number;
	if (q->alone)
		copy_alone(&q->sqe, page);
	else
		memcpy(&q->sqe, client_at(&s->client, entry_offset(s)), sizeof q->sqe);
	__asm__ volatile("" ::: "memory"); /* the compiler must not read the ring again in place of the copy */
}

static void take_entry(struct session *s, struct request *q)
{
	q->session = s;
	q->tag = 0;
	journal_claim(&s->journal, slot_of(q), &q->sqe);
	crash_at(CRASH_JOURNALLED);
	__atomic_store_n(&s->page->sq_head, ++s->sq_head, __ATOMIC_RELEASE);
}

static ALWAYS_INLINE void go_on(struct session *s, struct sched *sched, struct request *q, bool wait)
{
	if (wait) {
		sched_queue(sched, &s->sched, q);
		return;
	}
	request_move(q, MOE_REQUEST_DONE);
	complete(s, q);
}

void ringsrv_go_on(struct session *s, struct sched *sched, struct request *q, bool wait)
{
	go_on(s, sched, q, wait);
}

/* A request that the journal has; its session and entry are set. Of the rest each operation sets what it has a use
 * for. */
static ALWAYS_INLINE void claim(struct session *s, struct sched *sched, struct request *q)
{
	bool wait = false;

	s->in_flight++;
	q->copy = NULL;
	q->tier = NULL;
	q->priority = POOL_DECODE;
	q->cqe = (struct moe_cqe){.user_data = q->sqe.user_data, .op = q->sqe.op, .layer = q->sqe.layer};
	atomic_store_explicit(&q->state, MOE_REQUEST_PUBLISHED, memory_order_relaxed);
	request_move(q, MOE_REQUEST_CLAIMED);
	q->cqe.status = ringsrv_claim(s, sched, q, &wait);
	if (q->sqe.op == MOE_OP_AGREE && q->cqe.status == 0) {
		agreement_wait(s, q);
		return;
	}
	if (wait)
		q->claim_ns = now_ns();
	if (!s->entry->tier || q->cqe.status < 0 || !ringsrv_tier_claim(s, sched, q))
		go_on(s, sched, q, wait);
}

static bool reap_retired(struct session *s)
{
	const uint32_t head = __atomic_load_n(&client_page(s)->cq_head, __ATOMIC_ACQUIRE);

	if (head == s->cq_head)
		return false;
	if (head - s->cq_head > s->cq_tail - s->cq_head) {
		s->broken = "cq_head ran ahead of cq_tail";
		return false;
	}
	while (s->cq_head != head) {
		struct request *q = s->completed[s->cq_head++ & (s->entries - 1)];

		request_move(q, MOE_REQUEST_RETIRED);
		reap(s, q);
	}
	return true;
}

/* For copies of ids and weights: until the pool has given some back. */
static bool lacks_room(const struct session *s, const struct moe_sqe *e)
{
	return s->copied > 0 && s->copied + ringsrv_routing_bytes(e) > s->copied_max;
}

/* A turn of the module's queue is one for all: who asks for little does not wait for who asks for much. */
static bool reads_much(const struct moe_sqe *e)
{
	return e->op == MOE_OP_CANCEL || ringsrv_routing_bytes(e) > LITTLE_BYTES;
}

static bool is_read(struct session *s, const struct moe_sqe *e, uint64_t *read)
{
	return ringsrv_routing_bytes(e) <= ROUTING_PIECE || ringsrv_read_ahead(s, e, read);
}

/* What was read for an entry that was refused, or that the client has changed since. */
static void forget_routing(struct session *s)
{
	if (s->routing.begun)
		routing_drop(&s->routing);
}

static bool claim_published(struct session *s, struct sched *sched, uint32_t tail, uint32_t entries,
			    uint64_t *ret_copied)
{
	const uint32_t published = tail - s->sq_head;
	uint64_t read = 0;
	bool any = false;

	if (published == 0)
		return false;
	if (published > s->entries) {
		s->broken = "sq_tail ran more than the queue's length ahead of sq_head";
		return false;
	}
	if (s->attach.client) {
		s->broken = "an entry in the ring of a session that is asked through the kernel module";
		return false;
	}
	for (uint32_t i = 0; i < MIN(published, entries) && read < TURN_BYTES; i++) {
		struct request *q;

		if (!next_free(s) && !reap_retired(s)) {
			if (!s->broken)
				s->broken = "more requests in flight than the completion queue has entries";
			return false;
		}
		q = s->free_requests;
		copy_entry(s, q); /* again, when it has to wait: */
		if (lacks_room(s, &q->sqe) || !is_read(s, &q->sqe, &read))
			break;
		s->free_requests = q->next;
		take_entry(s, q);
		claim(s, sched, q);
		forget_routing(s);
		read += ringsrv_read_bytes(s, &q->sqe); /* its entry stays in its place */
		any = true;
	}
	*ret_copied += read;
	if (read >= TURN_BYTES)
		loop_look(s->loop);
	return any || read > 0;
}

bool ringsrv_enter(struct session *s, struct sched *sched, const struct moe_sqe *sqe, uint32_t tag, uint64_t seq,
		   uint64_t *read)
{
	struct request *q = next_free(s);

	if (s->broken || !q || (*read >= TURN_BYTES && reads_much(sqe)) || lacks_room(s, sqe) || !is_read(s, sqe, read))
		return false;
	s->free_requests = q->next;
	q->session = s;
	q->modqueue = s->modqueue;
	q->tag = tag + 1;
	q->alone = false;
	q->sqe = *sqe;
	*read += ringsrv_read_bytes(s, sqe);
	journal_note(&s->journal, slot_of(q), sqe, seq);
	crash_at(CRASH_JOURNALLED);
	claim(s, sched, q);
	forget_routing(s);
	return true;
}

/* Not inlined: what finds nothing stays short. Requests first: somebody waits for them. */
static NOINLINE bool serve(struct session *s, struct sched *sched, uint32_t tail, bool look, uint32_t entries,
			   uint64_t *ret_copied)
{
	bool any = claim_published(s, sched, tail, entries, ret_copied);

	if (look && !s->broken)
		any |= reap_retired(s);
	return any;
}

bool ringsrv_poll(struct session *s, struct sched *sched, uint32_t entries, uint64_t *ret_copied)
{
	const bool look = s->cq_tail - s->cq_head >= RETIRED_MAX || s->polls % RETIRED_POLLS == 0;
	uint32_t tail;

	if (s->dead || s->broken)
		return false;
	/* The tail before the head: what was retired before an entry was published is then seen as retired. */
	tail = __atomic_load_n(&client_page(s)->sq_tail, __ATOMIC_ACQUIRE);
	return look || tail != s->sq_head ? serve(s, sched, tail, look, entries, ret_copied) : false;
}

bool ringsrv_pending(const struct session *s)
{
	return __atomic_load_n(&client_page(s)->sq_tail, __ATOMIC_ACQUIRE) != s->sq_head;
}

bool ringsrv_await(const struct session *s, uint32_t polls)
{
	const struct moe_client_page *page = client_page(s);
	const uint32_t head = s->sq_head;

	while (polls > 0 && __atomic_load_n(&page->sq_tail, __ATOMIC_ACQUIRE) == head) {
		__builtin_prefetch(client_at(&s->client, entry_offset(s)));
		cpu_relax(); /* at each: a look takes the line from the client, which is about to write it */
		polls--;
	}
	return polls > 0;
}

/* A few instructions a session: there may be many that have nothing. */
struct session *ringsrv_seek(struct session **at, uint32_t *polls)
{
	struct session *s = *at, *found = NULL;
	uint32_t left = *polls;

	for (; left > 0 && !found; left--) {
		const uint32_t completed = s->cq_tail - s->cq_head;

		if (++s->polls % RETIRED_POLLS == 0 || completed >= RETIRED_MAX || s->broken || ringsrv_pending(s)) {
			/* What the tail announces, before all else; of one that has nothing it is the client's. */
			__builtin_prefetch(client_at(&s->client, entry_offset(s)));
			found = s;
		}
		s = s->poll_next;
	}
	*at = s;
	*polls = left;
	return found;
}

bool ringsrv_settle(struct session *s)
{
	reap_retired(s);
	return !s->broken;
}

/* -- after the daemon's end --------------------------------------------------------------------------------------- */

/* Those in flight keep their places. Returns how many places are free. */
static uint32_t revive_free(struct session *s)
{
	uint32_t n = s->entries;

	s->free_requests = NULL;
	s->requests_used = 0;
	for (uint32_t i = s->journal.reach; i-- > 0;) {
		if (s->journal.page->slots[i].inflight) {
			s->requests_used = MAX(s->requests_used, i + 1);
			n--;
		} else if (i < s->requests_used) {
			s->requests[i].next = s->free_requests;
			s->free_requests = &s->requests[i];
		}
	}
	return n;
}

/* Requests that are completed and wait for the client to retire them, at any place that is free. How many they are the
 * client's cq_head says: with more than there can be it has broken the ring's law, and none is believed. */
static void revive_completed(struct session *s, uint32_t n_free)
{
	if (s->attach.client) { /* nothing of it goes by the ring, whatever stands there */
		s->cq_head = s->cq_tail;
		return;
	}
	s->cq_head = __atomic_load_n(&client_page(s)->cq_head, __ATOMIC_ACQUIRE);
	if (s->cq_tail - s->cq_head > n_free) {
		s->broken = "cq_head is ahead of cq_tail, or more requests are in flight than the queue has entries";
		s->cq_head = s->cq_tail;
	}
	for (uint32_t at = s->cq_head; at != s->cq_tail; at++) {
		struct request *q = next_free(s);

		s->free_requests = q->next;
		s->in_flight++;
		*q = (struct request){.session = s, .state = MOE_REQUEST_COMPLETED};
		s->completed[at & (s->entries - 1)] = q;
	}
}

/* Recovery may have done the last effect. */
static void revive_leases(struct session *s)
{
	if (s->entry->tier && !ringsrv_tier_revive(s))
		s->broken = "a record that it has leased is not in memory any more";
	s->unrevived = false;
	s->entry->model->leases += journal_leases(&s->journal) - s->leases_held;
	s->leases_held = journal_leases(&s->journal);
}

void ringsrv_revive(struct session *s, struct sched *sched)
{
	uint32_t slots[MOE_RING_ENTRIES_MAX];
	int n;

	memfd_want_page(&session_cqes(s)[s->page->cq_tail & (s->entries - 1)]);
	journal_settle(&s->journal, modqueue_issues, s->modqueue);
	n = journal_recover(&s->journal, s->page, session_cqes(s), slots);

	s->sq_head = s->page->sq_head;
	s->cq_tail = s->page->cq_tail;
	s->alone_seq = s->page->alone.seq;
	revive_completed(s, revive_free(s));
	if (n < 0)
		s->broken = "its journal and its ring are not of one session";
	revive_leases(s);
	for (int i = 0; i < n; i++) {
		struct request *q = &s->requests[slots[i]];

		crash_at(CRASH_RECOVERY);
		q->session = s;
		q->tag = 0;
		q->alone = false; /* its client will look at its place as well */
		q->sqe = s->journal.page->slots[slots[i]].sqe;
		/* What it was about to do to the leases it may not come to this time. */
		journal_set_effect(&s->journal, slots[i], JOURNAL_NONE, 0);
		claim(s, sched, q);
	}
	/* The last daemon may have been killed between a completion and the wake-up. */
	wake_client(s);
}

void ringsrv_park(struct session *s, bool parked)
{
	__atomic_store_n(&s->page->sq_wait, parked, __ATOMIC_RELAXED);
}
