/* SPDX-License-Identifier: MIT */
#include "base/host.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/cleanup.h"
#include "base/small.h"
#include "base/util.h"

#define NODES "/sys/devices/system/node"
#define OVERCOMMIT_2M "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"
#define THP_SHMEM "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
/* Large enough for every kernel's CPU mask; CPUs are numbered in 16 bits here. */
#define CPU_IDS 65536
#define NODE_IDS 4096 /* the kernel asks for a mask of at least its own, at most 1024 bits */

int64_t host_read_number(const char *path)
{
	char text[64], *end;
	long long value;

	if (!small_read(path, text, sizeof text) || !isdigit((unsigned char)text[0]))
		return -1;
	errno = 0;
	value = strtoll(text, &end, 10);
	return errno ? -1 : value;
}

/* The value after `key` in lines of "key value"; `key` with its punctuation, at the start of a line or after a
 * blank. */
static int64_t find_value(const char *text, const char *key)
{
	const size_t length = strlen(key);

	for (const char *at = text; (at = strstr(at, key)); at += length) {
		if (at > text && !isspace((unsigned char)at[-1]))
			continue;
		for (at += length; *at == ' '; at++)
			;
		return isdigit((unsigned char)*at) ? strtoll(at, NULL, 10) : -1;
	}
	return -1;
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static int64_t find_kib(const char *text, const char *key)
{
	const int64_t value = find_value(text, key);

	return value < 0 || value > INT64_MAX / 1024 ? -1 : value * 1024;
}

static void read_machine_memory(int64_t *ret_total, int64_t *ret_free, int64_t *ret_available)
{
	char text[4096];

	*ret_total = *ret_free = *ret_available = -1;
	if (!small_read("/proc/meminfo", text, sizeof text)) {
		struct sysinfo info;

		/* Without /proc the page cache that could be dropped is not known: this is the least there is. */
		if (sysinfo(&info) == 0) {
			*ret_total = (int64_t)(info.totalram * info.mem_unit);
			*ret_free = (int64_t)(info.freeram * info.mem_unit);
			*ret_available = (int64_t)((info.freeram + info.bufferram) * info.mem_unit);
		}
		return;
	}
	*ret_total = find_kib(text, "MemTotal:");
	*ret_free = find_kib(text, "MemFree:");
	*ret_available = find_kib(text, "MemAvailable:");
}

/* The kernel has no MemAvailable per node: free pages, the page cache, and half of the reclaimable slab. */
static void read_node_meminfo(struct host_node *node)
{
	char path[96], text[4096];
	int64_t active, inactive, slab;

	node->mem_total = node->mem_free = node->mem_available = -1;
	snprintf(path, sizeof path, NODES "/node%d/meminfo", node->id);
	if (!small_read(path, text, sizeof text))
		return;
	node->mem_total = find_kib(text, "MemTotal:");
	node->mem_free = find_kib(text, "MemFree:");
	active = find_kib(text, "Active(file):");
	inactive = find_kib(text, "Inactive(file):");
	slab = find_kib(text, "SReclaimable:");
	if (node->mem_free >= 0 && active >= 0 && inactive >= 0)
		node->mem_available = node->mem_free + active + inactive + MAX(slab, 0) / 2;
}

void host_hugepages_path(char *ret, uint32_t size, int node, uint64_t page_bytes)
{
	char parent[64] = "/sys/kernel/mm";

	if (access(NODES, F_OK) == 0)
		snprintf(parent, sizeof parent, NODES "/node%d", node);
	snprintf(ret, size, "%s/hugepages/hugepages-%" PRIu64 "kB", parent, page_bytes / 1024);
}

static int64_t read_node_pages(int id, uint64_t page_bytes, const char *what)
{
	char folder[128], path[160];

	host_hugepages_path(folder, sizeof folder, id, page_bytes);
	snprintf(path, sizeof path, "%s/%s", folder, what);
	return host_read_number(path);
}

void host_read_node_memory(struct host_node *node)
{
	if (numa_available() < 0 || numa_num_configured_nodes() <= 1)
		read_machine_memory(&node->mem_total, &node->mem_free, &node->mem_available);
	else
		read_node_meminfo(node);
	node->huge_2m_total = read_node_pages(node->id, HOST_HUGE_2M, "nr_hugepages");
	node->huge_2m_free = read_node_pages(node->id, HOST_HUGE_2M, "free_hugepages");
	node->huge_1g_total = read_node_pages(node->id, HOST_HUGE_1G, "nr_hugepages");
	node->huge_1g_free = read_node_pages(node->id, HOST_HUGE_1G, "free_hugepages");
}

static void take_least(int64_t *least, int64_t value)
{
	if (value >= 0 && (*least < 0 || value < *least))
		*least = value;
}

#define CGROUP_UNLIMITED ((int64_t)1 << 62) /* version 1 writes about 2^63 for "no limit" */

struct memory_limits {
	int64_t limit, left;
};

/* How each version names what it counts. */
static const struct memory_words {
	const char *limit, *used, *active_file, *inactive_file;
} memory_words[] = {
	{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file ", "total_inactive_file "},
	{"memory.max", "memory.current", "active_file ", "inactive_file "},
};

/* One control group: its own limit and what it has left. A group without the memory controller has neither. */
static void read_memory_limit(int folder, int version, void *userdata)
{
	const struct memory_words *word = &memory_words[version - 1];
	struct memory_limits *m = userdata;
	char max[32], current[32], stat[8192];
	int64_t limit_here, used;

	/* A group without a limit says "max". */
	if (!small_read_at(folder, word->limit, max, sizeof max) || !isdigit((unsigned char)max[0]))
		return;
	limit_here = strtoll(max, NULL, 10);
	if (limit_here >= CGROUP_UNLIMITED)
		return;
	take_least(&m->limit, limit_here);
	if (!small_read_at(folder, word->used, current, sizeof current) ||
	    !small_read_at(folder, "memory.stat", stat, sizeof stat))
		return;
	used = strtoll(current, NULL, 10);
	used -= MAX(find_value(stat, word->active_file), 0) + MAX(find_value(stat, word->inactive_file), 0);
	take_least(&m->left, MAX(limit_here - MAX(used, 0), 0));
}

void host_read_memory(int64_t *ret_available, int64_t *ret_limit, int64_t *ret_limit_left)
{
	struct memory_limits limits = {-1, -1};
	int64_t total, unused;

	read_machine_memory(&total, &unused, ret_available);
	cgroup_walk("memory", read_memory_limit, &limits);
	*ret_limit = limits.limit;
	*ret_limit_left = limits.left;
}

void host_read_thp_shmem(char *ret, uint32_t size)
{
	char text[128], *word, *end;

	ret[0] = '\0';
	if (!small_read(THP_SHMEM, text, sizeof text))
		return;
	word = strchr(text, '[');
	end = word ? strchr(word, ']') : NULL;
	if (!end || (size_t)(end - word) > size)
		return;
	*end = '\0';
	snprintf(ret, size, "%s", word + 1);
}

/* -- nodes and CPUs ----------------------------------------------------------------------------------------------- */

static struct host_node *node_get(struct host *host, int id)
{
	struct host_node *node;

	for (uint32_t i = 0; i < host->n_nodes; i++)
		if (host->nodes[i].id == id)
			return &host->nodes[i];
	if (host->n_nodes == HOST_NODES_MAX)
		return NULL;
	node = &host->nodes[host->n_nodes++];
	node->id = id;
	node->n_cpus = 0;
	return node;
}

/* -- what libnuma would take memory for, and end the process, or read at NULL, when there is none ------------------ */

struct node_mask {
	bool known;
	unsigned long bits[NODE_IDS / 8 / sizeof(unsigned long)];
};

static bool mask_has(const struct node_mask *mask, int node)
{
	const unsigned bits = 8 * sizeof mask->bits[0];

	return node >= 0 && node < NODE_IDS && mask->bits[(unsigned)node / bits] >> ((unsigned)node % bits) & 1;
}

static struct node_mask mems_allowed(void)
{
	struct node_mask mask = {.known = false};

	mask.known = get_mempolicy(NULL, mask.bits, NODE_IDS, NULL, MPOL_F_MEMS_ALLOWED) == 0;
	return mask;
}

/* -1: the kernel does not say. */
static int node_of_cpu(int cpu)
{
	char path[96];

	for (int node = 0; node <= numa_max_node(); node++) {
		snprintf(path, sizeof path, NODES "/node%d/cpu%d", node, cpu);
		if (access(path, F_OK) == 0)
			return node;
	}
	return -1;
}

/* The node whose memory a CPU of `id` should use: its own, else the nearest that we may allocate from. */
static int node_with_memory(int id, const struct node_mask *allowed)
{
	int nearest = -1;

	if (!allowed->known || id < 0)
		return MAX(id, 0);
	if (mask_has(allowed, id))
		return id;
	for (int other = 0; other <= numa_max_node(); other++) {
		if (!mask_has(allowed, other))
			continue;
		if (nearest < 0 || numa_distance(id, other) < numa_distance(id, nearest))
			nearest = other;
	}
	return nearest < 0 ? id : nearest;
}

static int compare_nodes(const void *a, const void *b)
{
	const struct host_node *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

/* The mask is the process's (its main thread's), whatever thread asks: helper threads are pinned. */
static void read_nodes(struct host *host)
{
	const size_t bytes = CPU_ALLOC_SIZE(CPU_IDS);
	const bool numa = numa_available() >= 0;
	const struct node_mask allowed = mems_allowed();
	cpu_set_t *cpus = CPU_ALLOC(CPU_IDS);

	host->n_nodes = 0;
	if (cpus && sched_getaffinity(getpid(), bytes, cpus) == 0) {
		for (int cpu = 0; cpu < CPU_IDS; cpu++) {
			struct host_node *node;

			if (!CPU_ISSET_S(cpu, bytes, cpus))
				continue;
			node = node_get(host, numa ? node_with_memory(node_of_cpu(cpu), &allowed) : 0);
			if (node && node->n_cpus < HOST_CPUS_MAX)
				node->cpus[node->n_cpus++] = (uint16_t)cpu;
		}
	}
	if (host->n_nodes == 0)
		node_get(host, 0);
	qsort(host->nodes, host->n_nodes, sizeof host->nodes[0], compare_nodes);
	for (uint32_t i = 0; i < host->n_nodes; i++)
		host_order_cpus(&host->nodes[i]);
	CPU_FREE(cpus);
}

cpu_set_t *host_cpu_mask(uint32_t cpu, size_t *ret_bytes)
{
	cpu_set_t *mask = CPU_ALLOC(cpu + 1);

	*ret_bytes = CPU_ALLOC_SIZE(cpu + 1);
	if (mask) {
		CPU_ZERO_S(*ret_bytes, mask);
		CPU_SET_S(cpu, *ret_bytes, mask);
	}
	return mask;
}

int host_bind_thread(const struct host_node *node)
{
	const size_t bytes = CPU_ALLOC_SIZE(CPU_IDS);
	cpu_set_t *cpus;
	int r;

	if (node->n_cpus == 0)
		return -EINVAL;
	cpus = CPU_ALLOC(CPU_IDS);
	if (!cpus)
		return -ENOMEM;
	CPU_ZERO_S(bytes, cpus);
	for (uint32_t i = 0; i < node->n_cpus; i++)
		CPU_SET_S(node->cpus[i], bytes, cpus);
	r = sched_setaffinity(0, bytes, cpus) < 0 ? -errno : 0;
	CPU_FREE(cpus);
	return r;
}

int host_leave_cpu(void)
{
	unsigned long ours[CPU_IDS / (8 * sizeof(long))], there[ARRAY_LEN(ours)] = {0};
	cpu_set_t *mask = (cpu_set_t *)ours, *one = (cpu_set_t *)there;
	const int here = sched_getcpu();
	int next = here;

	if (here < 0 || here >= CPU_IDS || sched_getaffinity(0, sizeof ours, mask) < 0)
		return -errno;
	do
		next = (next + 1) % CPU_IDS;
	while (next != here && !CPU_ISSET_S((size_t)next, sizeof ours, mask));
	if (next == here)
		return -ENOENT;
	CPU_SET_S((size_t)next, sizeof there, one);
	if (sched_setaffinity(0, sizeof there, one) < 0 || sched_setaffinity(0, sizeof ours, mask) < 0)
		return -errno;
	return 0;
}

/* -- all of it ---------------------------------------------------------------------------------------------------- */

static void read_io_uring(struct host *host, bool probe)
{
	struct io_uring_params params = {0};
	int fd;

	host->io_uring_disabled = (int)host_read_number("/proc/sys/kernel/io_uring_disabled");
	host->io_uring_works = false;
	host->io_uring_error = 0;
	if (!probe)
		return;
	fd = (int)syscall(SYS_io_uring_setup, 1, &params);
	host->io_uring_works = fd >= 0;
	host->io_uring_error = fd < 0 ? errno : 0;
	close_fd(fd);
}

void host_read_again(struct host *host)
{
	for (uint32_t i = 0; i < host->n_nodes; i++)
		host_read_node_memory(&host->nodes[i]);
	host_read_memory(&host->mem_available, &host->mem_limit, &host->mem_limit_left);
}

void host_read(struct host *ret, bool probe_io_uring)
{
	struct rlimit memlock;
	struct utsname names;

	read_nodes(ret);
	host_read_again(ret);
	ret->cpu_quota = host_read_cpu_quota();
	ret->memlock = getrlimit(RLIMIT_MEMLOCK, &memlock) < 0 || memlock.rlim_cur > INT64_MAX
			       ? -1
			       : (int64_t)memlock.rlim_cur;
	ret->overcommit_2m = host_read_number(OVERCOMMIT_2M);
	host_read_thp_shmem(ret->thp_shmem, sizeof ret->thp_shmem);
	ret->kernel[0] = '\0';
	if (uname(&names) == 0)
		snprintf(ret->kernel, sizeof ret->kernel, "%.63s", names.release);
	read_io_uring(ret, probe_io_uring);
}
