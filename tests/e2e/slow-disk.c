/* SPDX-License-Identifier: MIT */
/*
 * slow-disk - a disk that stops answering: serves the files of a folder on a FUSE mount, and after SIGUSR1 keeps all
 * reads of weights until SIGUSR2.
 *
 *   slow-disk FOLDER MOUNT
 *
 * Flat and read-only. What is read of a file's first page is answered still (headers), so that it is the weights that
 * hang. Says "ready" on stdout. Exit codes: 77 no FUSE here, 1 failed; it ends by a signal.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 16
#define KEPT_MAX 256
#define READ_MAX (128u << 10)
#define FIRST_NODE 2 /* 1 is the folder */

struct file {
	char name[256];
	int fd;
	struct stat st;
};

struct question {
	uint64_t unique, node, offset;
	uint32_t bytes;
};

static struct file files[FILES_MAX];
static uint32_t n_files;
static struct question kept[KEPT_MAX];
static uint32_t n_kept;
static volatile sig_atomic_t hangs;
static int dev;

static void answer(uint64_t unique, int error, const void *data, size_t bytes)
{
	alignas(8) static char buffer[sizeof(struct fuse_out_header) + READ_MAX];
	const struct fuse_out_header head = {.len = (uint32_t)(sizeof head + bytes), .error = error, .unique = unique};

	memcpy(buffer, &head, sizeof head);
	if (bytes)
		memcpy(buffer + sizeof head, data, bytes);
	if (write(dev, buffer, head.len) < 0 && errno != ENOENT) /* who asked may be gone */
		perror("slow-disk");
}

static struct fuse_attr attr_of(uint64_t node)
{
	const struct file *f = node < FIRST_NODE ? NULL : &files[node - FIRST_NODE];

	return (struct fuse_attr){.ino = node,
				  .size = f ? (uint64_t)f->st.st_size : 4096,
				  .blocks = f ? (uint64_t)f->st.st_blocks : 8,
				  .mtime = f ? (uint64_t)f->st.st_mtime : 0,
				  .mode = f ? 0100444 : 040755,
				  .nlink = 1,
				  .blksize = 4096};
}

static void look_up(uint64_t unique, const char *name)
{
	for (uint32_t i = 0; i < n_files; i++)
		if (strcmp(files[i].name, name) == 0) {
			const struct fuse_entry_out entry = {.nodeid = FIRST_NODE + i,
							     .entry_valid = 999,
							     .attr_valid = 999,
							     .attr = attr_of(FIRST_NODE + i)};

			answer(unique, 0, &entry, sizeof entry);
			return;
		}
	answer(unique, -ENOENT, NULL, 0);
}

static void read_file(const struct question *q)
{
	static char data[READ_MAX];
	const struct file *f = &files[q->node - FIRST_NODE];
	const ssize_t n = pread(f->fd, data, q->bytes < READ_MAX ? q->bytes : READ_MAX, (off_t)q->offset);

	answer(q->unique, n < 0 ? -errno : 0, data, n < 0 ? 0 : (size_t)n);
}

static void ask_file(const struct question *q)
{
	if (hangs && q->offset >= 4096 && n_kept < KEPT_MAX)
		kept[n_kept++] = *q;
	else
		read_file(q);
}

static void serve(const struct fuse_in_header *in)
{
	const struct fuse_init_out init = {
		.major = 7, .minor = 31, .max_write = 4096, .max_background = 64, .max_readahead = READ_MAX};
	const struct fuse_attr_out attr = {.attr_valid = 999, .attr = attr_of(in->nodeid)};
	const struct fuse_read_in *read_in = (const struct fuse_read_in *)(in + 1);
	const struct fuse_open_out opened = {.fh = 1};
	const struct fuse_statfs_out statfs = {.st = {.bsize = 4096, .frsize = 4096, .namelen = 255}};

	switch (in->opcode) {
	case FUSE_INIT:
		answer(in->unique, 0, &init, sizeof init);
		break;
	case FUSE_LOOKUP:
		look_up(in->unique, (const char *)(in + 1));
		break;
	case FUSE_GETATTR:
		answer(in->unique, 0, &attr, sizeof attr);
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		answer(in->unique, 0, &opened, sizeof opened);
		break;
	case FUSE_READ:
		ask_file(&(struct question){in->unique, in->nodeid, read_in->offset, read_in->size});
		break;
	case FUSE_STATFS:
		answer(in->unique, 0, &statfs, sizeof statfs);
		break;
	case FUSE_READDIR:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		answer(in->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(in->unique, -ENOSYS, NULL, 0);
	}
}

static void take_files(const char *path)
{
	DIR *folder = opendir(path);
	const struct dirent *entry;

	while (folder && n_files < FILES_MAX && (entry = readdir(folder))) {
		struct file *f = &files[n_files];

		f->fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (f->fd < 0 || fstat(f->fd, &f->st) < 0 || !S_ISREG(f->st.st_mode))
			continue;
		snprintf(f->name, sizeof f->name, "%s", entry->d_name);
		n_files++;
	}
}

static void on_signal(int number)
{
	hangs = number == SIGUSR1;
}

int main(int argc, char **argv)
{
	alignas(8) static char buffer[FUSE_MIN_READ_BUFFER + 4096];
	const struct sigaction action = {.sa_handler = on_signal}; /* reading the device is interrupted */
	char options[64];

	if (argc != 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	take_files(argv[1]);
	dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev);
	if (dev < 0 || mount("slow-disk", argv[2], "fuse", MS_NOSUID | MS_NODEV | MS_RDONLY, options) < 0) {
		perror("slow-disk");
		return 77;
	}
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	puts("ready");
	fflush(stdout);
	for (;;) {
		const ssize_t n = read(dev, buffer, sizeof buffer);

		if (n < 0 && errno == ENODEV) /* unmounted */
			return 0;
		if (n >= (ssize_t)sizeof(struct fuse_in_header))
			serve((const struct fuse_in_header *)buffer);
		for (; !hangs && n_kept > 0; n_kept--)
			read_file(&kept[n_kept - 1]);
	}
}
