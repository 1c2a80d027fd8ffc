/* SPDX-License-Identifier: MIT */
/*
 * raw-client - the daemon's protocol without the library: what a careless or hostile client may send.
 */
#ifndef TESTS_RAW_CLIENT_H
#define TESTS_RAW_CLIENT_H

#include <sched.h>
#include <stdalign.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/fdmsg.h"
#include "base/memfd.h"
#include "tests/fixture.h"
#include "tests/leaks.h"
#include "uapi/moe_proto.h"
#include "uapi/moe_ring.h"

static struct fixture fixture;
static alignas(8) char answer[MOE_PROTO_MAX];
static int answer_fds[FDMSG_FDS_MAX];
static size_t n_answer_fds;

/* A number of `moectl VERB --json`; -1 where the daemon does not answer. */
__attribute__((unused)) static long asked(const char *verb, const char *name)
{
	char command[512], key[64], text[65536];
	size_t n = 0;
	FILE *f;
	char *at;

	snprintf(command, sizeof command, "%s/tools/moectl --socket %s %s --json", fixture_env("MOE_BUILD"),
		 fixture.socket, verb);
	f = popen(command, "r");
	if (f) {
		n = fread(text, 1, sizeof text - 1, f);
		pclose(f);
	}
	text[n] = '\0';
	snprintf(key, sizeof key, "\"%s\":", name);
	at = strstr(text, key);
	return at ? atol(at + strlen(key)) : -1;
}

static int connect_raw(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", fixture.socket);
	require(connect(sock, (struct sockaddr *)&address, sizeof address) == 0, "connected");
	return sock;
}

static void begin(void *message, size_t bytes, unsigned int type, unsigned int fds)
{
	*(struct moe_msg *)message = (struct moe_msg){
		.magic = MOE_PROTO_MAGIC, .type = (__u16)type, .fds = (__u16)fds, .bytes = (__u32)bytes};
}

/* The next answer's type, 0 when the daemon closed the connection. */
static unsigned int next_answer(int sock)
{
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	if (fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) < (long)sizeof(struct moe_msg))
		return 0;
	return ((struct moe_msg *)answer)->type;
}

/* Sends and returns the answer's type. */
static unsigned int exchange(int sock, const void *message, size_t bytes, const int *fds, size_t n_fds)
{
	return fdmsg_send(sock, message, bytes, fds, n_fds, 0) < 0 ? 0 : next_answer(sock);
}

static unsigned int hello(int sock)
{
	struct moe_msg_hello m = {.features = MOE_FEATURES_ALL};

	begin(&m, sizeof m, MOE_MSG_HELLO, 0);
	return exchange(sock, &m, sizeof m, NULL, 0);
}

static unsigned int attach(int sock, struct moe_msg_attach *m)
{
	begin(m, sizeof *m, MOE_MSG_ATTACH, 0);
	return exchange(sock, m, sizeof *m, NULL, 0);
}

static struct moe_msg_attach good_attach(void)
{
	return (struct moe_msg_attach){.layout = MOE_LAYOUT_VERSION, .tp_size = 1, .entries = 16};
}

__attribute__((unused)) static bool alive(void)
{
	int sock = connect_raw();
	bool good = hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY);

	close(sock);
	return good;
}

static unsigned int arena(int sock, int fd, uint64_t bytes, unsigned int kind)
{
	struct moe_msg_arena m = {.bytes = bytes, .kind = kind};

	begin(&m, sizeof m, MOE_MSG_ARENA, 1);
	return exchange(sock, &m, sizeof m, &fd, 1);
}

struct ring {
	int sock, doorbell;
	struct moe_client_page *client;
	const struct moe_daemon_page *daemon;
	uint64_t client_bytes, daemon_bytes;
	uint8_t *data, *slots;
	uint32_t tail, head;
};

#define DATA_BYTES (1 << 20)

/* Without arenas. */
__attribute__((unused)) static void ring_open_bare_as(struct ring *r, struct moe_msg_attach m)
{
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	void *p;

	*r = (struct ring){.sock = connect_raw()};
	hello(r->sock);
	require(attach(r->sock, &m) == (MOE_MSG_ATTACH | MOE_MSG_REPLY) && n_answer_fds == 4 + a->n_pools, "attached");
	r->client_bytes = a->client_bytes;
	r->daemon_bytes = a->daemon_bytes;
	r->doorbell = dup(answer_fds[3]);
	require(memfd_map(&p, answer_fds[1], r->client_bytes, PROT_READ | PROT_WRITE, "client", NULL) == 0,
		"client region");
	r->client = p;
	require(memfd_map(&p, answer_fds[2], r->daemon_bytes, PROT_READ, "daemon", NULL) == 0, "daemon region");
	r->daemon = p;
}

__attribute__((unused)) static void ring_open_bare(struct ring *r)
{
	ring_open_bare_as(r, good_attach());
}

__attribute__((unused)) static void ring_open_as(struct ring *r, struct moe_msg_attach m)
{
	int data = memfd_new("data", DATA_BYTES, NULL), slots = memfd_new("slots", DATA_BYTES, NULL);
	void *p;

	ring_open_bare_as(r, m);
	require(memfd_map(&p, data, DATA_BYTES, PROT_READ | PROT_WRITE, "data", NULL) == 0, "data arena");
	r->data = p;
	require(memfd_map(&p, slots, DATA_BYTES, PROT_READ | PROT_WRITE, "slots", NULL) == 0, "slot arena");
	r->slots = p;
	require(arena(r->sock, data, DATA_BYTES, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "data registered");
	require(arena(r->sock, slots, DATA_BYTES, MOE_ARENA_SLOTS) == (MOE_MSG_ARENA | MOE_MSG_REPLY),
		"slots registered");
	close(data);
	close(slots);
}

__attribute__((unused)) static void ring_open(struct ring *r)
{
	ring_open_as(r, good_attach());
}

__attribute__((unused)) static void ring_close(struct ring *r)
{
	munmap(r->client, r->client_bytes);
	munmap((void *)r->daemon, r->daemon_bytes);
	if (r->data)
		munmap(r->data, DATA_BYTES);
	if (r->slots)
		munmap(r->slots, DATA_BYTES);
	close(r->doorbell);
	close(r->sock);
}

static void ring_bell(struct ring *r)
{
	const uint64_t one = 1;

	if (write(r->doorbell, &one, sizeof one) != sizeof one)
		diag("doorbell: %s", strerror(errno));
}

/* -1: refused. */
__attribute__((unused)) static int connect_greeted(void)
{
	const int sock = connect_raw();

	if (hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY))
		return sock;
	close(sock);
	return -1;
}

/*
 * Descriptors of the daemon once all connections but the one that asks are closed, and what a session had, which goes a
 * little later: it waits for at most `most` of them, -1: any number. -1 without /proc.
 */
__attribute__((unused)) static int quiet_fds(int most)
{
	char text[1 << 14];
	struct moe_msg_query q = {.what = MOE_QUERY_STATUS};
	uint64_t end = 0;
	long found = -1;
	int n = -1, sock = -1;

	begin(&q, sizeof q, MOE_MSG_QUERY, 0);
	do {
		const char *at = NULL;
		ssize_t bytes;

		if (sock < 0 && (sock = connect_greeted()) < 0)
			continue; /* those that have hung up still count */
		if (exchange(sock, &q, sizeof q, NULL, 0) == (MOE_MSG_QUERY | MOE_MSG_REPLY) && n_answer_fds == 1) {
			bytes = pread(answer_fds[0], text, sizeof text - 1, 0);
			text[bytes > 0 ? bytes : 0] = '\0';
			at = strstr(text, "\"connections\":");
		}
		found = at ? atol(at + strlen("\"connections\":")) : -1;
		n = leaks_fds(fixture.pid);
	} while ((found != 1 || (most >= 0 && n > most)) && tap_wait(&end));
	ok(found == 1, "the daemon has let go of all connections");
	close(sock);
	return n;
}

/* Whether the completion at the head is given out. Its seq says so, which the library looks at, or the tail, which it
 * sleeps on: by turns, each place of the ring both ways. A daemon that was killed between the two leaves the tail
 * behind, and the head may then be ahead of it. */
__attribute__((unused)) static bool ring_answered(const struct ring *r)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);
	const uint32_t entries = r->daemon->cq_entries;

	if ((r->head ^ r->head / entries) & 1)
		return __atomic_load_n(&cqes[r->head & (entries - 1)].seq, __ATOMIC_ACQUIRE) == r->head + 1;
	return (int32_t)(__atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) - r->head) > 0;
}

/* Status of one entry; -ETIME when nothing comes. */
__attribute__((unused)) static int ring_call(struct ring *r, const struct moe_sqe *sqe, struct moe_cqe *ret)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);
	struct moe_cqe cqe;
	uint64_t end = 0;

	sqes[r->tail & (r->daemon->sq_entries - 1)] = *sqe;
	__atomic_store_n(&r->client->sq_tail, ++r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
	for (int i = 0; __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head; i++) {
		if (i < 20000)
			sched_yield();
		else if (!tap_wait(&end))
			break;
	}
	if (__atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head)
		return -ETIME;
	cqe = cqes[r->head & (r->daemon->cq_entries - 1)];
	__atomic_store_n(&r->client->cq_head, ++r->head, __ATOMIC_RELEASE);
	if (ret)
		*ret = cqe;
	return cqe.user_data == sqe->user_data ? cqe.status : -EBADMSG;
}

#endif
