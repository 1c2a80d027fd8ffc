/* SPDX-License-Identifier: MIT */
#include "tests/kmod/seals.h"

#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define BYTES (SEAL_PAGES * HUGE_BYTES)
#define RW (PROT_READ | PROT_WRITE)

static char *other_place(void)
{
	char *at = mmap(NULL, BYTES + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return (char *)(((uintptr_t)at + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
}

/* In a child: what it does may end it. True when it ended by this signal, or by exit(0) with sig 0. */
static bool in_child(bool (*run)(char *), char *at, int sig)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(run(at) ? 0 : 1);
	return waitpid(pid, &status, 0) == pid &&
	       (sig ? WIFSIGNALED(status) && WTERMSIG(status) == sig : WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool protect(char *at)
{
	return mprotect(at, BYTES, RW) < 0 && errno == EACCES && mprotect(at, HUGE_BYTES, RW | PROT_EXEC) < 0 &&
	       errno == EACCES;
}

static bool protect_twice(char *at)
{
	return mprotect(at, BYTES, PROT_NONE) == 0 && protect(at) && mprotect(at, BYTES, PROT_READ) == 0;
}

static bool store(char *at)
{
	*(volatile char *)at = 1;
	return false;
}

static bool store_in_child(char *at)
{
	return in_child(store, at, SIGSEGV);
}

/* A part of it is moved away, and back. */
static bool move(char *at)
{
	char *to = other_place(), *from = at + HUGE_BYTES;
	bool good = mremap(from, HUGE_BYTES, HUGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;

	good = good && mprotect(to, HUGE_BYTES, RW) < 0 && errno == EACCES;
	return mremap(to, HUGE_BYTES, HUGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, from) == from && good;
}

/* A second mapping of the same, as mremap makes of a size of 0. */
static bool copy(char *at)
{
	char *to = mremap(at, 0, HUGE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, other_place());

	return to == MAP_FAILED || (mprotect(to, HUGE_BYTES, RW) < 0 && munmap(to, HUGE_BYTES) == 0);
}

/* It maps the file of a shared mapping anew, with whatever the file's descriptor may. */
static bool remap_pages(char *at)
{
	return syscall(SYS_remap_file_pages, at, HUGE_BYTES, 0, 0, 0) < 0 && errno == EINVAL && protect(at);
}

static bool memory_of(pid_t pid, char *at)
{
	char path[64];
	int fd;
	bool good;

	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	good = fd >= 0 && pwrite(fd, "x", 1, (off_t)(uintptr_t)at) < 0;
	close(fd);
	return good;
}

static bool proc_mem(char *at)
{
	return memory_of(getpid(), at);
}

static bool proc_map_files(char *at)
{
	char path[96];

	snprintf(path, sizeof path, "/proc/self/map_files/%llx-%llx", (unsigned long long)(uintptr_t)at,
		 (unsigned long long)(uintptr_t)at + BYTES);
	return open(path, O_RDWR | O_CLOEXEC) < 0;
}

/* A child that traces its parent. */
static bool trace_parent(char *at)
{
	pid_t parent = getppid();
	int status;
	bool good = ptrace(PTRACE_ATTACH, parent, NULL, NULL) == 0 && waitpid(parent, &status, __WALL) == parent;

	good = good && ptrace(PTRACE_POKEDATA, parent, at, (void *)1l) < 0 && memory_of(parent, at);
	return ptrace(PTRACE_DETACH, parent, NULL, NULL) == 0 && good;
}

static bool traced(char *at)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	return in_child(trace_parent, at, 0);
}

static bool vm_write(pid_t pid, char *at)
{
	char byte = 1;
	struct iovec mine = {&byte, 1}, theirs = {at, 1};

	return process_vm_writev(pid, &mine, 1, &theirs, 1, 0) < 0;
}

static bool vm_writev(char *at)
{
	return vm_write(getpid(), at);
}

static bool child_vm_writev(char *at)
{
	return vm_write(getppid(), at);
}

/* A child has its own of it, whose flags it might change. */
static bool all_in_child(char *at)
{
	return protect(at) && proc_mem(at) && vm_writev(at) && move(at) && child_vm_writev(at);
}

static bool forked(char *at)
{
	return in_child(all_in_child, at, 0);
}

static bool watched(char *at)
{
	int uffd = seal_watch(at);

	close(uffd);
	return uffd < 0;
}

static bool kernel_reads_into(char *at)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	bool good = fd >= 0 && pread(fd, at, 8, 0) < 0 && errno == EFAULT;

	close(fd);
	return good;
}

static bool advised(char *at)
{
	return madvise(at, HUGE_BYTES, MADV_REMOVE) < 0 && madvise(at, HUGE_BYTES, MADV_POPULATE_WRITE) < 0;
}

static bool pinned_anew(char *at)
{
	return seal_pin(at) < 0 && errno == EFAULT;
}

const struct seal_way seal_ways[] = {
	{"mprotect", protect},
	{"mprotect from PROT_NONE", protect_twice},
	{"a store", store_in_child},
	{"mremap", move},
	{"mremap of a size of 0", copy},
	{"remap_file_pages", remap_pages},
	{"/proc/self/mem", proc_mem},
	{"/proc/self/map_files", proc_map_files},
	{"ptrace by a child", traced},
	{"process_vm_writev", vm_writev},
	{"fork", forked},
	{"userfaultfd", watched},
	{"read(2) into it", kernel_reads_into},
	{"MADV_REMOVE, MADV_POPULATE_WRITE", advised},
	{"an io_uring's buffer", pinned_anew},
};
const unsigned seal_ways_n = sizeof seal_ways / sizeof *seal_ways;

int seal_watch(char *at)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register watch = {
		.range = {(uintptr_t)at, BYTES},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &watch) == 0)
		return uffd;
	close(uffd);
	return -1;
}

/* -- a pin, taken as a driver takes one -------------------------------------------------------------------------- */

static struct io_uring_params params;

int seal_pin(char *at)
{
	struct iovec page = {at, HUGE_BYTES};
	int ring, error;

	memset(&params, 0, sizeof params);
	ring = (int)syscall(SYS_io_uring_setup, 1, &params);
	if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &page, 1) == 0)
		return ring;
	error = errno;
	close(ring);
	errno = error;
	return -1;
}

bool seal_pin_writes(int ring, int fd, char *at)
{
	char *sq = mmap(NULL, 4096, RW, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, 4096, RW, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, sizeof *sqe, RW, MAP_SHARED, ring, (off_t)IORING_OFF_SQES);
	struct io_uring_cqe *cqe = (struct io_uring_cqe *)(void *)(cq + params.cq_off.cqes);
	uint32_t *tail = (uint32_t *)(void *)(sq + params.sq_off.tail);

	if (sq == MAP_FAILED || cq == MAP_FAILED || sqe == MAP_FAILED)
		return false;
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_READ_FIXED,
		.fd = fd,
		.addr = (uintptr_t)at,
		.len = 8,
	};
	*(uint32_t *)(void *)(sq + params.sq_off.array) = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	return syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1 && cqe->res == 8;
}
