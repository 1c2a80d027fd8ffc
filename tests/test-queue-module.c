/* SPDX-License-Identifier: MIT */
/*
 * The client's end of the module's queue, with a module and a ring that this test plays: who is refused for now naps
 * between two tries, keeps no slot, and hears that the daemon is gone; and a child that was forked takes nothing from
 * its parent. The real module is in tests/kmod/clients-6.12.t.
 */
#include "queue.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "queue-module.h"
#include "tests/tap.h"
#include "uapi/moe_kmod.h"

#define ENTRIES 256
#define LOOK_US 50
#define PATIENCE_NS 5000000000u
#define BRIEF_NS 200000000u
#define NAP_NS 1000000u

/* -- a module and its ring ---------------------------------------------------------------------------------------- */

/* Shared with children, as a ring is. */
static struct fake {
	pthread_mutex_t lock;
	struct {
		uint64_t user_data;
		int result;
	} done[ENTRIES];
	uint32_t head, tail;
	uint64_t posted; /* what waits: its slot's number, and where its answer goes */
	struct moe_kmod_answer *to;
	uint32_t issued, naps;
	int refuses;    /* what is said of a SUBMIT, by a completion */
	uint32_t times; /* so often; then it is taken */
	bool full;      /* more completions than a ring has */
} * fake;

/* In place of the C library's. */
int open64(const char *name, int flags, ...)
{
	const bool device = strcmp(name, MOE_KMOD_DEVICE) == 0;
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
	va_end(list);
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
		.features = MOE_KMOD_HAS_QUEUE | MOE_KMOD_HAS_URING | MOE_KMOD_HAS_STAYS,
		.abi = MOE_KMOD_ABI,
		.client = 7};
	return 0;
}

int cmdring_open(struct cmdring *ret, int device, uint32_t commands, bool calm)
{
	ret->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return ret->fd < 0 ? -errno : 0;
}

void cmdring_close(struct cmdring *ring)
{
	ring->fd = close_fd(ring->fd);
}

static void complete(uint64_t user_data, int result)
{
	fake->full |= fake->tail - fake->head == ENTRIES;
	fake->done[fake->tail % ENTRIES].user_data = user_data;
	fake->done[fake->tail % ENTRIES].result = result;
	__atomic_store_n(&fake->tail, fake->tail + 1, __ATOMIC_RELEASE);
}

int cmdring_issue(struct cmdring *ring, int device, uint32_t command, const void *bytes, void *to, uint64_t user_data)
{
	pthread_mutex_lock(&fake->lock);
	fake->issued++;
	if (fake->times > 0) {
		fake->times--;
		complete(user_data, fake->refuses);
	} else {
		fake->posted = user_data;
		fake->to = to;
	}
	pthread_mutex_unlock(&fake->lock);
	return 0;
}

/* What was taken last is answered. */
static void answer(void)
{
	pthread_mutex_lock(&fake->lock);
	*fake->to = (struct moe_kmod_answer){.status = 0, .bytes = 42};
	complete(fake->posted, 0);
	pthread_mutex_unlock(&fake->lock);
}

bool cmdring_find(const struct cmdring *ring, uint64_t user_data, int *ret_result)
{
	bool found = false;

	pthread_mutex_lock(&fake->lock);
	for (uint32_t i = fake->head; i != fake->tail && !found; i++) {
		found = fake->done[i % ENTRIES].user_data == user_data;
		*ret_result = fake->done[i % ENTRIES].result;
	}
	pthread_mutex_unlock(&fake->lock);
	return found;
}

uint32_t cmdring_ready(const struct cmdring *ring)
{
	uint32_t n;

	pthread_mutex_lock(&fake->lock);
	n = fake->tail - fake->head;
	pthread_mutex_unlock(&fake->lock);
	return n;
}

void cmdring_wait(const struct cmdring *ring, uint64_t timeout_ns)
{
	const uint64_t end = now_ns() + timeout_ns;

	while (cmdring_ready(ring) == 0) {
		if (now_ns() >= end) {
			__atomic_fetch_add(&fake->naps, 1, __ATOMIC_RELAXED);
			return;
		}
		usleep(LOOK_US);
	}
}

bool cmdring_next(struct cmdring *ring, uint64_t *ret_user_data, int *ret_result)
{
	bool any;

	pthread_mutex_lock(&fake->lock);
	any = fake->head != fake->tail;
	if (any) {
		*ret_user_data = fake->done[fake->head % ENTRIES].user_data;
		*ret_result = fake->done[fake->head++ % ENTRIES].result;
	}
	pthread_mutex_unlock(&fake->lock);
	return any;
}

/* -- a session ---------------------------------------------------------------------------------------------------- */

static struct queue queue;
static struct queue_module module;
static int ends[2]; /* a socket; the daemon has the second */

static void begin(void)
{
	static struct moe_client_page client;
	static struct moe_daemon_page daemon = {.sq_entries = ENTRIES};

	*fake = (struct fake){.lock = PTHREAD_MUTEX_INITIALIZER};
	require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 &&
			queue_module_open(&module, false, NULL) == 0 &&
			queue_init(&queue, &client, &daemon, -1, ends[0]) == 0,
		"a session asks through the module");
	queue.module = &module;
	queue.patience_ns = PATIENCE_NS;
	ok(strcmp(queue_module_way(&module), "io_uring") == 0, "by a ring");
}

static void end(void)
{
	ok(!fake->full, "nothing was left in the ring");
	queue_module_close(&module);
	queue_fini(&queue);
	close_fd(ends[0]);
	close_fd(ends[1]);
}

static const struct moe_sqe nop = {.op = MOE_OP_NOP};

/* -- tests -------------------------------------------------------------------------------------------------------- */

/* More often than there are slots, and nothing is in flight whose end would be heard. */
static void test_refused(int why, uint32_t times)
{
	struct queue_op op = {0};

	begin();
	fake->refuses = why;
	fake->times = times;
	ok(queue_submit(&queue, &nop, &op) == 0 && fake->issued == times + 1, "%s, %u times: then it is taken",
	   strerror(-why), times);
	ok(fake->naps >= times, "with a nap between two tries (%u)", fake->naps);
	answer();
	ok(queue_wait(&queue, &op, PATIENCE_NS) == 0 && op.cqe.status == 0 && op.cqe.bytes == 42, "and answered");
	fake->refuses = -EINVAL;
	fake->times = 1;
	ok(queue_submit(&queue, &nop, &op) == 0 && queue_poll(&queue, &op) && op.cqe.status == -EINVAL,
	   "what is refused as it is has ended");
	end();
}

static void test_gone(void)
{
	struct queue_op op = {0};

	begin();
	fake->refuses = -EDQUOT;
	fake->times = UINT32_MAX;
	ends[1] = close_fd(ends[1]);
	ok(queue_submit(&queue, &nop, &op) == -EPIPE, "who is refused hears that the daemon is gone");
	end();
}

static void *wait_for(void *op)
{
	return (void *)(intptr_t)queue_wait(&queue, op, 0);
}

/* Who sleeps for an answer is woken by each refusal of another thread's, which is no reason to ask again. */
static void test_beside(void)
{
	struct queue_op op = {0}, other = {0};
	pthread_t thread;
	void *r;

	begin();
	require(queue_submit(&queue, &nop, &op) == 0 && pthread_create(&thread, NULL, wait_for, &op) == 0,
		"a thread waits for an answer");
	fake->refuses = -EDQUOT;
	fake->times = UINT32_MAX;
	queue.patience_ns = BRIEF_NS;
	ok(queue_submit(&queue, &nop, &other) == -ETIME, "another is refused until its patience ends");
	ok(fake->issued <= 2 + BRIEF_NS / NAP_NS, "and has asked once in each nap (%u)", fake->issued);
	answer();
	ok(pthread_join(thread, &r) == 0 && r == NULL && op.cqe.bytes == 42, "the first has its answer");
	end();
}

/* In a child: what it got wrong. */
static int ask_in_child(struct queue_op *op)
{
	struct queue_op other = {0};
	const uint32_t issued = fake->issued;

	if (queue_poll(&queue, op) || queue_wait(&queue, op, 0) != -EPIPE)
		return 1;
	if (queue_submit(&queue, &nop, &other) != -EPIPE || fake->issued != issued)
		return 2;
	queue_module_close(&module);
	return 0;
}

static void test_child(bool leading)
{
	struct queue_op op = {0};
	int status = -1;
	pid_t pid;

	begin();
	require(queue_submit(&queue, &nop, &op) == 0, "a request is in flight");
	answer();
	queue.leading = leading;
	pid = fork();
	if (pid == 0)
		_exit(ask_in_child(&op));
	queue.leading = false;
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child%s asks nothing and takes nothing (%d)",
	   leading ? " of a process with a thread that leads" : "", status);
	ok(queue_poll(&queue, &op) && op.cqe.bytes == 42, "its parent has the answer");
	ok(queue_submit(&queue, &nop, &op) == 0, "and asks on");
	answer();
	ok(queue_wait(&queue, &op, PATIENCE_NS) == 0, "and is answered");
	end();
}

int main(void)
{
	fake = mmap(NULL, sizeof *fake, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(fake != MAP_FAILED, "shared memory");
	test_refused(-EDQUOT, 2 * ENTRIES);
	test_refused(-ENOMEM, 3);
	test_gone();
	test_beside();
	test_child(false);
	test_child(true);
	return tap_done();
}
