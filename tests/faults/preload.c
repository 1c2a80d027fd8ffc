/* SPDX-License-Identifier: MIT */
/*
 * preload - loaded into a program before all else: counts the calls that can fail for want of something, makes one of
 * them fail, and says at the end what the program has left behind.
 *
 *     FAULTS_KIND=memory FAULTS_AT=17 FAULTS_EVER=1 FAULTS_REPORT=file LD_PRELOAD=faults-preload.so program
 *
 * Law: calls are counted from main on, each kind for itself; call number FAULTS_AT of FAULTS_KIND fails, with
 * FAULTS_EVER that and all after it. The error is one that the kernel or the C library can give at this place. A
 * completion of io_uring fails by its result (FAULTS_VALUE, default EIO), after the kernel has done the work: the
 * program sees a queue's end only as far as this file has gone through it. With FAULTS_SUCCESSOR all this is of one
 * daemon of a keeper: the first that takes over. When main returns the report has a line for each place that called
 * (`site KIND FIRST LAST CALLS`; a place is the chain of the program's own callers), for each block, mapping and
 * descriptor that is left (`left ...`), and for each caller of the call that failed, the nearest first (`struck
 * ADDRESS`, for addr2line); no report means that main has not returned.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <liburing.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES 24
#define SITES 4096
#define BLOCKS 65536
#define BUCKETS 16384
#define FDS 1024
#define LISTEN_FD 3 /* daemon/handover.h */
#define RINGS 8
#define NAMED 1024

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *p);

enum kind { MEMORY, MAP, FILES, DESCRIPTOR, THREAD, POPULATE, MESSAGE, RING, COMPLETION, SHORT, KINDS };

static const char *const kind_names[KINDS] = {"memory",   "map",     "files", "descriptor", "thread",
					      "populate", "message", "ring",  "completion", "short"};

struct site {
	uint64_t chain;
	enum kind kind;
	uint32_t first, last, calls;
};

struct block {
	const void *at;
	size_t bytes;
	uint64_t chain;
	uintptr_t caller; /* in the program, relative to its start */
	const void *direct;
	uint32_t next;
};

static struct site sites[SITES];
static uint32_t n_sites;
static struct block blocks[BLOCKS]; /* 0 is the end of a list */
static uint32_t buckets[BUCKETS], free_blocks, n_blocks = 1;
static bool blocks_lost;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Atomic uint32_t calls[KINDS];
static _Atomic int64_t mapped;
static _Atomic bool running;
static bool was_open[FDS], ever;
static enum kind chosen = KINDS;
static uint32_t chosen_at;
static int value = EIO;
static void *struck[FRAMES]; /* who made the first call that failed */
static int n_struck;
static uintptr_t program_begin, program_end, own_begin, own_end;
static __thread bool inside __attribute__((tls_model("initial-exec")));
static __thread bool no_ledger __attribute__((tls_model("initial-exec")));

static void take_lock(void)
{
	while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
		;
}

static void give_lock(void)
{
	atomic_flag_clear_explicit(&lock, memory_order_release);
}

#define REAL(name) ((__typeof__(&name))real_of(#name))

static void *real_of(const char *name)
{
	void *p;
	const bool before = inside;

	inside = true;
	p = dlsym(RTLD_NEXT, name);
	inside = before;
	if (!p)
		abort();
	return p;
}

/* -- places ------------------------------------------------------------------------------------------------------- */

static void find_end(const struct dl_phdr_info *info, uintptr_t *ret_begin, uintptr_t *ret_end)
{
	*ret_begin = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD)
			*ret_end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
}

/* The program comes first. */
static int find_object(struct dl_phdr_info *info, size_t bytes, void *userdata)
{
	uintptr_t begin = 0, end = 0;

	find_end(info, &begin, &end);
	if (!program_end)
		find_end(info, &program_begin, &program_end);
	else if ((uintptr_t)find_object >= begin && (uintptr_t)find_object < end)
		find_end(info, &own_begin, &own_end);
	return 0;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	return (a ^ b) * 0x9e3779b97f4a7c15ull + (a >> 29);
}

/* Of the callers those in the program itself; *ret_caller is the nearest, 0 when there is none. *ret_direct is the one
 * that called this file. */
static uint64_t chain_of(uintptr_t *ret_caller, const void **ret_direct)
{
	void *frames[FRAMES];
	const int n = backtrace(frames, FRAMES);
	uint64_t chain = 0;

	*ret_caller = 0;
	*ret_direct = NULL;
	for (int i = 0; i < n; i++) {
		const uintptr_t at = (uintptr_t)frames[i];

		if (!*ret_direct && (at < own_begin || at >= own_end))
			*ret_direct = frames[i];
		if (at < program_begin || at >= program_end)
			continue;
		if (!*ret_caller)
			*ret_caller = at - program_begin;
		chain = mix(chain, at - program_begin);
	}
	return chain;
}

static void note_site(enum kind kind, uint64_t chain, uint32_t number)
{
	uint32_t i = 0;

	take_lock();
	while (i < n_sites && (sites[i].chain != chain || sites[i].kind != kind))
		i++;
	if (i == n_sites && n_sites < SITES)
		sites[n_sites++] = (struct site){.chain = chain, .kind = kind, .first = number};
	if (i < n_sites) {
		sites[i].last = number;
		sites[i].calls++;
	}
	give_lock();
}

static bool strikes(enum kind kind, uint64_t chain)
{
	const uint32_t number = atomic_fetch_add(&calls[kind], 1) + 1;

	note_site(kind, chain, number);
	return kind == chosen && (number == chosen_at || (ever && number > chosen_at));
}

/* Whether this call is to fail. */
static bool fails(enum kind kind, int error)
{
	const void *direct;
	uintptr_t caller;
	bool yes;

	if (!atomic_load(&running) || inside)
		return false;
	inside = true;
	yes = strikes(kind, chain_of(&caller, &direct));
	if (yes && n_struck == 0)
		n_struck = backtrace(struck, FRAMES);
	inside = false;
	if (yes)
		errno = error;
	return yes;
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const void *at)
{
	return &buckets[mix((uintptr_t)at, 1) % BUCKETS];
}

static void enter_block(const void *at, size_t bytes)
{
	uint32_t *bucket = bucket_of(at), i;
	struct block b = {.at = at, .bytes = bytes};

	if (!at || !atomic_load(&running) || inside || no_ledger)
		return;
	inside = true;
	b.chain = chain_of(&b.caller, &b.direct);
	inside = false;
	take_lock();
	i = free_blocks;
	if (i)
		free_blocks = blocks[i].next;
	else if (n_blocks < BLOCKS)
		i = n_blocks++;
	if (i) {
		b.next = *bucket;
		blocks[i] = b;
		*bucket = i;
	}
	blocks_lost |= !i;
	give_lock();
}

static void leave_block(const void *at)
{
	uint32_t *link = bucket_of(at);

	if (!at || !atomic_load(&running))
		return;
	take_lock();
	while (*link && blocks[*link].at != at)
		link = &blocks[*link].next;
	if (*link) {
		const uint32_t i = *link;

		*link = blocks[i].next;
		blocks[i] = (struct block){.next = free_blocks};
		free_blocks = i;
	}
	give_lock();
}

void *malloc(size_t bytes)
{
	void *p = fails(MEMORY, ENOMEM) ? NULL : __libc_malloc(bytes);

	enter_block(p, bytes);
	return p;
}

void *calloc(size_t n, size_t bytes)
{
	void *p = fails(MEMORY, ENOMEM) ? NULL : __libc_calloc(n, bytes);

	enter_block(p, n * bytes);
	return p;
}

void *realloc(void *old, size_t bytes)
{
	void *p;

	if (fails(MEMORY, ENOMEM))
		return NULL;
	leave_block(old); /* before it is another thread's */
	p = __libc_realloc(old, bytes);
	enter_block(p, bytes);
	return p;
}

void *aligned_alloc(size_t align, size_t bytes)
{
	void *p = fails(MEMORY, ENOMEM) ? NULL : __libc_memalign(align, bytes);

	enter_block(p, bytes);
	return p;
}

int posix_memalign(void **ret, size_t align, size_t bytes)
{
	void *p = aligned_alloc(align, bytes);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

void free(void *p)
{
	leave_block(p);
	__libc_free(p);
}

/* -- mappings ----------------------------------------------------------------------------------------------------- */

static int64_t whole_pages(size_t bytes)
{
	return (int64_t)((bytes + 4095) & ~(size_t)4095);
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	void *p = fails(MAP, ENOMEM) ? MAP_FAILED : REAL(mmap)(at, bytes, prot, flags, fd, offset);

	if (p != MAP_FAILED && !(flags & MAP_FIXED) && atomic_load(&running))
		atomic_fetch_add(&mapped, whole_pages(bytes));
	return p;
}

int munmap(void *at, size_t bytes)
{
	const int r = REAL(munmap)(at, bytes);

	if (r == 0 && atomic_load(&running))
		atomic_fetch_sub(&mapped, whole_pages(bytes));
	return r;
}

int madvise(void *at, size_t bytes, int advice)
{
	const bool populates = advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE;

	return populates && fails(POPULATE, ENOMEM) ? -1 : REAL(madvise)(at, bytes, advice);
}

/* -- files, descriptors, messages, threads ------------------------------------------------------------------------ */

int memfd_create(const char *name, unsigned int flags)
{
	return fails(FILES, EMFILE) ? -1 : REAL(memfd_create)(name, flags);
}

int ftruncate(int fd, off_t bytes)
{
	return fails(FILES, ENOSPC) ? -1 : REAL(ftruncate)(fd, bytes);
}

int fchmod(int fd, mode_t mode)
{
	return fails(FILES, ENOMEM) ? -1 : REAL(fchmod)(fd, mode);
}

int fcntl(int fd, int command, ...)
{
	va_list list;
	void *argument;

	va_start(list, command);
	argument = va_arg(list, void *);
	va_end(list);
	if (command == F_ADD_SEALS && fails(FILES, EBUSY))
		return -1;
	if (command == F_DUPFD_CLOEXEC && fails(DESCRIPTOR, EMFILE))
		return -1;
	return REAL(fcntl)(fd, command, argument);
}

int open(const char *path, int flags, ...)
{
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = va_arg(list, mode_t);
	va_end(list);
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int eventfd(unsigned int count, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(eventfd)(count, flags);
}

int signalfd(int fd, const sigset_t *mask, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(signalfd)(fd, mask, flags);
}

int socket(int domain, int type, int protocol)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(socket)(domain, type, protocol);
}

int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(accept4)(fd, address, bytes, flags);
}

long syscall(long number, ...)
{
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_pidfd_open && fails(DESCRIPTOR, EMFILE))
		return -1;
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return fails(MESSAGE, ENOBUFS) ? -1 : REAL(sendmsg)(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	return fails(MESSAGE, ENOMEM) ? -1 : REAL(recvmsg)(fd, message, flags);
}

/* The C library keeps a thread's memory for the next one. */
int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *argument)
{
	int r;

	if (fails(THREAD, EAGAIN))
		return EAGAIN;
	no_ledger = true;
	r = REAL(pthread_create)(ret, attr, run, argument);
	no_ledger = false;
	return r;
}

/* -- io_uring ----------------------------------------------------------------------------------------------------- */

struct view {
	struct io_uring *ring;
	unsigned *kernels; /* where the kernel writes the queue's end */
	unsigned tail;     /* as far as the program may look */
};

static struct view views[RINGS];

/* What was asked for, by user_data: a place of its own among completions. */
static struct {
	uint64_t user_data, place;
	bool read;
} asked[NAMED];

static struct view *view_of(const struct io_uring *ring)
{
	for (size_t i = 0; i < RINGS; i++)
		if (views[i].ring == ring)
			return &views[i];
	return NULL;
}

/* What is asked of which kind of file: "socket:[17]" and "socket:[18]" are one. */
static uint64_t place_of(const struct io_uring_sqe *sqe)
{
	char path[64], target[256];
	uint64_t place = sqe->opcode + 1;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", sqe->fd);
	n = readlink(path, target, sizeof target);
	for (ssize_t i = 0; i < n; i++)
		if (target[i] < '0' || target[i] > '9')
			place = mix(place, (unsigned char)target[i]);
	return place;
}

static void note_asked(const struct io_uring *ring)
{
	const struct io_uring_sq *sq = &ring->sq;

	for (unsigned i = sq->sqe_head; i != sq->sqe_tail; i++) {
		const struct io_uring_sqe *sqe = &sq->sqes[i & sq->ring_mask];
		const size_t at = mix(sqe->user_data, 1) % NAMED;

		take_lock();
		asked[at].user_data = sqe->user_data;
		asked[at].place = place_of(sqe);
		asked[at].read = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED;
		give_lock();
	}
}

static void pass_over(struct io_uring_cqe *cqe)
{
	uint64_t place = 0;
	bool read = false;

	if (!atomic_load(&running) || cqe->user_data == 0 || cqe->user_data == LIBURING_UDATA_TIMEOUT)
		return;
	take_lock();
	if (asked[mix(cqe->user_data, 1) % NAMED].user_data == cqe->user_data) {
		place = asked[mix(cqe->user_data, 1) % NAMED].place;
		read = asked[mix(cqe->user_data, 1) % NAMED].read;
	}
	give_lock();
	if (strikes(COMPLETION, place))
		cqe->res = -value;
	if (read && cqe->res > 0 && strikes(SHORT, place))
		cqe->res /= 2;
}

/* Around each call of the library that may look at the queue. */
static struct view *open_view(struct io_uring *ring)
{
	struct view *v = view_of(ring);

	if (v) {
		note_asked(ring);
		ring->cq.ktail = v->kernels;
	}
	return v;
}

static int close_view(struct view *v, int r)
{
	unsigned tail;

	if (!v)
		return r;
	tail = __atomic_load_n(v->kernels, __ATOMIC_ACQUIRE);
	for (; v->tail != tail; v->tail++)
		pass_over(&v->ring->cq.cqes[v->tail & v->ring->cq.ring_mask]);
	v->ring->cq.ktail = &v->tail;
	return r;
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	struct view *v;
	int r;

	if (fails(RING, ENOMEM))
		return -ENOMEM;
	r = REAL(io_uring_queue_init)(entries, ring, flags);
	if (r < 0)
		return r;
	take_lock();
	v = view_of(NULL);
	if (v) {
		*v = (struct view){.ring = ring, .kernels = ring->cq.ktail, .tail = *ring->cq.ktail};
		ring->cq.ktail = &v->tail;
	}
	give_lock();
	return r;
}

void io_uring_queue_exit(struct io_uring *ring)
{
	struct view *v = view_of(ring);

	if (v) {
		ring->cq.ktail = v->kernels;
		v->ring = NULL;
	}
	REAL(io_uring_queue_exit)(ring);
}

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs, unsigned n)
{
	return fails(RING, ENOMEM) ? -ENOMEM : REAL(io_uring_register_buffers)(ring, iovecs, n);
}

int io_uring_submit(struct io_uring *ring)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -value : REAL(io_uring_submit)(ring));
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -value : REAL(io_uring_submit_and_wait)(ring, n));
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **ret, unsigned n,
				     struct __kernel_timespec *timeout, sigset_t *mask)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -value
						 : REAL(io_uring_submit_and_wait_timeout)(ring, ret, n, timeout, mask));
}

int io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **ret, struct __kernel_timespec *timeout)
{
	struct view *v = open_view(ring);

	return close_view(v, fails(RING, ENOMEM) ? -value : REAL(io_uring_wait_cqe_timeout)(ring, ret, timeout));
}

/* What liburing's inline functions call when they find the queue empty. */
int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **ret, unsigned submit, unsigned wait, sigset_t *mask)
{
	struct view *v = open_view(ring);

	return close_view(v, REAL(__io_uring_get_cqe)(ring, ret, submit, wait, mask));
}

/* -- from main to the report -------------------------------------------------------------------------------------- */

static void settle(void)
{
	const char *kind = getenv("FAULTS_KIND"), *at = getenv("FAULTS_AT"), *error = getenv("FAULTS_VALUE");

	for (int i = 0; kind && i < KINDS; i++)
		if (strcmp(kind, kind_names[i]) == 0)
			chosen = (enum kind)i;
	chosen_at = at ? (uint32_t)atoi(at) : 1;
	value = error ? atoi(error) : EIO;
	ever = getenv("FAULTS_EVER") != NULL;
}

/* libnuma keeps what it has read of the machine, for ever. */
static bool is_kept(const struct block *b)
{
	Dl_info info;

	return dladdr(b->direct, &info) && info.dli_fname && strstr(info.dli_fname, "libnuma");
}

static void report(void)
{
	const char *path = getenv("FAULTS_REPORT");
	FILE *f = path ? fopen(path, "we") : NULL;

	if (!f)
		return;
	for (uint32_t i = 0; i < n_sites; i++)
		fprintf(f, "site %s %u %u %u\n", kind_names[sites[i].kind], sites[i].first, sites[i].last,
			sites[i].calls);
	for (uint32_t i = 1; i < n_blocks; i++)
		if (blocks[i].at && blocks[i].caller && !is_kept(&blocks[i]))
			fprintf(f, "left %zu bytes, from 0x%zx\n", blocks[i].bytes, (size_t)blocks[i].caller);
	for (int i = 0; i < n_struck; i++)
		if ((uintptr_t)struck[i] >= program_begin && (uintptr_t)struck[i] < program_end)
			fprintf(f, "struck 0x%zx\n", (uintptr_t)struck[i] - program_begin);
	if (blocks_lost)
		fprintf(f, "left more blocks than there is room to count\n");
	if (atomic_load(&mapped) != 0)
		fprintf(f, "left %lld mapped bytes\n", (long long)atomic_load(&mapped));
	for (int fd = 0; fd < FDS; fd++)
		if (!was_open[fd] && fd != fileno(f) && REAL(fcntl)(fd, F_GETFD) >= 0)
			fprintf(f, "left descriptor %d\n", fd);
	fclose(f);
}

/* FAULTS_SUCCESSOR: of the daemons of a keeper only the first that takes over from another one. */
static bool is_concerned(void)
{
	const char *path = getenv("FAULTS_REPORT");
	char mark[4096];
	int fd;

	if (!getenv("FAULTS_SUCCESSOR"))
		return true;
	if (!path || !getenv("LISTEN_FDS"))
		return false;
	snprintf(mark, sizeof mark, "%s.begun", path);
	fd = REAL(open)(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* What a keeper hands over is the program's to close. */
static void note_open(void)
{
	const char *text = getenv("LISTEN_FDS");
	const int taken_over = text ? atoi(text) : 0;

	for (int fd = 0; fd < FDS; fd++)
		was_open[fd] = REAL(fcntl)(fd, F_GETFD) >= 0 && (fd < LISTEN_FD || fd >= LISTEN_FD + taken_over);
}

static int (*programs_main)(int argc, char **argv, char **env);

static int counted_main(int argc, char **argv, char **env)
{
	void *frames[2];
	int r;

	if (!is_concerned())
		return programs_main(argc, argv, env);
	settle();
	dl_iterate_phdr(find_object, NULL);
	backtrace(frames, 2); /* the first one loads a library */
	note_open();
	atomic_store(&running, true);
	r = programs_main(argc, argv, env);
	atomic_store(&running, false);
	report();
	return r;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end);

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end)
{
	programs_main = main;
	return REAL(__libc_start_main)(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
