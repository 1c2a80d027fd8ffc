/* SPDX-License-Identifier: MIT */
#include "daemon/shardfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"

/* What the file system says about direct reads, or, where the kernel does not know, what a read of the first block
 * says. */
static bool can_read_direct(int fd)
{
	_Alignas(SHARDFILE_ALIGN) char block[SHARDFILE_ALIGN];
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) &&
	    (stx.stx_dio_offset_align == 0 || stx.stx_dio_offset_align > SHARDFILE_ALIGN ||
	     stx.stx_dio_mem_align > SHARDFILE_ALIGN))
		return false;
	return pread(fd, block, sizeof block, 0) >= 0;
}

int shardfile_check(const struct shardfile *file, struct moe_error *err)
{
	struct stat st;

	if (fstat(file->fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s", file->shard->path);
	if ((uint64_t)st.st_size != file->shard->bytes)
		return moe_error_set(err, -ESTALE,
				     "%s: size %lld found, %" PRIu64
				     " expected: the file was changed while it was read",
				     file->shard->path, (long long)st.st_size, file->shard->bytes);
	if (st.st_mtim.tv_sec != file->modified.tv_sec || st.st_mtim.tv_nsec != file->modified.tv_nsec)
		return moe_error_set(err, -ESTALE, "%s: the file was written to while it was read", file->shard->path);
	return 0;
}

/* A FIFO must not hold us up, nor io_uring's reads believe that they may not wait. */
static int open_file(const char *path, int flags)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);

	if (fd >= 0)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	return fd;
}

/* Whether it is the file whose header was read. */
static int check_same(const struct shard *shard, const struct stat *st, struct moe_error *err)
{
	const struct file_id *id = &shard->id;

	if (!S_ISREG(st->st_mode))
		return moe_error_set(err, -EINVAL, "%s: not a regular file", shard->path);
	if (id->inode && (st->st_dev != id->device || st->st_ino != id->inode ||
			  st->st_mtim.tv_sec != id->modified.tv_sec || st->st_mtim.tv_nsec != id->modified.tv_nsec))
		return moe_error_set(err, -ESTALE, "%s: the file was replaced or written to while the model was read",
				     shard->path);
	return 0;
}

int shardfile_open(struct shardfile *ret, const struct shard *shard, bool buffered, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	struct shardfile file = {.direct = !buffered, .shard = shard};
	struct stat st;
	int r;

	if (!buffered) {
		fd = open_file(shard->path, O_DIRECT);
		if (fd >= 0 && !can_read_direct(fd))
			fd = close_fd(fd);
		file.direct = fd >= 0;
	}
	if (fd < 0)
		fd = open_file(shard->path, 0);
	if (fd < 0 || fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s", shard->path);
	file.modified = st.st_mtim;
	file.fd = fd;
	r = check_same(shard, &st, err);
	if (r == 0)
		r = shardfile_check(&file, err);
	if (r < 0)
		return r;
	if (!file.direct)
		posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	*ret = file;
	fd = -1;
	return 0;
}

int shardfile_short(const struct shardfile *file, uint64_t offset, uint64_t expected, uint64_t found,
		    struct moe_error *err)
{
	return moe_error_set(err, -ESTALE,
			     "%s: %" PRIu64 " bytes found at offset %" PRIu64 ", %" PRIu64
			     " expected: the file was cut "
			     "while it was read",
			     file->shard->path, found, offset, expected);
}

void shardfile_drop(const struct shardfile *file, uint64_t offset)
{
	if (!file->direct)
		posix_fadvise(file->fd, 0, (off_t)offset, POSIX_FADV_DONTNEED);
}

void shardfile_close(struct shardfile *file)
{
	file->fd = close_fd(file->fd);
}
