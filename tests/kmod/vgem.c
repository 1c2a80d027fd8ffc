/* SPDX-License-Identifier: MIT */
/*
 * vgem, the kernel's own DRM driver without a device, imports a lease's dma-buf. What it was given to map is what the
 * kernel's debugging of DMA lists for it: one entry for each huge page, at the page's own address, for reading. vgem
 * lets nobody map what it has imported, so content is read through the dma-buf that it gives back.
 */
#include "tests/kmod/device.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#define PAGES 5u
#define BYTES (PAGES * HUGE_BYTES)
#define SEED 77u

/* Of the kernel's drm.h, which only libdrm's package brings. */
struct drm_version {
	int major, minor, patch;
	size_t name_len;
	char *name;
	size_t date_len;
	char *date;
	size_t desc_len;
	char *desc;
};
struct drm_gem_close {
	uint32_t handle, pad;
};
struct drm_prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
#define DRM_IOCTL_VERSION _IOWR('d', 0x00, struct drm_version)
#define DRM_IOCTL_GEM_CLOSE _IOW('d', 0x09, struct drm_gem_close)
#define DRM_IOCTL_PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct drm_prime_handle)
#define DRM_IOCTL_PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct drm_prime_handle)

static bool is_vgem(int fd)
{
	char name[16] = "";
	struct drm_version v = {.name = name, .name_len = sizeof name - 1};

	return ioctl(fd, DRM_IOCTL_VERSION, &v) == 0 && strcmp(name, "vgem") == 0;
}

static int open_vgem(void)
{
	DIR *dir = opendir("/dev/dri");
	int found = -1;

	for (struct dirent *e; dir && found < 0 && (e = readdir(dir));) {
		found = openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC);
		if (found >= 0 && !is_vgem(found)) {
			close(found);
			found = -1;
		}
	}
	if (dir)
		closedir(dir);
	return found;
}

/* Of a page that is mapped, as root sees it; 0 when it cannot be seen. */
static uint64_t physical(const volatile char *at)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t word = 0;

	(void)*at;
	if (pread(fd, &word, sizeof word, (off_t)((uintptr_t)at / 4096 * 8)) != sizeof word)
		word = 0;
	close(fd);
	return (word & ((1ull << 55) - 1)) * 4096;
}

/* How many of the huge pages at `at` vgem has mapped to read them, and *entries, how many it has mapped of anything. */
static unsigned pages_mapped(const char *at, unsigned *entries)
{
	FILE *file = fopen(DEBUGGING "dma-api/dump", "re");
	char line[256];
	unsigned found = 0;

	*entries = 0;
	while (file && fgets(line, sizeof line, file)) {
		const char *where = strstr(line, "P=0x"), *bytes = strstr(line, " L=");

		if (!strstr(line, "vgem") || !where || !bytes)
			continue;
		++*entries;
		for (unsigned p = 0; p < PAGES; p++)
			found += strtoull(where + 2, NULL, 16) == physical(at + p * HUGE_BYTES) &&
				 strtoull(bytes + 3, NULL, 16) == HUGE_BYTES && strstr(line, "DMA_TO_DEVICE");
	}
	if (file)
		fclose(file);
	return found;
}

static int export(int dev, uint64_t lease)
{
	struct moe_kmod_dmabuf d = {.lease = lease};

	return ioctl(dev, MOE_KMOD_DMABUF, &d) < 0 ? -1 : d.fd;
}

static void look_at_entries(int pool)
{
	const char *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, pool, 0);
	unsigned entries, found;
	struct stat st;

	if (stat(DEBUGGING "dma-api/dump", &st) < 0) {
		tap_skip("this kernel does not tell what is mapped for DMA: no debugfs dma-api/dump");
	} else {
		found = pages_mapped(at, &entries);
		ok(entries == PAGES && found == PAGES,
		   "it has %u entries mapped, of which %u are a whole huge page of the pool, to be read", entries,
		   found);
	}
	munmap((void *)(uintptr_t)at, BYTES);
}

static void import(int vgem, int dev, uint64_t pool, int file)
{
	struct moe_kmod_lease l = lease_of(pool, 1, 0, BYTES);
	struct drm_prime_handle p = {0}, back = {.flags = O_CLOEXEC};
	struct drm_gem_close end = {0};

	ioctl(dev, MOE_KMOD_LEASE, &l);
	p.fd = export(dev, l.id);
	ok(ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &p) == 0, "vgem imports the dma-buf");
	close(p.fd);
	look_at_entries(file);
	back.handle = p.handle;
	ok(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &back) == 0 && lseek(back.fd, 0, SEEK_END) == (off_t)BYTES,
	   "it gives back a dma-buf of %llu bytes", BYTES);
	ok(pool_is(back.fd, PAGES, SEED), "with the pool's content");
	ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = l.id});
	ok(mmap(NULL, BYTES, PROT_READ, MAP_SHARED, back.fd, 0) == MAP_FAILED && errno == ESTALE,
	   "which after the lease's end nobody maps");
	close(back.fd);
	pool_release(dev, pool);
	ok(counter("pages") == PAGES && counter("exports") == 1, "the pages stay while vgem has them");
	end.handle = p.handle;
	ok(ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &end) == 0 && counter_becomes("pages", 0) && counter_becomes("exports", 0),
	   "they go when it lets go");
}

void test_vgem(void)
{
	int vgem = open_vgem(), dev, fd;
	struct moe_kmod_adopt a;

	if (vgem < 0) {
		tap_skip("this kernel has no vgem: nothing in /dev/dri (make check-kmod-debug)");
		return;
	}
	dev = device_open();
	fd = pool_file(PAGES, SEED, -1, ALL_SEALS);
	a = adopt_of(fd, PAGES, 1, "exported");
	a.flags = MOE_KMOD_POOL_DMABUF;
	require(ioctl(dev, MOE_KMOD_ADOPT, &a) == 0, "a pool that may be exported");
	import(vgem, dev, a.id, fd);
	close(vgem);
	close(dev);
	close(fd);
}
