/* SPDX-License-Identifier: MIT */
/*
 * Messages on the daemon's socket, from two connections. Whatever they are, each answer is a message of the protocol,
 * and when both have left, nothing of theirs is there: no peer, no session, no descriptor.
 *
 * The input is a list of messages: a byte of flags, a byte that says how many descriptors and which, two bytes of
 * length, then so many bytes. flags: 1 the second connection; 2 the header's magic, size and number of descriptors are
 * set as they should be; 4 the connection is closed and opened anew before.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/fdmsg.h"
#include "base/memfd.h"
#include "tests/fuzz/fuzz-daemon.h"

#define MESSAGES_MAX 24
#define ARENA_BYTES 65536

enum { OTHER_CONNECTION = 1, GOOD_HEADER = 2, CONNECT_ANEW = 4 };

static int socks[2] = {-1, -1};
static int kinds[8];

/* What a client may pass as an arena. */
static void open_kinds(void)
{
	kinds[0] = memfd_new("arena", ARENA_BYTES, NULL);
	kinds[1] = memfd_new("arena", ARENA_BYTES, NULL);
	kinds[2] = memfd_create("unsealed", MFD_CLOEXEC);
	kinds[3] = memfd_reopen_readonly(kinds[0]);
	if (kinds[3] == -ENOENT) /* no /proc here */
		kinds[3] = dup(kinds[0]);
	kinds[4] = memfd_new_sealed("immutable", "text", 4, NULL);
	kinds[5] = open("/dev/null", O_RDWR | O_CLOEXEC);
	kinds[6] = eventfd(0, EFD_CLOEXEC);
	kinds[7] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		fuzz_check(kinds[i] >= 0);
}

static void leave(int i)
{
	if (socks[i] >= 0)
		close(socks[i]);
	socks[i] = -1;
}

static void enter(int i)
{
	int pair[2];

	leave(i);
	fuzz_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	socks[i] = pair[0];
	fuzz_check(peer_new(fuzz_daemon.service, pair[1]) == 0);
}

/* Each answer is whole, of this protocol, and has as many descriptors as it says. */
static void take_answers(int sock)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	const struct moe_msg *msg = (const struct moe_msg *)buffer;
	int fds[FDMSG_FDS_MAX];
	size_t n_fds = 0;
	long n;

	while ((n = fdmsg_recv(sock, buffer, sizeof buffer, fds, &n_fds, 1)) > 0) {
		fuzz_check((size_t)n >= sizeof *msg && msg->magic == MOE_PROTO_MAGIC && msg->bytes == (size_t)n);
		fuzz_check(msg->fds == n_fds && (msg->type == MOE_MSG_ERROR) == (msg->status < 0));
		fdmsg_close_fds(fds, n_fds);
	}
}

/* A load reads what the daemon's user may read: here, nothing. */
static void lead_astray(struct moe_msg_load *load, size_t bytes)
{
	static const char nowhere[] = "/moe-fuzz-has-no-such-folder/";

	if (bytes == sizeof *load && load->msg.type == MOE_MSG_LOAD && load->path[0] == '/')
		memcpy(load->path, nowhere, strlen(nowhere));
}

static void send_one(struct fuzz_bytes *from)
{
	alignas(8) char message[MOE_PROTO_MAX + 64];
	struct moe_msg *msg = (struct moe_msg *)message;
	const uint8_t flags = (uint8_t)fuzz_number(from, 1), with = (uint8_t)fuzz_number(from, 1);
	const size_t bytes = fuzz_number(from, 2) % (sizeof message + 1), n_fds = with >> 3;
	const int which = flags & OTHER_CONNECTION;
	int fds[FDMSG_FDS_MAX];

	fuzz_take(from, message, bytes);
	for (size_t i = 0; i < n_fds; i++)
		fds[i] = kinds[(with + i) % ARRAY_LEN(kinds)];
	if (flags & GOOD_HEADER && bytes >= sizeof *msg)
		*msg = (struct moe_msg){
			.magic = MOE_PROTO_MAGIC, .type = msg->type, .fds = (__u16)n_fds, .bytes = (__u32)bytes};
	lead_astray((struct moe_msg_load *)message, bytes);
	if (flags & CONNECT_ANEW || socks[which] < 0)
		enter(which);
	if (fdmsg_send(socks[which], message, bytes, fds, n_fds, 1) < 0)
		return; /* the daemon has closed it, as it may */
	fuzz_daemon_turn(NULL);
	take_answers(socks[which]);
}

static bool all_left(const struct service *service)
{
	return !service->peers && !service->sessions && !service->load;
}

/* But for pipes: the fuzzer's own, to the program that names functions. */
static int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char to[64];
	int n = 0;

	while (folder && (entry = readdir(folder))) {
		const ssize_t bytes = readlinkat(dirfd(folder), entry->d_name, to, sizeof to);

		n += bytes < 5 || memcmp(to, "pipe:", 5) != 0;
	}
	if (folder)
		closedir(folder);
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fds = -1;
	static unsigned long inputs;
	struct fuzz_bytes from = {data, size};

	if (!fuzz_daemon.service) {
		fuzz_daemon_start();
		open_kinds();
	}
	fuzz_daemon_load();
	for (int i = 0; i < MESSAGES_MAX && from.left > 0; i++)
		send_one(&from);
	leave(0);
	leave(1);
	fuzz_daemon_turn(all_left);
	loop_drain(fuzz_daemon.service->loop);
	fuzz_check(fuzz_daemon.service->n_peers == 0);
	fuzz_daemon_load();
	if (fds < 0)
		fds = count_fds();
	if (inputs++ % 64 == 0)
		fuzz_check(count_fds() == fds);
	return 0;
}
