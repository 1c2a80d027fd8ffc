/* SPDX-License-Identifier: MIT */
/*
 * diskring - reads that end in any way: short, interrupted, refused, failed, cancelled; and a ring that the kernel
 * refuses or forgets. Each read is whole, with the file's bytes, or an error; and none is lost.
 *
 * The functions of liburing that submit and wait are this file's: they pass the calls on, refuse them, or change what
 * has come.
 */
#include "daemon/diskring.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "tests/forbid.h"
#include "tests/leaks.h"
#include "tests/tap.h"

#define DEPTH 8
#define READS 200
#define BLOCK 16384u
#define FILE_BYTES (READS / 2 * BLOCK - 5000u)

static uint8_t *content;
static uint8_t *memory;
static char path[TAP_TMP];
static struct shard shard = {.path = path, .bytes = FILE_BYTES};
static struct shardfile file;
static unsigned long long seed;

/* -- what stands before liburing ---------------------------------------------------------------------------------- */

static int submit_code;      /* -errno of each submission, 0: none is refused */
static int submit_refusals;  /* of so many submissions */
static int complete_code;    /* -errno of reads, 0: what the kernel says */
static uint32_t change_each; /* completion; 0: none */
static bool halve;           /* what has come, instead */
static uint32_t n_seen;
static unsigned passed; /* of the completion queue */

int io_uring_submit(struct io_uring *ring)
{
	static int (*real)(struct io_uring *);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit");
	if (submit_refusals != 0) {
		submit_refusals -= submit_refusals > 0;
		return submit_code;
	}
	return real(ring);
}

int io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **ret, struct __kernel_timespec *time)
{
	static int (*real)(struct io_uring *, struct io_uring_cqe **, struct __kernel_timespec *);
	int r;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "io_uring_wait_cqe_timeout");
	r = real(ring, ret, time);
	if ((int)(passed - *ring->cq.khead) < 0)
		passed = *ring->cq.khead;
	for (; passed != __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE); passed++) {
		struct io_uring_cqe *cqe = &ring->cq.cqes[passed & ring->cq.ring_mask];

		if (!change_each || ++n_seen % change_each)
			continue;
		cqe->res = !halve ? complete_code : cqe->res > 0 ? cqe->res / 2 : cqe->res;
	}
	return r;
}

/* -- reads -------------------------------------------------------------------------------------------------------- */

struct tally {
	uint32_t right, wrong, failed;
	int code; /* of the last that failed */
	char text[512];
};

static void done(void *userdata, struct diskread *read, const struct moe_error *error)
{
	struct tally *t = userdata;

	if (error) {
		t->failed++;
		t->code = error->code;
		snprintf(t->text, sizeof t->text, "%s", error->text);
	} else if (read->bytes >= read->expected && memcmp(read->memory, content + read->offset, read->expected) == 0) {
		t->right++;
	} else {
		t->wrong++;
	}
	memset(read->memory, 0xa5, BLOCK);
	read->file = NULL; /* free */
}

static struct diskring ring_for(struct tally *tally)
{
	return (struct diskring){.name = "test",
				 .depth = DEPTH,
				 .memory = memory,
				 .bytes = DEPTH * BLOCK,
				 .wake_fd = -1,
				 .done = done,
				 .userdata = tally};
}

static void add_read(struct diskring *ring, struct diskread reads[DEPTH])
{
	const uint64_t offset = tap_random(&seed) % (FILE_BYTES / SHARDFILE_ALIGN) * SHARDFILE_ALIGN;
	uint32_t i = 0;

	while (reads[i].file)
		i++;
	reads[i] = (struct diskread){.file = &file,
				     .memory = memory + i * BLOCK,
				     .offset = offset,
				     .length = BLOCK,
				     .expected = (uint32_t)MIN(BLOCK, FILE_BYTES - offset)};
	diskring_add(ring, &reads[i]);
}

/* So many reads, or as many as the ring takes, with as many in flight as it can have. */
static struct tally read_many(void)
{
	struct diskread reads[DEPTH] = {{.file = NULL}};
	struct tally tally = {.text = ""};
	struct diskring ring = ring_for(&tally);
	uint32_t asked = 0;

	passed = n_seen = 0;
	if (diskring_open(&ring) < 0)
		abort();
	while ((asked < READS && !ring.broken) || ring.in_flight > 0) {
		while (asked < READS && diskring_has_room(&ring)) {
			add_read(&ring, reads);
			asked++;
		}
		diskring_turn(&ring, 1000000000u);
	}
	diskring_close(&ring);
	if (tally.right + tally.wrong + tally.failed != asked)
		tally.wrong = READS;
	return tally;
}

static void check(const char *what, uint32_t right, uint32_t failed, int code, const char *word)
{
	const struct tally t = read_many();

	ok(t.wrong == 0 && t.right >= right && t.failed >= failed && t.code == code && strstr(t.text, word),
	   "%s: %u are right, %u failed (%d): %s", what, t.right, t.failed, t.code, t.text);
	submit_code = submit_refusals = complete_code = 0;
	change_each = 0;
	halve = false;
}

static void test_ends(void)
{
	check("nothing is in the way", READS, 0, 0, "");
	change_each = 3;
	halve = true;
	check("a third comes short", READS, 0, 0, "");
	change_each = 3;
	complete_code = -EINTR;
	check("a third is interrupted", READS, 0, 0, "");
	change_each = 2;
	complete_code = -EAGAIN;
	check("a half is refused for now", READS, 0, 0, "");
	change_each = 1;
	complete_code = -EAGAIN;
	check("nearly all are, for ever", 0, 1, -EAGAIN, "cannot read");
	change_each = 5;
	complete_code = -EIO;
	check("a fifth fails", READS / 5 * 4, READS / 10, -EIO, path);
	change_each = 5;
	complete_code = -ECANCELED;
	check("a fifth is cancelled", READS / 5 * 4, READS / 10, -ECANCELED, "cannot read");
	change_each = 4;
	complete_code = 0;
	check("the file ends early", READS / 4 * 3, READS / 10, -ESTALE, "the file was cut");
}

static void test_refused(void)
{
	submit_code = -EAGAIN;
	submit_refusals = 20;
	check("submissions are refused for now", READS, 0, 0, "");
	submit_code = -ENOMEM;
	submit_refusals = 1;
	check("the first is refused for good", 0, 1, -ENOMEM, "io_uring refuses reads");
	submit_code = -EBUSY;
	submit_refusals = -1;
	check("all are refused for a second", 0, DEPTH, -EBUSY, "io_uring refuses reads");
}

/* A read of a pipe, which ends when this test writes to it. */
struct waiting {
	struct shardfile file;
	struct diskread read;
	int to;
};

static void add_waiting(struct waiting *w, struct diskring *ring)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		abort();
	w->to = fds[1];
	w->file = (struct shardfile){.fd = fds[0], .shard = &shard};
	w->read = (struct diskread){
		.file = &w->file, .memory = memory + (DEPTH - 1) * BLOCK, .length = BLOCK, .expected = 100};
	diskring_add(ring, &w->read);
}

static void end_waiting(struct waiting *w, struct diskring *ring)
{
	if (write(w->to, content, 100) != 100)
		abort();
	while (ring->in_flight > 0)
		diskring_turn(ring, UINT64_MAX);
	close(w->file.fd);
	close(w->to);
}

/* One is with the kernel when it refuses the rest: that one is waited for, the rest fails, and a new ring works. */
static void test_broken_midway(void)
{
	struct diskread reads[DEPTH] = {{.file = NULL}};
	struct tally tally = {.text = ""};
	struct diskring ring = ring_for(&tally);
	struct waiting waiting;

	passed = 0;
	if (diskring_open(&ring) < 0)
		abort();
	add_waiting(&waiting, &ring);
	diskring_turn(&ring, 0);
	while (diskring_has_room(&ring))
		add_read(&ring, reads);
	submit_code = -EBADR;
	submit_refusals = -1;
	diskring_turn(&ring, 0);
	submit_refusals = 0;
	ok(tally.failed == DEPTH - 1 && tally.code == -EBADR && ring.in_flight == 1,
	   "refused midway: %u failed, %u may still be written to", tally.failed, ring.in_flight);
	ok(ring.broken == -EBADR && !diskring_has_room(&ring), "it takes no more");
	end_waiting(&waiting, &ring);
	ok(tally.right == 1 && ring.in_flight == 0, "what the kernel had has come");
	diskring_close(&ring);
	passed = 0;
	ok(diskring_open(&ring) == 0 && diskring_has_room(&ring), "it can be opened again");
	add_read(&ring, reads);
	while (ring.in_flight > 0)
		diskring_turn(&ring, 1000000000u);
	ok(tally.right == 2, "and reads");
	diskring_close(&ring);
}

static void test_wake(void)
{
	struct tally tally = {.text = ""};
	struct diskring ring = ring_for(&tally);
	struct waiting waiting;

	ring.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	passed = 0;
	if (ring.wake_fd < 0 || diskring_open(&ring) < 0)
		abort();
	add_waiting(&waiting, &ring);
	for (int i = 0; i < 3; i++) {
		eventfd_write(ring.wake_fd, 1);
		diskring_turn(&ring, UINT64_MAX);
	}
	ok(ring.in_flight == 1 && tally.right + tally.failed == 0, "three wake-ups end three turns, and no read");
	diskring_turn(&ring, 1000000);
	ok(ring.in_flight == 1, "a turn ends after its time");
	end_waiting(&waiting, &ring);
	ok(tally.right == 1, "what comes at last is right");
	diskring_close(&ring);
	close(ring.wake_fd);
}

static int unregistered(void)
{
	struct tally t;

	if (!forbid_call(SYS_io_uring_register, EPERM))
		return 77;
	t = read_many();
	return t.right == READS ? 0 : 1;
}

static int forbidden(void)
{
	struct tally tally;
	struct diskring ring = ring_for(&tally);

	if (!forbid_call(SYS_io_uring_setup, EPERM))
		return 77;
	return diskring_open(&ring) == -EPERM && !ring.open && !diskring_has_room(&ring) ? 0 : 1;
}

static void check_child(int (*run)(void), const char *what)
{
	int status = -1;
	const pid_t pid = fork();

	if (pid == 0)
		_exit(run());
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		tap_skip("%s: the kernel takes no filter", what);
	else
		ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s (%d)", what, status);
}

int main(void)
{
	struct leaks before;
	struct moe_error err = {0};
	int fd;

	seed = tap_seed();
	content = malloc(FILE_BYTES);
	for (uint32_t i = 0; i < FILE_BYTES; i++)
		content[i] = (uint8_t)tap_random(&seed);
	memory = mmap(NULL, DEPTH * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = mkstemp(tap_tmp(path, "test-diskring-XXXXXX"));
	require(fd >= 0 && write(fd, content, FILE_BYTES) == FILE_BYTES && fsync(fd) == 0, "a file");
	close(fd);
	require(shardfile_open(&file, &shard, false, &err) == 0, "it is open: %s", err.text);
	read_many();
	before = leaks_now();
	test_ends();
	test_refused();
	test_broken_midway();
	test_wake();
	ok(leaks_none(&before, 8), "nothing leaks");
	check_child(unregistered, "memory that cannot be registered is read into all the same");
	check_child(forbidden, "without io_uring there is no ring");
	shardfile_close(&file);
	unlink(path);
	munmap(memory, DEPTH * BLOCK);
	free(content);
	return tap_done();
}
