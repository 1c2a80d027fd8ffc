/* SPDX-License-Identifier: MIT */
/*
 * A user's limits in a real daemon: each one holds to the unit, the refusal reaches the client with the option that
 * raises it, and what is given back can be had again. Memory without pages is refused. A user who wants sessions
 * without end, or reads no answer, does not keep another one from attaching and working (as root only).
 */
#include <grp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/util.h"
#include "tests/raw-client.h"

#ifndef ACCEPT_ONE_SHOT
#define ACCEPT_ONE_SHOT 0 /* 1: as where the kernel has no multishot accept */
#endif

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define NOBODY 65534
#define WANTED 1500
#define FLIGHT_LIMIT 1024 /* files of a daemon */
#define FLIGHT_SOCKETS 400

static bool said(unsigned int type, const char *words)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;

	if (type != MOE_MSG_ERROR || e->msg.status != -EDQUOT || !strstr(e->text, words)) {
		diag("type 0x%x, status %d: %.200s", type, e->msg.status, type == MOE_MSG_ERROR ? e->text : "");
		return false;
	}
	return true;
}

static unsigned int attach_with(int sock, uint32_t entries)
{
	struct moe_msg_attach a = good_attach();

	a.entries = entries;
	return attach(sock, &a);
}

static int connected(void)
{
	const int sock = connect_raw();

	hello(sock);
	return sock;
}

static void test_sessions(void)
{
	int socks[4], i;
	uint64_t end = 0;
	bool good = true;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "sessions=3", NULL});
	for (i = 0; i < 4; i++)
		socks[i] = connected();
	for (i = 0; i < 3; i++)
		good &= attach_with(socks[i], 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY);
	ok(good && said(attach_with(socks[3], 16), "--uid-limit sessions="), "3 sessions, not 4");
	close(socks[0]);
	do
		good = attach_with(socks[3], 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY);
	while (!good && tap_wait(&end)); /* what was closed is given back when the kernel has let go of it */
	ok(good, "another one when one has left");
	for (i = 1; i < 4; i++)
		close(socks[i]);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

static void test_connections(void)
{
	int socks[5], i;
	bool good = true;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "connections=4", NULL});
	for (i = 0; i < 4; i++) {
		socks[i] = connect_raw();
		good &= hello(socks[i]) == (MOE_MSG_HELLO | MOE_MSG_REPLY);
	}
	socks[4] = connect_raw();
	ok(good &&
		   fdmsg_recv(socks[4], answer, sizeof answer, answer_fds, &n_answer_fds, 0) ==
			   (long)sizeof(struct moe_msg_error) &&
		   said(((struct moe_msg *)answer)->type, "--uid-limit connections="),
	   "4 connections; the fifth one is told why before it is closed");
	for (i = 0; i < 5; i++)
		close(socks[i]);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

/* Of the first descriptor, or another, of the answer. */
static const volatile char *map_answer(size_t which, size_t bytes)
{
	void *map;

	require(n_answer_fds > which, "a descriptor");
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, answer_fds[which], 0);
	require(map != MAP_FAILED, "its pages");
	return map;
}

static const volatile char *document(int sock)
{
	struct moe_msg_query m = {.what = MOE_QUERY_STATUS};

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	require(exchange(sock, &m, sizeof m, NULL, 0) == (MOE_MSG_QUERY | MOE_MSG_REPLY), "a document");
	return map_answer(0, 1);
}

static bool emptied(const volatile char *page)
{
	uint64_t end = 0;

	while (*page && tap_wait(&end))
		;
	return *page == 0;
}

/* What the daemon has made for a client it takes back, though the client has it mapped. */
static void test_pages(void)
{
	const volatile char *first, *second;
	volatile char *region;
	int sock;

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", NULL});
	sock = connected();
	first = document(sock);
	ok(*first == '{', "a document");
	ok(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, answer_fds[0], 0) == MAP_FAILED, "is not written to");
	second = document(sock);
	ok(*second == '{' && emptied(first), "with the next one its pages are gone");
	require(attach_with(sock, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	region = mmap(NULL, MOE_RING_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, answer_fds[1], 0);
	require(region != MAP_FAILED, "its region");
	region += offsetof(struct moe_client_page, pad3);
	*region = 1;
	close(sock);
	ok(emptied(second) && emptied(region), "at the end of a connection those of both are");
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

static void test_fds(void)
{
	const struct moe_msg_attached *attached = (const struct moe_msg_attached *)answer;
	int first, second;
	uint32_t each;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "fds=8", NULL});
	first = connected();
	second = connected();
	require(attach_with(first, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	each = 3 + attached->n_pools;
	ok(said(attach_with(second, 16), "--uid-limit fds="),
	   "two connections and a session are %u of 8 descriptors, a second session would make %u", 4 + each,
	   4 + 2 * each);
	close(first);
	close(second);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

static void test_requests(void)
{
	int first, second;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "requests=48", NULL});
	first = connected();
	second = connected();
	ok(attach_with(first, 32) == (MOE_MSG_ATTACH | MOE_MSG_REPLY) &&
		   said(attach_with(second, 32), "--uid-limit requests=") &&
		   attach_with(second, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY),
	   "32 and 16 queue entries of 48, not 32 and 32");
	close(first);
	close(second);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

static void test_leases(void)
{
	struct moe_sqe lease = {.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE}, give = {.op = MOE_OP_RELEASE};
	struct moe_cqe cqe = {0};
	struct ring r;
	uint64_t end = 0;
	int status = 0, n;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "leases=200", NULL});
	ring_open(&r);
	for (n = 0; n < 1000 && status == 0; n++)
		status = ring_call(&r, &lease, &cqe);
	ok(status == -EDQUOT && n - 1 == 192, "192 leases may be had of 200, and not 64 more (%d, %d)", n - 1, status);
	give.release.lease = cqe.lease;
	ok(ring_call(&r, &give, NULL) == -ENOENT, "a refused lease is none");
	ring_close(&r);
	ring_open(&r);
	for (n = 0; n < 192 && (status == 0 || tap_wait(&end)); n += status == 0)
		status = ring_call(&r, &lease, NULL);
	ok(n == 192, "when the session has left another one gets as many");
	ring_close(&r);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static int arena_file(uint64_t bytes, uint64_t with_pages)
{
	const int fd = memfd_create("arena", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
			(with_pages == 0 || fallocate(fd, 0, 0, (off_t)with_pages) == 0) &&
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
		"an arena of %llu bytes, %llu of them with pages", (unsigned long long)bytes,
		(unsigned long long)with_pages);
	return fd;
}

static void test_sparse(int sock)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	const uint64_t bytes = 64 * 4096;
	int fd = arena_file(bytes, bytes - 4096);

	ok(arena(sock, fd, bytes, MOE_ARENA_SLOTS) == MOE_MSG_ERROR && e->msg.status == -ENODATA &&
		   strstr(e->text, "fallocate"),
	   "an arena that lacks one page is refused: %.160s", e->text);
	close(fd);
	fd = arena_file(1ull << 46, 0);
	ok(arena(sock, fd, 1ull << 46, MOE_ARENA_SLOTS) == MOE_MSG_ERROR && e->msg.status == -ENODATA,
	   "so is one of 64 TiB without any");
	close(fd);
}

/* 32 MiB: a data arena of 8 MiB is 24 with the routing that may be copied out of it, and 8 do not fit beside it. */
static void test_bytes(void)
{
	const uint64_t bytes = 8 << 20;
	uint64_t end = 0;
	int sock, fd = arena_file(bytes, bytes), small = arena_file(4 << 20, 4 << 20);
	bool good;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "bytes=32M", NULL});
	sock = connected();
	require(attach_with(sock, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	test_sparse(sock);
	ok(arena(sock, fd, bytes, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "a data arena of 8 MiB");
	ok(said(arena(sock, fd, bytes, MOE_ARENA_SLOTS), "slot arena: uid"), "a slot arena of 8 MiB is refused");
	ok(arena(sock, small, 4 << 20, MOE_ARENA_SLOTS) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "one of 4 MiB is not");
	close(sock);
	sock = connected();
	require(attach_with(sock, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached again");
	do
		good = arena(sock, fd, bytes, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY);
	while (!good && tap_wait(&end)); /* what was closed is given back when the kernel has let go of it */
	ok(good, "all of it was given back");
	close(sock);
	close(fd);
	close(small);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

/* -- two users ---------------------------------------------------------------------------------------------------- */

static bool greet(int sock)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof address.sun_path, "%s", fixture.socket);
	return connect(sock, (struct sockaddr *)&address, sizeof address) == 0 &&
	       hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY);
}

/* Takes all the sessions that it can get, says how many over `out`, and keeps them until `in` ends. */
static void be_greedy(int out, int in)
{
	struct rlimit files;
	int got = 0;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
		_exit(1);
	for (int i = 0; i < WANTED; i++) {
		const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (sock < 0 || !greet(sock))
			break;
		got += attach_with(sock, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY);
	}
	if (write(out, &got, sizeof got) != sizeof got || read(in, &got, 1) < 0)
		_exit(1);
	_exit(0);
}

static void test_two_users(void)
{
	struct moe_sqe nop = {.op = MOE_OP_NOP};
	int up[2], down[2], got = 0, status;
	struct ring r;
	pid_t child;

	if (geteuid() != 0) {
		tap_skip("two users: not root");
		return;
	}
	fixture_start(
		&fixture, fixture_sample(),
		(const char *const[]){"--threads", "1", "--socket-mode", "0666", "--uid-limit", "sessions=1000", NULL});
	require(chmod(fixture.folder, 0711) == 0 && pipe(up) == 0 && pipe(down) == 0, "a socket for everybody");
	child = fork();
	if (child == 0) {
		close(up[0]);
		close(down[1]);
		be_greedy(up[1], down[0]);
	}
	close(up[1]);
	close(down[0]);
	require(read(up[0], &got, sizeof got) == sizeof got, "a user has taken all sessions that it can get");
	ok(got > 0 && got <= 1000, "it wanted %d and has %d", WANTED, got);
	ring_open(&r);
	ok(ring_call(&r, &nop, NULL) == 0 && alive(), "another user attaches and works");
	ring_close(&r);
	close(down[1]);
	ok(waitpid(child, &status, 0) == child && status == 0, "the first one leaves");
	close(up[0]);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

/* -- answers that nobody reads ------------------------------------------------------------------------------------- */

static void ask_registrar(int sock, int times)
{
	struct moe_msg m;

	begin(&m, sizeof m, MOE_MSG_REGISTRAR, 0);
	while (times-- > 0)
		fdmsg_send(sock, &m, sizeof m, NULL, 0, 1);
}

/* In all the messages that wait. */
static int bytes_to_read(int sock)
{
	int bytes = 0;

	return ioctl(sock, FIONREAD, &bytes) == 0 ? bytes : 0;
}

/* Of a connection that the daemon has closed: its account has it back when its answer is read. */
static void test_unread(void)
{
	const struct moe_msg *said = (const struct moe_msg *)answer;
	struct moe_msg nonsense = {0};
	int first, second, third;
	uint64_t end = 0, again = 0;
	bool good;

	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--uid-limit", "connections=2", NULL});
	first = connected();
	require(attach_with(first, 16) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	ask_registrar(first, 2);
	while (bytes_to_read(first) < (int)(sizeof(struct moe_msg) + sizeof(struct moe_msg_error)) && tap_wait(&end))
		;
	ok(next_answer(first) == (MOE_MSG_REGISTRAR | MOE_MSG_REPLY) && n_answer_fds == 1 &&
		   next_answer(first) == MOE_MSG_ERROR && said->status == -EBUSY,
	   "one descriptor at a time waits to be read");
	ask_registrar(first, 1);
	send(first, &nonsense, sizeof nonsense, MSG_NOSIGNAL);
	second = connect_raw();
	require(hello(second) == (MOE_MSG_HELLO | MOE_MSG_REPLY), "a second connection");
	for (int i = 0; i < 5; i++) { /* the daemon looks at what it waits for five times a second */
		usleep(100000);
		third = connect_raw();
		good = hello(third) != (MOE_MSG_HELLO | MOE_MSG_REPLY);
		close(third);
		if (!good)
			break;
	}
	ok(good, "a connection that was closed with a descriptor unread is on its user's account still");
	ok(next_answer(first) == (MOE_MSG_REGISTRAR | MOE_MSG_REPLY) && next_answer(first) == 0, "it is read");
	do {
		third = connect_raw();
		good = hello(third) == (MOE_MSG_HELLO | MOE_MSG_REPLY);
		close(third);
	} while (!good && tap_wait(&again));
	ok(good, "then another one can be made");
	close(first);
	close(second);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

/* The kernel counts descriptors in flight for the daemon's user, not for the one that does not read them. */
static void fill_flight(int out, int in)
{
	char byte = 0;

	for (int i = 0; i < FLIGHT_SOCKETS; i++) {
		struct moe_msg_attach a = good_attach();
		const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (sock < 0 || !greet(sock))
			break;
		a.entries = 16;
		begin(&a, sizeof a, MOE_MSG_ATTACH, 0);
		fdmsg_send(sock, &a, sizeof a, NULL, 0, 0);
		ask_registrar(sock, 40);
	}
	if (write(out, &byte, 1) != 1 || read(in, &byte, 1) < 0)
		_exit(1);
	_exit(0);
}

/* False: a daemon of another user cannot be started here. The limit stays: not everybody who is root may raise it. */
static bool start_as_nobody(void)
{
	const struct rlimit files = {FLIGHT_LIMIT, FLIGHT_LIMIT};
	char program[512];
	bool can;

	snprintf(program, sizeof program, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	require(setegid(NOBODY) == 0 && seteuid(NOBODY) == 0, "as another user");
	can = faccessat(AT_FDCWD, program, X_OK, AT_EACCESS) == 0 &&
	      faccessat(AT_FDCWD, fixture_sample(), R_OK | X_OK, AT_EACCESS) == 0;
	if (can && setrlimit(RLIMIT_NOFILE, &files) == 0)
		fixture_start(&fixture, fixture_sample(),
			      (const char *const[]){"--threads", "1", "--socket-mode", "0666", NULL});
	require(seteuid(0) == 0 && setegid(0) == 0, "and back");
	return can;
}

static void test_in_flight(void)
{
	struct moe_sqe nop = {.op = MOE_OP_NOP};
	int up[2], down[2], status;
	struct ring r;
	pid_t child;
	char byte;

	if (geteuid() != 0) {
		tap_skip("a daemon of another user: not root");
		return;
	}
	if (SANITIZED) {
		tap_skip("a daemon of another user: LeakSanitizer may not look at one that was begun by root");
		return;
	}
	if (!start_as_nobody()) {
		tap_skip("a daemon of another user: uid %d may not read the build, or the sample model", NOBODY);
		return;
	}
	require(chmod(fixture.folder, 0711) == 0 && pipe(up) == 0 && pipe(down) == 0, "a socket for everybody");
	child = fork();
	if (child == 0) {
		close(up[0]);
		close(down[1]);
		fill_flight(up[1], down[0]);
	}
	close(up[1]);
	close(down[0]);
	require(read(up[0], &byte, 1) == 1, "a user asks for descriptors and reads none");
	require(seteuid(NOBODY) == 0, "as another user");
	ring_open(&r);
	ok(ring_call(&r, &nop, NULL) == 0 && alive(), "another user attaches and works");
	ring_close(&r);
	require(seteuid(0) == 0, "and back");
	close(down[1]);
	ok(waitpid(child, &status, 0) == child && status == 0, "the first one leaves");
	close(up[0]);
	ok(fixture_stop(&fixture) == 0, "the books balance");
}

int main(void)
{
	if (ACCEPT_ONE_SHOT)
		setenv("MOE_ACCEPT", "one-shot", 1);
	test_sessions();
	test_connections();
	test_two_users();
	if (!ACCEPT_ONE_SHOT) { /* these are the same however connections are accepted */
		test_fds();
		test_pages();
		test_requests();
		test_leases();
		test_bytes();
		test_unread();
		test_in_flight();
	}
	fdmsg_close_fds(answer_fds, n_answer_fds);
	return tap_done();
}
