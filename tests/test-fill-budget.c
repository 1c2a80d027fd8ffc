/* SPDX-License-Identifier: MIT */
/*
 * fill-budget - sessions that name the same device share one budget for fills, in a real daemon: with a budget of one
 * fill, never more than one of all of them is with the pool, and all end; sessions of two devices have one each. As
 * many can share as the protocol says.
 */
#include "base/util.h"
#include "tests/raw-client.h"

#define FILLS 8 /* of each session at a time: as many records as the slot arena holds */
#define RECORD 98304u
#define ROUNDS 300
#define ROUNDS_MAX 20000 /* to see two at a time */
#define SHARERS 64

static struct moe_msg_attach on_device(uint64_t device)
{
	struct moe_msg_attach a = good_attach();

	a.device = device;
	return a;
}

static void post_fills(struct ring *r)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);

	for (uint32_t i = 0; i < FILLS; i++) {
		struct moe_sqe *e = &sqes[r->tail++ & (r->daemon->sq_entries - 1)];

		*e = (struct moe_sqe){.op = MOE_OP_FILL, .user_data = i};
		e->fill.expert = i;
		e->fill.dst = (uint64_t)i * RECORD;
	}
	__atomic_store_n(&r->client->sq_tail, r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
}

/* All of them; false: one failed, or does not come. */
static bool reap_fills(struct ring *r)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);
	bool good = true;

	for (int waits = 0; r->head != r->tail && waits < 10000; waits++) {
		for (; __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) != r->head; r->head++) {
			const struct moe_cqe *c = &cqes[r->head & (r->daemon->cq_entries - 1)];

			good &= c->status == 0 && c->bytes == RECORD;
		}
		__atomic_store_n(&r->client->cq_head, r->head, __ATOMIC_RELEASE);
		if (r->head != r->tail)
			usleep(waits < 100 ? 10 : 1000);
	}
	return good && r->head == r->tail;
}

/* Bytes of all sessions' fills that are with the pool. */
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

/* The most that was seen at a time in so many rounds, or in those until it was `enough`. */
static uint64_t most_running(int sock, struct ring r[2], uint32_t rounds, uint64_t enough, bool *ret_good)
{
	uint64_t most = 0;

	*ret_good = true;
	for (uint32_t i = 0; i < rounds && most < enough && *ret_good; i++) {
		uint64_t now;

		post_fills(&r[0]);
		post_fills(&r[1]);
		now = running(sock);
		most = MAX(most, now);
		*ret_good = reap_fills(&r[0]) && reap_fills(&r[1]);
	}
	return most;
}

static void test_budgets(int sock)
{
	struct ring two[2], shared[2];
	uint64_t most;
	bool good;

	for (uint32_t i = 0; i < 2; i++) {
		ring_open_as(&two[i], on_device(5 + i));
		ring_open_as(&shared[i], on_device(7));
	}
	most = most_running(sock, two, ROUNDS_MAX, 2 * RECORD, &good);
	ok(good && most == 2 * RECORD, "two devices: %llu bytes at a time", (unsigned long long)most);
	most = most_running(sock, shared, ROUNDS, UINT64_MAX, &good);
	ok(good && most == RECORD, "one device: %llu bytes at a time", (unsigned long long)most);
	ring_close(&shared[0]);
	post_fills(&shared[1]);
	ok(reap_fills(&shared[1]), "when one has gone, the other goes on");
	ring_close(&shared[1]);
	ring_close(&two[0]);
	ring_close(&two[1]);
}

static void test_limit(void)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	struct moe_msg_attach a = on_device(9);
	int socks[SHARERS + 1], n = 0;
	bool good = true;

	for (; n < SHARERS && good; n++) {
		socks[n] = connect_raw();
		good = hello(socks[n]) && attach(socks[n], &a) == (MOE_MSG_ATTACH | MOE_MSG_REPLY);
	}
	ok(good, "%d sessions share a device", n);
	socks[n] = connect_raw();
	hello(socks[n]);
	ok(attach(socks[n], &a) == MOE_MSG_ERROR && e->msg.status == -EUSERS && strstr(e->text, "device 9"),
	   "one more does not");
	a.device = 10;
	ok(attach(socks[n], &a) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "but has another one");
	for (; n >= 0; n--)
		close(socks[n]);
}

int main(void)
{
	int sock;

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", "--fill-budget", "1", NULL});
	sock = connect_raw();
	require(hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY), "connected");
	test_budgets(sock);
	test_limit();
	close(sock);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	return tap_done();
}
