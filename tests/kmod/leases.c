/* SPDX-License-Identifier: MIT */
/* Leases and the events of their ends, and what a lease's descriptor cannot do. */
#include "tests/kmod/device.h"

#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define PAGES 2u

static int lease(int dev, struct moe_kmod_lease l)
{
	return ioctl(dev, MOE_KMOD_LEASE, &l);
}

static int drop(int dev, uint64_t id)
{
	return ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = id});
}

static void test_ranges(int dev, uint64_t pool)
{
	const uint64_t all = PAGES * HUGE_BYTES;

	fails(lease(dev, lease_of(pool, 1, 0, 0)), ERANGE, "LEASE of nothing");
	fails(lease(dev, lease_of(pool, 1, 0, all + 1)), ERANGE, "LEASE of more than there is");
	fails(lease(dev, lease_of(pool, 1, all, 1)), ERANGE, "LEASE behind the end");
	fails(lease(dev, lease_of(pool, 1, all - 1, 2)), ERANGE, "LEASE over the end");
	fails(lease(dev, lease_of(pool, 1, 4096, UINT64_MAX)), ERANGE, "LEASE that overflows");
	fails(lease(dev, lease_of(pool, 1, UINT64_MAX, UINT64_MAX)), ERANGE, "LEASE that overflows twice");
	fails(lease(dev, lease_of(pool, 2, 0, all)), ESTALE, "LEASE of an epoch to come");
	fails(lease(dev, lease_of(pool + 1, 1, 0, all)), ENOENT, "LEASE of no pool");
	ok(lease(dev, lease_of(pool, 1, 0, all)) == 0, "LEASE of all");
	ok(lease(dev, lease_of(pool, 1, all - 1, 1)) == 0, "LEASE of the last byte");
}

/* The answer cannot be written: the lease and its descriptor are taken back. */
static void test_no_answer(int dev, uint64_t pool)
{
	struct moe_kmod_lease *l = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int64_t before = counter("leases");
	int fd = dup(0);

	close(fd);
	*l = lease_of(pool, 1, 0, 4096);
	l->flags = MOE_KMOD_LEASE_FD;
	mprotect(l, 4096, PROT_READ);
	fails(ioctl(dev, MOE_KMOD_LEASE, l), EFAULT, "LEASE without room for the answer");
	ok(counter("leases") == before, "it was taken back");
	ok(dup(0) == fd, "with its descriptor");
	close(fd);
	munmap(l, 4096);
}

static bool cannot_write(char *at, int fd)
{
	char byte = 1, path[64];
	struct iovec mine = {&byte, 1}, theirs = {at, 1};
	int mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	int good = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES;

	good += mprotect(at, HUGE_BYTES, PROT_READ | PROT_WRITE) < 0 && errno == EACCES;
	good += pwrite(mem, &byte, 1, (off_t)(uintptr_t)at) < 0;
	good += process_vm_writev(getpid(), &mine, 1, &theirs, 1, 0) < 0;
	good += write(fd, &byte, 1) < 0;
	good += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE_BYTES) < 0;
	good += madvise(at, HUGE_BYTES, MADV_REMOVE) < 0;
	good += ftruncate(fd, 0) < 0;
	good += fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	good += open(path, O_RDWR | O_CLOEXEC) < 0 && errno == EACCES;
	close(mem);
	if (good != 10)
		printf("# %d of 10 ways to write are refused\n", good);
	return good == 10;
}

/* As a user of its own, on a pool that is not sealed against writing: the descriptor alone must do. */
static void a_reader(void *arg)
{
	struct moe_kmod_lease l = lease_of(*(uint64_t *)arg, 1, 0, HUGE_BYTES);
	bool good = setresgid(SOMEBODY, SOMEBODY, SOMEBODY) == 0 && setresuid(SOMEBODY, SOMEBODY, SOMEBODY) == 0;
	int dev;
	char *at;

	/* Or nobody may look into its /proc, itself neither. */
	prctl(PR_SET_DUMPABLE, 1);
	dev = device_open();
	l.flags = MOE_KMOD_LEASE_FD;
	good = good && ioctl(dev, MOE_KMOD_LEASE, &l) == 0 && fcntl(l.fd, F_GETFD) == FD_CLOEXEC &&
	       (fcntl(l.fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
	at = mmap(NULL, HUGE_BYTES, PROT_READ, MAP_SHARED, l.fd, 0);
	good = good && at != MAP_FAILED && pool_is(l.fd, PAGES, 9) && cannot_write(at, l.fd);
	_exit(good && pool_is(l.fd, PAGES, 9) ? 0 : 1);
}

static void test_read_only(int dev)
{
	int fd = pool_file(PAGES, 9, -1, F_SEAL_SHRINK | F_SEAL_GROW), status;
	struct moe_kmod_adopt a = adopt_of(fd, PAGES, 1, "writable by its owner");
	struct child c;

	ok(ioctl(dev, MOE_KMOD_ADOPT, &a) == 0, "a pool that its owner may write");
	close(fd);
	c = child_start(a_reader, &a.id);
	status = child_end(&c, 0);
	ok(status == 0, "a lease's descriptor shows the content, and cannot change it in ten ways");
	pool_release(dev, a.id);
}

static void test_stale(int dev, uint64_t pool)
{
	struct moe_kmod_leases it = {0};
	uint64_t old = lease_new(dev, pool, 1), id;

	ioctl(dev, MOE_KMOD_EPOCH, &(struct moe_kmod_epoch){.id = pool, .epoch = 2});
	fails(lease(dev, lease_of(pool, 1, 0, 4096)), ESTALE, "LEASE of an epoch that is over");
	id = lease_new(dev, pool, 2);
	ok(id > old, "LEASE of the present epoch");
	it.id = id - 1;
	ok(ioctl(dev, MOE_KMOD_LEASES, &it) == 0 && it.id == id && it.epoch == 2 && it.pool == pool && it.offset == 0 &&
		   it.bytes == 4096 && it.pid == (uint32_t)getpid() && it.uid == 0,
	   "LEASES tells of it");
	fails(ioctl(dev, MOE_KMOD_LEASES, &it), ENOENT, "and that there are no more");
	it.id = old - 1;
	ok(ioctl(dev, MOE_KMOD_LEASES, &it) == 0 && it.id == old && it.epoch == 1, "an old one keeps its epoch");
}

/* Released while it is leased. */
static void test_released(int dev)
{
	uint64_t pool = pool_new(dev, PAGES, 3, 1), id = lease_new(dev, pool, 1);
	const int64_t pages = counter("pages");

	ok(pool_release(dev, pool) == 0, "a pool is released that is leased");
	ok(counter("pages") == pages, "its pages stay");
	fails(lease(dev, lease_of(pool, 1, 0, 4096)), ESTALE, "LEASE of what was released");
	ok(drop(dev, id) == 0 && counter("pages") == pages - PAGES, "they go with the last lease");
}

static void somebody_else_leases(void *arg)
{
	if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(2);
	_exit(lease_new(device_open(), *(uint64_t *)arg, 2) ? 0 : 1);
}

/* What one user may have of all, without taking it from another. */
static void test_user(uint64_t pool)
{
	static int devices[MOE_KMOD_USER_DEVICES_MAX + 1];
	const struct rlimit many = {8192, 8192};
	const int64_t before = counter("clients"), leases = counter("leases");
	struct child c;
	int n = 0, taken = 0;

	setrlimit(RLIMIT_NOFILE, &many);
	while (n <= MOE_KMOD_USER_DEVICES_MAX && (devices[n] = device_open_flags(O_RDWR)) >= 0)
		n++;
	ok(n + before == MOE_KMOD_USER_DEVICES_MAX && errno == EDQUOT, "%d open devices of a user, then EDQUOT", n);
	ok(counter("clients") == MOE_KMOD_USER_DEVICES_MAX, "one that was refused is not counted");
	for (int i = 0; i < 5; i++)
		while (taken <= MOE_KMOD_USER_LEASES_MAX && lease_new(devices[i], pool, 2))
			taken++;
	ok(taken + leases == MOE_KMOD_USER_LEASES_MAX && errno == EDQUOT, "%d leases of a user, then EDQUOT", taken);
	c = child_start(somebody_else_leases, &pool);
	ok(child_end(&c, 0) == 0, "another user opens the device and gets a lease");
	while (n > 0)
		close(devices[--n]);
	ok(counter("leases") == leases && counter("clients") == before, "they end with their devices");
}

void test_leases(void)
{
	int dev = device_open(), other = device_open();
	uint64_t pool = pool_new(dev, PAGES, 1, 1), id;
	int taken = 0;

	test_ranges(dev, pool);
	test_no_answer(dev, pool);
	id = lease_new(dev, pool, 1);
	fails(drop(other, id), ENOENT, "DROP of another's lease");
	ok(drop(dev, id) == 0, "DROP of one's own");
	fails(drop(dev, id), ENOENT, "DROP again");
	test_stale(dev, pool);
	test_read_only(dev);
	test_released(dev);
	test_user(pool);
	while (taken < 5000 && lease_new(other, pool, 2))
		taken++;
	ok(taken == MOE_KMOD_LEASES_MAX && errno == EMFILE, "%d leases of one device, then EMFILE", taken);
	close(other);
	ok(counter("leases") == 4, "they end with it (%lld are left)", (long long)counter("leases"));
	pool_release(dev, pool);
	close(dev);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static bool readable(int dev)
{
	struct pollfd p = {.fd = dev, .events = POLLIN};

	return poll(&p, 1, 0) == 1 && p.revents == POLLIN;
}

static void *read_one(void *arg)
{
	static struct moe_kmod_event event;

	return read(*(int *)arg, &event, sizeof event) == sizeof event ? &event : NULL;
}

/* A reader that sleeps until there is something. */
static void test_blocking(uint64_t pool)
{
	int dev = device_open(), other = device_open();
	struct moe_kmod_event *event = NULL;
	pthread_t thread;
	uint64_t id;

	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "WATCH");
	id = lease_new(other, pool, 1);
	pthread_create(&thread, NULL, read_one, &dev);
	close(other);
	pthread_join(thread, (void **)&event);
	ok(event && event->type == MOE_KMOD_EVENT_DROPPED && event->lease == id, "a reader waits for an event");
	close(dev);
}

static void test_overflow(int dev, uint64_t pool)
{
	static struct moe_kmod_event events[MOE_KMOD_EVENTS_MAX + 8];
	const int more = 10;
	int a = device_open(), b = device_open();
	ssize_t bytes;

	for (int i = 0; i < MOE_KMOD_EVENTS_MAX; i++)
		lease_new(a, pool, 1);
	for (int i = 0; i < more; i++)
		lease_new(b, pool, 1);
	close(a);
	close(b);
	ok(counter("events") == MOE_KMOD_EVENTS_MAX, "%d events wait", MOE_KMOD_EVENTS_MAX);
	bytes = read(dev, events, sizeof events);
	ok(bytes == (MOE_KMOD_EVENTS_MAX + 1) * (ssize_t)sizeof *events, "they are read at once");
	ok(events[MOE_KMOD_EVENTS_MAX].type == MOE_KMOD_EVENT_LOST && events[MOE_KMOD_EVENTS_MAX].lease == 10,
	   "and that %d were lost", more);
	ok(!readable(dev), "then nothing is left to read");
}

void test_events(void)
{
	int dev = device_open_flags(O_RDWR | O_NONBLOCK), other = device_open();
	uint64_t pool = pool_new(dev, 1, 1, 1), id;
	struct moe_kmod_event e[2];

	fails((int)read(dev, e, sizeof e), EPERM, "read without WATCH");
	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "WATCH");
	fails(ioctl(other, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}), EBUSY, "WATCH by two");
	fails((int)read(dev, e, sizeof e), EAGAIN, "read when there is nothing");
	fails((int)read(dev, e, sizeof *e - 1), EINVAL, "read with too little room");
	id = lease_new(other, pool, 1);
	drop(other, id);
	ok(!readable(dev), "DROP is no event");
	id = lease_new(other, pool, 1);
	close(other);
	ok(readable(dev), "closing the device is one");
	fails((int)syscall(SYS_read, dev, 8ul, sizeof *e), EFAULT, "read into nothing");
	ok(read(dev, e, sizeof e) == sizeof *e && e->type == MOE_KMOD_EVENT_LOST && e->lease == 1, "counts it as lost");
	other = device_open();
	id = lease_new(other, pool, 1);
	close(other);
	ok(read(dev, e, sizeof e) == sizeof *e && e->type == MOE_KMOD_EVENT_DROPPED && e->lease == id &&
		   e->pool == pool && e->epoch == 1 && e->offset == 0 && e->bytes == 4096 &&
		   e->pid == (uint32_t)getpid() && e->uid == 0 && e->state == 0,
	   "it tells whose lease it was, and of what");
	test_overflow(dev, pool);
	other = device_open();
	lease_new(other, pool, 1);
	close(other);
	pool_release(dev, pool);
	close(dev);
	ok(counter("events") == 0, "events end with their reader");
	dev = device_open();
	pool = pool_new(dev, 1, 1, 1);
	test_blocking(pool);
	pool_release(dev, pool);
	close(dev);
}
