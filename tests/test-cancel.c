/* SPDX-License-Identifier: MIT */
/*
 * CANCEL, in each state of what it is for, and in a race with it: a request that was taken back has done nothing, any
 * other has done all, and the completions of both say which. And speculative fills, which come after everything else.
 */
#include "tests/raw-client.h"

#define ENTRIES 16 /* of raw-client's ring */
#define WINDOW 4   /* of the scheduler, with one thread */
#define TOKENS 256
#define TOPK 4
#define HIDDEN 128
#define SLICE (3 * 128 * 128 * 2)
#define SLOT_AT(i) ((i) * (uint64_t)131072)
#define SLOTS 8
#define ROUNDS 3000
#define ROUNDS_MAX 60000

static struct ring ring;
static uint8_t *expected[SLOTS]; /* of expert i */

static void publish(const struct moe_sqe *sqe)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)ring.client + ring.daemon->sqe_offset);

	sqes[ring.tail++ & (ring.daemon->sq_entries - 1)] = *sqe;
}

/* The daemon sees all that was published since at once. */
static void go(void)
{
	__atomic_store_n(&ring.client->sq_tail, ring.tail, __ATOMIC_RELEASE);
	ring_bell(&ring);
}

static struct moe_cqe take(void)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)ring.daemon + ring.daemon->cqe_offset);
	struct moe_cqe cqe;
	uint64_t end = 0;

	for (int i = 0; __atomic_load_n(&ring.daemon->cq_tail, __ATOMIC_ACQUIRE) == ring.head; i++)
		if (i < 1000)
			usleep(10);
		else if (!tap_wait(&end))
			require(false, "a completion within %d s", TAP_PATIENCE_S);
	cqe = cqes[ring.head & (ring.daemon->cq_entries - 1)];
	__atomic_store_n(&ring.client->cq_head, ++ring.head, __ATOMIC_RELEASE);
	return cqe;
}

/* Keeps the pool's one thread busy for long. */
static struct moe_sqe long_compute(uint64_t name)
{
	const uint64_t rows = (uint64_t)TOKENS * HIDDEN * 4, pairs = (uint64_t)TOKENS * TOPK * 4;

	return (struct moe_sqe){
		.user_data = name,
		.op = MOE_OP_COMPUTE,
		.count = TOKENS,
		.compute = {.topk = TOPK, .x = 0, .y = rows, .ids = 2 * rows, .weights = 2 * rows + pairs},
	};
}

static struct moe_sqe fill(uint64_t name, uint32_t slot, uint8_t flags)
{
	return (struct moe_sqe){
		.user_data = name, .op = MOE_OP_FILL, .flags = flags, .fill = {.expert = slot, .dst = SLOT_AT(slot)}};
}

static struct moe_sqe cancel(uint64_t name, uint64_t what)
{
	return (struct moe_sqe){.user_data = name, .op = MOE_OP_CANCEL, .cancel = {.user_data = what}};
}

static void publish_compute(uint64_t name)
{
	const struct moe_sqe sqe = long_compute(name);

	publish(&sqe);
}

static void publish_fill(uint64_t name, uint32_t slot, uint8_t flags)
{
	const struct moe_sqe sqe = fill(name, slot, flags);

	publish(&sqe);
}

static void publish_cancel(uint64_t name, uint64_t what)
{
	const struct moe_sqe sqe = cancel(name, what);

	publish(&sqe);
}

static bool untouched(uint32_t slot)
{
	for (uint32_t i = 0; i < SLICE; i++)
		if (ring.slots[SLOT_AT(slot) + i] != 0xa5)
			return false;
	return true;
}

static bool filled(uint32_t slot)
{
	return memcmp(ring.slots + SLOT_AT(slot), expected[slot], SLICE) == 0;
}

static void learn(void)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		publish_fill(i, i, 0);
		go();
		require(take().status == 0, "a fill");
		expected[i] = malloc(SLICE);
		memcpy(expected[i], ring.slots + SLOT_AT(i), SLICE);
	}
	for (uint32_t i = 1; i < SLOTS; i++)
		require(memcmp(expected[0], expected[i], SLICE) != 0, "experts differ");
}

/* -- each state --------------------------------------------------------------------------------------------------- */

static void test_states(void)
{
	struct moe_cqe c;
	bool good = true;

	memset(ring.slots, 0xa5, DATA_BYTES);
	publish_compute(100);
	for (uint32_t i = 0; i <= WINDOW; i++)
		publish_fill(i, i, MOE_SQE_PREFETCH);
	publish_cancel(200, WINDOW);
	publish_cancel(201, WINDOW);
	publish_cancel(202, 0);
	publish_cancel(203, 100);
	publish_cancel(204, 203);
	publish_cancel(205, 12345);
	go();
	c = take();
	ok(c.user_data == WINDOW && c.status == -ECANCELED && c.op == MOE_OP_FILL && c.bytes == 0,
	   "what waits completes as cancelled");
	c = take();
	ok(c.user_data == 200 && c.status == 0 && c.op == MOE_OP_CANCEL, "and then its CANCEL");
	c = take();
	ok(c.user_data == 201 && c.status == -ENOENT, "once");
	c = take();
	ok(c.user_data == 202 && c.status == -EALREADY, "what the pool has, though nothing of it is done, goes on");
	c = take();
	ok(c.user_data == 203 && c.status == -EALREADY, "and so does what runs");
	c = take();
	ok(c.user_data == 204 && c.status == -ENOENT, "a CANCEL is cancelled by nobody");
	c = take();
	ok(c.user_data == 205 && c.status == -ENOENT, "what was never asked for is not there");
	c = take();
	ok(c.user_data == 100 && c.status == 0 && c.pairs == TOKENS * TOPK, "the computation has ended first");
	for (uint32_t i = 0; i < WINDOW; i++) {
		c = take();
		good &= c.user_data == i && c.status == 0 && c.bytes == SLICE && filled(i);
	}
	ok(good, "then the speculative fills that the pool had");
	ok(untouched(WINDOW), "and nothing of the one that was cancelled");
	publish_cancel(206, 0);
	go();
	ok(take().status == -ENOENT, "what has completed is not there");
}

/* A waiting COMPUTE, and several of one name. */
static void test_names(void)
{
	struct moe_cqe c;
	int cancelled = 0, done = 0, strange = 0;

	for (uint32_t i = 0; i <= WINDOW; i++)
		publish_compute(i < WINDOW ? 100 : 101);
	publish_cancel(200, 101);
	for (int i = 0; i < 3; i++)
		publish_fill(7, 5, 0);
	for (int i = 0; i < 4; i++)
		publish_cancel(300, 7);
	go();
	c = take();
	ok(c.user_data == 101 && c.status == -ECANCELED && c.op == MOE_OP_COMPUTE && c.pairs == 0 && take().status == 0,
	   "a computation that waits is cancelled");
	for (int i = 0; i < 3 + 4 + WINDOW; i++) {
		c = take();
		cancelled += c.user_data == 7 && c.status == -ECANCELED;
		done += c.user_data == 300 && c.status == 0;
		strange += c.user_data == 300 && c.status != 0 && c.status != -ENOENT;
	}
	ok(cancelled == 3 && done == 3 && strange == 0, "of three requests of one name each CANCEL takes one");
}

/* Whatever was asked for first. */
static void test_classes(void)
{
	bool good = true;

	publish_compute(100);
	for (uint32_t i = 0; i < 2; i++)
		publish_fill(20 + i, i, MOE_SQE_PREFETCH);
	for (uint32_t i = 0; i < 2; i++)
		publish_fill(10 + i, 2 + i, 0);
	go();
	good = take().user_data == 100;
	for (uint64_t i = 0; i < 2; i++)
		good &= take().user_data == 10 + i;
	for (uint64_t i = 0; i < 2; i++)
		good &= take().user_data == 20 + i;
	ok(good, "speculative fills come after those that are needed");
}

/* -- races -------------------------------------------------------------------------------------------------------- */

struct tally {
	bool posted, ended;
	int fill, cancel; /* statuses; cancel 1: not posted */
};

static bool agree(const struct tally *t, uint32_t slot)
{
	if (t->fill == -ECANCELED)
		return t->cancel == 0 && untouched(slot);
	return t->fill == 0 && t->cancel != 0 && filled(slot);
}

static uint32_t completed(void)
{
	return __atomic_load_n(&ring.daemon->cq_tail, __ATOMIC_ACQUIRE) - ring.head;
}

/* Fills and their cancels with a pause between them that may be any. */
static void test_races(unsigned long long *state)
{
	int cancelled = 0, running = 0, late = 0, round;
	bool good = true;

	/* Where there is one CPU only, it takes a while until somebody comes while it runs. */
	for (round = 0; good && (round < ROUNDS || (round < ROUNDS_MAX && (!cancelled || !running || !late)));
	     round++) {
		struct tally t[SLOTS] = {0};
		uint32_t n = 0;
		uint64_t end = 0;

		memset(ring.slots, 0xa5, DATA_BYTES);
		for (uint32_t i = 0; i < SLOTS; i++, n++) {
			t[i].cancel = 1;
			publish_fill(i, i, tap_random(state) & 1 ? MOE_SQE_PREFETCH : 0);
		}
		go();
		for (uint64_t k = tap_random(state) % 4000; k > 0; k--)
			__asm__ volatile("" ::: "memory");
		while (round % 16 == 0 && completed() < SLOTS && tap_wait(&end))
			; /* too late, for once */
		for (uint32_t i = SLOTS; i-- > 0;) {
			if (tap_random(state) % 3 == 0)
				continue;
			publish_cancel(100 + i, i);
			n++;
		}
		go();
		while (n-- > 0) {
			const struct moe_cqe c = take();

			if (c.user_data >= 100)
				t[c.user_data - 100].cancel = c.status;
			else
				t[c.user_data].fill = c.status;
		}
		for (uint32_t i = 0; i < SLOTS; i++) {
			good &= agree(&t[i], i);
			cancelled += t[i].cancel == 0;
			running += t[i].cancel == -EALREADY;
			late += t[i].cancel == -ENOENT;
		}
	}
	ok(good, "in %d races what is said agrees with what was done", round);
	ok(cancelled > 0 && running > 0 && late > 0, "%d came in time, %d while it ran, %d too late", cancelled,
	   running, late);
}

/* "cancelled" of the one session. */
static long counted(void)
{
	char command[512], text[8192];
	const char *at;
	size_t n;
	FILE *f;

	snprintf(command, sizeof command, "%s/tools/moectl --socket %s sessions --json", fixture_env("MOE_BUILD"),
		 fixture.socket);
	f = popen(command, "r");
	require(f != NULL, "moectl runs");
	n = fread(text, 1, sizeof text - 1, f);
	pclose(f);
	text[n] = '\0';
	at = strstr(text, "\"cancelled\":");
	return at ? atol(at + strlen("\"cancelled\":")) : -1;
}

int main(void)
{
	unsigned long long state = tap_seed();

	/* The reference kernels: a computation that takes long. */
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", "--isa", "ref", NULL});
	ring_open(&ring);
	require(ring.daemon->sq_entries == ENTRIES, "the ring's length");
	learn();
	test_states();
	ok(counted() == 1, "moectl counts it");
	test_names();
	test_classes();
	test_races(&state);
	for (uint32_t i = 0; i < SLOTS; i++)
		free(expected[i]);
	ring_close(&ring);
	ok(alive(), "the daemon is alive");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	ok(fixture_stop(&fixture) == 0, "and ends cleanly");
	return tap_done();
}
