/* SPDX-License-Identifier: MIT */
/*
 * A recording beside clients that lie in their taps: each costs its client the connection, and nothing of it is in the
 * file.
 */
#include <poll.h>

#include "uapi/moe_trace.h"
#include "tests/trace-recording.h"

static bool await_word(const __u32 *word, __u32 value)
{
	uint64_t end = 0;

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
		if (!tap_wait(&end))
			return false;
	return true;
}

static bool cut_off(const struct ring *r)
{
	struct pollfd p = {.fd = r->sock, .events = POLLIN | POLLRDHUP};

	return poll(&p, 1, (int)(TAP_SOON_NS / 1000000)) == 1 && p.revents & (POLLHUP | POLLRDHUP | POLLERR);
}

/* A client that knows of the tap and has it open; its ring's memory. */
static uint8_t *liar_open(struct ring *r)
{
	ring_open_bare(r);
	__atomic_store_n(&r->client->tap_able, 1, __ATOMIC_RELEASE);
	require(await_word(&r->daemon->tap_on, 1), "the liar's tap is open");
	return (uint8_t *)r->client + r->daemon->tap_offset;
}

static void lie(const char *what, struct moe_route route, uint32_t ids, uint32_t tail)
{
	struct ring r;
	uint8_t *at = liar_open(&r);

	memset(at + sizeof route, (int)ids, 4096);
	memcpy(at, &route, sizeof route);
	__atomic_store_n(&r.client->tap_tail, tail, __ATOMIC_RELEASE);
	ok(cut_off(&r) && alive(), "%s costs the connection", what);
	ring_close(&r);
}

static void test_lies(void)
{
	const struct moe_route good = {.bytes = (__u32)moe_route_bytes(2, 2),
				       .kind = MOE_TRACE_ROUTE,
				       .topk = 2,
				       .tokens = 2,
				       .phase = MOE_PHASE_DECODE};
	const uint32_t n = good.bytes;
	struct moe_route bad;
	struct recording t;
	struct ring r;
	uint8_t *at, *data;
	size_t size;

	recording_open(&t);
	recording_start(&t);
	lie("a tail beyond the tap", good, 0, (1u << 20) + 8);
	lie("a tail behind the head", good, 0, -8u);
	lie("half a record", good, 0, n - 8);
	lie("a tail within a word", good, 0, n + 4);
	lie("an expert that is not there", good, 0x7f, n);
#define LIE(what, member, value) (bad = good, bad.member = (value), lie(what, bad, 0, n))
	LIE("another kind", kind, MOE_TRACE_SOURCE);
	LIE("no choices", topk, 0);
	LIE("too many choices", topk, MOE_TOPK_MAX + 1);
	LIE("no tokens", tokens, 0);
	LIE("more tokens than bytes", tokens, MOE_TOKENS_MAX);
	LIE("tokens that overflow", tokens, 0x80000001u);
	LIE("a length that is too short", bytes, n - 8);
	LIE("no length", bytes, 0);
	LIE("a length beyond the tail", bytes, 1u << 30);
	LIE("a layer that is not there", layer, 6);
	LIE("a phase that is not there", phase, 3);
	LIE("a mode that is not there", mode, MOE_STATS_MODES);
	LIE("another source", source, 1);
	/* An honest one beside them, and one who says that he has lost some. */
	at = liar_open(&r);
	memset(at + sizeof good, 0, n - sizeof good);
	memcpy(at, &good, sizeof good);
	r.client->tap_lost = 7;
	__atomic_store_n(&r.client->tap_tail, n, __ATOMIC_RELEASE);
	ok(await_word(&r.daemon->tap_head, n), "an honest record is taken");
	stop_recording();
	recording_wait(&t);
	ok(t.r == 0 && t.result.routes == 1 && t.result.lost == 7 && t.result.sessions == 1,
	   "and is all that is recorded: %llu routes of %u sessions, %llu lost", (unsigned long long)t.result.routes,
	   t.result.sessions, (unsigned long long)t.result.lost);
	ok(await_word(&r.daemon->tap_on, 0), "the tap is closed");
	ring_close(&r);
	data = load(&t, &size);
	free(data);
}

int main(void)
{
	fixture_start(&fixture, fixture_sample(), NULL);
	test_lies();
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	return tap_done();
}
