/* SPDX-License-Identifier: MIT */
/*
 * What a thousand sessions of another user cost one's NOPs (as root only; in a build without sanitizers).
 */
#include "tests/tenants.h"

#define SESSIONS 1000
#define ENTRIES 512

enum load { IDLE = QUIET, BUSY, BELLS, MESSAGES, QUERIES, ATTACHES, LOADS };

static const char *const load_names[LOADS] = {"idle sessions", "full queues", "doorbells",
					      "messages",      "queries",     "attaches"};

struct tenant {
	int sock, doorbell;
	struct moe_client_page *client;
	const struct moe_daemon_page *daemon;
};

/* -- the other user ----------------------------------------------------------------------------------------------- */

static bool open_tenant(struct tenant *t)
{
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	struct moe_msg_attach m = good_attach();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	void *client, *daemon;

	m.entries = ENTRIES;
	snprintf(address.sun_path, sizeof address.sun_path, "%s", fixture.socket);
	t->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(t->sock, (struct sockaddr *)&address, sizeof address) < 0)
		return false;
	hello(t->sock);
	if (attach(t->sock, &m) != (MOE_MSG_ATTACH | MOE_MSG_REPLY))
		return false;
	if (memfd_map(&client, answer_fds[1], a->client_bytes, PROT_READ | PROT_WRITE, "client", NULL) < 0 ||
	    memfd_map(&daemon, answer_fds[2], a->daemon_bytes, PROT_READ, "daemon", NULL) < 0)
		return false;
	*t = (struct tenant){t->sock, dup(answer_fds[3]), client, daemon};
	return true;
}

static void ring_bell_of(const struct tenant *t)
{
	const uint64_t one = 1;

	if (write(t->doorbell, &one, sizeof one) < 0)
		return; /* full: it has rung */
}

/* As many NOPs in flight as the law allows: entries that nobody has written are NOPs. */
static void fill_queue(struct tenant *t)
{
	const uint32_t tail = __atomic_load_n(&t->daemon->cq_tail, __ATOMIC_ACQUIRE);

	if (t->client->sq_tail == tail + ENTRIES)
		return;
	__atomic_store_n(&t->client->cq_head, tail, __ATOMIC_RELEASE);
	__atomic_store_n(&t->client->sq_tail, tail + ENTRIES, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&t->daemon->sq_wait, __ATOMIC_RELAXED))
		ring_bell_of(t);
}

/* What was asked for is done: it would make quiet slow, and what is compared with it fast. */
static void await_end(const struct tenant *tenants)
{
	for (int i = 0; i < SESSIONS; i++)
		while (__atomic_load_n(&tenants[i].daemon->cq_tail, __ATOMIC_ACQUIRE) != tenants[i].client->sq_tail)
			usleep(1000);
	usleep(100);
}

/* The documents of which most has to be written. */
static void query(int sock)
{
	static unsigned int n;
	struct moe_msg_query m = {.what = n++ % 2 ? MOE_QUERY_STATS : MOE_QUERY_SESSIONS};

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	exchange(sock, &m, sizeof m, NULL, 0);
}

static void come_and_go(void)
{
	struct moe_msg_attach m = good_attach();
	const int sock = connect_raw();

	hello(sock);
	attach(sock, &m);
	close(sock);
}

static void do_load(struct tenant *tenants, enum load load)
{
	if (load == QUIET)
		await_end(tenants);
	else if (load == MESSAGES)
		hello(tenants[0].sock);
	else if (load == QUERIES)
		query(tenants[0].sock);
	else if (load == ATTACHES)
		come_and_go();
	else
		for (int i = 0; i < SESSIONS; i++) {
			if (load == BUSY)
				fill_queue(&tenants[i]);
			else
				ring_bell_of(&tenants[i]);
		}
}

static void be_other(struct table *table)
{
	static struct tenant tenants[SESSIONS];

	if (become_nobody() < 0)
		_exit(1);
	for (int i = 0; i < SESSIONS; i++)
		if (!open_tenant(&tenants[i]))
			_exit(2);
	for (;;) {
		const enum load load = (enum load)atomic_load(&table->load);

		do_load(tenants, load);
		atomic_store(&table->doing, (int)load);
	}
}

/* -- this user ---------------------------------------------------------------------------------------------------- */

static double trip(struct ring *r)
{
	const uint64_t begin = now_ns();

	__atomic_store_n(&r->client->sq_tail, ++r->tail, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r->daemon->sq_wait, __ATOMIC_RELAXED))
		ring_bell(r);
	for (int i = 1; __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head; i++) {
		cpu_relax();
		if (i % 4096 == 0)
			sched_yield(); /* there may be one CPU */
	}
	__atomic_store_n(&r->client->cq_head, ++r->head, __ATOMIC_RELEASE);
	return (double)(now_ns() - begin);
}

static void test_tenants(struct table *table)
{
	struct ring r;

	ring_open(&r);
	test_load(&r, table, IDLE, load_names[IDLE]);
	begin_tenant(table);
	for (enum load load = BUSY; load < LOADS; load++)
		test_load(&r, table, (int)load, load_names[load]);
	end_tenant(table);
	ring_close(&r);
}

int main(void)
{
	struct table *table = tenants_begin();

	if (geteuid() != 0) {
		tap_skip("two users: not root");
		return tap_done();
	}
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--socket-mode", "0666", "--uid-limit", "sessions=2000",
					    "--uid-limit", "requests=2000000", NULL});
	require(chmod(fixture.folder, 0711) == 0, "a socket for everybody");
	place(fixture.pid);
	test_tenants(table);
	ok(alive() && fixture_stop(&fixture) == 0, "the books balance");
	fdmsg_close_fds(answer_fds, n_answer_fds);
	return tap_done();
}
