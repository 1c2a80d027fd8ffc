/* SPDX-License-Identifier: MIT */
/*
 * pretend-nodes - loaded into moe-expertd before all else: any machine looks like one with $PRETEND_NODES NUMA nodes of
 * one CPU each. Threads are bound nowhere and all memory is the machine's own, so nothing is faster for it: it is for
 * tests of what lies where. With $PRETEND_NO_URING io_uring is forbidden, and what the kernel says of that is read in
 * this folder instead of /.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int numa_available(void);
int numa_max_node(void);
long get_mempolicy(int *mode, unsigned long *mask, unsigned long max, void *at, unsigned long flags);

static int nodes(void)
{
	const char *text = getenv("PRETEND_NODES");

	return text ? atoi(text) : 1;
}

int numa_available(void)
{
	return 0;
}

int numa_max_node(void)
{
	return nodes() - 1;
}

/* Not known: each CPU's own node is taken. */
long get_mempolicy(int *mode, unsigned long *mask, unsigned long max, void *at, unsigned long flags)
{
	errno = ENOSYS;
	return -1;
}

/* Node N has CPU N. */
int access(const char *path, int mode)
{
	int node, cpu;

	if (sscanf(path, "/sys/devices/system/node/node%d/cpu%d", &node, &cpu) != 2)
		return faccessat(AT_FDCWD, path, mode, 0);
	errno = ENOENT;
	return node == cpu && node < nodes() ? 0 : -1;
}

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *cpus)
{
	CPU_ZERO_S(bytes, cpus);
	for (int cpu = 0; cpu < nodes(); cpu++)
		CPU_SET_S((size_t)cpu, bytes, cpus);
	return 0;
}

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *cpus)
{
	return 0;
}

int pthread_attr_setaffinity_np(pthread_attr_t *attr, size_t bytes, const cpu_set_t *cpus)
{
	return 0;
}

/* Large files: it is called fopen64 in all programs here. */
FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*real)(const char *, const char *);
	const char *root = getenv("PRETEND_NO_URING");
	char other[4096];

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fopen64");
	snprintf(other, sizeof other, "%s%s", root && strstr(path, "/io_uring_") ? root : "", path);
	return real(other, mode);
}

/* Memory of nodes that are not there cannot be bound to them, nor be found on them. */
long syscall(long number, ...)
{
	long a[6], result;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_mbind)
		return 0;
	if (number == SYS_io_uring_setup && getenv("PRETEND_NO_URING")) {
		errno = EPERM;
		return -1;
	}
	if (number == SYS_move_pages) {
		errno = ENOSYS;
		return -1;
	}
	register long r10 __asm__("r10") = a[3];
	register long r8 __asm__("r8") = a[4];
	register long r9 __asm__("r9") = a[5];

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	if (result >= 0 || result < -4095)
		return result;
	errno = (int)-result;
	return -1;
}
