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
 * daemon of a keeper: the first that takes over. FAULTS_SPARES names a library whose own calls are neither counted nor
 * refused: its faults are not the program's. When main returns the report has a line for each place that called
 * (`site KIND FIRST LAST CALLS CHAIN`; a place is the chain of the program's own callers, the same in each run of the
 * program), for each block, mapping and descriptor that is left (`left ...`), and for each caller of the call that
 * failed, the nearest first (`struck ADDRESS`, for addr2line); no report means that main has not returned.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/faults/preload.h"

#define FRAMES 24
#define SITES 4096
#define BLOCKS 65536
#define BUCKETS 16384
#define FDS 1024
#define LISTEN_FD 3 /* daemon/handover.h */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *p);

static const char *const kind_names[KINDS] = {"memory",   "map",     "files", "descriptor", "thread",
					      "populate", "message", "ring",  "completion", "short"};

struct site {
	uint64_t chain;
	enum kind kind;
	uint32_t first, last, calls;
};

/* Where a call comes from: the chain of the callers in the program itself, and the nearest of them, 0 when there is
 * none; who called this file, or the C library (strdup); and whether the library that is spared asked for it. */
struct place {
	uint64_t chain;
	uintptr_t caller;
	const void *direct;
	bool spared;
};

struct block {
	const void *at;
	size_t bytes;
	struct place place;
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
static const char *spared;   /* a part of a library's name */
static void *struck[FRAMES]; /* who made the first call that failed */
static int n_struck;
static uintptr_t program_begin, program_end, own_begin, own_end, libc_begin, libc_end;
static __thread bool inside __attribute__((tls_model("initial-exec")));
static __thread bool no_ledger __attribute__((tls_model("initial-exec")));

void take_lock(void)
{
	while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
		;
}

void give_lock(void)
{
	atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* From the linker. */
extern struct real __start_reals[], __stop_reals[];

static void find_real(struct real *real)
{
	const bool before = inside;

	inside = true;
	real->at = dlsym(RTLD_NEXT, real->name);
	inside = before;
}

void *real_of(struct real *real)
{
	find_real(real);
	if (!real->at)
		abort();
	return real->at;
}

static void find_all_real(void)
{
	for (struct real *real = __start_reals; real < __stop_reals; real++)
		find_real(real);
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
	else if (strstr(info->dlpi_name, "/libc.so"))
		find_end(info, &libc_begin, &libc_end);
	return 0;
}

static bool is_spared(const void *frame)
{
	Dl_info info;

	return spared && dladdr(frame, &info) && info.dli_fname && strstr(info.dli_fname, spared);
}

static struct place find_place(void)
{
	void *frames[FRAMES];
	const int n = backtrace(frames, FRAMES);
	struct place p = {0};

	for (int i = 0; i < n; i++) {
		const uintptr_t at = (uintptr_t)frames[i];

		if (!p.direct && (at < own_begin || at >= own_end) && (at < libc_begin || at >= libc_end))
			p.direct = frames[i];
		if (at < program_begin || at >= program_end) {
			p.spared |= !p.caller && is_spared(frames[i]);
			continue;
		}
		if (!p.caller)
			p.caller = at - program_begin;
		p.chain = mix(p.chain, at - program_begin);
	}
	return p;
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

bool strikes(enum kind kind, uint64_t chain)
{
	const uint32_t number = atomic_fetch_add(&calls[kind], 1) + 1;

	note_site(kind, chain, number);
	return kind == chosen && (number == chosen_at || (ever && number > chosen_at));
}

bool preload_runs(void)
{
	return atomic_load(&running);
}

int preload_value(void)
{
	return value;
}

bool fails(enum kind kind, int error)
{
	struct place place;
	bool yes;

	if (!atomic_load(&running) || inside)
		return false;
	inside = true;
	place = find_place();
	yes = !place.spared && strikes(kind, place.chain);
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
	b.place = find_place();
	inside = false;
	if (b.place.spared)
		return;
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

static void count_mapped(int64_t sign, size_t bytes)
{
	if (!atomic_load(&running) || inside)
		return;
	inside = true;
	if (!spared || !find_place().spared)
		atomic_fetch_add(&mapped, sign * (int64_t)((bytes + 4095) & ~(size_t)4095));
	inside = false;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	void *p = fails(MAP, ENOMEM) ? MAP_FAILED : REAL(mmap)(at, bytes, prot, flags, fd, offset);

	if (p != MAP_FAILED && !(flags & MAP_FIXED))
		count_mapped(1, bytes);
	return p;
}

int munmap(void *at, size_t bytes)
{
	const int r = REAL(munmap)(at, bytes);

	if (r == 0)
		count_mapped(-1, bytes);
	return r;
}

int madvise(void *at, size_t bytes, int advice)
{
	const bool populates = advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE;

	return populates && fails(POPULATE, ENOMEM) ? -1 : REAL(madvise)(at, bytes, advice);
}

/* What the loader and a library's constructors make is there for as long as the library, which is not unloaded. */
void *dlopen(const char *name, int flags)
{
	const bool before = no_ledger;
	void *ret;

	no_ledger = true;
	ret = REAL(dlopen)(name, flags);
	no_ledger = before;
	return ret;
}

/* -- threads ------------------------------------------------------------------------------------------------------ */

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
	spared = getenv("FAULTS_SPARES");
}

/* libnuma keeps what it has read of the machine, for ever, the loader what it knows of a driver, and libsystemd what it
 * could not give back for want of memory (bus-objects.c, add_first). */
static bool is_kept(const struct block *b)
{
	Dl_info info;

	return dladdr(b->place.direct, &info) && info.dli_fname &&
	       (strstr(info.dli_fname, "libnuma") || (spared && strstr(info.dli_fname, "/ld-linux")) ||
		(ever && chosen == MEMORY && strstr(info.dli_fname, "libsystemd")));
}

static void report(void)
{
	const char *path = getenv("FAULTS_REPORT");
	FILE *f = path ? fopen(path, "we") : NULL;

	if (!f)
		return;
	for (uint32_t i = 0; i < n_sites; i++)
		fprintf(f, "site %s %u %u %u %016llx\n", kind_names[sites[i].kind], sites[i].first, sites[i].last,
			sites[i].calls, (unsigned long long)sites[i].chain);
	for (uint32_t i = 1; i < n_blocks; i++)
		if (blocks[i].at && blocks[i].place.caller && !is_kept(&blocks[i]))
			fprintf(f, "left %zu bytes, from 0x%zx\n", blocks[i].bytes, (size_t)blocks[i].place.caller);
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
	find_all_real();
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
