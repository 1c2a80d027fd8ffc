/* SPDX-License-Identifier: MIT */
/*
 * fill-budget - sessions that name the same device share one budget for fills, in a real daemon: with a budget of one
 * fill, never more than one of all of them is with the pool, and all end; sessions of two devices have one each. As
 * many can share as the protocol says.
 */
#include "tests/fill-client.h"

#define FILLS SLOTS /* of each session at a time */
#define ROUNDS 300
#define ROUNDS_MAX 20000 /* to see two at a time */
#define SHARERS 64

/* The most that was seen at a time in so many rounds, or in those until it was `enough`. */
static uint64_t most_running(int sock, struct ring r[2], uint32_t rounds, uint64_t enough, bool *ret_good)
{
	uint64_t most = 0;

	*ret_good = true;
	for (uint32_t i = 0; i < rounds && most < enough && *ret_good; i++) {
		uint64_t now;

		post_fills(&r[0], FILLS);
		post_fills(&r[1], FILLS);
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
	post_fills(&shared[1], FILLS);
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
