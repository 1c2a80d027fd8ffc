/* SPDX-License-Identifier: MIT */
/*
 * A daemon and its keeper: messages of any bytes and descriptors to the keeper, and its next daemon under any
 * environment. The keeper never holds more than it may, hands back good names and one descriptor for each, and forgets
 * what has hung up; the daemon has each name once, and the descriptor that came under it.
 *
 * Both are in this process. Real are the keeper's messages and its store, and the daemon's handover between them; how a
 * keeper starts a process and sees it die is not here (tests/test-handover.c).
 *
 * The input: steps, each a byte and what it takes; texts are a byte of length and so many bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/handover.h"
#include "daemon/keeper-message.h"
#include "tests/fuzz/fuzz-fds.h"

#define STEPS_MAX 64
#define KEPT_MAX 6 /* few: the socket's queue holds ten messages (net.unix.max_dgram_qlen) */
/* From HANDOVER_LISTEN_FD on, below what the keeper holds: only what is handed back lies there. */
#define PLACES (KEPT_MAX + 1)
#define EVENTS 16

enum step {
	STEP_SEND,    /* kinds, 2 bytes of length, bytes: a message to the keeper */
	STEP_PUT,     /* kind, name */
	STEP_TAKE,    /* name */
	STEP_DROP,    /* name */
	STEP_BARRIER, /* */
	STEP_HANG_UP, /* the other end of kind 1 */
	STEP_DISCARD, /* */
	STEP_RESTART, /* how, and what that takes */
	STEPS
};

enum how { OTHER_NAMES = 1, OTHER_COUNT = 2, OTHER_MAX = 4, OTHER_PROCESS = 8 };

static struct {
	struct keeper_store store;
	struct handover *daemon;
	int notify, sender; /* the keeper's socket; one that is connected to it */
	int none;           /* /dev/null */
	int kinds[8], other_end;
	bool unwatched; /* a message has said so */
	char address[128], pid[32], count[32], max[64];
	char names[HANDOVER_NAMES_BYTES_MAX + 64];
} f;

/* -- descriptors -------------------------------------------------------------------------------------------------- */

/* What is started here, libFuzzer too, has other numbers. */
__attribute__((constructor)) static void keep_places(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		fuzz_check(fd >= 0);
	} while (fd < HANDOVER_LISTEN_FD + PLACES);
	f.none = fd;
}

/* Those that are free; all: what a daemon has left there goes with it. */
static void fill_places(bool all)
{
	for (int fd = HANDOVER_LISTEN_FD; fd < HANDOVER_LISTEN_FD + PLACES; fd++)
		if (all || fcntl(fd, F_GETFD) < 0)
			fuzz_check(dup3(f.none, fd, O_CLOEXEC) == fd);
}

static void open_pair(void)
{
	int pair[2];

	fuzz_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	f.kinds[1] = pair[0];
	f.other_end = pair[1];
}

static void open_kinds(void)
{
	int ends[2];

	f.kinds[0] = memfd_create("kept", MFD_CLOEXEC);
	open_pair();
	f.kinds[2] = eventfd(0, EFD_CLOEXEC);
	f.kinds[3] = memfd_create("kept too", MFD_CLOEXEC);
	f.kinds[4] = open("/dev/null", O_PATH | O_CLOEXEC); /* which epoll does not take */
	fuzz_check(pipe2(ends, O_CLOEXEC) == 0);
	close(ends[0]);
	f.kinds[5] = ends[1]; /* nobody reads it: an error is pending */
	f.kinds[6] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	f.kinds[7] = dup(f.kinds[0]); /* the same open file */
	for (size_t i = 0; i < ARRAY_LEN(f.kinds); i++)
		fuzz_check(f.kinds[i] >= 0);
}

static void open_sockets(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int n = snprintf(address.sun_path, sizeof address.sun_path, "@moe-fuzz-keeper-%d", getpid());
	const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n);
	const int on = 1;

	snprintf(f.address, sizeof f.address, "NOTIFY_SOCKET=%s", address.sun_path);
	address.sun_path[0] = '\0';
	f.notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	f.sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fuzz_check(setsockopt(f.notify, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
	fuzz_check(bind(f.notify, (struct sockaddr *)&address, size) == 0);
	fuzz_check(connect(f.sender, (struct sockaddr *)&address, size) == 0);
}

/* -- the keeper --------------------------------------------------------------------------------------------------- */

/* As its loop does, until nothing is left to do. */
static void keeper_serves(void)
{
	static struct keeper_message message;
	struct epoll_event events[EVENTS];
	int n, looks = 0;

	while (keeper_message_receive(&message, f.notify)) {
		fuzz_check(message.sender == getpid() || message.sender == 0);
		if (message.sender)
			keeper_message_obey(&message, &f.store);
		keeper_message_close(&message);
	}
	while ((n = epoll_wait(f.store.epoll, events, EVENTS, 0)) > 0) {
		for (int i = 0; i < n; i++)
			keeper_store_drop_hung_up(&f.store, events[i].data.fd);
		fuzz_check(looks++ < 16); /* or it would turn for ever */
	}
	fuzz_check(f.store.n <= KEPT_MAX && f.store.names_bytes <= HANDOVER_NAMES_BYTES_MAX);
}

/* As many as it says, each such that nothing else can be read out of them. */
static void check_names(const char *names, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const size_t bytes = strcspn(names, ":");

		fuzz_check(bytes > 0 && bytes <= HANDOVER_NAME_MAX && names[bytes] == (i + 1 < n ? ':' : '\0'));
		for (size_t c = 0; c < bytes; c++)
			fuzz_check(names[c] >= ' ' && names[c] <= '~');
		names += bytes + 1;
	}
}

/* -- the daemon --------------------------------------------------------------------------------------------------- */

/* The first of the names, which parts them: it is in its place. False: there is no further one. */
static bool check_next(const char *names, uint32_t at)
{
	const char *name = names;
	char text[HANDOVER_NAME_MAX + 1];
	uint32_t first = 0;
	size_t bytes;

	for (uint32_t i = 0; i < at; i++)
		name += strcspn(name, ":") + 1;
	bytes = strcspn(name, ":");
	for (const char *c = names; strcspn(c, ":") != bytes || memcmp(c, name, bytes) != 0; c += strcspn(c, ":") + 1)
		first++;
	snprintf(text, sizeof text, "%.*s", (int)bytes, name);
	if (first == at) {
		const int fd = handover_take(f.daemon, "%s", text);

		fuzz_check(fd == HANDOVER_LISTEN_FD + (int)at && fcntl(fd, F_GETFD) == FD_CLOEXEC);
		close(fd);
	}
	fuzz_check(handover_take(f.daemon, "%s", text) == -ENOENT);
	return name[bytes] == ':';
}

/* The keeper's own words: all that it kept is there, under its first name, and nothing else. */
static void check_handed_back(const char *names, uint32_t n)
{
	uint32_t cursor = 0, at = 0;

	fuzz_check(handover_keeps(f.daemon));
	while (n > 0 && check_next(names, at))
		at++;
	fuzz_check(n == 0 || at == n - 1);
	fuzz_check(!handover_next(f.daemon, "", &cursor));
}

static void take_text(struct fuzz_bytes *from, char *ret, size_t max)
{
	const size_t bytes = fuzz_number(from, 1) % (max + 1);

	fuzz_take(from, ret, bytes);
	ret[bytes] = '\0';
}

static void restart(struct fuzz_bytes *from)
{
	const uint8_t how = (uint8_t)fuzz_number(from, 1);
	uint32_t n = f.store.n;
	const char *kept;
	char text[256];

	f.daemon = handover_free(f.daemon);
	fill_places(true);
	kept = keeper_store_hand_back(&f.store);
	if (n > 0)
		check_names(kept, n);
	snprintf(f.names, sizeof f.names, "LISTEN_FDNAMES=%s", kept);
	snprintf(f.max, sizeof f.max, "FDSTORE=%u", f.store.max);
	if (how & OTHER_NAMES) {
		take_text(from, text, sizeof text - 1);
		snprintf(f.names, sizeof f.names, "LISTEN_FDNAMES=%s", text);
	}
	if (how & OTHER_COUNT)
		n = (uint32_t)(fuzz_number(from, 1) % (PLACES + 1));
	if (how & OTHER_MAX) {
		take_text(from, text, 20);
		snprintf(f.max, sizeof f.max, "FDSTORE=%.20s", text);
	}
	snprintf(f.count, sizeof f.count, "LISTEN_FDS=%u", n);
	snprintf(f.pid, sizeof f.pid, "LISTEN_PID=%d", getpid() + !!(how & OTHER_PROCESS));
	fuzz_check(!putenv(f.names) && !putenv(f.max) && !putenv(f.count) && !putenv(f.pid) && !putenv(f.address));
	fuzz_check(handover_new(&f.daemon, NULL) == 0);
	fuzz_check(!getenv("LISTEN_FDS") && !getenv("LISTEN_FDNAMES"));
	if (how == 0)
		check_handed_back(kept, n);
}

static void put(struct fuzz_bytes *from)
{
	const int fd = f.kinds[fuzz_number(from, 1) % ARRAY_LEN(f.kinds)];
	char name[256];
	int r;

	take_text(from, name, sizeof name - 1);
	r = handover_put(f.daemon, fd, "%s", name);
	fuzz_check(r <= 0 && r != -EAGAIN);
	fuzz_check(r < 0 || (*name && strlen(name) <= HANDOVER_NAME_MAX && !strpbrk(name, ":\n ")));
	fuzz_check(r < 0 || handover_put(f.daemon, fd, "%s", name) < 0); /* once */
}

static void take(struct fuzz_bytes *from)
{
	char name[256];
	int fd;

	take_text(from, name, sizeof name - 1);
	fd = handover_take(f.daemon, "%s", name);
	fuzz_check(fd == -ENOENT || (fd >= HANDOVER_LISTEN_FD && fd < HANDOVER_LISTEN_FD + PLACES));
	close_fd(fd);
}

static void drop(struct fuzz_bytes *from)
{
	char name[256];

	take_text(from, name, sizeof name - 1);
	fuzz_check(handover_drop(f.daemon, "%s", name) == 0);
	fuzz_check(handover_take(f.daemon, "%s", name) == -ENOENT);
}

/* -- both --------------------------------------------------------------------------------------------------------- */

/* What is longer than the keeper reads is cut, and so nobody's: it changes nothing. */
static void send_any(struct fuzz_bytes *from)
{
	static char message[KEEPER_MESSAGE_BYTES + 64];
	const uint8_t with = (uint8_t)fuzz_number(from, 1);
	const size_t bytes = fuzz_number(from, 2) % (sizeof message + 1), n_fds = with >> 4;
	const uint32_t before = f.store.n;
	int fds[16];

	fuzz_take(from, message, bytes);
	for (size_t i = 0; i < n_fds; i++)
		fds[i] = f.kinds[(with + i) % ARRAY_LEN(f.kinds)];
	f.unwatched |= memmem(message, bytes, "FDPOLL=0", 8) != NULL;
	fuzz_check(fdmsg_send(f.sender, message, bytes, fds, n_fds, 1) == 0);
	keeper_serves();
	fuzz_check(bytes < KEEPER_MESSAGE_BYTES || f.store.n == before);
}

/* Handled when it hangs up: nothing of it is left in the queue. */
static void barrier(void)
{
	struct pollfd pollfd = {.fd = handover_barrier(f.daemon)};

	fuzz_check(pollfd.fd >= 0 && poll(&pollfd, 1, 0) == 0);
	keeper_serves();
	fuzz_check(poll(&pollfd, 1, 0) == 1 && pollfd.revents & POLLHUP);
	close(pollfd.fd);
}

/* An open file is kept once: one that is put again is there already, or there is room for it now. */
static bool keeper_has_pair(void)
{
	const uint32_t before = f.store.n;

	keeper_store_put(&f.store, f.kinds[1], "again", false);
	if (f.store.n == before)
		return true;
	keeper_store_drop(&f.store, "again");
	return false;
}

static void hang_up(void)
{
	close(f.other_end);
	keeper_serves();
	fuzz_check(f.unwatched || f.store.n == KEPT_MAX || !keeper_has_pair());
	close(f.kinds[1]);
	fill_places(false); /* the new pair is not to lie there */
	open_pair();
}

static void take_step(struct fuzz_bytes *from)
{
	switch ((enum step)(fuzz_number(from, 1) % STEPS)) {
	case STEP_SEND:
		send_any(from);
		break;
	case STEP_PUT:
		put(from);
		break;
	case STEP_TAKE:
		take(from);
		break;
	case STEP_DROP:
		drop(from);
		break;
	case STEP_BARRIER:
		barrier();
		break;
	case STEP_HANG_UP:
		hang_up();
		break;
	case STEP_DISCARD:
		handover_discard_rest(f.daemon);
		break;
	default:
		restart(from);
	}
	keeper_serves();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size}, none = {data, 0};

	if (f.address[0] == '\0') {
		signal(SIGPIPE, SIG_IGN);
		log_open("fuzz", (enum log_level)0);
		open_sockets();
		open_kinds();
	}
	fuzz_check(keeper_store_init(&f.store, KEPT_MAX, NULL) == 0 && f.store.max == KEPT_MAX);
	f.unwatched = false;
	restart(&none);
	for (int i = 0; i < STEPS_MAX && from.left > 0; i++)
		take_step(&from);
	restart(&none);
	f.daemon = handover_free(f.daemon);
	fill_places(true);
	keeper_store_clear(&f.store);
	fuzz_check_fds();
	return 0;
}
