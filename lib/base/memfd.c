/* SPDX-License-Identifier: MIT */
#include "base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

#define PIECE_BYTES (64u << 20)

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

int memfd_open(const char *name, unsigned flags)
{
	int fd = memfd_create(name, flags | MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	/* memfds are born 0777: any holder of a read-only fd could reopen it writable. */
	if (fchmod(fd, 0600) < 0) {
		int r = -errno;

		close_fd(fd);
		return r;
	}
	return fd;
}

/* In pieces, because a signal undoes the one that it interrupts. */
int memfd_make_pages(int fd, uint64_t offset, uint64_t bytes)
{
	for (uint64_t done = 0; done < bytes;) {
		const uint64_t piece = MIN(bytes - done, (uint64_t)PIECE_BYTES);

		if (fallocate(fd, 0, (off_t)(offset + done), (off_t)piece) == 0)
			done += piece;
		else if (errno != EINTR)
			return -errno;
	}
	return 0;
}

int memfd_new(const char *name, uint64_t bytes, struct moe_error *err)
{
	return memfd_new_sparse(name, bytes, bytes, err);
}

int memfd_new_sparse(const char *name, uint64_t bytes, uint64_t with_pages, struct moe_error *err)
{
	_cleanup_close_ int fd = memfd_open(name, 0);
	int r;

	if (fd < 0)
		return moe_error_sys(err, fd, "memfd_create(%s)", name);
	if (ftruncate(fd, (off_t)bytes) < 0)
		return moe_error_sys(err, -errno, "memfd %s: cannot make it %llu bytes", name,
				     (unsigned long long)bytes);
	r = memfd_make_pages(fd, 0, with_pages);
	if (r < 0)
		return moe_error_sys(err, r, "memfd %s: no memory for %llu bytes", name,
				     (unsigned long long)with_pages);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return moe_error_sys(err, -errno, "memfd %s: cannot seal its size", name);
	return steal_fd(&fd);
}

int memfd_append(int fd, const void *content, uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = write(fd, (const char *)content + done, bytes - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (uint64_t)n;
	}
	return 0;
}

int memfd_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0 ? -errno : 0;
}

int memfd_seal_size(int fd)
{
	return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ? -errno : 0;
}

void memfd_drop_pages(int fd, uint64_t offset, uint64_t bytes)
{
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

int memfd_new_sealed(const char *name, const void *content, uint64_t bytes, struct moe_error *err)
{
	_cleanup_close_ int fd = memfd_open(name, 0);
	int r;

	if (fd < 0)
		return moe_error_sys(err, fd, "memfd_create(%s)", name);
	r = memfd_append(fd, content, bytes);
	if (r < 0)
		return moe_error_sys(err, r, "memfd %s: cannot write %llu bytes", name, (unsigned long long)bytes);
	r = memfd_seal(fd);
	return r < 0 ? moe_error_sys(err, r, "memfd %s: cannot seal it", name) : steal_fd(&fd);
}

int memfd_reopen_readonly(int fd)
{
	char path[32];
	int ro;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	return ro < 0 ? -errno : ro;
}

int memfd_verify(int fd, uint64_t min_bytes, int seals, uint64_t *ret_bytes, const char *what, struct moe_error *err)
{
	struct statfs fs;
	struct stat st;
	int have;

	/* First, because it waits for nothing; fstat waits for the server of a network's or a FUSE file. */
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0)
		return moe_error_sys(err, -EINVAL, "%s: not a memfd, or it carries no seals", what);
	if (fstatfs(fd, &fs) < 0 || fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s: cannot examine the file descriptor", what);
	if (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC)
		return moe_error_set(err, -EINVAL, "%s: not a memfd (file system type 0x%lx)", what,
				     (unsigned long)fs.f_type);
	if ((have & seals) != seals)
		return moe_error_set(err, -EINVAL, "%s: seals 0x%x found, 0x%x required", what, (unsigned)have,
				     (unsigned)seals);
	if (st.st_size < 0 || (uint64_t)st.st_size < min_bytes)
		return moe_error_set(err, -EINVAL, "%s: %lld bytes found, at least %llu expected", what,
				     (long long)st.st_size, (unsigned long long)min_bytes);
	if (ret_bytes)
		*ret_bytes = (uint64_t)st.st_size;
	return 0;
}

bool memfd_has_seals(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

bool memfd_is_hugetlb(int fd)
{
	struct statfs fs;

	return memfd_has_seals(fd) && fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC;
}

int memfd_map(void **ret, int fd, uint64_t bytes, int prot, const char *what, struct moe_error *err)
{
	void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return moe_error_sys(err, -errno, "%s: cannot map %llu bytes", what, (unsigned long long)bytes);
	*ret = p;
	return 0;
}

void memfd_want_page(void *at)
{
	madvise((void *)((uintptr_t)at & ~(uintptr_t)4095), 4096, MADV_POPULATE_WRITE);
}
