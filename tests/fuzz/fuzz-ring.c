/* SPDX-License-Identifier: MIT */
/*
 * The ring of one session: entries of any bytes, tails and heads of any value, ids that change under way. Each entry
 * that was claimed is completed once and under its own name, or its session ends; nothing beside the arenas is touched
 * (what lies before and behind them faults); when the session is gone, so are its requests and leases.
 *
 * The input: a byte for the ring's length, the slice, whether indices are about to begin again from 0 and whether the
 * model is one that has fewer frames than records, then steps, each a byte and what it takes.
 */
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memfd.h"
#include "daemon/ringsrv.h"
#include "daemon/tier.h"
#include "model/pool-size.h"
#include "tests/fuzz/fuzz-daemon.h"

#define GUARD 4096
#define DATA_BYTES (64u << 10)
#define SLOTS_BYTES (64u << 10)
#define STEPS_MAX 256

enum step {
	STEP_ENTRY,         /* place, 64 bytes: an entry */
	STEP_PUBLISH,       /* n: sq_tail += n % 16 */
	STEP_RETIRE,        /* n: cq_head += n % 16 */
	STEP_SET_SQ_TAIL,   /* 4 bytes */
	STEP_SET_CQ_HEAD,   /* 4 bytes */
	STEP_WRITE,         /* 2 bytes of place, 8 bytes: into the data arena */
	STEP_POLL,          /* the daemon's turn */
	STEP_POLL_AND_WAIT, /* and until the pool has nothing of it */
	STEPS,
	STEP_ALONE = 0xf0,    /* 60 bytes: what lies beside sq_tail */
	STEP_SQ_ALONE = 0xf8, /* n: sq_alone = sq_tail + n % 4, as the next entry's would be */
};

struct ring {
	struct session *session;
	struct moe_client_page *client;
	struct moe_sqe *sqes;
	uint8_t *arenas[MOE_ARENA_SLOTS + 1];
	/* Sums of user_data: of the claimed, of the completed. */
	uint64_t claimed, completed, claimed_sum, completed_sum;
};

/* -- a model with frames for one layer and a token, of two layers -------------------------------------------------- */

static struct entry *entry_of(const char *name)
{
	struct moe_error err = {0};
	struct entry *entry;

	return registry_find(&fuzz_daemon.service->registry, name, NULL, &entry, &err) == 0 ? entry : NULL;
}

static void load_tiered(void)
{
	struct service *s = fuzz_daemon.service;
	const struct moe_manifest *m = s->registry.head->model->manifest;
	struct moe_error err = {0};

	if (entry_of("tiered"))
		return;
	fuzz_daemon.config.pool_max = pool_frames_min(m->n_experts, m->topk) * m->record_bytes;
	fuzz_check(service_load(s, NULL, fuzz_daemon.model, "tiered", &err) == 0);
	while (s->load)
		if (!loop_turn(s->loop))
			sched_yield();
	fuzz_daemon.config.pool_max = 0;
	fuzz_check(entry_of("tiered") && entry_of("tiered")->tier);
}

/* So that the next input meets nothing under way. */
static void wait_reads(struct entry *entry)
{
	struct frames_level level = {.reading = 1};

	while (entry->tier && level.reading > 0) {
		if (!tier_poll(entry->tier))
			sched_yield();
		frames_level(tier_frames(entry->tier), &level);
	}
}

/* -- the ring ------------------------------------------------------------------------------------------------------ */

/* Alone between two pages that fault. */
static uint8_t *make_arena(struct session *s, enum moe_arena kind, uint64_t bytes)
{
	uint8_t *p = mmap(NULL, bytes + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	const int fd = memfd_open("arena", 0);

	fuzz_check(p != MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
		   mmap(p + GUARD, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	s->arenas[kind] = (struct clientmem){.base = p + GUARD, .bytes = bytes};
	if (kind == MOE_ARENA_SLOTS) {
		close(fd);
		return p + GUARD;
	}
	s->data_fd = fd; /* as session_add_arena would */
	s->copied_max = 2 * bytes;
	return p + GUARD;
}

/* The session has unmapped what is between. */
static void drop_guards(uint8_t *arena, uint64_t bytes)
{
	munmap(arena - GUARD, GUARD);
	munmap(arena + bytes, GUARD);
}

/* As after nearly 2^32 requests. */
static void begin_late(struct ring *r)
{
	struct session *s = r->session;

	s->sq_head = s->cq_tail = s->cq_head = UINT32_MAX - 4;
	s->page->sq_head = s->page->cq_tail = r->client->sq_tail = r->client->cq_head = s->sq_head;
}

static struct ring ring_open(uint8_t how)
{
	struct moe_msg_attach attach = {
		.layout = MOE_LAYOUT_VERSION, .tp_size = 1u << (how >> 2 & 1), .entries = 8u << (how & 3)};
	struct moe_error err = {0};
	struct ring r = {0};

	attach.tp_rank = attach.tp_size - 1;
	fuzz_check(session_new(&r.session, entry_of(how & 32 ? "tiered" : "small"), &attach,
			       fuzz_daemon.service->accounts, getuid(), fuzz_daemon.service->loop, &err) == 0);
	r.client = (struct moe_client_page *)(uintptr_t)r.session->client.base;
	r.sqes = (struct moe_sqe *)((uint8_t *)r.client + MOE_RING_PAGE);
	if (how & 16)
		begin_late(&r);
	if (how & 8)
		return r; /* a client that has not registered any */
	r.arenas[MOE_ARENA_DATA] = make_arena(r.session, MOE_ARENA_DATA, DATA_BYTES);
	r.arenas[MOE_ARENA_SLOTS] = make_arena(r.session, MOE_ARENA_SLOTS, SLOTS_BYTES);
	return r;
}

/* Counts what has come to the completion queue since `tail`. */
static void count_completed(struct ring *r, uint32_t tail)
{
	const struct session *s = r->session;
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)s->page + MOE_RING_PAGE);

	fuzz_check(s->page->cq_tail == s->cq_tail && s->page->sq_head == s->sq_head);
	fuzz_check(s->cq_tail - s->cq_head <= s->entries && s->in_flight <= s->entries);
	fuzz_check(s->page->alone.seq != s->cq_tail + 1);
	for (; tail != s->cq_tail; tail++) {
		const struct moe_cqe *cqe = &cqes[tail & (s->entries - 1)];

		fuzz_check(cqe->status <= 0 && cqe->status > -4096 && !cqe->reserved && cqe->seq == tail + 1);
		r->completed++;
		r->completed_sum += cqe->user_data;
	}
}

static void poll_ring(struct ring *r)
{
	struct session *s = r->session;
	const uint32_t head = s->sq_head, tail = s->cq_tail;
	uint64_t copied = 0;

	ringsrv_poll(s, fuzz_daemon.service->sched, 32, &copied);
	for (uint32_t i = head; i != s->sq_head; i++) {
		const bool alone = r->client->sq_alone == i + 1 && i + 1 != 0;

		r->claimed++;
		r->claimed_sum += alone ? r->client->alone[0] : r->sqes[i & (s->entries - 1)].user_data;
	}
	count_completed(r, tail);
}

static void complete_done(struct ring *r)
{
	const uint32_t tail = r->session->cq_tail;
	struct request *q;

	if (r->session->entry->tier)
		tier_poll(r->session->entry->tier);
	while ((q = sched_next_done(fuzz_daemon.service->sched)))
		ringsrv_complete(q);
	if (!r->session->dead)
		count_completed(r, tail);
}

/* Until the pool holds nothing of it: what is in flight then waits to be retired. */
static void wait_ring(struct ring *r)
{
	const struct session *s = r->session;

	while (s->in_flight > (s->dead ? 0 : s->cq_tail - s->cq_head)) {
		complete_done(r);
		sched_yield();
	}
}

static void take_step(struct ring *r, struct fuzz_bytes *from)
{
	const uint64_t word = fuzz_number(from, 1);
	const enum step step = (enum step)(word < STEP_ALONE ? word % STEPS : word & 0xf8);
	uint64_t at;

	switch (step) {
	case STEP_ENTRY:
		at = fuzz_number(from, 1) & (r->session->entries - 1);
		fuzz_take(from, &r->sqes[at], sizeof *r->sqes);
		break;
	case STEP_PUBLISH:
		r->client->sq_tail += (uint32_t)fuzz_number(from, 1) % 16;
		break;
	case STEP_RETIRE:
		r->client->cq_head += (uint32_t)fuzz_number(from, 1) % 16;
		break;
	case STEP_SET_SQ_TAIL:
		r->client->sq_tail = (uint32_t)fuzz_number(from, 4);
		break;
	case STEP_SET_CQ_HEAD:
		r->client->cq_head = (uint32_t)fuzz_number(from, 4);
		break;
	case STEP_WRITE:
		at = fuzz_number(from, 2) % (DATA_BYTES / 8) * 8;
		if (r->arenas[MOE_ARENA_DATA])
			fuzz_take(from, r->arenas[MOE_ARENA_DATA] + at, 8);
		break;
	case STEP_POLL:
		poll_ring(r);
		break;
	case STEP_ALONE:
		fuzz_take(from, &r->client->sq_alone, sizeof r->client->sq_alone + sizeof r->client->alone);
		break;
	case STEP_SQ_ALONE:
		r->client->sq_alone = r->client->sq_tail + (uint32_t)fuzz_number(from, 1) % 4;
		break;
	default:
		poll_ring(r);
		wait_ring(r);
	}
}

/* As the service does when the connection has ended. */
static void ring_close(struct ring *r)
{
	struct entry *entry = r->session->entry;
	struct loop *loop = fuzz_daemon.service->loop;

	session_kill(r->session, fuzz_daemon.service->sched);
	wait_ring(r);
	session_free(r->session, NULL); /* asserts that the books balance */
	wait_reads(entry);
	loop_drain(loop);
	fuzz_check(entry->model->sessions == 0 && entry->model->leases == 0);
	if (r->arenas[MOE_ARENA_DATA]) {
		drop_guards(r->arenas[MOE_ARENA_DATA], DATA_BYTES);
		drop_guards(r->arenas[MOE_ARENA_SLOTS], SLOTS_BYTES);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size};
	struct ring r;

	fuzz_daemon_start();
	fuzz_daemon_load();
	load_tiered();
	r = ring_open((uint8_t)fuzz_number(&from, 1));
	for (int i = 0; i < STEPS_MAX && from.left > 0 && !r.session->broken; i++)
		take_step(&r, &from);
	wait_ring(&r);
	fuzz_check(r.claimed == r.completed && r.claimed_sum == r.completed_sum);
	ring_close(&r);
	return 0;
}
