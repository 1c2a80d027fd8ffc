/* SPDX-License-Identifier: MIT */
/*
 * journal - what a session's successor daemon must know after kill -9, in a memory file that no client ever holds.
 *
 * A slot for each request that may be in flight, and few words. The daemon's page (moe_ring.h) is written by the daemon
 * alone as well, so its cq_tail and its completions are believed. Law of the order of stores, in which a process that
 * is killed leaves them; tests/crash/order.h has it with its reasons, and the model there tries all crashes in it and
 * in wrong orders:
 *
 *   claim     slot.counter, slot.sqe | slot.inflight = 1 | next = counter + 1 | page.sq_head
 *   complete  last = slot, CQE | its seq | page.cq_tail | effect | slot.inflight = 0 | used = cq_tail
 *             (of a lone request before the CQE: page.alone, the same | its seq)
 *   recover   page.alone has the seq of the CQE at cq_tail: that CQE, the same | its seq | the CQE at cq_tail has its
 *             seq: page.cq_tail + 1 | used != page.cq_tail: effect, inflight = 0 of `last` | used = cq_tail | next |
 *             page.sq_head | run again
 *
 * The counter is the number of the claim; its lower half is the index of the submission queue. What is in flight runs
 * again in its order: all requests but those with an effect are pure, and those have it only once they are completed;
 * done twice it is done once. Recovery may itself be killed anywhere, and begins again.
 *
 * Requests of the kernel module's queue are kept by the module, which issues them again; here they only note their seq:
 *
 *   complete  effect noted | slot.inflight = BY_MODULE | COMMIT | effect | slot.inflight = 0
 *   recover   BY_MODULE and not issued again: effect | slot.inflight = 0 (journal_settle, before the ring's recovery)
 *
 * Effects are taking and giving back leases; the lease table lies in the journal too, and says of each lease which
 * record it holds (layer << 15 | expert), as far as that goes: of a model with more experts nobody asks. A request that
 * is cancelled is completed as any other, within the claim of the CANCEL, and before the CANCEL itself: killed before
 * that, neither has happened and both run again; killed between the two, the CANCEL runs again and finds nothing
 * (-ENOENT).
 */
#ifndef DAEMON_JOURNAL_H
#define DAEMON_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/crash.h"
#include "moe-error.h"
#include "uapi/moe_proto.h"
#include "uapi/moe_ring.h"

#define JOURNAL_MAGIC 0x316c6e6a656f6dull /* "moejnl1" */
/* 4: its session may have lone requests, of which a daemon that takes over only 3 knows nothing. */
#define JOURNAL_VERSION 4
#define JOURNAL_VERSION_MIN 3
#define JOURNAL_LEASES_MAX 65536
#define JOURNAL_EXPERTS_MAX 32768u /* of a layer, where a lease must say which record it holds */

/* What slot.inflight says. */
enum journal_flight {
	JOURNAL_IDLE,
	JOURNAL_BY_RING,  /* it runs again */
	JOURNAL_BY_MODULE /* whether its answer has gone the kernel module knows: then its effect is due */
};

enum journal_effect { JOURNAL_NONE, JOURNAL_LEND, JOURNAL_RELEASE };

struct journal_slot {
	struct moe_sqe sqe;
	uint64_t counter; /* number of the claim */
	uint64_t lease;   /* of the effect */
	uint32_t inflight, effect;
};

/* A round that was decided (agreement.h); round 0: none, or one that is being written. */
struct journal_agreed {
	uint64_t round, lost, given_up;
	uint32_t phase, tokens;
};

struct journal_page {
	uint64_t magic;
	uint32_t version, entries;
	uint64_t session, model; /* model: its epoch */
	struct moe_msg_attach attach;
	uint64_t arenas[MOE_ARENA_SLOTS + 1]; /* bytes, 0: none */
	uint64_t asked, answered;             /* messages on the session's connection: equal, or one was in work */
	uint64_t next;                        /* number of the next claim */
	uint32_t last, used;                  /* last: slot + 1 */
	uint32_t n_leases;                    /* that have ever been lent at a time */
	uint32_t phase, dummy;
	uint32_t joined_ms; /* when the AGREE below was claimed, of now_ns(), cut; 0: by a daemon that did not say */
	uint64_t step, ops[MOE_OP_COUNT], failed, cancelled;
	struct journal_agreed agreed[2];
	uint64_t joined_claim, joined_round; /* of the last AGREE: its claim + 1; which round, if it named none */
	/* [entries], then uint64_t leases[JOURNAL_LEASES_MAX]: record << 33 | generation << 1 | held */
	struct journal_slot slots[];
};

/* Which places of the lease table are held, and which words of that are full: the lowest free one is found without a
 * walk over a table that its session may have filled. This process's own. */
struct journal_held {
	uint64_t places[JOURNAL_LEASES_MAX / 64];
	uint64_t full[JOURNAL_LEASES_MAX / 64 / 64];
	uint32_t n;
};

struct journal {
	int fd;
	uint64_t bytes;
	struct journal_page *page;
	uint64_t *leases;
	struct journal_held *held; /* NULL: none has ever been lent */
	uint32_t reach;            /* slots from here on were idle when it was opened, and recovery leaves them alone */
};

/* A new one, or the one in `fd` (taken over, also on failure) after a check of all that an index is made of. */
int journal_new(struct journal *ret, uint32_t entries, struct moe_error *err);
int journal_open(struct journal *ret, int fd, struct moe_error *err);
void journal_free(struct journal *journal);

/* Bytes of a new journal but for its leases, and the making of places for those; -errno. */
uint64_t journal_books_bytes(uint32_t entries);
int journal_make_leases(struct journal *journal, uint64_t from, uint64_t to);

/* A store that stays behind all before it and before all after it, in the program: nothing else reorders what a killed
 * process has stored. */
static inline void journal_put(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	__asm__ volatile("" ::: "memory");
}

/* Before sq_head is stored. */
static inline void journal_claim(struct journal *journal, uint32_t slot, const struct moe_sqe *sqe)
{
	struct journal_slot *s = &journal->page->slots[slot];

	s->counter = journal->page->next;
	s->sqe = *sqe;
	s->effect = JOURNAL_NONE;
	journal_put(&s->inflight, JOURNAL_BY_RING);
	crash_at(CRASH_INFLIGHT);
	__atomic_store_n(&journal->page->next, s->counter + 1, __ATOMIC_RELEASE);
}

/* What completing the request does to the leases: before journal_last. */
void journal_set_effect(struct journal *journal, uint32_t slot, enum journal_effect effect, uint64_t lease);

static inline enum journal_effect journal_effect(const struct journal *journal, uint32_t slot)
{
	return (enum journal_effect)journal->page->slots[slot].effect;
}

/* Word by word, as they were written: a wider load would wait until those stores have left the core. The seq is the
 * last one; its partner is the client's load of it. */
static inline void journal_give_out(struct moe_cqe *to, const struct moe_cqe *from, uint32_t seq)
{
	to->user_data = from->user_data;
	to->status = from->status;
	to->op = from->op;
	to->layer = from->layer;
	to->wait_ns = from->wait_ns;
	to->work_ns = from->work_ns;
	to->pairs = from->pairs;
	to->bytes = from->bytes;
	to->lease = from->lease;
	to->offset = from->offset;
	__asm__ volatile("" ::: "memory");
	crash_at(CRASH_CQE);
	journal_put(&to->seq, seq);
}

/* Before the CQE is written; after cq_tail is stored. The latter does the effect. */
static inline void journal_last(struct journal *journal, uint32_t slot)
{
	journal_put(&journal->page->last, slot + 1);
}

void journal_end(struct journal *journal, uint32_t slot, uint32_t cq_tail);

/* Of a request that came through the kernel module, by its seq; nothing is in flight by it. Before the answer is
 * committed, and after it: the latter does the effect. */
void journal_note(struct journal *journal, uint32_t slot, const struct moe_sqe *sqe, uint64_t seq);
void journal_commits(struct journal *journal, uint32_t slot);
void journal_committed(struct journal *journal, uint32_t slot);

/* After the daemon's end, before journal_recover: effects of answers that were committed, which are those that the
 * module does not issue again, are done. */
void journal_settle(struct journal *journal, bool (*again)(void *userdata, uint64_t seq), void *userdata);

/* The slot is free without a completion: its session has died. */
void journal_drop(struct journal *journal, uint32_t slot);

/* The recovery of the law, up to running again; `cqes` are the page's, [entries]. Writes the slots in flight, in their
 * order, to `slots` [entries] and returns how many; -EBADMSG: page and journal are not of one session. */
int journal_recover(struct journal *journal, struct moe_daemon_page *page, struct moe_cqe *cqes, uint32_t *slots);

/* A lease that is free, not taken yet, whose place may be still to make: 0 when all are lent. Whether one is held. How
 * many are. */
uint64_t journal_free_lease(const struct journal *journal);
bool journal_holds(const struct journal *journal, uint64_t lease);
uint32_t journal_leases(const struct journal *journal);
void journal_release_all(struct journal *journal);

/* Which record a lease is, or was, of; the same of all that are held, one a call (*cursor is 0 at first, and then the
 * place after the lease's); and a place that is not held after all. */
uint32_t journal_lease_key(const struct journal *journal, uint64_t lease);
bool journal_next_lease(const struct journal *journal, uint32_t *cursor, uint32_t *ret_key);
void journal_forget_lease(struct journal *journal, uint32_t place);

static inline uint32_t journal_key_layer(uint32_t key)
{
	return key / JOURNAL_EXPERTS_MAX;
}

static inline uint32_t journal_key_expert(uint32_t key)
{
	return key % JOURNAL_EXPERTS_MAX;
}

#endif
