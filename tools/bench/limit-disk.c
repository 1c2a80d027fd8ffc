/* SPDX-License-Identifier: MIT */
/*
 * limit-disk - how fast a model's files can be read at all: one behind the other, around the page cache, with as many
 * reads of the same size in flight as a load has.
 *
 * Law: the clock runs only while there is something to read. Files are open, buffers are there and registered before;
 * a file's end does not empty the queue; a buffer that has just been read into is the next to be read into, since it
 * is the one that is still in a cache. A limit that is measured worse than it could be makes a share of it too good.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "bench.h"
#include "model/gguf.h"

/* The loader's (daemon/loader.h). */
#define BLOCK (512u << 10)
#define DEPTH 16u
#define ROOM ((uint64_t)DEPTH * BLOCK)

struct disk_file {
	int fd;
	uint64_t bytes;
};

struct disk {
	struct disk_file *files;
	uint32_t n_files, file; /* the file of the next read */
	uint64_t offset;        /* of the next read */
	uint64_t got;           /* bytes */
	char *buffers;
	uint32_t free[DEPTH], n_free;
	struct io_uring ring;
	bool ring_open, fixed;
};

static int is_shard(const struct dirent *entry)
{
	const char *suffix = strrchr(entry->d_name, '.');

	return suffix && strcmp(suffix, ".safetensors") == 0;
}

static int open_file(struct disk *d, int dir, const char *name)
{
	struct disk_file *file = &d->files[d->n_files];
	struct stat st;

	file->fd = openat(dir, name, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (file->fd < 0)
		return -errno;
	d->n_files++;
	if (fstat(file->fd, &st) < 0)
		return -errno;
	file->bytes = (uint64_t)st.st_size;
	return file->bytes > 0 ? 0 : -ENODATA;
}

static int open_shards(struct disk *d, const char *folder)
{
	_cleanup_close_ int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct dirent **entries;
	const int n = dir < 0 ? -1 : scandir(folder, &entries, is_shard, alphasort);
	int r = n < 0 ? -errno : n == 0 ? -ENOENT : 0;

	if (n < 0)
		return r;
	d->files = calloc((size_t)n + 1, sizeof *d->files);
	r = d->files ? r : -ENOMEM;
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = open_file(d, dir, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return r;
}

/* Which files those are, the daemon's loader says. */
static int open_gguf(struct disk *d, const char *path)
{
	struct moe_error err;
	uint32_t n = 0;
	char **files;
	int r = gguf_files(path, &files, &n, &err);

	if (r < 0)
		return r;
	d->files = calloc(n, sizeof *d->files);
	r = d->files ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = open_file(d, AT_FDCWD, files[i]);
	gguf_files_free(files, n);
	return r;
}

static int open_ring(struct disk *d)
{
	const struct iovec room = {.iov_base = d->buffers, .iov_len = ROOM};
	const int r = io_uring_queue_init(DEPTH, &d->ring, 0);

	if (r < 0)
		return r;
	d->ring_open = true;
	d->fixed = io_uring_register_buffers(&d->ring, &room, 1) == 0;
	for (uint32_t i = 0; i < DEPTH; i++)
		d->free[d->n_free++] = i;
	return 0;
}

static void ask(struct disk *d)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&d->ring);
	const struct disk_file *file = &d->files[d->file];
	const uint32_t buffer = d->free[--d->n_free];
	char *to = d->buffers + (size_t)buffer * BLOCK;

	if (d->fixed)
		io_uring_prep_read_fixed(sqe, file->fd, to, BLOCK, d->offset, 0);
	else
		io_uring_prep_read(sqe, file->fd, to, BLOCK, d->offset);
	io_uring_sqe_set_data64(sqe, buffer);
	d->offset += BLOCK;
	if (d->offset >= file->bytes) {
		d->file++;
		d->offset = 0;
	}
}

/* Waits for one read, and takes all that have ended. */
static int take(struct disk *d)
{
	struct io_uring_cqe *cqe;
	int r = io_uring_submit_and_wait(&d->ring, 1);

	if (r < 0 && r != -EINTR)
		return r;
	for (r = 0; io_uring_peek_cqe(&d->ring, &cqe) == 0; io_uring_cqe_seen(&d->ring, cqe)) {
		d->free[d->n_free++] = (uint32_t)io_uring_cqe_get_data64(cqe);
		if (cqe->res < 0)
			r = cqe->res;
		else
			d->got += (uint64_t)cqe->res;
	}
	return r;
}

static int read_files(struct disk *d)
{
	int r = 0;

	while (r == 0 && (d->file < d->n_files || d->n_free < DEPTH)) {
		while (d->file < d->n_files && d->n_free > 0)
			ask(d);
		r = take(d);
	}
	return r;
}

/* What is still in flight after a failure writes into pages that the kernel holds until it has ended. */
static void close_disk(struct disk *d)
{
	if (d->ring_open)
		io_uring_queue_exit(&d->ring);
	for (uint32_t i = 0; i < d->n_files; i++)
		close_fd(d->files[i].fd);
	free(d->files);
	if (d->buffers)
		munmap(d->buffers, ROOM);
}

double limit_disk(const char *path, uint64_t *ret_bytes)
{
	struct disk disk = {.buffers = limit_memory(ROOM)}; /* on huge pages: few segments a read */
	uint64_t begin, ns, bytes = 0;
	int r = disk.buffers ? gguf_is(path) ? open_gguf(&disk, path) : open_shards(&disk, path) : -ENOMEM;

	if (r == 0)
		r = open_ring(&disk);
	begin = now_ns();
	if (r == 0)
		r = read_files(&disk);
	ns = now_ns() - begin;
	for (uint32_t i = 0; i < disk.n_files; i++)
		bytes += disk.files[i].bytes;
	if (r == 0 && disk.got != bytes)
		r = -EIO;
	close_disk(&disk);
	*ret_bytes = bytes;
	return r < 0 ? r : (double)bytes / (double)ns;
}
