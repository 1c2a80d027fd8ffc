/* SPDX-License-Identifier: MIT */
/* Deaths: of the daemon with pools, of clients with leases, of both at once, of a parent whose child has its device. */
#include "tests/kmod/device.h"

#include <pthread.h>
#include <sched.h>

#define PAGES 3u
#define LEASES 5

/* What a daemon, a client and their grandchildren tell the test, which shares it with them. */
static struct said {
	uint64_t pool;
	uint64_t first_lease;
	pid_t grandchild;
} * said;

static void a_daemon(void *arg)
{
	int dev = device_open();

	said->pool = pool_new(dev, PAGES, 77, 5);
	if (arg)
		ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0});
	child_ready();
}

static void a_client(void *arg)
{
	int dev = device_open();

	said->first_lease = lease_new(dev, said->pool, 5);
	for (int i = 1; i < LEASES; i++)
		lease_new(dev, said->pool, 5);
	child_ready();
}

/* A client that forks, whose child keeps the device open until it is killed, without ever running another program. */
static void a_parent(void *arg)
{
	int dev = device_open();
	pid_t pid;

	lease_new(dev, said->pool, 5);
	pid = fork();
	while (pid == 0)
		pause();
	said->grandchild = pid;
	child_ready();
}

/* A client whose table of descriptors is that of another process, too, which is no thread of it. */
static void a_sharer(void *arg)
{
	int dev = device_open();
	pid_t pid;

	lease_new(dev, said->pool, 5);
	pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, 0ul);
	while (pid == 0)
		pause();
	said->grandchild = pid;
	child_ready();
}

/* A thread with a table of its own, a copy of which a child keeps. */
static void *takes_apart(void *barrier)
{
	pid_t pid;
	int dev;

	unshare(CLONE_FILES);
	dev = device_open();
	lease_new(dev, said->pool, 5);
	pid = fork();
	while (pid == 0)
		pause();
	said->grandchild = pid;
	pthread_barrier_wait(barrier);
	pause();
	return NULL;
}

static void *lives(void *arg)
{
	pause();
	return NULL;
}

/* Its lease is of a thread that does not die last. */
static void a_client_of_threads(void *arg)
{
	pthread_barrier_t taken;
	pthread_t thread;

	pthread_barrier_init(&taken, NULL, 2);
	pthread_create(&thread, NULL, takes_apart, &taken);
	pthread_barrier_wait(&taken);
	for (int i = 0; i < 8; i++)
		pthread_create(&thread, NULL, lives, NULL);
	child_ready();
}

static void a_keeper_of_descriptors(void *arg)
{
	(void)arg;
	child_ready();
}

static void test_daemon_dies(int dev)
{
	const int64_t before = huge_free();
	struct child c = child_start(a_daemon, NULL);
	struct moe_kmod_take t;

	child_wait_ready(&c);
	ok(said->pool != 0, "a daemon has a pool");
	child_end(&c, SIGKILL);
	ok(counter_becomes("clients", 1), "it is killed");
	ok(counter("pages") == PAGES && huge_free() == before - PAGES, "its pool has not gone");
	t = (struct moe_kmod_take){.id = said->pool};
	ok(ioctl(dev, MOE_KMOD_TAKE, &t) == 0 && pool_is(t.fd, PAGES, 77), "its successor gets the content");
	close(t.fd);
}

static bool next_is(int dev, uint64_t lease, uint64_t pool, pid_t pid)
{
	struct moe_kmod_event e;

	return read(dev, &e, sizeof e) == sizeof e && e.type == MOE_KMOD_EVENT_DROPPED && e.lease == lease &&
	       e.pool == pool && e.pid == (uint32_t)pid;
}

static void test_client_dies(int dev)
{
	struct child c = child_start(a_client, NULL);
	int good = 0;

	child_wait_ready(&c);
	ok(counter("leases") == LEASES, "a client has %d leases", LEASES);
	child_end(&c, SIGKILL);
	ok(counter("leases") == 0, "it is killed: when its parent knows, they have ended");
	for (unsigned i = 0; i < LEASES; i++)
		good += next_is(dev, said->first_lease + i, said->pool, c.pid);
	ok(good == LEASES, "the daemon reads of %d of them, in order", good);
}

static void test_inherited(int dev)
{
	const int64_t clients = counter("clients");
	struct child c = child_start(a_parent, NULL);
	struct moe_kmod_event e;

	child_wait_ready(&c);
	ok(counter("leases") == 1 && counter("clients") == clients + 1, "a client has forked");
	child_end(&c, SIGKILL);
	ok(counter("leases") == 0 && counter("clients") == clients + 1,
	   "its lease ends with it, though a child has the device open");
	ok(read(dev, &e, sizeof e) == sizeof e && e.type == MOE_KMOD_EVENT_DROPPED, "the daemon reads of it");
	kill(said->grandchild, SIGKILL);
	ok(counter_becomes("clients", clients), "the device is closed with the child");
}

/* Nothing closes the device when it dies. */
static void test_shared_table(int dev)
{
	const int64_t clients = counter("clients");
	struct child c = child_start(a_sharer, NULL);
	struct moe_kmod_event e;

	child_wait_ready(&c);
	ok(counter("leases") == 1, "a client shares its table of descriptors");
	child_end(&c, SIGKILL);
	ok(counter_becomes("leases", 0) && counter("clients") == clients + 1,
	   "its lease ends with it, not with the table");
	ok(read(dev, &e, sizeof e) == sizeof e && e.pid == (uint32_t)c.pid, "the daemon reads of it");
	kill(said->grandchild, SIGKILL);
	ok(counter_becomes("clients", clients), "the device is closed with the table");
}

static void test_threads(int dev)
{
	enum { ROUNDS = 50 };
	const int64_t clients = counter("clients");
	struct moe_kmod_event e;
	int ended = 0;

	for (int i = 0; i < ROUNDS; i++) {
		struct child c = child_start(a_client_of_threads, NULL);

		child_wait_ready(&c);
		kill(c.pid, SIGKILL);
		waitpid(c.pid, NULL, 0);
		ended += ioctl(dev, MOE_KMOD_LEASES, &(struct moe_kmod_leases){0}) < 0;
		close(c.ready);
		close(c.go);
		kill(said->grandchild, SIGKILL);
		if (!counter_becomes("clients", clients) || read(dev, &e, sizeof e) != sizeof e)
			break;
	}
	ok(ended == ROUNDS,
	   "a thread has its own table, which a child copies: its lease ends with its process (%d of %d)", ended,
	   ROUNDS);
}

/* A child that was forked, not a program of its own, has the device open as well. */
static void test_closed(int dev)
{
	const int64_t clients = counter("clients");
	int mine = device_open(), again;
	struct child c;
	struct moe_kmod_event e;

	lease_new(mine, said->pool, 5);
	again = dup(mine);
	c = child_start(a_keeper_of_descriptors, NULL);
	child_wait_ready(&c);
	close(mine);
	ok(counter("leases") == 0 && counter("clients") == clients + 1,
	   "a lease ends when its taker closes the device, though a child and another descriptor have it open");
	ok(read(dev, &e, sizeof e) == sizeof e && e.type == MOE_KMOD_EVENT_DROPPED, "the daemon reads of it");
	ok(lease_new(again, said->pool, 5) != 0, "the other descriptor may take another");
	close(again);
	ok(counter("leases") == 0, "which ends with that");
	ok(read(dev, &e, sizeof e) == sizeof e, "the daemon reads of it, too");
	child_end(&c, SIGKILL);
	ok(counter_becomes("clients", clients), "the device is closed with the child");
}

/* Its daemon has a child that has the device open. */
static void test_watcher_closed(void)
{
	int dev = device_open(), next = device_open();
	struct child c;

	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "a daemon watches");
	c = child_start(a_keeper_of_descriptors, NULL);
	child_wait_ready(&c);
	close(dev);
	ok(ioctl(next, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0,
	   "when it closes the device its successor may, though a child has it open");
	close(next);
	child_end(&c, SIGKILL);
}

static void test_both_die(void)
{
	struct child daemon = child_start(a_daemon, said), client;
	int dev;

	child_wait_ready(&daemon);
	client = child_start(a_client, NULL);
	child_wait_ready(&client);
	kill(client.pid, SIGKILL);
	child_end(&daemon, SIGKILL);
	child_end(&client, SIGKILL);
	ok(counter("leases") == 0 && counter("events") == 0 && counter("clients") == 0, "both are killed at once");
	ok(counter("pages") == PAGES, "the pool is there");
	dev = device_open();
	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "a successor may watch");
	ok(pool_release(dev, said->pool) == 0, "and release it");
	close(dev);
}

/* A daemon is killed while clients have leases; these go on. */
static void test_daemon_first(void)
{
	struct child daemon = child_start(a_daemon, said), client;
	struct moe_kmod_leases it = {0};
	int dev;

	child_wait_ready(&daemon);
	client = child_start(a_client, NULL);
	child_wait_ready(&client);
	child_end(&daemon, SIGKILL);
	dev = device_open();
	ok(ioctl(dev, MOE_KMOD_LEASES, &it) == 0 && it.pid == (uint32_t)client.pid && it.pool == said->pool,
	   "a successor finds the leases of clients that went on");
	ok(pool_release(dev, said->pool) == 0 && counter("pages") == PAGES, "what it releases stays while they read");
	child_end(&client, SIGKILL);
	ok(counter("pages") == 0, "and goes with the last of them");
	close(dev);
}

/* Many clients that are killed at any moment. */
static void test_many(void)
{
	enum { ROUNDS = 40, WIDE = 5 };
	struct child c[WIDE];

	for (int r = 0; r < ROUNDS; r++) {
		for (int i = 0; i < WIDE; i++)
			c[i] = child_start(a_client, NULL);
		for (int i = 0; i < WIDE; i++) {
			if ((r + i) % 3 == 0)
				child_wait_ready(&c[i]);
			child_end(&c[i], SIGKILL);
		}
	}
	ok(counter("leases") == 0, "%d clients were killed at any moment", ROUNDS * WIDE);
	ok(counter("clients") == 1, "none of their devices is open");
}

void test_deaths(void)
{
	int dev = device_open_flags(O_RDWR | O_NONBLOCK);

	said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	test_daemon_dies(dev);
	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "the successor watches");
	test_client_dies(dev);
	test_inherited(dev);
	test_shared_table(dev);
	test_threads(dev);
	test_closed(dev);
	test_many();
	pool_release(dev, said->pool);
	close(dev);
	test_watcher_closed();
	test_both_die();
	test_daemon_first();
	munmap(said, sizeof *said);
}
