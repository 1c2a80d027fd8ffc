/* SPDX-License-Identifier: MIT */
/* dma-bufs of leases: what an importing driver and the CPU are shown, what is refused, and how long it stays. */
#include "tests/kmod/device.h"
#include "tests/kmod/importer/importer.h"

#include <linux/dma-buf.h>
#include <pthread.h>
#include <stdio.h>

#define PAGES 5u
#define SEED 61u
#define BOTH_WAYS 0 /* enum dma_data_direction */
#define TO_DEVICE 1
#define FROM_DEVICE 2

static int export(int dev, uint64_t lease)
{
	struct moe_kmod_dmabuf d = {.lease = lease};

	return ioctl(dev, MOE_KMOD_DMABUF, &d) < 0 ? -1 : d.fd;
}

static uint64_t lease_range(int dev, uint64_t pool, uint64_t offset, uint64_t bytes)
{
	struct moe_kmod_lease l = lease_of(pool, 1, offset, bytes);

	return ioctl(dev, MOE_KMOD_LEASE, &l) < 0 ? 0 : l.id;
}

static void drop(int dev, uint64_t lease)
{
	ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = lease});
}

static int import(int importer, int fd, uint32_t direction, struct moe_import *said)
{
	*said = (struct moe_import){.fd = fd, .direction = direction};
	return ioctl(importer, MOE_IMPORT, said);
}

/* What the importer should have found between two bytes of the pool. */
static uint64_t sum_of(int pool, uint64_t offset, uint64_t bytes)
{
	const uint64_t *at = mmap(NULL, PAGES * HUGE_BYTES, PROT_READ, MAP_PRIVATE, pool, 0);
	uint64_t sum = 0;

	for (uint64_t w = offset / 8; at != MAP_FAILED && w < (offset + bytes) / 8; w++)
		sum += at[w];
	munmap((void *)(uintptr_t)at, PAGES * HUGE_BYTES);
	return sum;
}

/* Ranges that begin and end anywhere: one entry for each huge page that they touch. */
static void test_ranges(int dev, int importer, uint64_t pool, int file)
{
	static const struct {
		uint64_t offset, bytes;
		uint32_t entries, shortest;
	} ranges[] = {
		{0, PAGES * HUGE_BYTES, PAGES, HUGE_BYTES},
		{HUGE_BYTES, 2 * HUGE_BYTES, 2, HUGE_BYTES},
		{4096, 4096, 1, 4096},
		{HUGE_BYTES - 4096, 8192, 2, 4096},
		{HUGE_BYTES - 8192, 3 * HUGE_BYTES, 4, 8192},
	};
	struct moe_import said;

	for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
		uint64_t lease = lease_range(dev, pool, ranges[i].offset, ranges[i].bytes);
		int fd = export(dev, lease);

		ok(import(importer, fd, i % 2 ? TO_DEVICE : BOTH_WAYS, &said) == 0 &&
			   said.entries == ranges[i].entries && said.shortest == ranges[i].shortest &&
			   said.bytes == ranges[i].bytes && said.sum == sum_of(file, ranges[i].offset, ranges[i].bytes),
		   "an importer finds %u entries, the shortest of %u bytes, and the content", ranges[i].entries,
		   ranges[i].shortest);
		ioctl(importer, MOE_LET_GO);
		fails(import(importer, fd, FROM_DEVICE, &said), EACCES, "one that would write is refused");
		close(fd);
		drop(dev, lease);
	}
	ok(counter_becomes("exports", 0), "no dma-buf is left");
}

static int sync_for(int fd, uint64_t flags)
{
	return ioctl(fd, DMA_BUF_IOCTL_SYNC, &(struct dma_buf_sync){.flags = flags});
}

static void test_cpu(int dev, uint64_t pool, int file)
{
	const uint64_t offset = HUGE_BYTES - 4096, bytes = HUGE_BYTES + 4096;
	uint64_t lease = lease_range(dev, pool, offset, bytes), sum = 0;
	int fd = export(dev, lease), flags = fcntl(fd, F_GETFL);
	uint64_t *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	ok((flags & O_ACCMODE) == O_RDONLY && fcntl(fd, F_GETFD) == FD_CLOEXEC, "its descriptor can only be read");
	for (uint64_t w = 0; at != MAP_FAILED && w < bytes / 8; w++)
		sum += at[w];
	ok(at != MAP_FAILED && sum == sum_of(file, offset, bytes), "the CPU maps it, and reads the content");
	fails(mprotect(at, 4096, PROT_READ | PROT_WRITE), EACCES, "and cannot make that writable");
	ok(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES,
	   "nor map it writable");
	ok(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED, "nor for itself");
	ok(sync_for(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ) == 0, "access for reading");
	fails(sync_for(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE), EACCES, "access for writing");
	fails(sync_for(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW), EACCES, "access for both");
	munmap(at, bytes);
	close(fd);
	drop(dev, lease);
}

/* The lease ends, the pool is released, a driver has it mapped. */
static void test_lifetime(int dev, int importer, uint64_t pool)
{
	uint64_t lease = lease_range(dev, pool, 0, PAGES * HUGE_BYTES);
	int fd = export(dev, lease), other = open("/dev/moe-importer", O_RDWR | O_CLOEXEC);
	struct moe_import said;

	ok(import(importer, fd, TO_DEVICE, &said) == 0, "a driver has a dma-buf mapped");
	drop(dev, lease);
	fails(import(other, fd, TO_DEVICE, &said), ESTALE, "after the lease's end nobody attaches to it");
	ok(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ESTALE, "nor maps it");
	close(fd);
	pool_release(dev, pool);
	ok(counter("pages") == PAGES && counter("exports") == 1, "the pages stay while the driver has them");
	ok(module_unload() < 0 && errno == EAGAIN, "and so does the module");
	ioctl(importer, MOE_LET_GO);
	ok(counter_becomes("pages", 0) && counter_becomes("exports", 0), "they go when it lets go");
	close(other);
}

/* Without a lease a dma-buf holds what a process has mapped of it, and a descriptor nothing. */
static void test_held(int dev, int importer, int file)
{
	struct moe_kmod_adopt a = adopt_of(file, PAGES, 1, "exported");
	struct moe_import said;
	uint64_t lease;
	char *at;
	int fd;
	pid_t pid;

	a.flags = MOE_KMOD_POOL_DMABUF;
	ok(ioctl(dev, MOE_KMOD_ADOPT, &a) == 0, "the pool is adopted once more");
	lease = lease_range(dev, a.id, 0, PAGES * HUGE_BYTES);
	fd = export(dev, lease);
	at = mmap(NULL, PAGES * HUGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	require(at != MAP_FAILED, "a process has a dma-buf mapped");
	drop(dev, lease);
	pool_release(dev, a.id);
	munmap(at + HUGE_BYTES, HUGE_BYTES); /* two are left of it */
	pid = fork();
	while (pid == 0)
		pause();
	munmap(at, HUGE_BYTES);
	ok(counter("pages") == PAGES && at[2 * HUGE_BYTES] != 0, "the pages stay while a part of it is mapped");
	munmap(at + 2 * HUGE_BYTES, (PAGES - 2) * HUGE_BYTES);
	ok(counter("pages") == PAGES, "and while a child has it");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(counter_becomes("pages", 0) && counter("pools") == 0,
	   "they go with the last of them, though a descriptor is left");
	fails(import(importer, fd, TO_DEVICE, &said), ESTALE, "by which nobody attaches");
	ok(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ESTALE, "nor maps");
	close(fd);
	a = adopt_of(file, PAGES, 1, "exported");
	a.flags = MOE_KMOD_POOL_DMABUF;
	ioctl(dev, MOE_KMOD_ADOPT, &a);
	lease = lease_range(dev, a.id, 0, PAGES * HUGE_BYTES);
	fd = export(dev, lease);
	pool_release(dev, a.id);
	ok(counter("pages") == PAGES, "a lease keeps a released pool");
	drop(dev, lease);
	ok(counter("pages") == 0 && counter("exports") == 1,
	   "and its end lets go of it at once, whoever has a dma-buf");
	close(fd);
}

static void *maps_until_refused(void *fd)
{
	const size_t bytes = PAGES * HUGE_BYTES;
	void *at;

	while ((at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, *(int *)fd, 0)) != MAP_FAILED)
		munmap(at, bytes);
	return NULL;
}

/* A lease and its pool end while another thread maps and unmaps a dma-buf of it. */
static void test_ends_meanwhile(int dev, int file)
{
	enum { ROUNDS = 100 };
	int gone = 0;

	for (int i = 0; i < ROUNDS && gone == i; i++) {
		struct moe_kmod_adopt a = adopt_of(file, PAGES, 1, "exported");
		pthread_t thread;
		uint64_t lease;
		int fd;

		a.flags = MOE_KMOD_POOL_DMABUF;
		ioctl(dev, MOE_KMOD_ADOPT, &a);
		lease = lease_range(dev, a.id, 0, PAGES * HUGE_BYTES);
		fd = export(dev, lease);
		if (pthread_create(&thread, NULL, maps_until_refused, &fd) != 0)
			break;
		pool_release(dev, a.id);
		usleep((unsigned)i * 10);
		drop(dev, lease);
		pthread_join(thread, NULL);
		gone += counter_becomes("pages", 0) && counter("pools") == 0;
		close(fd);
	}
	ok(gone == ROUNDS, "a lease ends %d times while a thread maps: its pool goes with the last mapping (%d)",
	   ROUNDS, gone);
}

static void test_no_export(int dev)
{
	uint64_t pool = pool_new(dev, 1, 1, 1), lease = lease_new(dev, pool, 1);

	fails(export(dev, lease), EPERM, "DMABUF where the keeper does not allow it");
	fails(export(dev, lease + 9), ENOENT, "DMABUF of no lease");
	drop(dev, lease);
	pool_release(dev, pool);
}

void test_exports(void)
{
	int dev = device_open(), fd = pool_file(PAGES, SEED, -1, ALL_SEALS), importer;
	struct moe_kmod_adopt a = adopt_of(fd, PAGES, 1, "exported");
	uint64_t part;

	test_no_export(dev);
	require(module_load_file("/moe_importer.ko") == 0, "the importer loads");
	importer = open("/dev/moe-importer", O_RDWR | O_CLOEXEC);
	a.flags = MOE_KMOD_POOL_DMABUF;
	ok(ioctl(dev, MOE_KMOD_ADOPT, &a) == 0, "a pool that may be exported");
	part = lease_range(dev, a.id, 0, 4000);
	fails(export(dev, part), EINVAL, "DMABUF of a part of a page");
	drop(dev, part);
	test_ranges(dev, importer, a.id, fd);
	test_cpu(dev, a.id, fd);
	test_lifetime(dev, importer, a.id);
	test_held(dev, importer, fd);
	test_ends_meanwhile(dev, fd);
	close(importer);
	close(dev);
	close(fd);
	ok(syscall(SYS_delete_module, "moe_importer", O_NONBLOCK) == 0, "the importer is unloaded");
}
