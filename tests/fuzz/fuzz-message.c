/* SPDX-License-Identifier: MIT */
/*
 * Messages on the daemon's socket, from two connections. Whatever they are, each answer is a message of the protocol,
 * and when both have left, nothing of theirs is there: no peer, no session, no descriptor.
 *
 * The input is a list of messages: a byte of flags, a byte that says how many descriptors and which, two bytes of
 * length, then so many bytes. flags: 1 the second connection; 2 the header's magic, size and number of descriptors are
 * set as they should be; 4 the connection is closed and opened anew before; 8 a load that this message starts, or one
 * before, goes on.
 *
 * Two things are not as in a daemon, for speed and so that an input always does the same. A load runs in this thread,
 * when the input lets it (pthread_create and pthread_join are wrapped, tests/fuzz/meson.build). A model that the input
 * has unloaded is taken over as from a daemon before, not read again.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdalign.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/fdmsg.h"
#include "base/memfd.h"
#include "tests/fuzz/fuzz-daemon.h"
#include "tests/fuzz/fuzz-fds.h"

#define MESSAGES_MAX 24
#define ARENA_BYTES 65536

enum { OTHER_CONNECTION = 1, GOOD_HEADER = 2, CONNECT_ANEW = 4, LOAD_GOES_ON = 8 };

static int socks[2] = {-1, -1};
static int kinds[8];

/* -- loads -------------------------------------------------------------------------------------------------------- */

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*body)(void *), void *with);
int __real_pthread_join(pthread_t which, void **ret);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*body)(void *), void *with);
int __wrap_pthread_join(pthread_t which, void **ret);

/* The thread that a message has started; body NULL: none, or it has ended. */
static struct {
	void *(*body)(void *), *with;
	bool here; /* messages are handled: threads to join are loads, and run in this one */
} thread;

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*body)(void *), void *with)
{
	int state = PTHREAD_CREATE_JOINABLE;

	if (!thread.here)
		return __real_pthread_create(ret, attr, body, with);
	if (attr && pthread_attr_getdetachstate(attr, &state) == 0 && state == PTHREAD_CREATE_DETACHED) {
		body(with); /* closes descriptors */
		return 0;
	}
	fuzz_check(!thread.body); /* one at a time */
	thread.body = body;
	thread.with = with;
	*ret = pthread_self();
	return 0;
}

static void load_ends(void)
{
	void *(*const body)(void *) = thread.body;
	char name[16];

	if (!body)
		return;
	thread.body = NULL;
	fuzz_check(pthread_getname_np(pthread_self(), name, sizeof name) == 0);
	body(thread.with);
	fuzz_check(pthread_setname_np(pthread_self(), name) == 0); /* it has given itself another one */
}

int __wrap_pthread_join(pthread_t which, void **ret)
{
	if (!pthread_equal(which, pthread_self()))
		return __real_pthread_join(which, ret);
	load_ends();
	return 0;
}

/* -- the model ---------------------------------------------------------------------------------------------------- */

static struct {
	int manifest, pool;
	struct model_books *books;
} kept;

static void keep_model(void)
{
	const struct entry *entry = fuzz_daemon.service->registry.head;

	fuzz_check(entry->model->n_pools == 1);
	kept.manifest = dup(entry->model->manifest_fd);
	kept.pool = dup(entry->model->pools[0].fd);
	kept.books = fuzz_alone((const uint8_t *)entry->books, entry->books->bytes);
	fuzz_check(kept.manifest >= 0 && kept.pool >= 0);
}

static void bring_model_back(void)
{
	const uint64_t bytes = kept.books->bytes;
	struct store_left left = {.n_pools = 1};
	struct resident *model;
	struct moe_error err;
	int books;

	if (fuzz_daemon.service->registry.n > 0)
		return;
	left.manifest_fd = dup(kept.manifest);
	left.pools[0] = dup(kept.pool);
	books = memfd_new("books", bytes, NULL);
	fuzz_check(books >= 0 && pwrite(books, kept.books, bytes, 0) == (ssize_t)bytes);
	fuzz_check(registry_open_books(&left.books, books, &err) == 0);
	fuzz_check(store_adopt(&model, &left, fuzz_daemon.service->host, &err) == 0);
	munmap(left.books, bytes);
	fuzz_check(registry_adopt(&fuzz_daemon.service->registry, model, books, &err) == 0);
	/* As the service does: its heat is a descriptor more. */
	heats_join(&fuzz_daemon.service->heats, fuzz_daemon.service->handover, fuzz_daemon.service->registry.head,
		   NULL);
}

/* -- connections -------------------------------------------------------------------------------------------------- */

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
	fuzz_daemon_turn();
	if (!(flags & LOAD_GOES_ON)) {
		load_ends();
		fuzz_daemon_turn();
	}
	take_answers(socks[which]);
}

static void check_left(const struct service *service)
{
	fuzz_check(!service->peers && !service->sessions && !service->load && service->n_peers == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size};

	if (!fuzz_daemon.service) {
		fuzz_daemon_start();
		fuzz_daemon_load();
		keep_model();
		open_kinds();
	}
	thread.here = true;
	for (int i = 0; i < MESSAGES_MAX && from.left > 0; i++)
		send_one(&from);
	leave(0);
	leave(1);
	fuzz_daemon_turn();
	load_ends();
	fuzz_daemon_turn();
	thread.here = false;
	check_left(fuzz_daemon.service);
	bring_model_back();
	fuzz_check_fds();
	return 0;
}
