/* SPDX-License-Identifier: MIT */
/*
 * adversary - a client whose second thread rewrites its ring while the daemon claims from it: every word of each entry,
 * user_data too, ids, weights and activations, then the queues' heads and tails. The first thread publishes and retires
 * as fast as the daemon claims. Each claim is completed once, with a status that the protocol has; a session that has
 * broken the queues' law ends, and the next one begins; an honest neighbour gets right answers all the while. Then the
 * same with a tiered model: what is asked for is mostly not in memory.
 *
 * ADVERSARY_CLAIMS=N: claims to see (default 200,000; docs/FUZZING.md has the long runs), and a tenth with the tiered
 * model.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/util.h"
#include "tests/raw-client.h"

#define CLAIMS_DEFAULT 200000u
#define LAWLESS_SHARE 4       /* one session in so many writes heads and tails as well */
#define SESSIONS_MOST 2000    /* until one has ended so */
#define SESSION_CLAIMS 10000u /* at least; a thousandth of all */
#define EXPERTS 32u
#define POOL_MAX "4718592"          /* frames for 48 of the sample's 192 records */
#define PATIENCE_NS 900000000000ull /* what has not come by then does not come */

static struct ring ring, neighbour;
static _Atomic bool stop, lawless;
static int rewrites; /* words between two yields: of fewer, more entries are in order */
static uint64_t claims, sessions, ended_by_law, refused, wrong_status, stuck;

/* Most words are small, so that what they describe is often allowed. */
static uint64_t draw_word(unsigned long long *state)
{
	const uint64_t random = tap_random(state);

	switch (random % 8) {
	case 0:
		return random * 0x9e3779b97f4a7c15ull;
	case 1:
		return UINT64_MAX;
	case 2:
		return random >> 8 & 0xfff8;
	default:
		return random >> 8 & 0x70007;
	}
}

static void *rewrite(void *userdata)
{
	unsigned long long state = 11;
	uint64_t *sqes = (uint64_t *)((uint8_t *)ring.client + ring.daemon->sqe_offset);
	uint64_t *data = (uint64_t *)ring.data, *alone = (uint64_t *)ring.client->alone;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < rewrites; i++) {
			const uint64_t at = tap_random(&state) % (ring.daemon->sq_entries * 8ull);

			__atomic_store_n(&sqes[at], draw_word(&state), __ATOMIC_RELAXED);
			__atomic_store_n(&alone[tap_random(&state) % 7], draw_word(&state), __ATOMIC_RELAXED);
			__atomic_store_n(&data[tap_random(&state) % (65536 / 8)], tap_random(&state), __ATOMIC_RELAXED);
		}
		/* Of what waits, any may lie beside the tail. */
		__atomic_store_n(&ring.client->sq_alone,
				 __atomic_load_n(&ring.client->sq_tail, __ATOMIC_RELAXED) - tap_random(&state) % 64,
				 __ATOMIC_RELAXED);
		if (atomic_load_explicit(&lawless, memory_order_relaxed) && tap_random(&state) % 512 == 0) {
			__atomic_store_n(&ring.client->cq_head, (uint32_t)tap_random(&state), __ATOMIC_RELAXED);
			__atomic_store_n(&ring.client->sq_tail, (uint32_t)tap_random(&state), __ATOMIC_RELAXED);
		}
		sched_yield(); /* the daemon claims on the same cores */
	}
	return NULL;
}

/* An entry of any operation whose ranges are mostly within the arenas. */
static struct moe_sqe draw_entry(unsigned long long *state)
{
	struct moe_sqe e = {.op = (__u8)(tap_random(state) % 16), .user_data = tap_random(state)};

	if (e.op > MOE_OP_COUNT)
		e.op = MOE_OP_NOP;

	e.layer = (__u16)(tap_random(state) % 7);
	e.count = (__u32)(tap_random(state) % 3);
	if (e.op == MOE_OP_COMPUTE) {
		e.compute.topk = 1 + (__u32)(tap_random(state) % 4);
		e.compute.x = tap_random(state) % 4 * 4096;
		e.compute.y = 131072 + tap_random(state) % 4 * 4096;
		e.compute.ids = 65536;
		e.compute.weights = 65536 + 4096;
	} else if (e.op == MOE_OP_FILL) {
		e.flags = tap_random(state) % 2 ? MOE_SQE_LEASE : 0;
		e.fill.expert = (__u32)(tap_random(state) % (EXPERTS + 1));
	} else if (e.op == MOE_OP_RELEASE) {
		e.release.lease = tap_random(state) % 64;
	}
	return e;
}

/* False: the daemon has ended the session. */
static bool goes_on(void)
{
	struct pollfd p = {.fd = ring.sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) == 0;
}

/* What has come since `head`; the adversary cannot write there. */
static void retire(void)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)ring.daemon + ring.daemon->cqe_offset);
	const uint32_t tail = __atomic_load_n(&ring.daemon->cq_tail, __ATOMIC_ACQUIRE);

	for (; ring.head != tail; ring.head++, claims++) {
		const struct moe_cqe *cqe = &cqes[ring.head & (ring.daemon->cq_entries - 1)];

		wrong_status += cqe->status > 0 || cqe->status < -4095;
		refused += cqe->status < 0;
	}
	__atomic_store_n(&ring.client->cq_head, ring.head, __ATOMIC_RELEASE);
}

/* As many in flight as the queues hold, until the session has had its share or is cut off. */
static void flood(unsigned long long *state, uint64_t share)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)ring.client + ring.daemon->sqe_offset);
	const uint64_t end = claims + share;
	uint64_t moved_ns = now_ns();
	uint32_t idle = 0;

	while (claims < end) {
		const uint64_t before = claims;

		for (; ring.tail - ring.head < ring.daemon->sq_entries; ring.tail++)
			sqes[ring.tail & (ring.daemon->sq_entries - 1)] = draw_entry(state);
		__atomic_store_n(&ring.client->sq_tail, ring.tail, __ATOMIC_RELEASE);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (__atomic_load_n(&ring.daemon->sq_wait, __ATOMIC_RELAXED))
			ring_bell(&ring);
		retire();
		if (claims != before) {
			moved_ns = now_ns();
			idle = 0;
			continue;
		}
		sched_yield();
		if (++idle % 64 == 0 && !goes_on()) {
			ended_by_law++;
			return;
		}
		if (now_ns() - moved_ns > PATIENCE_NS) {
			stuck++;
			return;
		}
	}
}

static bool neighbour_lives(void)
{
	struct moe_sqe nop = {.op = MOE_OP_NOP, .user_data = claims};
	struct moe_cqe cqe = {0};

	return ring_call(&neighbour, &nop, &cqe) == 0 && cqe.user_data == nop.user_data;
}

/* What computations and hints read: experts that there mostly are. */
static void write_ids(unsigned long long *state)
{
	int32_t *ids = (int32_t *)(ring.data + 65536);

	for (int i = 0; i < 1024; i++)
		ids[i] = (int32_t)(tap_random(state) % (EXPERTS + EXPERTS / 32)) - 1;
}

static bool attack_once(unsigned long long *state, uint64_t share)
{
	pthread_t adversary;

	ring_open(&ring);
	write_ids(state);
	atomic_store(&lawless, sessions++ % LAWLESS_SHARE == LAWLESS_SHARE - 1);
	atomic_store(&stop, false);
	if (pthread_create(&adversary, NULL, rewrite, NULL) != 0)
		return false;
	flood(state, share);
	atomic_store(&stop, true);
	pthread_join(adversary, NULL);
	ring_close(&ring);
	return true;
}

static void attack(const char *what, const char *const *options, int words, uint64_t most, bool tiered)
{
	unsigned long long state = 20261121;
	uint64_t neighbours = 0, lost = 0;
	long evictions;

	rewrites = words;
	claims = sessions = ended_by_law = refused = wrong_status = stuck = 0;
	fixture_start(&fixture, fixture_sample(), options);
	ring_open(&neighbour);
	/* On a fast machine a session may be over before its other thread has broken anything. */
	while ((claims < most || (!tiered && ended_by_law == 0 && sessions < SESSIONS_MOST)) && stuck == 0 &&
	       attack_once(&state, MAX(SESSION_CLAIMS, most / 1000))) {
		neighbours++;
		lost += !neighbour_lives();
	}
	ok(claims >= most && stuck == 0, "%s: %llu claims in %llu sessions, %llu of which the daemon ended", what,
	   (unsigned long long)claims, (unsigned long long)sessions, (unsigned long long)ended_by_law);
	ok(wrong_status == 0, "each has a status that the protocol has, %llu an error", (unsigned long long)refused);
	ok(lost == 0, "a neighbour was answered %llu times of %llu", (unsigned long long)(neighbours - lost),
	   (unsigned long long)neighbours);
	if (!tiered)
		ok(ended_by_law > 0, "sessions that break the queues' law end");
	ring_close(&neighbour);
	evictions = asked("stats", "evictions");
	if (tiered)
		ok(evictions > 0, "%ld evictions", evictions);
	ok(alive(), "the daemon is alive");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	ok(fixture_stop(&fixture) == 0, "and ends cleanly");
}

int main(void)
{
	const char *text = getenv("ADVERSARY_CLAIMS");
	const uint64_t most = text ? strtoull(text, NULL, 0) : CLAIMS_DEFAULT;

	attack("in memory", (const char *const[]){"--threads", "2", NULL}, 64, most, false);
	attack("tiered", (const char *const[]){"--threads", "2", "--pool-max", POOL_MAX, NULL}, 1, most / 10, true);
	return tap_done();
}
