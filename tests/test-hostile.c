/* SPDX-License-Identifier: MIT */
/*
 * Clients that mean harm, and one that only uses all it is allowed: none of them stops the daemon from serving another,
 * makes it grow, or costs it a descriptor.
 */
#include <linux/memfd.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#include "base/util.h"
#include "tests/raw-client.h"

#ifndef ACCEPT_ONE_SHOT
#define ACCEPT_ONE_SHOT 0 /* 1: as where the kernel has no multishot accept */
#endif

#define ROUND_TRIPS 20000
#define STORMS 50
#define GROWTH_MAX_KIB (160 << 10)

static _Atomic bool stop;

static bool alive_soon(void)
{
	const uint64_t begin = now_ns();

	return alive() && now_ns() - begin < TAP_SOON_NS;
}

/* Always as many requests in flight as the queues hold; each completion is answered with the next entry at once. */
static void test_full_ring(void)
{
	struct moe_sqe *sqes;
	struct ring r;
	uint32_t entries, idle = 0;
	uint64_t end = 0;

	ring_open(&r);
	entries = r.daemon->sq_entries;
	sqes = (struct moe_sqe *)((uint8_t *)r.client + r.daemon->sqe_offset);
	while (r.tail < entries)
		sqes[r.tail++ % entries] = (struct moe_sqe){.op = MOE_OP_NOP};
	__atomic_store_n(&r.client->sq_tail, r.tail, __ATOMIC_RELEASE);
	ring_bell(&r);
	while (r.head < ROUND_TRIPS) {
		if (__atomic_load_n(&r.daemon->cq_tail, __ATOMIC_ACQUIRE) == r.head) {
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
			if (__atomic_load_n(&r.daemon->sq_wait, __ATOMIC_RELAXED))
				ring_bell(&r);
			sched_yield();
			if (++idle % 1000 == 0 && !tap_wait(&end))
				break;
			continue;
		}
		idle = 0;
		end = 0;
		__atomic_store_n(&r.client->cq_head, ++r.head, __ATOMIC_RELEASE);
		sqes[r.tail % entries] = (struct moe_sqe){.op = MOE_OP_NOP};
		__atomic_store_n(&r.client->sq_tail, ++r.tail, __ATOMIC_RELEASE);
	}
	ok(r.head >= ROUND_TRIPS && send(r.sock, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT) == 0,
	   "a client that keeps its ring full is served on and on (%u completions)", r.head);
	ring_close(&r);
}

static void test_blocking_doorbell(void)
{
	struct ring r;

	ring_open(&r);
	fcntl(r.doorbell, F_SETFL, 0);
	ring_bell(&r);
	ok(alive_soon(), "a doorbell whose O_NONBLOCK was cleared does not block the daemon");
	ring_close(&r);
}

static void test_empty_messages(void)
{
	int fds[FDMSG_FDS_MAX], before, after;

	before = quiet_fds(-1);
	for (int i = 0; i < FDMSG_FDS_MAX; i++)
		fds[i] = STDIN_FILENO;
	for (int i = 0; i < 10; i++) {
		int sock = connect_raw();

		fdmsg_send(sock, "", 0, fds, FDMSG_FDS_MAX, 0);
		usleep(2000);
		close(sock);
	}
	after = quiet_fds(before);
	if (before < 0)
		tap_skip("/proc is not mounted: descriptors cannot be counted");
	else
		ok(after <= before, "descriptors that come with empty messages are closed: %d before, %d after", before,
		   after);
}

static void *ask_for_ever(void *userdata)
{
	struct moe_msg_query q = {.what = MOE_QUERY_STATUS};
	const int *sock = userdata;

	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	while (!atomic_load(&stop) && fdmsg_send(*sock, &q, sizeof q, NULL, 0, 0) == 0)
		;
	return NULL;
}

static void *read_for_ever(void *userdata)
{
	const int *sock = userdata;
	char buffer[256];
	int fds[FDMSG_FDS_MAX];
	size_t n = 0;

	while (fdmsg_recv(*sock, buffer, sizeof buffer, fds, &n, 0) > 0)
		fdmsg_close_fds(fds, n);
	return NULL;
}

static void test_flood(void)
{
	pthread_t asker, reader;
	int sock = connect_raw();

	hello(sock);
	atomic_store(&stop, false);
	pthread_create(&asker, NULL, ask_for_ever, &sock);
	pthread_create(&reader, NULL, read_for_ever, &sock);
	usleep(100000);
	ok(alive_soon(), "a peer that asks without end does not keep another one waiting");
	atomic_store(&stop, true);
	shutdown(sock, SHUT_RDWR);
	pthread_join(asker, NULL);
	pthread_join(reader, NULL);
	close(sock);
}

static void test_unread_replies(void)
{
	struct moe_msg_query q = {.what = MOE_QUERY_STATUS};
	int sock = connect_raw(), sent = 0;

	hello(sock);
	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	while (sent < 5000 && fdmsg_send(sock, &q, sizeof q, NULL, 0, 0) == 0)
		sent++;
	ok(sent < 5000, "a peer that reads none of its replies is closed (after %d questions)", sent);
	close(sock);
}

/* All of them were taken and answered, none of the answers read. */
static bool ask_and_wait(int sock, int n)
{
	struct moe_msg_query q = {.what = MOE_QUERY_HEAT};
	uint64_t end = 0;
	int left = 0;

	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	for (int i = 0; i < n; i++)
		if (fdmsg_send(sock, &q, sizeof q, NULL, 0, 0) < 0)
			return false;
	while (ioctl(sock, SIOCOUTQ, &left) == 0 && left > 0 && tap_wait(&end))
		;
	return left == 0 && alive_soon();
}

/* Each document that waits to be read is memory of the daemon. */
static void test_unread_documents(void)
{
	enum { ASKED = 12 };
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	struct moe_msg_query q = {.what = MOE_QUERY_STATUS};
	int sock = connect_raw(), other = connect_raw(), documents = 0, refused = 0;

	hello(sock);
	hello(other);
	require(ask_and_wait(sock, ASKED), "%d queries are answered", ASKED);
	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	ok(exchange(other, &q, sizeof q, NULL, 0) == (MOE_MSG_QUERY | MOE_MSG_REPLY), "so is another peer's");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	for (int i = 0; i < ASKED; i++) {
		n_answer_fds = 0;
		if (fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) <= 0)
			break;
		documents += n_answer_fds == 1;
		refused += e->msg.type == MOE_MSG_ERROR && e->msg.status == -EBUSY && strstr(e->text, "the last");
		fdmsg_close_fds(answer_fds, n_answer_fds);
	}
	n_answer_fds = 0;
	ok(documents == 1 && refused == ASKED - 1,
	   "%d documents are made, or wait, for a peer that has read none, 1 is allowed", documents);
	ok(exchange(sock, &q, sizeof q, NULL, 0) == (MOE_MSG_QUERY | MOE_MSG_REPLY), "when it has read it may ask");
	close(sock);
	close(other);
}

static long rss_kib(pid_t pid)
{
	char path[64], line[128];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %ld", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

/* Each entry makes the daemon copy 8 MiB of ids and weights; none of the completions is taken. */
static void test_hoarding(void)
{
	enum { TOKENS = 16384, TOPK = 64 };
	const uint64_t rows = (uint64_t)TOKENS * 128 * 4, pairs = (uint64_t)TOKENS * TOPK * 4;
	const uint64_t bytes = 2 * rows + 2 * pairs;
	const long before = rss_kib(fixture.pid);
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw(), data = memfd_new("data", bytes, NULL);
	struct moe_client_page *client;
	struct moe_sqe *sqes;
	const uint64_t one = 1;
	long after;
	void *p;

	hello(sock);
	a.entries = 64;
	attach(sock, &a);
	require(memfd_map(&p, answer_fds[1], MOE_RING_PAGE + 64 * sizeof *sqes, PROT_READ | PROT_WRITE, "client",
			  NULL) == 0,
		"the client region");
	client = p;
	sqes = (struct moe_sqe *)((uint8_t *)p + MOE_RING_PAGE);
	require(memfd_map(&p, data, bytes, PROT_READ | PROT_WRITE, "data", NULL) == 0, "a large arena");
	memset((uint8_t *)p + 2 * rows, 0xff, pairs); /* all ids -1: nothing to compute */
	for (int i = 0; i < 64; i++)
		sqes[i] = (struct moe_sqe){
			.op = MOE_OP_COMPUTE,
			.count = TOKENS,
			.compute = {.topk = TOPK, .x = 0, .y = rows, .ids = 2 * rows, .weights = 2 * rows + pairs},
		};
	{
		int bell = dup(answer_fds[3]);

		require(arena(sock, data, bytes, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "registered");
		__atomic_store_n(&client->sq_tail, 64, __ATOMIC_RELEASE);
		require(write(bell, &one, sizeof one) == sizeof one, "the doorbell rings");
		close(bell);
	}
	usleep(1500000);
	after = rss_kib(fixture.pid);
	if (before < 0)
		tap_skip("/proc is not mounted: memory cannot be measured");
	else if (getenv("MOE_SANITIZED") && *getenv("MOE_SANITIZED"))
		tap_skip("a sanitizer keeps freed memory: it cannot be measured");
	else
		ok(after - before < GROWTH_MAX_KIB, "512 MiB of ids and weights, never retired, cost %ld KiB",
		   after - before);
	ok(alive_soon(), "the daemon is alive");
	munmap(p, bytes);
	munmap(client, MOE_RING_PAGE + 64 * sizeof *sqes);
	close(data);
	close(sock);
}

/* A client of the same user can open what it was given read-only for writing: it spoils its own ring and nothing
 * else. */
static void test_scribble(void)
{
	struct moe_sqe nop = {.op = MOE_OP_NOP};
	struct moe_daemon_page *page;
	struct ring r;
	char path[64];
	int fd;

	ring_open(&r);
	{
		struct moe_msg_attach a = good_attach();
		int sock = connect_raw();
		void *p;

		hello(sock);
		attach(sock, &a);
		snprintf(path, sizeof path, "/proc/self/fd/%d", answer_fds[2]);
		fd = open(path, O_RDWR);
		if (fd < 0) {
			tap_skip("the daemon region cannot be opened for writing here");
		} else {
			require(memfd_map(&p, fd, 4096, PROT_READ | PROT_WRITE, "page", NULL) == 0,
				"opened for writing");
			page = p;
			page->cqe_offset = page->sqe_offset = 1ull << 40;
			page->sq_entries = page->cq_entries = 1u << 30;
			__atomic_store_n(&page->sq_head, 77, __ATOMIC_RELEASE);
			munmap(p, 4096);
			close(fd);
			ring_bell(&r);
		}
		close(sock);
	}
	ok(ring_call(&r, &nop, NULL) == 0 && alive_soon(), "what is written there leads the daemon nowhere");
	ring_close(&r);
}

/* Each of them makes the daemon look at all requests of the longest queue. */
static void test_cancel_storm(void)
{
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw(), bell;
	const uint64_t one = 1;
	uint32_t tail = 0, head = 0, done = 0;
	const struct moe_daemon_page *daemon;
	struct moe_client_page *client;
	struct moe_sqe *sqes;
	bool soon = true;
	void *p, *q;

	hello(sock);
	a.entries = MOE_RING_ENTRIES_MAX;
	attach(sock, &a);
	bell = dup(answer_fds[3]);
	require(memfd_map(&p, answer_fds[1], MOE_RING_PAGE + a.entries * sizeof *sqes, PROT_READ | PROT_WRITE, "client",
			  NULL) == 0 &&
			memfd_map(&q, answer_fds[2], MOE_RING_PAGE, PROT_READ, "daemon", NULL) == 0,
		"the regions");
	client = p;
	daemon = q;
	sqes = (struct moe_sqe *)((uint8_t *)p + MOE_RING_PAGE);
	for (uint32_t i = 0; i < a.entries; i++)
		sqes[i] = (struct moe_sqe){.op = MOE_OP_CANCEL, .user_data = i, .cancel = {.user_data = 1ull << 40}};
	for (int i = 0; i < STORMS && soon; i++) {
		head = __atomic_load_n(&daemon->cq_tail, __ATOMIC_ACQUIRE);
		done = head;
		__atomic_store_n(&client->cq_head, head, __ATOMIC_RELEASE);
		tail = head + a.entries;
		__atomic_store_n(&client->sq_tail, tail, __ATOMIC_RELEASE);
		require(write(bell, &one, sizeof one) == sizeof one, "the doorbell rings");
		soon = alive_soon();
		usleep(20000);
	}
	ok(soon && done > 0, "a client that cancels without end (%u times) does not keep another one waiting", done);
	munmap(p, MOE_RING_PAGE + a.entries * sizeof *sqes);
	munmap(q, MOE_RING_PAGE);
	close(bell);
	close(sock);
}

static void test_huge_arena(void)
{
	struct moe_msg_attach a = good_attach();
	int sock = connect_raw(), fd = memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB);

	hello(sock);
	attach(sock, &a);
	if (fd < 0 || ftruncate(fd, 2 << 20) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		tap_skip("this kernel makes no memfd of huge pages");
	else
		ok(arena(sock, fd, 2 << 20, MOE_ARENA_DATA) == MOE_MSG_ERROR, "an arena of huge pages is refused");
	if (fd >= 0)
		close(fd);
	close(sock);
}

/* What opens a file that has a lease waits until the holder gives it up, for /proc/sys/fs/lease-break-time at most. */
static int leased_file(void)
{
	int first = memfd_new("leased", DATA_BYTES, NULL), fd;
	char path[64];

	snprintf(path, sizeof path, "/proc/self/fd/%d", first);
	fd = open(path, O_RDWR | O_CLOEXEC);
	close(first);
	signal(SIGIO, SIG_IGN); /* says that somebody wants to open it */
	if (fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* A daemon with a keeper opens an arena's file anew, for that. */
static void test_leased_arena(void)
{
	struct moe_msg_arena m = {.bytes = DATA_BYTES, .kind = MOE_ARENA_DATA};
	struct moe_sqe nop = {.op = MOE_OP_NOP};
	int fd = leased_file();
	uint64_t worst = 0, end = 0;
	struct ring victim, r;
	struct pollfd p;
	bool good = true;
	long n = 0;

	if (fd < 0) {
		tap_skip("a memory file gets no lease here");
		return;
	}
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", "--keep", NULL});
	ring_open(&victim);
	ring_open_bare(&r);
	begin(&m, sizeof m, MOE_MSG_ARENA, 1);
	require(fdmsg_send(r.sock, &m, sizeof m, &fd, 1, 0) == 0, "an arena is sent");
	p = (struct pollfd){.fd = r.sock, .events = POLLIN};
	do {
		const uint64_t began = now_ns();

		good &= ring_call(&victim, &nop, NULL) == 0;
		worst = MAX(worst, now_ns() - began);
	} while (good && worst < TAP_SOON_NS && poll(&p, 1, 0) == 0 && tap_wait(&end));
	ok(good && worst < TAP_SOON_NS, "an arena whose file has a lease keeps no other session waiting: %.3f s",
	   (double)worst / 1e9);
	if (poll(&p, 1, 0) == 1)
		n = fdmsg_recv(r.sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0);
	ok(n == sizeof(struct moe_msg) && ((struct moe_msg *)answer)->type == (MOE_MSG_ARENA | MOE_MSG_REPLY),
	   "it is an arena");
	ring_close(&victim);
	ring_close(&r);
	close(fd);
	ok(fixture_stop(&fixture) == 0, "the daemon and its keeper end cleanly");
}

/* What connections do: the rest is the same however they are accepted. */
static void test_connections(void)
{
	test_empty_messages();
	test_flood();
	test_unread_replies();
	test_unread_documents();
}

static void test_sessions(void)
{
	test_full_ring();
	test_blocking_doorbell();
	test_hoarding();
	test_scribble();
	test_huge_arena();
	test_cancel_storm();
}

int main(void)
{
	if (ACCEPT_ONE_SHOT)
		setenv("MOE_ACCEPT", "one-shot", 1);
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", NULL});
	test_connections();
	if (!ACCEPT_ONE_SHOT)
		test_sessions();
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	ok(fixture_stop(&fixture) == 0, "the daemon ends cleanly");
	if (!ACCEPT_ONE_SHOT)
		test_leased_arena();
	fdmsg_close_fds(answer_fds, n_answer_fds);
	return tap_done();
}
