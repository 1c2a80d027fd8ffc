/* SPDX-License-Identifier: MIT */
/*
 * The library does not trust what a daemon hands over: each wrong reply to ATTACH is refused with a reason, no session
 * is made, and no descriptor or mapping stays behind. A thread plays the daemon and gets one thing wrong at a time.
 */
#include <pthread.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/fdmsg.h"
#include "base/memfd.h"
#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"
#include "tests/leaks.h"
#include "tests/plain-experts.h"
#include "uapi/moe_kmod.h"
#include "uapi/moe_proto.h"
#include "uapi/moe_ring.h"

enum fault {
	NOTHING_WRONG,
	FEWER_FDS,
	MORE_FDS,
	WRONG_SIZE,
	WRONG_TYPE,
	MANIFEST_UNSEALED,
	MANIFEST_MAGIC,
	MANIFEST_SHORT,
	MANIFEST_TABLE,
	MANIFEST_POOLS,
	MANIFEST_INDEX,
	LAYOUTS_NONE,
	LAYOUTS_MANY,
	LAYOUTS_OUTSIDE,
	LAYOUT_FORMAT,
	LAYOUT_FORMATS,
	LAYOUT_SHAPE,
	LAYOUT_PANELS,
	LAYOUT_RECORD,
	LAYOUT_SHARES,
	LAYOUT_NO_SHARE,
	SHARE_OUTSIDE,
	PLANE_OUTSIDE,
	PLANE_WRAPS,
	PLANE_ODD,
	PLANE_MISSING,
	PLANE_TOO_MANY,
	PLANE_NOT_FIRST,
	RECORD_LAYOUT,
	RECORD_MIXED,
	RECORD_OUTSIDE,
	SECOND_POOL_SMALL,
	CLIENT_UNSEALED,
	CLIENT_SHORT,
	DAEMON_MAGIC,
	DAEMON_ENTRIES,
	DAEMON_OFFSET,
	DAEMON_STATS,
	POOL_SHORT,
	POOL_UNSEALED,
	CLOSES,
	FAULTS
};

static const char *const words[FAULTS] = {
	[FEWER_FDS] = "fds found",
	[MORE_FDS] = "fds found",
	[WRONG_SIZE] = "unexpected reply",
	[WRONG_TYPE] = "unexpected reply",
	[MANIFEST_UNSEALED] = "manifest",
	[MANIFEST_MAGIC] = "manifest",
	[MANIFEST_SHORT] = "manifest",
	[MANIFEST_TABLE] = "tables lie outside",
	[MANIFEST_POOLS] = "in the manifest",
	[MANIFEST_INDEX] = "row 1 found",
	[LAYOUTS_NONE] = "a count is zero",
	[LAYOUTS_MANY] = "too large",
	[LAYOUTS_OUTSIDE] = "tables lie outside",
	[LAYOUT_FORMAT] = "layout 0",
	[LAYOUT_FORMATS] = "layout 0",
	[LAYOUT_SHAPE] = "layout 0",
	[LAYOUT_PANELS] = "layout 0",
	[LAYOUT_RECORD] = "layout 0",
	[LAYOUT_SHARES] = "layout 0",
	[LAYOUT_NO_SHARE] = "layout 0",
	[SHARE_OUTSIDE] = "layout 0",
	[PLANE_OUTSIDE] = "layout 0",
	[PLANE_WRAPS] = "layout 0",
	[PLANE_ODD] = "layout 0",
	[PLANE_MISSING] = "layout 0",
	[PLANE_TOO_MANY] = "layout 0",
	[PLANE_NOT_FIRST] = "layout 0",
	[RECORD_LAYOUT] = "layout 2 found",
	[RECORD_MIXED] = "the same in a row",
	[RECORD_OUTSIDE] = "outside the pool files",
	[SECOND_POOL_SMALL] = "outside the pool files",
	[CLIENT_UNSEALED] = "client region",
	[CLIENT_SHORT] = "client region",
	[DAEMON_MAGIC] = "not a ring",
	[DAEMON_ENTRIES] = "not a ring",
	[DAEMON_OFFSET] = "not a ring",
	[DAEMON_STATS] = "not a ring",
	[POOL_SHORT] = "pool file",
	[POOL_UNSEALED] = "pool file",
	[CLOSES] = "closed the connection",
};

enum { LAYERS = 1, EXPERTS = 2, HIDDEN = 64, INTER = 64, ENTRIES = 256, POOL_BYTES = 2 * 24576, SMALL_BYTES = 24576 };

struct made {
	struct moe_manifest m;
	int32_t layer_index[2];
	struct moe_layout layouts[2];
	struct moe_record records[EXPERTS];
};

static char folder[64], path[96];
static int listener;
static enum fault fault;
static uint32_t pools; /* of the next attachment */

static void begin(void *message, size_t bytes, unsigned int type, size_t fds)
{
	*(struct moe_msg *)message = (struct moe_msg){
		.magic = MOE_PROTO_MAGIC, .type = (__u16)type, .fds = (__u16)fds, .bytes = (__u32)bytes};
}

/* In the manifest. */
static uint32_t pools_told(void)
{
	return pools + (fault == MANIFEST_POOLS);
}

static uint64_t pool_bytes(uint32_t pool)
{
	return fault == SECOND_POOL_SMALL && pool == 1 ? SMALL_BYTES : POOL_BYTES;
}

static struct moe_layout make_layout(void)
{
	struct moe_layout whole, l;

	plain_layout(&whole, fault == LAYOUT_PANELS ? MOE_FORMAT_Q8_0 : MOE_FORMAT_BF16,
		     fault == LAYOUT_PANELS ? MOE_FORMAT_Q4_K : MOE_FORMAT_BF16, HIDDEN, INTER, false);
	plain_spread(&l, &whole, pools_told());
	l.record_bytes = POOL_BYTES / EXPERTS + (fault == LAYOUT_RECORD);
	if (fault == LAYOUT_SHARES)
		l.shares = 2;
	if (fault == LAYOUT_NO_SHARE)
		l.shares = 0;
	if (fault == SHARE_OUTSIDE) /* a share would fit, the larger one does not */
		l.part[MOE_PART_DOWN].plane[MOE_PLANE_CODES] = l.record_bytes - 16 * INTER * 2;
	if (fault == LAYOUT_FORMAT)
		l.part[MOE_PART_DOWN].format = MOE_FORMAT_COUNT;
	if (fault == LAYOUT_FORMATS)
		l.part[MOE_PART_UP].format = MOE_FORMAT_F16;
	if (fault == LAYOUT_SHAPE)
		l.part[MOE_PART_UP].cols--;
	if (fault == PLANE_OUTSIDE)
		l.part[MOE_PART_DOWN].plane[MOE_PLANE_CODES] += 64;
	if (fault == PLANE_WRAPS)
		l.part[MOE_PART_DOWN].plane[MOE_PLANE_CODES] = UINT64_MAX - 63;
	if (fault == PLANE_ODD)
		l.part[MOE_PART_UP].plane[MOE_PLANE_CODES] += 32;
	if (fault == PLANE_MISSING)
		l.part[MOE_PART_UP].plane[MOE_PLANE_CODES] = 0;
	if (fault == PLANE_TOO_MANY)
		l.part[MOE_PART_UP].plane[MOE_PLANE_ROW_SCALES] = 64;
	if (fault == PLANE_NOT_FIRST)
		l.part[MOE_PART_GATE].plane[MOE_PLANE_CODES] = 64;
	return l;
}

static int make_manifest(void)
{
	const struct moe_layout layout = make_layout();
	struct made all = {
		.m = {.magic = MOE_MANIFEST_MAGIC + (fault == MANIFEST_MAGIC),
		      .bytes = sizeof all,
		      .name = "made up",
		      .layout = MOE_LAYOUT_VERSION,
		      .n_pools = pools_told(),
		      .n_layers = LAYERS,
		      .n_moe_layers = LAYERS,
		      .n_experts = fault == MANIFEST_TABLE ? 1u << 31 : EXPERTS,
		      .topk = 1,
		      .hidden = HIDDEN,
		      .inter = INTER,
		      .record_bytes = POOL_BYTES / EXPERTS,
		      .n_layouts = fault == LAYOUTS_NONE   ? 0
				   : fault == LAYOUTS_MANY ? MOE_LAYOUTS_MAX + 1
							   : 2,
		      .layouts_offset = fault == LAYOUTS_OUTSIDE ? sizeof all - 8 : offsetof(struct made, layouts),
		      .records_offset = offsetof(struct made, records),
		      .pools = {{.bytes = pool_bytes(0), .page_bytes = 4096},
				{.bytes = pool_bytes(1), .page_bytes = 4096},
				{.bytes = pool_bytes(2), .page_bytes = 4096}}},
		.layer_index = {fault == MANIFEST_INDEX},
		.layouts = {layout, layout},
		.records = {{.layout = fault == RECORD_LAYOUT ? 2 : 0},
			    {.offset = POOL_BYTES / EXPERTS + 64 * (fault == RECORD_OUTSIDE),
			     .layout = fault == RECORD_MIXED}},
	};

	if (fault == MANIFEST_UNSEALED) {
		int fd = memfd_new("manifest", sizeof all, NULL);

		if (pwrite(fd, &all, sizeof all, 0) != sizeof all)
			exit(2);
		return fd;
	}
	return memfd_new_sealed("manifest", &all, fault == MANIFEST_SHORT ? 100 : sizeof all, NULL);
}

static int unsealed(uint64_t bytes)
{
	int fd = memfd_create("unsealed", MFD_CLOEXEC);

	if (ftruncate(fd, (off_t)bytes) < 0)
		exit(2);
	return fd;
}

static int make_daemon_region(uint64_t bytes)
{
	const struct moe_daemon_page page = {
		.magic = MOE_RING_MAGIC + (fault == DAEMON_MAGIC),
		.sq_entries = ENTRIES,
		.cq_entries = fault == DAEMON_ENTRIES ? 2 * ENTRIES : ENTRIES,
		.sqe_offset = 4096,
		.stats_offset = fault == DAEMON_STATS ? UINT64_MAX - 8 : 4096 + ENTRIES * 64,
		.cqe_offset = fault == DAEMON_OFFSET ? 1ull << 40 : 4096,
	};
	int fd = memfd_new("daemon", bytes, NULL);

	if (pwrite(fd, &page, sizeof page, 0) != sizeof page)
		exit(2);
	return fd;
}

struct ring_ends {
	struct moe_client_page *client;
	struct moe_daemon_page *daemon;
};

/* The one request of an attach, a NOP. */
static void *serve_ring(void *userdata)
{
	struct ring_ends *ends = userdata;
	const struct moe_sqe *sqe = (const struct moe_sqe *)((char *)ends->client + 4096);
	struct moe_cqe *cqe = (struct moe_cqe *)((char *)ends->daemon + 4096);
	uint64_t end = 0;

	while (__atomic_load_n(&ends->client->sq_tail, __ATOMIC_ACQUIRE) == 0 && tap_wait(&end))
		;
	if (__atomic_load_n(&ends->client->sq_tail, __ATOMIC_ACQUIRE) == 1 && sqe->op == MOE_OP_NOP) {
		*cqe = (struct moe_cqe){.user_data = sqe->user_data};
		__atomic_store_n(&cqe->seq, 1, __ATOMIC_RELEASE);
		__atomic_store_n(&ends->daemon->cq_tail, 1, __ATOMIC_RELEASE);
	}
	munmap(ends->client, 4096 + ENTRIES * 64 + 4096);
	munmap(ends->daemon, 4096 + ENTRIES * 64);
	free(ends);
	return NULL;
}

static void begin_ring(int client_fd, uint64_t client_bytes, int daemon_fd, uint64_t daemon_bytes)
{
	struct ring_ends *ends = malloc(sizeof *ends);
	pthread_t thread;

	ends->client = mmap(NULL, client_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client_fd, 0);
	ends->daemon = mmap(NULL, daemon_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, daemon_fd, 0);
	if (ends->client == MAP_FAILED || ends->daemon == MAP_FAILED)
		exit(2);
	pthread_create(&thread, NULL, serve_ring, ends);
	pthread_detach(thread);
}

static void answer_attach(int sock)
{
	const uint64_t client_bytes = 4096 + ENTRIES * 64 + 4096, daemon_bytes = 4096 + ENTRIES * 64;
	struct moe_msg_attached a = {
		.manifest_bytes = sizeof(struct made),
		.client_bytes = client_bytes,
		.daemon_bytes = daemon_bytes,
		.n_pools = pools,
	};
	int fds[8] = {
		make_manifest(),
		fault == CLIENT_UNSEALED ? unsealed(client_bytes)
					 : memfd_new("client", client_bytes - (fault == CLIENT_SHORT ? 4096 : 0), NULL),
		make_daemon_region(daemon_bytes),
		eventfd(0, EFD_CLOEXEC),
	};
	const size_t n = 4 + pools + (fault == MORE_FDS) - (fault == FEWER_FDS);
	const size_t bytes = sizeof a - (fault == WRONG_SIZE ? 8 : 0);

	for (uint32_t i = 0; i < 4; i++)
		fds[4 + i] = fault == POOL_UNSEALED
				     ? unsealed(POOL_BYTES)
				     : memfd_new("pool", pool_bytes(i) - (fault == POOL_SHORT ? 4096 : 0), NULL);
	begin(&a, bytes, fault == WRONG_TYPE ? MOE_MSG_QUERY | MOE_MSG_REPLY : MOE_MSG_ATTACH | MOE_MSG_REPLY, n);
	if (!fault)
		begin_ring(fds[1], client_bytes, fds[2], daemon_bytes);
	fdmsg_send(sock, &a, bytes, fds, n, 0);
	fdmsg_close_fds(fds, ARRAY_LEN(fds));
}

/* -- a kernel module that the daemon does not serve ---------------------------------------------------------------- */

#define CLIENT 77 /* the open device */

static bool has_module;
static _Atomic int modules_asked, devices_open;

/* In place of the C library's, for what the library calls too. */
int open64(const char *name, int flags, ...)
{
	const bool device = strcmp(name, MOE_KMOD_DEVICE) == 0;
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
	va_end(list);
	if (device && !has_module) {
		errno = ENOENT;
		return -1;
	}
	devices_open += device;
	return (int)syscall(SYS_openat, AT_FDCWD, device ? "/dev/null" : name, flags, mode);
}

int ioctl(int fd, unsigned long command, ...)
{
	va_list list;
	void *to;

	va_start(list, command);
	to = va_arg(list, void *);
	va_end(list);
	if (command != MOE_KMOD_FEATURES)
		return (int)syscall(SYS_ioctl, fd, command, to);
	*(struct moe_kmod_features *)to = (struct moe_kmod_features){
		.features = MOE_KMOD_HAS_QUEUE, .abi = MOE_KMOD_ABI, .client = CLIENT};
	return 0;
}

static void refuse_module(int sock)
{
	struct moe_msg_error e = {.text = "attach: no queue of the kernel module"};

	modules_asked++;
	begin(&e, sizeof e, MOE_MSG_ERROR, 0);
	e.msg.status = -EOPNOTSUPP;
	fdmsg_send(sock, &e, sizeof e, NULL, 0, 0);
}

/* One connection until its end. */
static void serve(int sock)
{
	alignas(8) char message[MOE_PROTO_MAX];
	int fds[FDMSG_FDS_MAX];
	size_t n_fds = 0;

	while (fdmsg_recv(sock, message, sizeof message, fds, &n_fds, 0) > 0) {
		const unsigned int type = ((struct moe_msg *)message)->type;

		fdmsg_close_fds(fds, n_fds);
		if (type == MOE_MSG_HELLO) {
			struct moe_msg_hello hello = {.features = MOE_FEATURES_ALL};

			begin(&hello, sizeof hello, MOE_MSG_HELLO | MOE_MSG_REPLY, 0);
			fdmsg_send(sock, &hello, sizeof hello, NULL, 0, 0);
		} else if (type == MOE_MSG_ATTACH && fault == CLOSES) {
			return;
		} else if (type == MOE_MSG_ATTACH && ((struct moe_msg_attach *)message)->client) {
			refuse_module(sock);
		} else if (type == MOE_MSG_ATTACH) {
			answer_attach(sock);
		} else {
			struct moe_msg done;

			begin(&done, sizeof done, type | MOE_MSG_REPLY, 0);
			fdmsg_send(sock, &done, sizeof done, NULL, 0, 0);
		}
	}
}

static void *connection(void *userdata)
{
	int sock = (int)(intptr_t)userdata;

	serve(sock);
	close(sock);
	return NULL;
}

static void *play_daemon(void *userdata)
{
	int sock;

	while ((sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		pthread_t thread;

		pthread_create(&thread, NULL, connection, (void *)(intptr_t)sock);
		pthread_detach(thread);
	}
	return NULL;
}

static void listen_there(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	pthread_t thread;

	tap_tmp(folder, "moe-test-XXXXXX");
	require(mkdtemp(folder) != NULL, "a folder");
	snprintf(path, sizeof path, "%s/socket", folder);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	require(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0,
		"a socket");
	pthread_create(&thread, NULL, play_daemon, NULL);
	pthread_detach(thread);
}

/* The other side's threads close theirs a little later. */
static int settled_fds(int expected)
{
	uint64_t end = 0;
	int n;

	while ((n = leaks_fds(getpid())) > expected && tap_wait(&end))
		;
	return n;
}

static void test_refused_module(struct moe_client *client)
{
	struct moe_attach_params params = {.size = sizeof params, .transport = "auto"};
	struct moe_session *session = NULL;
	struct moe_error err = {0};

	has_module = true;
	ok(moe_attach(client, &session, &params, &err) == 0 && modules_asked == 1,
	   "where the daemon refuses the module, \"auto\" attaches by the ring");
	session = moe_detach(session);
	setenv("MOE_TRANSPORT", "auto", 1);
	params.transport = NULL;
	ok(moe_attach(client, &session, &params, &err) == 0 && modules_asked == 2, "and so it does by the environment");
	session = moe_detach(session);
	unsetenv("MOE_TRANSPORT");
	params.transport = "kmod";
	ok(moe_attach(client, &session, &params, &err) == -EOPNOTSUPP && modules_asked == 3 &&
		   strstr(err.text, "no queue of the kernel module"),
	   "who says \"kmod\" is refused: %s", err.text);
	ok(devices_open == 3, "each had a device open");
	has_module = false;
}

int main(void)
{
	const struct moe_attach_params params = {.size = sizeof params};
	struct moe_session *session = NULL;
	struct moe_client *client;
	struct moe_error err;
	int before;

	listen_there();
	require(moe_open(&client, path, &err) == 0, "connected");
	before = leaks_fds(getpid());
	for (pools = 1; pools <= 3; pools++) {
		require(moe_attach(client, &session, &params, &err) == 0,
			"with nothing wrong, and %u pool files, the "
			"library attaches",
			pools);
		session = moe_detach(session);
	}
	pools = 1;
	test_refused_module(client);
	for (fault = 1; fault < FAULTS; fault++) {
		int r;

		pools = fault == SHARE_OUTSIDE ? 3 : fault == SECOND_POOL_SMALL ? 2 : 1;
		r = moe_attach(client, &session, &params, &err);

		if (!ok(r < 0 && session == NULL && strstr(err.text, words[fault]), "fault %d is refused: %s", fault,
			words[fault]))
			diag("%d: %s", r, err.text);
	}
	if (before < 0)
		tap_skip("/proc is not mounted: descriptors cannot be counted");
	else
		ok(settled_fds(before) <= before, "no descriptor stays behind");
	moe_close(client);
	unlink(path);
	rmdir(folder);
	return tap_done();
}
