/* SPDX-License-Identifier: MIT */
/*
 * lessee - a client of the kernel module without a right of its own, for tests/kmod/daemon-in-guest.sh: it leases
 * weights of a model that the daemon has loaded, and knows nothing of the daemon but the name of its pools.
 *
 *   lessee hold MODEL FILE TENSOR   finds the tensor's bytes, as they are in the safetensors file, in MODEL's pools,
 *                                   leases where they lie, compares them once more, prints "held POOL EPOCH", waits
 *   lessee stale POOL EPOCH         leases of that epoch: prints "refused" when the module says ESTALE
 *
 * What is not as it must be is said in one line, exit code 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "uapi/moe_kmod.h"

#define SOMEBODY 1000 /* a user and group that own nothing */
#define POOL_NAME "moe-expertd:"
#define PAGE 4096u

static void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(": %s\n", strerror(errno));
	exit(1);
}

struct bytes {
	const uint8_t *at;
	uint64_t n;
};

static struct bytes map_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct bytes b = {0};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		die("%s", path);
	b = (struct bytes){mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0), (uint64_t)st.st_size};
	if (b.at == MAP_FAILED)
		die("%s: mmap", path);
	close(fd);
	return b;
}

/* Eight bytes of length, a header of JSON, then data; offsets count from there. */
static struct bytes tensor_of(const struct bytes *file, const char *name)
{
	uint64_t length, from, to;
	const char *offsets;
	char *header, key[256];

	memcpy(&length, file->at, sizeof length);
	header = length < file->n ? strndup((const char *)file->at + 8, length) : NULL;
	snprintf(key, sizeof key, "\"%s\":", name);
	offsets = header ? strstr(header, key) : NULL;
	offsets = offsets ? strstr(offsets, "\"data_offsets\":") : NULL;
	if (!offsets || sscanf(offsets, "\"data_offsets\": [%" SCNu64 ", %" SCNu64 "]", &from, &to) != 2 ||
	    to <= from || 8 + length + to > file->n)
		die("no tensor %s", name);
	free(header);
	return (struct bytes){file->at + 8 + length + from, to - from};
}

static bool next_pool(int dev, const char *model, struct moe_kmod_pool *pool)
{
	char name[MOE_KMOD_NAME];

	snprintf(name, sizeof name, POOL_NAME "%s", model);
	do
		*pool = (struct moe_kmod_pool){.id = pool->id};
	while (ioctl(dev, MOE_KMOD_POOL, pool) == 0 && strcmp(pool->name, name) != 0);
	return strcmp(pool->name, name) == 0;
}

/* A lease, and its range mapped; that it can be written is an error. */
static const uint8_t *lease(int dev, const struct moe_kmod_pool *pool, uint64_t offset, uint64_t bytes,
			    struct moe_kmod_lease *ret)
{
	const uint64_t before = offset % pool->page_bytes, whole = offset - before;
	const uint8_t *at;

	*ret = (struct moe_kmod_lease){
		.pool = pool->id, .epoch = pool->epoch, .offset = offset, .bytes = bytes, .flags = MOE_KMOD_LEASE_FD};
	if (ioctl(dev, MOE_KMOD_LEASE, ret) < 0)
		die("LEASE of pool %" PRIu64, (uint64_t)pool->id);
	if (mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ret->fd, (off_t)whole) != MAP_FAILED)
		die("a lease was mapped writable");
	at = mmap(NULL, before + bytes, PROT_READ, MAP_SHARED, ret->fd, (off_t)whole);
	if (at == MAP_FAILED)
		die("a lease cannot be mapped");
	close(ret->fd);
	return at + before;
}

static bool search(int dev, const struct moe_kmod_pool *pool, const struct bytes *tensor, uint64_t *offset)
{
	struct moe_kmod_lease all;
	const uint8_t *at = lease(dev, pool, 0, pool->bytes, &all);
	const uint8_t *found = memmem(at, pool->bytes, tensor->at, tensor->n);

	if (found)
		*offset = (uint64_t)(found - at);
	munmap((void *)(uintptr_t)at, pool->bytes);
	if (ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = all.id}) < 0)
		die("DROP");
	return found;
}

static int hold(int dev, const char *model, const char *path, const char *name)
{
	const struct bytes file = map_file(path), tensor = tensor_of(&file, name);
	struct moe_kmod_pool pool = {0};
	struct moe_kmod_lease held;
	uint64_t offset = 0;
	bool found = false;

	while (!found && next_pool(dev, model, &pool))
		found = search(dev, &pool, &tensor, &offset);
	if (!found)
		die("the bytes of %s are in no pool of %s", name, model);
	if (memcmp(lease(dev, &pool, offset, tensor.n, &held), tensor.at, tensor.n) != 0)
		die("a lease shows other bytes than the file");
	printf("held %" PRIu64 " %" PRIu64 "\n", (uint64_t)pool.id, (uint64_t)pool.epoch);
	fflush(stdout);
	for (;;)
		pause();
}

static int stale(int dev, const char *pool, const char *epoch)
{
	struct moe_kmod_lease l = {.pool = strtoull(pool, NULL, 10), .epoch = strtoull(epoch, NULL, 10), .bytes = PAGE};

	if (ioctl(dev, MOE_KMOD_LEASE, &l) == 0 || errno != ESTALE)
		die("a lease of epoch %s", epoch);
	puts("refused");
	return 0;
}

int main(int argc, char **argv)
{
	struct moe_kmod_features f = {0};
	int dev;

	if (setgroups(0, NULL) < 0 || setgid(SOMEBODY) < 0 || setuid(SOMEBODY) < 0)
		die("cannot become user %d", SOMEBODY);
	dev = open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC);
	if (dev < 0 || ioctl(dev, MOE_KMOD_FEATURES, &f) < 0 || f.keeper)
		die(MOE_KMOD_DEVICE);
	if (argc == 5 && strcmp(argv[1], "hold") == 0)
		return hold(dev, argv[2], argv[3], argv[4]);
	if (argc == 4 && strcmp(argv[1], "stale") == 0)
		return stale(dev, argv[2], argv[3]);
	die("hold MODEL FILE TENSOR, or stale POOL EPOCH");
}
