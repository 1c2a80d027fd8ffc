/* SPDX-License-Identifier: MIT */
/* host: what it says of this machine holds together, and in a root that we make up it says exactly what stands
 * there. */
#include "base/host.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/forbid.h"
#include "tests/tap.h"

#define MIB (1ll << 20)

static struct host *read_host(bool probe)
{
	struct host *host = malloc(sizeof *host);

	if (!host)
		abort();
	memset(host, 0xa5, sizeof *host); /* every field must be written */
	host_read(host, probe);
	return host;
}

static void test_nodes(void)
{
	_cleanup_free_ struct host *host = read_host(false);
	uint32_t cpus = 0;
	bool sorted = true, ours = true;
	cpu_set_t mask;

	require(sched_getaffinity(0, sizeof mask, &mask) == 0, "affinity mask is readable");
	ok(host->n_nodes >= 1 && host->n_nodes <= HOST_NODES_MAX, "%u nodes", host->n_nodes);
	for (uint32_t i = 0; i < host->n_nodes; i++) {
		const struct host_node *node = &host->nodes[i];

		cpus += node->n_cpus;
		sorted &= i == 0 || host->nodes[i - 1].id < node->id;
		for (uint32_t j = 0; j < node->n_cpus; j++) {
			sorted &= j == 0 || node->cpus[j - 1] < node->cpus[j];
			ours &= CPU_ISSET(node->cpus[j], &mask);
		}
		ok(node->mem_total > 0 && node->mem_free >= 0 && node->mem_free <= node->mem_total &&
			   node->mem_available >= 0,
		   "node %d: memory %lld MiB, free %lld, available %lld", node->id, (long long)node->mem_total / MIB,
		   (long long)node->mem_free / MIB, (long long)node->mem_available / MIB);
		ok(node->huge_2m_free <= node->huge_2m_total && node->huge_1g_free <= node->huge_1g_total,
		   "node %d: no more hugepages free than there are", node->id);
	}
	ok(cpus == (uint32_t)CPU_COUNT(&mask), "%u CPUs, as the affinity mask says", cpus);
	ok(sorted && ours, "nodes and CPUs ascend, and each CPU is ours");
	ok(host->mem_available > 0 && host->kernel[0] && host->mem_limit >= -1 &&
		   (host->mem_limit_left <= host->mem_limit || host->mem_limit < 0),
	   "machine: %lld MiB available, kernel %s", (long long)host->mem_available / MIB, host->kernel);
}

static void test_affinity(void)
{
	_cleanup_free_ struct host *host = read_host(false);
	struct host_node one = host->nodes[0], none = one;
	cpu_set_t before, after, *far;
	size_t bytes;
	int r;

	far = host_cpu_mask(5000, &bytes);
	ok(far && CPU_COUNT_S(bytes, far) == 1 && CPU_ISSET_S(5000, bytes, far), "the mask of CPU 5000, of %zu bytes",
	   bytes);
	CPU_FREE(far);
	require(sched_getaffinity(0, sizeof before, &before) == 0, "affinity mask is readable");
	one.n_cpus = 1;
	none.n_cpus = 0;
	ok(host_bind_thread(&none) == -EINVAL, "a node without CPUs binds nothing");
	r = host_bind_thread(&one);
	sched_getaffinity(0, sizeof after, &after);
	ok(r == 0 && CPU_COUNT(&after) == 1 && CPU_ISSET(one.cpus[0], &after), "bound to CPU %u", one.cpus[0]);
	host_read(host, false);
	ok(host->n_nodes == 1 && host->nodes[0].n_cpus == 1, "host lists only the CPUs of the mask");
	sched_setaffinity(0, sizeof before, &before);
}

/* -- in a child: without io_uring, and in a made-up root ---------------------------------------------------------- */

static int run_child(int (*run)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		fflush(stdout);
		_exit(run());
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

static int without_io_uring(void)
{
	struct host *host;

	if (!forbid_call(SYS_io_uring_setup, EPERM))
		return 77;
	host = read_host(true);
	return !host->io_uring_works && host->io_uring_error == EPERM ? 0 : 1;
}

static int enter_root(const char *root)
{
	if (chroot(root) < 0 && (unshare(CLONE_NEWUSER) < 0 || chroot(root) < 0))
		return 77;
	return chdir("/");
}

static char root[64];

static bool node_unknown(const struct host_node *node)
{
	return node->huge_2m_total == -1 && node->huge_2m_free == -1 && node->huge_1g_total == -1 &&
	       node->huge_1g_free == -1;
}

static int in_empty_root(void)
{
	struct host *host;

	if (enter_root(root))
		return 77;
	host = read_host(true);
	for (uint32_t i = 0; i < host->n_nodes; i++)
		if (!node_unknown(&host->nodes[i]))
			return 1;
	if (host->n_nodes < 1 || host->nodes[0].n_cpus == 0)
		return 2;
	/* The machine's memory is known by sysinfo(2). */
	if (host->mem_available <= 0 || host->mem_limit != -1 || host->mem_limit_left != -1 ||
	    host->overcommit_2m != -1 || host->thp_shmem[0] || host->io_uring_disabled != -1)
		return 3;
	return host->kernel[0] ? 0 : 4;
}

static bool write_file(const char *path, const char *text)
{
	char whole[256];
	int fd;

	snprintf(whole, sizeof whole, "%s/%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(whole, 0755);
		*at = '/';
	}
	fd = open(whole, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		return false;
	close(fd);
	return true;
}

static bool write_root(void)
{
	return write_file("proc/meminfo", "MemTotal:  4096 kB\nMemFree:   1024 kB\nMemAvailable:    2048 kB\n") &&
	       write_file("proc/self/cgroup", "4:cpu,memory:/old\n3:memoryless:/x\n0::/a.slice/b.service\n") &&
	       write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n") &&
	       write_file("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "400000\n") &&
	       write_file("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "350000\n") &&
	       write_file("sys/fs/cgroup/memory/old/memory.stat", "active_file 9\ntotal_active_file 20000\n") &&
	       write_file("proc/sys/kernel/io_uring_disabled", "1\n") &&
	       write_file("sys/fs/cgroup/memory.stat", "active_file 4\n") &&
	       write_file("sys/fs/cgroup/a.slice/memory.max", "500000\n") &&
	       write_file("sys/fs/cgroup/a.slice/memory.current", "450000\n") &&
	       write_file("sys/fs/cgroup/a.slice/memory.stat", "anon 1\ninactive_file 20000\nactive_file 10000\n") &&
	       write_file("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n") &&
	       write_file("sys/fs/cgroup/a.slice/b.service/memory.current", "1000\n") &&
	       write_file("sys/fs/cgroup/a.slice/b.service/memory.stat", "anon 1\n") &&
	       write_file("sys/kernel/mm/transparent_hugepage/shmem_enabled",
			  "always within_size [advise] never deny force\n") &&
	       write_file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "7\n") &&
	       write_file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "512\n") &&
	       write_file("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "500\n") &&
	       write_file("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "x\n");
}

static int in_made_up_root(void)
{
	struct host *host;

	if (enter_root(root))
		return 77;
	host = read_host(true);
	if (host->mem_available != 2 * MIB)
		return 1;
	if (host->n_nodes == 1 && host->nodes[0].mem_total != 4 * MIB)
		return 2;
	/* Version 1 has the lower limit; of version 2, a.slice has 500000 - (450000 - 30000 of page cache) left, of
	 * version 1 old has 400000 - (350000 - 20000). */
	if (host->mem_limit != 400000 || host->mem_limit_left != 70000)
		return 3;
	if (strcmp(host->thp_shmem, "advise") != 0 || host->overcommit_2m != 7 || host->io_uring_disabled != 1)
		return 4;
	if (host->nodes[0].id != 0)
		return 0; /* the made-up root has node 0 only */
	if (host->nodes[0].huge_2m_total != 512 || host->nodes[0].huge_2m_free != 500)
		return 5;
	return host->nodes[0].huge_1g_total == -1 && host->nodes[0].huge_1g_free == -1 ? 0 : 6;
}

/* CPU quotas: how it is written, and what it says. */
static const struct {
	const char *path, *text;
	double quota; /* all that have been written so far taken together */
} quotas[] = {
	{"sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n", -1},
	{"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n", -1},
	{"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n", -1},
	{"sys/fs/cgroup/a.slice/cpu.max", "400000 100000\n", 4},
	{"sys/fs/cgroup/a.slice/b.service/cpu.max", "350000 100000\n", 3.5},
	{"sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "50000\n", 3.5}, /* without a period it says nothing */
	{"sys/fs/cgroup/cpu/old/cpu.cfs_period_us", "20000\n", 2.5},
	{"sys/fs/cgroup/a.slice/b.service/cpu.max", "25000 100000\n", 0.25},
	{"sys/fs/cgroup/a.slice/b.service/cpu.max", "nonsense\n", 2.5},
};

static double expected_quota;

static int quota_in_made_up_root(void)
{
	if (enter_root(root))
		return 77;
	return host_read_cpu_quota() == expected_quota ? 0 : 1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	return remove(path);
}

static void check_child(int (*run)(void), const char *what)
{
	int r = run_child(run);

	if (r == 77)
		tap_skip("%s: not permitted to set it up here", what);
	else
		ok(r == 0, "%s (child says %d)", what, r);
}

static void test_quotas(void)
{
	for (size_t i = 0; i < sizeof quotas / sizeof quotas[0]; i++) {
		char what[128];

		require(write_file(quotas[i].path, quotas[i].text), "a made-up quota");
		expected_quota = quotas[i].quota;
		snprintf(what, sizeof what, "%s: %.*s: %g CPUs", quotas[i].path, (int)strcspn(quotas[i].text, "\n"),
			 quotas[i].text, expected_quota);
		check_child(quota_in_made_up_root, what);
	}
}

/* CPUs of one core share its siblings list in sysfs; ordering keeps all of them, one of each core first. */
static void test_cores(void)
{
	struct host *host = calloc(1, sizeof *host);
	bool good = true;

	require(host != NULL, "memory");
	host_read(host, false);
	for (uint32_t n = 0; n < host->n_nodes; n++) {
		struct host_node *node = &host->nodes[n];
		uint64_t before = 0, after = 0;

		for (uint32_t i = 0; i < node->n_cpus; i++)
			before += 1ull << (node->cpus[i] % 64);
		host_order_cpus(node);
		for (uint32_t i = 0; i < node->n_cpus; i++)
			after += 1ull << (node->cpus[i] % 64);
		good = good && before == after && node->n_cores >= (node->n_cpus > 0) && node->n_cores <= node->n_cpus;
	}
	ok(good, "the CPUs of each node, one of each core first");
	free(host);
}

int main(void)
{
	tap_tmp(root, "test-host-XXXXXX");
	require(mkdtemp(root) != NULL, "a folder of our own");
	test_nodes();
	test_affinity();
	check_child(without_io_uring, "io_uring forbidden: it says so, with EPERM");
	check_child(in_empty_root, "without /proc and /sys all is unknown but the machine's memory");
	require(write_root(), "a made-up /proc and /sys");
	check_child(in_made_up_root, "in the made-up root each number is found");
	test_quotas();
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	test_cores();
	return tap_done();
}
