/* SPDX-License-Identifier: MIT */
/*
 * fill-client - a client that posts FILLs of whole records by the protocol itself, and what the daemon says of those
 * that are with the pool.
 */
#ifndef TESTS_FILL_CLIENT_H
#define TESTS_FILL_CLIENT_H

#include <time.h>

#include "base/util.h"
#include "tests/raw-client.h"

#define SLOTS 8 /* as many records as the slot arena holds */
#define RECORD 98304u
#define FILL_PATIENCE_S 600 /* a fill that has not come by then does not come */

static struct moe_msg_attach on_device(uint64_t device)
{
	struct moe_msg_attach a = good_attach();

	a.device = device;
	return a;
}

/* Record i of layer 0 into slot i, for each i below n modulo the slots. At most as many as the queue holds. */
static void post_fills(struct ring *r, uint32_t n)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);

	for (uint32_t i = 0; i < n; i++) {
		struct moe_sqe *e = &sqes[r->tail++ & (r->daemon->sq_entries - 1)];

		*e = (struct moe_sqe){.op = MOE_OP_FILL, .user_data = i};
		e->fill.expert = i % SLOTS;
		e->fill.dst = (uint64_t)(i % SLOTS) * RECORD;
	}
	__atomic_store_n(&r->client->sq_tail, r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
}

/* All of them, however often the daemon ends meanwhile; false: one failed, or does not come. */
static bool reap_fills(struct ring *r)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);
	const time_t end = time(NULL) + FILL_PATIENCE_S;
	bool good = true;

	for (uint32_t waits = 0; r->head != r->tail && time(NULL) < end; waits++) {
		for (; ring_answered(r); r->head++) {
			const struct moe_cqe *c = &cqes[r->head & (r->daemon->cq_entries - 1)];

			good &= c->status == 0 && c->bytes == RECORD;
		}
		__atomic_store_n(&r->client->cq_head, r->head, __ATOMIC_RELEASE);
		if (r->head != r->tail)
			usleep(waits < 100 ? 10 : 1000);
	}
	return good && r->head == r->tail;
}

/* Bytes of all sessions' fills that are with the pool; UINT64_MAX: the daemon does not say. */
static uint64_t running(int sock)
{
	static const char field[] = "\"fill_bytes_running\":";
	struct moe_msg_query m = {.what = MOE_QUERY_SESSIONS};
	char text[1 << 14];
	uint64_t sum = 0;
	ssize_t n;

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	if (exchange(sock, &m, sizeof m, NULL, 0) != (MOE_MSG_QUERY | MOE_MSG_REPLY) || n_answer_fds != 1)
		return UINT64_MAX;
	n = pread(answer_fds[0], text, sizeof text - 1, 0);
	text[MAX(n, 0)] = '\0';
	for (const char *at = strstr(text, field); at; at = strstr(at, field)) {
		at += sizeof field - 1;
		sum += strtoull(at, NULL, 10);
	}
	return sum;
}

#endif
