/* SPDX-License-Identifier: MIT */
/*
 * What another user who keeps the disk busy with a tiered model's records costs one's own requests for single records
 * (as root only; in a build without sanitizers).
 */
#include "tests/tenants.h"
#include "uapi/moe_manifest.h"

#define LAYERS 6u
#define EXPERTS 32u
#define SESSIONS 4
#define ENTRIES 16u
/* Frames for so many of the sample's 192 records, by bytes. */
#define POOL_MAX "9437184"

enum load { IDLE = QUIET, SINGLES, LAYERS_WHOLE, LOADS };

static const char *const load_names[LOADS] = {"idle sessions", "requests for single records",
					      "requests for whole layers"};

static struct ring others[SESSIONS];

static void ask(struct ring *r, uint32_t layer, uint32_t first, uint32_t n)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);
	const uint32_t place = r->tail & (r->daemon->sq_entries - 1), at = 4096 + place * 256;
	int32_t *ids = (int32_t *)(r->data + at);

	for (uint32_t i = 0; i < n; i++)
		ids[i] = (int32_t)((first + i) % EXPERTS);
	sqes[place] = (struct moe_sqe){.op = MOE_OP_COMPUTE,
				       .layer = (uint16_t)layer,
				       .count = 1,
				       .compute = {.topk = (uint16_t)n, .ids = at, .weights = 65536, .y = 131072}};
	__atomic_store_n(&r->client->sq_tail, ++r->tail, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r->daemon->sq_wait, __ATOMIC_RELAXED))
		ring_bell(r);
}

static void reap(struct ring *r)
{
	r->head = __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE);
	__atomic_store_n(&r->client->cq_head, r->head, __ATOMIC_RELEASE);
}

static void do_load(enum load load)
{
	static uint32_t n;

	for (int i = 0; i < SESSIONS; i++)
		while (others[i].tail - others[i].head < (load == QUIET ? 1 : ENTRIES)) {
			if (load == QUIET)
				break;
			n++;
			ask(&others[i], n % LAYERS, load == SINGLES ? n / LAYERS : 0, load == SINGLES ? 1 : EXPERTS);
		}
	sched_yield();
	for (int i = 0; i < SESSIONS; i++)
		do
			reap(&others[i]);
		while (load == QUIET && others[i].head != others[i].tail && usleep(1000) == 0);
}

static void be_other(struct table *table)
{
	if (become_nobody() < 0)
		_exit(1);
	for (int i = 0; i < SESSIONS; i++)
		ring_open(&others[i]);
	for (;;) {
		const enum load load = (enum load)atomic_load(&table->load);

		do_load(load);
		atomic_store(&table->doing, (int)load);
	}
}

/* One record, each time another one: of the 192 most are not in memory. */
static double trip(struct ring *r)
{
	static uint32_t n;
	const uint64_t begin = now_ns();

	n++;
	ask(r, n % LAYERS, 7 * (n / LAYERS), 1);
	while (__atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head) {
		sched_yield(); /* to who asks for more: both are on one CPU */
		if (now_ns() - begin > TAP_PATIENCE_S * 1000000000ull)
			require(false, "an answer comes");
	}
	reap(r);
	return (double)(now_ns() - begin);
}

int main(void)
{
	struct table *table = tenants_begin();
	struct ring r;

	if (geteuid() != 0) {
		tap_skip("two users: not root");
		return tap_done();
	}
	n_trips = 100;
	factor_max = 6; /* 1.4 to 2.1; 8 to 10 where a user has all slots, 574 where records are not read in turns */
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--socket-mode", "0666", "--pool-max", POOL_MAX, NULL});
	require(chmod(fixture.folder, 0711) == 0, "a socket for everybody");
	ring_open(&r);
	place(fixture.pid);
	begin_tenant(table);
	for (enum load load = SINGLES; load < LOADS; load++)
		test_load(&r, table, (int)load, load_names[load]);
	end_tenant(table);
	ring_close(&r);
	ok(alive() && fixture_stop(&fixture) == 0, "the books balance");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	return tap_done();
}
