/* SPDX-License-Identifier: MIT */
/*
 * drafts - documents that are made while sessions end and rings have work: no session is counted twice or left out, all
 * who wait get theirs, and a model that goes away takes none with it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/util.h"
#include "tests/raw-client.h"

#define SESSIONS 24
#define STEPS 1000 /* of each session, in its first MoE layer */
#define ASKERS 12
#define UNLOADS 12

static atomic_bool stop;
static atomic_ulong trips;

/* While the rings have work, a draft takes its time. */
static void *keep_busy(void *arg)
{
	struct ring *r = arg;

	while (!atomic_load(&stop)) {
		const uint32_t tail = __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE);

		__atomic_store_n(&r->client->cq_head, tail, __ATOMIC_RELEASE);
		__atomic_store_n(&r->client->sq_tail, tail + 1, __ATOMIC_RELEASE); /* of zeros: a NOP */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (__atomic_load_n(&r->daemon->sq_wait, __ATOMIC_RELAXED))
			ring_bell(r);
		atomic_fetch_add(&trips, 1);
		sched_yield();
	}
	return NULL;
}

static void ask_for(int sock, uint32_t what)
{
	struct moe_msg_query m = {.what = what};

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	require(fdmsg_send(sock, &m, sizeof m, NULL, 0, 0) >= 0, "asked");
}

/* The document's text; NULL: the answer is another. */
static const char *take_text(int sock)
{
	static char text[1 << 20];
	ssize_t n = -1;

	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	if (fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) > 0 && n_answer_fds == 1 &&
	    ((const struct moe_msg *)answer)->type == (MOE_MSG_QUERY | MOE_MSG_REPLY))
		n = pread(answer_fds[0], text, sizeof text - 1, 0);
	text[MAX(n, 0)] = '\0';
	return n > 0 ? text : NULL;
}

/* Of the model: what its totals say, which come behind its layers. */
static long steps_in(const char *text)
{
	const char *at = text ? strstr(text, "\"totals\":") : NULL;

	at = at ? strstr(at, "\"steps\":") : NULL;
	return at ? atol(at + strlen("\"steps\":")) : -1;
}

static int sessions_in(const char *text)
{
	const char *at = strstr(text, "\"sessions\": [");
	int n = 0;

	for (; at && (at = strstr(at, "\"attached_ns\":")); at++)
		n++;
	return n;
}

/* Each leaves while the statistics are being made, and its steps stay. */
static void test_leaving(int sock)
{
	struct ring rings[SESSIONS];
	int wrong = 0, amid = 0;

	for (int i = 0; i < SESSIONS; i++) {
		ring_open_bare(&rings[i]);
		((struct moe_layer_stats *)((uint8_t *)rings[i].client + rings[i].daemon->stats_offset))->steps = STEPS;
	}
	for (int i = 0; i < SESSIONS; i++) {
		const int there = SESSIONS - i + 1; /* and the busy one */
		const char *text;

		ask_for(sock, MOE_QUERY_STATS);
		usleep(100 * (unsigned)(i % 8));
		ring_close(&rings[i]);
		text = take_text(sock);
		wrong += steps_in(text) != (long)SESSIONS * STEPS;
		amid += text && sessions_in(text) != there;
		if (steps_in(text) != (long)SESSIONS * STEPS)
			diag("%d have left: %ld steps of %d", i + 1, steps_in(text), SESSIONS * STEPS);
	}
	ok(wrong == 0, "%d sessions leave while statistics are made: none is counted twice or left out", SESSIONS);
	diag("%d of them before their piece was made", amid);
}

/* All but the busy one go amid, whoever is next. */
static void test_all_leave(int sock)
{
	struct ring rings[SESSIONS];
	const char *text;

	for (int i = 0; i < SESSIONS; i++)
		ring_open_bare(&rings[i]);
	ask_for(sock, MOE_QUERY_STATS);
	usleep(300);
	for (int i = SESSIONS; i-- > 0;)
		ring_close(&rings[i]);
	text = take_text(sock);
	ok(steps_in(text) == (long)SESSIONS * STEPS, "all leave at once: the sums are as before");
}

/* All at once, of all kinds. */
static void test_many(void)
{
	int socks[ASKERS], good = 0;

	for (int i = 0; i < ASKERS; i++) {
		socks[i] = connect_raw();
		hello(socks[i]);
	}
	for (int i = 0; i < ASKERS; i++)
		ask_for(socks[i], MOE_QUERY_STATUS + (uint32_t)i % 5);
	close(socks[0]); /* does not wait */
	for (int i = 1; i < ASKERS; i++) {
		static const char *const holds[5] = {"\"uptime_ns\"", "\"totals\"", "\"family\"", "\"requests\"",
						     "\"heat\""};
		const char *text = take_text(socks[i]);

		good += text && strstr(text, holds[i % 5]) != NULL;
		close(socks[i]);
	}
	ok(good == ASKERS - 1, "%d who wait get what they have asked for (%d)", ASKERS - 1, good);
}

static void test_refused(int sock)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	struct moe_msg_query m = {.what = 0};

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	ok(exchange(sock, &m, sizeof m, NULL, 0) == MOE_MSG_ERROR && e->msg.status == -EINVAL,
	   "document 0 is refused: %s", e->text);
	m.what = 6;
	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	ok(exchange(sock, &m, sizeof m, NULL, 0) == MOE_MSG_ERROR && e->msg.status == -EINVAL, "and 6: %s", e->text);
}

static bool load_again(int sock)
{
	struct moe_msg_load m = {.name = "tinymoe"};
	unsigned int type;

	snprintf(m.path, sizeof m.path, "%s", fixture_sample());
	begin(&m, sizeof m, MOE_MSG_LOAD, 0);
	type = exchange(sock, &m, sizeof m, NULL, 0);
	while (type == MOE_MSG_PROGRESS)
		type = fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) > 0
			       ? ((const struct moe_msg *)answer)->type
			       : 0;
	return type == (MOE_MSG_LOAD | MOE_MSG_REPLY);
}

static void test_unload(int sock, int other)
{
	int unloaded = 0, good = 0;
	uint64_t end = 0;

	while (asked("status", "sessions") != 0 && tap_wait(&end))
		;
	for (int i = 0; i < UNLOADS; i++) {
		struct moe_msg_unload m = {.name = "tinymoe"};
		const char *text;

		ask_for(sock, i % 2 ? MOE_QUERY_STATS : MOE_QUERY_HEAT);
		usleep(10 * (unsigned)i);
		begin(&m, sizeof m, MOE_MSG_UNLOAD, 0);
		unloaded += exchange(other, &m, sizeof m, NULL, 0) == (MOE_MSG_UNLOAD | MOE_MSG_REPLY);
		text = take_text(sock);
		good += text && strstr(text, "\"models\":");
		if (!load_again(other))
			break;
	}
	ok(unloaded == UNLOADS && good == UNLOADS, "a model is unloaded amid %d times, and its documents come %d times",
	   unloaded, good);
}

int main(void)
{
	pthread_t thread;
	struct ring busy;
	int sock, other;

	fixture_start(&fixture, fixture_sample(), NULL);
	sock = connect_raw();
	other = connect_raw();
	hello(sock);
	hello(other);
	ring_open_bare(&busy);
	require(pthread_create(&thread, NULL, keep_busy, &busy) == 0, "a busy session");
	test_leaving(sock);
	test_all_leave(sock);
	test_many();
	test_refused(sock);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	ok(atomic_load(&trips) > 0, "the rings had work");
	ring_close(&busy);
	test_unload(sock, other);
	close(sock);
	close(other);
	ok(alive() && fixture_stop(&fixture) == 0, "the books balance");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	return tap_done();
}
