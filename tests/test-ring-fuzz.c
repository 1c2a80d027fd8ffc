/* SPDX-License-Identifier: MIT */
/*
 * A hostile client: random entries, entries that are rewritten while the daemon claims them, ids that change under its
 * hands. Whatever it does, every completion carries the user_data of an entry that was posted, and the daemon lives.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/raw-client.h"

#define ENTRIES 10000

static struct ring ring;
static _Atomic bool stop;

/* Rewrites all entries and the data arena as fast as it can. */
static void *rewrite(void *userdata)
{
	unsigned long long state = 7;

	while (!atomic_load(&stop)) {
		uint64_t *sqes = (uint64_t *)((uint8_t *)ring.client + ring.daemon->sqe_offset);
		uint64_t *data = (uint64_t *)ring.data;

		for (int i = 0; i < 64; i++) {
			/* Never word 0 of an entry: user_data must come back. */
			const uint64_t at = tap_random(&state) % (ring.daemon->sq_entries * 8);

			if (at % 8)
				__atomic_store_n(&sqes[at], tap_random(&state) & 0xff07, __ATOMIC_RELAXED);
			__atomic_store_n(&data[tap_random(&state) % (65536 / 8)], tap_random(&state), __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

/* Mostly well-formed, so that deep checks are reached. */
static struct moe_sqe draw(unsigned long long *state)
{
	const uint64_t offsets[] = {0, 64, 4096, 65536, DATA_BYTES - 64, DATA_BYTES, UINT64_MAX, 1u << 31, 8};
	struct moe_sqe e = {.op = (__u8)(tap_random(state) % (MOE_OP_COUNT + 1))};

	e.layer = (__u16)(tap_random(state) % 8);
	switch (e.op) {
	case MOE_OP_COMPUTE:
		e.count = (__u32)(tap_random(state) % 5);
		e.compute.topk = (__u32)(tap_random(state) % 10);
		for (__u64 *at = &e.compute.x; at <= &e.compute.y; at++)
			*at = offsets[tap_random(state) % 9];
		break;
	case MOE_OP_FILL:
		e.flags = tap_random(state) % 3 ? tap_random(state) & 1 : MOE_SQE_PREFETCH;
		e.fill.expert = (__u32)(tap_random(state) % 34);
		e.fill.dst = offsets[tap_random(state) % 9];
		e.fill.from = tap_random(state) & 1 ? 0 : offsets[tap_random(state) % 9];
		e.fill.bytes = tap_random(state) & 1 ? 0 : offsets[tap_random(state) % 9];
		break;
	case MOE_OP_CANCEL:
		e.layer = 0;
		e.cancel.user_data = tap_random(state) % ENTRIES;
		break;
	case MOE_OP_RELEASE:
		e.layer = 0;
		e.release.lease = tap_random(state) % 3 << 32 | tap_random(state) % 70;
		break;
	case MOE_OP_HINT:
		e.count = (__u32)(tap_random(state) % 40);
		e.hint.ids = offsets[tap_random(state) % 9];
		break;
	case MOE_OP_AGREE:
		e.layer = 0;
		e.agree.phase = (__u32)(tap_random(state) % 4);
		e.agree.tokens = (__u32)(tap_random(state) % 3);
		e.agree.round = tap_random(state) % 3;
		break;
	default:
		break;
	}
	if (tap_random(state) % 4 == 0)
		((__u8 *)&e)[8 + tap_random(state) % 56] ^= (__u8)tap_random(state);
	return e;
}

int main(void)
{
	unsigned long long state = tap_seed();
	struct moe_msg_attach m = good_attach();
	int lost = 0, refused = 0;
	pthread_t adversary;

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "2", NULL});
	m.group = 1;
	m.dp_size = 1;
	m.agree_ms = 1000;
	ring_open_as(&ring, m);
	for (int i = 0; i < ENTRIES && lost == 0; i++) {
		struct moe_sqe e = draw(&state);
		int r;

		e.user_data = (__u64)i;
		if (i == ENTRIES / 2)
			pthread_create(&adversary, NULL, rewrite, NULL);
		r = ring_call(&ring, &e, NULL);
		lost += r == -ETIME || r == -EBADMSG;
		refused += r < 0;
	}
	atomic_store(&stop, true);
	pthread_join(adversary, NULL);
	ok(lost == 0, "each of %d entries was completed once, under its own name", ENTRIES);
	ok(refused > ENTRIES / 10 && refused < ENTRIES, "%d of them were refused", refused);
	ring_close(&ring);
	ok(alive(), "the daemon is alive");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	ok(fixture_stop(&fixture) == 0, "and ends cleanly");
	return tap_done();
}
