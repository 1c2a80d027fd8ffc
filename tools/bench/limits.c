/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/futex.h"
#include "base/util.h"
#include "bench.h"

/* -- memory ------------------------------------------------------------------------------------------------------- */

struct reader {
	pthread_t thread;
	const char *from;
	uint64_t bytes;
	pthread_barrier_t *start;
	uint64_t begin_ns, end_ns;
	volatile uint64_t sum; /* so that the reads are not removed */
};

/* Four streams with a prefetch 1 KiB ahead: what reads fastest on the machines measured (docs/decisions). */
static void *read_stream(void *userdata)
{
	struct reader *r = userdata;
	const uint64_t quarter = r->bytes / 4 & ~(uint64_t)63;
	__m256i sum = _mm256_setzero_si256();

	pthread_barrier_wait(r->start);
	r->begin_ns = now_ns();
	for (uint64_t i = 0; i < quarter; i += 64)
		for (int s = 0; s < 4; s++) {
			const char *p = r->from + s * quarter + i;

			_mm_prefetch(p + 1024, _MM_HINT_T0);
			sum = _mm256_xor_si256(sum, _mm256_load_si256((const __m256i *)p));
			sum = _mm256_xor_si256(sum, _mm256_load_si256((const __m256i *)(p + 32)));
		}
	r->end_ns = now_ns();
	r->sum = (uint64_t)_mm256_extract_epi64(sum, 0);
	return NULL;
}

double limit_read(const void *memory, uint64_t bytes, uint32_t threads)
{
	struct reader readers[256] = {0};
	const uint32_t n = MIN(MAX(threads, 1u), (uint32_t)ARRAY_LEN(readers));
	const uint64_t share = bytes / n & ~(uint64_t)255;
	uint64_t begin = UINT64_MAX, end = 0;
	pthread_barrier_t start;

	pthread_barrier_init(&start, NULL, n);
	for (uint32_t i = 0; i < n; i++) {
		readers[i] = (struct reader){.from = (const char *)memory + i * share, .bytes = share, .start = &start};
		if (pthread_create(&readers[i].thread, NULL, read_stream, &readers[i]))
			abort(); /* the barrier would wait for ever */
	}
	for (uint32_t i = 0; i < n; i++) {
		pthread_join(readers[i].thread, NULL);
		begin = MIN(begin, readers[i].begin_ns);
		end = MAX(end, readers[i].end_ns);
	}
	pthread_barrier_destroy(&start);
	return (double)(share * n) / (double)(end - begin);
}

void *limit_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes);
	return p;
}

/* -- round trips -------------------------------------------------------------------------------------------------- */

const char *const pingpong_names[PINGPONGS] = {"shared memory", "futex", "eventfd"};

struct table {
	_Atomic uint32_t ball; /* odd: the other side's turn */
	char pad[60];
	int fds[2];
};

static void wait_ball(struct table *t, enum pingpong kind, uint32_t want, int fd)
{
	uint64_t count;

	switch (kind) {
	case PINGPONG_EVENTFD:
		if (read(fd, &count, sizeof count) != sizeof count)
			_exit(1);
		return;
	case PINGPONG_FUTEX:
		for (uint32_t seen; (seen = atomic_load(&t->ball)) != want;)
			futex_wait(&t->ball, seen, 0);
		return;
	default:
		for (int i = 1; atomic_load(&t->ball) != want; i++) {
			cpu_relax();
			if (i % 1024 == 0)
				sched_yield(); /* one core for both: let the other side have it */
		}
	}
}

static void throw_ball(struct table *t, enum pingpong kind, uint32_t value, int fd)
{
	const uint64_t one = 1;

	atomic_store(&t->ball, value);
	if (kind == PINGPONG_FUTEX)
		futex_wake(&t->ball, 1);
	else if (kind == PINGPONG_EVENTFD && write(fd, &one, sizeof one) != sizeof one)
		_exit(1);
}

int limit_pingpong(enum pingpong kind, double *samples, uint32_t n)
{
	struct table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t other;

	if (t == MAP_FAILED)
		return -errno;
	t->fds[0] = eventfd(0, EFD_CLOEXEC);
	t->fds[1] = eventfd(0, EFD_CLOEXEC);
	other = fork();
	if (other < 0)
		return -errno;
	if (other == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t i = 0; i < n; i++) {
			wait_ball(t, kind, 2 * i + 1, t->fds[0]);
			throw_ball(t, kind, 2 * i + 2, t->fds[1]);
		}
		_exit(0);
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t begin = now_ns();

		throw_ball(t, kind, 2 * i + 1, t->fds[0]);
		wait_ball(t, kind, 2 * i + 2, t->fds[1]);
		samples[i] = (double)(now_ns() - begin);
	}
	waitpid(other, NULL, 0);
	close(t->fds[0]);
	close(t->fds[1]);
	munmap(t, sizeof *t);
	return 0;
}

/* -- disk --------------------------------------------------------------------------------------------------------- */

#define DISK_BLOCK (512u << 10)
#define DISK_DEPTH 16

static int read_file(struct io_uring *ring, char *buffers, int fd, uint64_t bytes)
{
	uint64_t next = 0;
	uint32_t flying = 0;

	while (next < bytes || flying > 0) {
		struct io_uring_cqe *cqe;
		int r;

		while (next < bytes && flying < DISK_DEPTH) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

			char *to = buffers + next / DISK_BLOCK % (2 * DISK_DEPTH) * DISK_BLOCK;

			io_uring_prep_read(sqe, fd, to, DISK_BLOCK, next);
			next += DISK_BLOCK;
			flying++;
		}
		io_uring_submit(ring);
		r = io_uring_wait_cqe(ring, &cqe);
		if (r < 0 || cqe->res < 0)
			return r < 0 ? r : cqe->res;
		io_uring_cqe_seen(ring, cqe);
		flying--;
	}
	return 0;
}

double limit_disk(const char *folder, uint64_t *ret_bytes)
{
	const uint64_t begin = now_ns();
	struct io_uring ring;
	struct dirent *entry;
	DIR *dir = opendir(folder);
	char *buffers = aligned_alloc(4096, 2 * DISK_DEPTH * DISK_BLOCK);
	uint64_t bytes = 0;
	int r = dir && buffers ? io_uring_queue_init(2 * DISK_DEPTH, &ring, 0) : -errno;

	if (r < 0)
		return r;
	while (r == 0 && (entry = readdir(dir))) {
		const char *suffix = strrchr(entry->d_name, '.');
		struct stat st;
		int fd;

		if (!suffix || strcmp(suffix, ".safetensors") != 0)
			continue;
		fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECT | O_CLOEXEC);
		r = fd < 0 || fstat(fd, &st) < 0 ? -errno : read_file(&ring, buffers, fd, (uint64_t)st.st_size);
		bytes += r == 0 ? (uint64_t)st.st_size : 0;
		close_fd(fd);
	}
	io_uring_queue_exit(&ring);
	closedir(dir);
	free(buffers);
	*ret_bytes = bytes;
	return r < 0 ? r : (double)bytes / (double)(now_ns() - begin);
}
