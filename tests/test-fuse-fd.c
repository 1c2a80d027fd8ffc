/* SPDX-License-Identifier: MIT */
/*
 * Descriptors whose closing, or any question about them, never ends: of a file on a FUSE server that answers no FLUSH,
 * no STATFS and no GETATTR, and of a TCP connection that lingers. Whoever sends one keeps nobody else waiting, nor does
 * the end of a recording into one.
 */
#include <linux/fuse.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "tests/lingering.h"
#include "tests/raw-client.h"

#define FILE_NODE 2
#define NOBODY 65534
#define CONNECTIONS 64 /* of a user */
#define CONNECTIONS_TEXT "64"

/* -- a file server that does not answer --------------------------------------------------------------------------- */

static char mount_folder[TAP_TMP];
static pid_t server;
static int dead_fd = -1;

static struct fuse_attr attr_of(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node, .mode = node == FILE_NODE ? 0100666 : 040755, .nlink = 1, .blksize = 4096};
}

static void fuse_reply(int dev, uint64_t unique, int error, const void *data, size_t bytes)
{
	alignas(8) char buffer[512];
	const struct fuse_out_header head = {.len = (uint32_t)(sizeof head + bytes), .error = error, .unique = unique};

	memcpy(buffer, &head, sizeof head);
	if (bytes > 0)
		memcpy(buffer + sizeof head, data, bytes);
	if (write(dev, buffer, head.len) < 0)
		diag("fuse: %s", strerror(errno));
}

static void fuse_answer(int dev, const struct fuse_in_header *in)
{
	const struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 4096, .max_background = 12};
	const struct fuse_entry_out entry = {.nodeid = FILE_NODE, .entry_valid = 999, .attr = attr_of(FILE_NODE)};
	const struct fuse_attr_out attr = {.attr = attr_of(in->nodeid)};
	const struct fuse_open_out file = {.fh = 1};

	switch (in->opcode) {
	case FUSE_INIT:
		fuse_reply(dev, in->unique, 0, &init, sizeof init);
		break;
	case FUSE_LOOKUP:
		fuse_reply(dev, in->unique, 0, &entry, sizeof entry);
		break;
	case FUSE_GETATTR:
		if (in->nodeid == FILE_NODE)
			break;
		fuse_reply(dev, in->unique, 0, &attr, sizeof attr);
		break;
	case FUSE_OPEN:
		fuse_reply(dev, in->unique, 0, &file, sizeof file);
		break;
	case FUSE_FLUSH:
	case FUSE_STATFS:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		fuse_reply(dev, in->unique, -ENOSYS, NULL, 0);
	}
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		diag("%s: %s", path, strerror(errno));
	close(fd);
}

/* A mount that only this process and its children see. */
static int mount_here(int dev)
{
	const uid_t uid = geteuid();
	const gid_t gid = getegid();
	char text[128];

	if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0)) < 0)
		return -errno;
	if (uid) {
		write_file("/proc/self/setgroups", "deny");
		snprintf(text, sizeof text, "0 %u 1", uid);
		write_file("/proc/self/uid_map", text);
		snprintf(text, sizeof text, "0 %u 1", gid);
		write_file("/proc/self/gid_map", text);
	}
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -errno;
	snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=0,group_id=0", dev);
	return mount("moe", mount_folder, "fuse", MS_NOSUID | MS_NODEV, text) < 0 ? -errno : 0;
}

/* Another process than the server, which could not end with the file open. */
static void open_and_send(int sock)
{
	char path[96], byte = 1;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(path, sizeof path, "%s/file", mount_folder);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		diag("%s: %s", path, strerror(errno));
	fdmsg_send(sock, &byte, sizeof byte, &fd, fd >= 0, 0);
	for (;;)
		pause();
}

static void serve(int sock)
{
	alignas(8) static char buffer[FUSE_MIN_READ_BUFFER + 4096];
	int dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	r = dev < 0 ? -errno : mount_here(dev);
	if (r < 0) {
		diag("FUSE: %s", strerror(-r));
		_exit(1);
	}
	if (fork() == 0) {
		close(dev);
		open_and_send(sock);
	}
	close(sock);
	for (;;)
		if (read(dev, buffer, sizeof buffer) >= (ssize_t)sizeof(struct fuse_in_header))
			fuse_answer(dev, (const struct fuse_in_header *)buffer);
}

static bool start_server(void)
{
	int socks[2], fds[FDMSG_FDS_MAX];
	size_t n_fds = 0;
	char byte;

	require(mkdtemp(tap_tmp(mount_folder, "moe-fuse-XXXXXX")) &&
			socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) == 0,
		"a folder");
	server = fork();
	if (server == 0) {
		close(socks[0]);
		serve(socks[1]);
	}
	close(socks[1]);
	if (fdmsg_recv(socks[0], &byte, sizeof byte, fds, &n_fds, 0) == 1 && n_fds == 1)
		dead_fd = fds[0];
	close(socks[0]);
	return dead_fd >= 0;
}

/* With it goes all that waits for it. */
static void stop_server(void)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	close_fd(dead_fd);
	rmdir(mount_folder);
}

/* -- one that means harm, and others ------------------------------------------------------------------------------ */

static struct ring other;

static int connect_for(time_t seconds)
{
	const struct timeval limit = {.tv_sec = seconds};
	int sock = connect_raw();

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	return sock;
}

/* Of a client that may get no answer. */
static int connect_patient(void)
{
	return connect_for(1);
}

/* Another user, and a session that was there before. */
static void others_are_served(const char *when)
{
	const uint64_t begin = now_ns();
	int sock;
	bool good;

	require(seteuid(NOBODY) == 0, "as another user");
	sock = connect_for(TAP_SOON_NS / 1000000000);
	require(seteuid(0) == 0, "and back");
	good = hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY);
	close(sock);
	/* In time; only then the ring, which would be waited for much longer. */
	good = good && ring_call(&other, &(struct moe_sqe){.op = MOE_OP_NOP, .user_data = 7}, NULL) == 0;
	ok(good && now_ns() - begin < TAP_SOON_NS, "%s: others are served meanwhile", when);
}

static void send_arena(int sock, unsigned int told, const int *fds, size_t n_fds)
{
	struct moe_msg_arena m = {.bytes = DATA_BYTES, .kind = MOE_ARENA_DATA};

	begin(&m, sizeof m, MOE_MSG_ARENA, told);
	fdmsg_send(sock, &m, sizeof m, fds, n_fds, 0);
}

static void hostile(int fd, const char *what)
{
	const int two[] = {fd, fd};
	struct moe_msg_attach a = good_attach();
	char when[128];

	for (int greets = 0; greets < 3; greets++) {
		static const char *const before[] = {"before HELLO", "after HELLO", "attached"};

		for (int kind = 0; kind < 4; kind++) {
			static const char *const kinds[] = {"no message", "a whole message", "one fd too many",
							    "an empty message, then one"};
			int sock = connect_patient();

			if (greets > 0)
				hello(sock);
			if (greets > 1)
				attach(sock, &a);
			if (kind == 0)
				fdmsg_send(sock, "xxxxxxxx", 8, &fd, 1, 0);
			else if (kind == 3)
				fdmsg_send(sock, "", 0, NULL, 0, 0);
			if (kind > 0)
				send_arena(sock, 1, two, kind == 2 ? 2 : 1);
			snprintf(when, sizeof when, "%s, %s, %s", what, before[greets], kinds[kind]);
			others_are_served(when);
			close(sock);
		}
	}
}

static void test_many(void)
{
	int sock = connect_patient();
	uint64_t end = 0;
	bool refused;

	hello(sock);
	for (int i = 0; i < 100; i++)
		send_arena(sock, 1, &dead_fd, 1);
	others_are_served("100 messages of one client");
	close(sock);
	do { /* once the daemon has come to them */
		sock = connect_patient();
		refused = hello(sock) != (MOE_MSG_HELLO | MOE_MSG_REPLY);
		close(sock);
	} while (!refused && tap_wait(&end));
	ok(refused, "whose user makes no further connection");
}

/* The server takes no writes, either: the recording is over at once. */
static void test_recording(void)
{
	struct moe_msg_trace m = {0};
	int sock = connect_for(TAP_SOON_NS / 1000000000);

	hello(sock);
	begin(&m, sizeof m, MOE_MSG_TRACE, 1);
	ok(exchange(sock, &m, sizeof m, &dead_fd, 1) == MOE_MSG_ERROR,
	   "a recording into a file that does not close ends");
	others_are_served("its end");
	close(sock);
}

/* The server is gone: all that waited is closed, a little later. */
static void test_again(void)
{
	uint64_t end = 0;
	bool good;

	do {
		int sock = connect_patient();

		good = hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY);
		close(sock);
	} while (!good && tap_wait(&end));
	ok(good, "then it does again");
}

/* In a message of no kind, and in one that asks for a data arena; the sender has no descriptor of it any more. */
static void test_lingering(void)
{
	int listening = listen_tcp();

	if (listening < 0) {
		tap_skip("no TCP here");
		return;
	}
	for (int kind = 0; kind < 2; kind++) {
		int sock = connect_patient(), tcp = lingering(listening);

		require(tcp >= 0, "a connection that lingers");
		hello(sock);
		kill(fixture.pid, SIGSTOP); /* so that its close is the last one */
		if (kind == 0)
			fdmsg_send(sock, "xxxxxxxx", 8, &tcp, 1, 0);
		else
			send_arena(sock, 1, &tcp, 1);
		close(tcp);
		kill(fixture.pid, SIGCONT);
		others_are_served(kind ? "a socket that lingers, a whole message"
				       : "a socket that lingers, no message");
		close(sock);
	}
	close(listening);
}

/* Of a connection that is not let in, because its user has too many: it was sent before the daemon saw it. */
static void test_refused(void)
{
	int plain[CONNECTIONS], listening = listen_tcp(), tcp, sock;

	if (listening < 0)
		return;
	for (int i = 0; i < CONNECTIONS; i++) {
		plain[i] = connect_patient();
		hello(plain[i]);
	}
	tcp = lingering(listening);
	kill(fixture.pid, SIGSTOP);
	sock = connect_patient();
	/* Since Linux 6.16 it is not sent at all, and this process is not to wait for it either. */
	if (fdmsg_send(sock, "xxxxxxxx", 8, &tcp, 1, 0) < 0)
		setsockopt(tcp, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
	close(tcp);
	kill(fixture.pid, SIGCONT);
	others_are_served("a socket that lingers, on a connection that is refused");
	close(sock);
	for (int i = 0; i < CONNECTIONS; i++)
		close(plain[i]);
	close(listening);
}

int main(void)
{
	int before;

	if (geteuid() != 0) {
		tap_skip("two users, and mounting: not root");
		return tap_done();
	}
	fixture_start(&fixture, fixture_sample(),
		      (const char *const[]){"--threads", "1", "--socket-mode", "0666", "--uid-limit",
					    "connections=" CONNECTIONS_TEXT, NULL});
	require(chmod(fixture.folder, 0711) == 0, "a socket for everybody");
	ring_open(&other);
	test_lingering();
	test_refused();
	ring_close(&other);
	if (!start_server()) {
		tap_skip("no FUSE here: it needs /dev/fuse and the right to mount");
		stop_server();
	} else {
		before = quiet_fds(-1) + 1; /* the clock of recordings, which stays */
		ring_open(&other);
		test_recording();
		hostile(dead_fd, "a file that does not close");
		test_many();
		stop_server();
		test_again();
		ring_close(&other);
		ok(quiet_fds(before) <= before, "what could not be closed is, once the file's server is gone");
	}
	fdmsg_close_fds(answer_fds, n_answer_fds);
	ok(fixture_stop(&fixture) == 0, "the daemon ends cleanly");
	return tap_done();
}
