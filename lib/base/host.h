/* SPDX-License-Identifier: MIT */
/*
 * host - what this machine offers: NUMA nodes and their CPUs, page sizes, limits. Read from sysfs, /proc and libnuma at
 * each call; where /proc or /sys is not mounted the answer is "unknown", never a guess.
 *
 * A node counts when this process may run on one of its CPUs and may allocate its memory. A CPU whose own node has no
 * memory for us is listed with the nearest node that has. On a machine with one node the node's memory is the
 * machine's.
 */
#ifndef BASE_HOST_H
#define BASE_HOST_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#define HOST_NODES_MAX 16
#define HOST_CPUS_MAX 1024
#define HOST_HUGE_2M (2ull << 20)
#define HOST_HUGE_1G (1ull << 30)

struct host_node {
	int id;                              /* the kernel's node number */
	uint32_t n_cpus;                     /* those that this process may run on (sched_getaffinity) */
	uint32_t n_cores;                    /* of them, on cores of their own */
	uint16_t cpus[HOST_CPUS_MAX];        /* one of each core first, then the cores' other threads */
	int64_t mem_total, mem_free;         /* bytes, -1 unknown */
	int64_t mem_available;               /* free or easily given back (page cache, slab), bytes, -1 unknown */
	int64_t huge_2m_total, huge_2m_free; /* pages, -1 unknown */
	int64_t huge_1g_total, huge_1g_free;
};

struct host {
	uint32_t n_nodes; /* at least 1; a machine without NUMA is node 0 */
	struct host_node nodes[HOST_NODES_MAX];
	double cpu_quota;       /* CPUs' worth of time that the control groups allow, -1 no limit */
	int64_t mem_available;  /* bytes, -1 unknown */
	int64_t mem_limit;      /* the cgroup's (v2) memory.max that binds this process, -1 none or unknown */
	int64_t mem_limit_left; /* what that group or one above it may still take, its page cache counted as free */
	int64_t memlock;        /* RLIMIT_MEMLOCK in bytes, -1 unlimited */
	int64_t overcommit_2m;  /* nr_overcommit_hugepages of 2 MiB, -1 unknown */
	char thp_shmem[16];     /* the chosen word of transparent_hugepage/shmem_enabled, "" unknown */
	char kernel[64];        /* uname release */
	int io_uring_disabled;  /* kernel.io_uring_disabled, -1 unknown */
	bool io_uring_works;    /* io_uring_setup succeeded */
	int io_uring_error;     /* errno of it when not */
};

/* Fills *ret; `probe_io_uring` also tries io_uring_setup. Never fails. The struct is large: allocate it. */
void host_read(struct host *ret, bool probe_io_uring);

/* What changes while a program runs: memory of the nodes and of the machine. Unlike host_read it asks libnuma for no
 * memory, which ends the process where there is none. */
void host_read_again(struct host *host);

/* The parts of it that change while a daemon runs: a node's memory and hugepages, and the machine's and the cgroup's
 * room (mem_available and mem_limit_left as in struct host). node->id says which node. */
void host_read_node_memory(struct host_node *node);
void host_read_memory(int64_t *ret_available, int64_t *ret_limit, int64_t *ret_limit_left);

/* Puts one CPU of each core first, in the order given, and counts the cores. */
void host_order_cpus(struct host_node *node);

/* As struct host's cpu_quota. */
double host_read_cpu_quota(void);

/* The sysfs folder of the node's hugepages of one size (the machine's on a kernel without NUMA): it holds
 * nr_hugepages. */
void host_hugepages_path(char *ret, uint32_t size, int node, uint64_t page_bytes);

/* The decimal number that a small file (of sysfs or /proc) begins with, or -1. */
int64_t host_read_number(const char *path);

/* transparent_hugepage/shmem_enabled: the word in brackets, "" unknown. */
void host_read_thp_shmem(char *ret, uint32_t size);

/* The set of one CPU, of *ret_bytes, for sched_setaffinity and others; CPU_FREE ends it. NULL: no memory. */
cpu_set_t *host_cpu_mask(uint32_t cpu, size_t *ret_bytes);

/* Binds the calling thread to the node's CPUs. 0 or -errno (-EINVAL: the node has none). */
int host_bind_thread(const struct host_node *node);

/* Moves the calling thread to the next CPU of those that it may run on, which stay the same. 0 or -errno (-ENOENT: it
 * has one only). */
int host_leave_cpu(void);

#endif
