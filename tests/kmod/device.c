/* SPDX-License-Identifier: MIT */
#include "tests/kmod/device.h"

#include <linux/mempolicy.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define LOG_BYTES (1 << 20)

static int64_t read_number(const char *path, const char *word)
{
	char line[256];
	FILE *file = fopen(path, "re");
	int64_t value = -1;

	while (file && value < 0 && fgets(line, sizeof line, file))
		if (strncmp(line, word, strlen(word)) == 0)
			value = strtoll(line + strlen(word), NULL, 10);
	if (file)
		fclose(file);
	return value;
}

int64_t counter(const char *name)
{
	char path[128];

	snprintf(path, sizeof path, "/sys/class/misc/moe-expert/%s", name);
	return read_number(path, "");
}

int64_t huge_free(void)
{
	return read_number("/proc/meminfo", "HugePages_Free:");
}

bool counter_becomes(const char *name, int64_t value)
{
	uint64_t end = 0;

	while (counter(name) != value)
		if (!tap_wait(&end))
			return false;
	return true;
}

bool huge_becomes(int64_t value)
{
	uint64_t end = 0;

	while (huge_free() != value)
		if (!tap_wait(&end))
			return false;
	return true;
}

int device_open_flags(int flags)
{
	return open(MOE_KMOD_DEVICE, flags | O_CLOEXEC);
}

int device_open(void)
{
	int dev = device_open_flags(O_RDWR);

	if (dev < 0)
		diag("open " MOE_KMOD_DEVICE ": %s", strerror(errno));
	return dev;
}

/* Bytes of a page that tell it from any other. */
static uint64_t word_of(unsigned seed, uint64_t page, uint64_t word)
{
	return (seed + 1) * 0x9e3779b97f4a7c15ull + page * 1000003 + word;
}

int pool_file(unsigned pages, unsigned seed, int node, int seals)
{
	const uint64_t bytes = pages * HUGE_BYTES, mask = node < 0 ? 0 : 1ull << node;
	int fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB);
	uint64_t *at;

	if (fd < 0 || fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return -1;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -1;
	if (node >= 0 && syscall(SYS_mbind, at, bytes, MPOL_BIND, &mask, 64, 0) < 0)
		return -1;
	for (uint64_t p = 0; p < pages; p++)
		for (uint64_t w = 0; w < HUGE_BYTES / 8; w += 512)
			at[p * HUGE_BYTES / 8 + w] = word_of(seed, p, w);
	munmap(at, bytes);
	return seals && fcntl(fd, F_ADD_SEALS, seals) < 0 ? -1 : fd;
}

bool pool_is(int fd, unsigned pages, unsigned seed)
{
	const uint64_t bytes = pages * HUGE_BYTES;
	/* Private, so that a descriptor that may write can map a file that is sealed against it. */
	const uint64_t *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	bool same = at != MAP_FAILED;

	for (uint64_t p = 0; same && p < pages; p++)
		for (uint64_t w = 0; same && w < HUGE_BYTES / 8; w += 512)
			same = at[p * HUGE_BYTES / 8 + w] == word_of(seed, p, w);
	if (at != MAP_FAILED)
		munmap((void *)(uintptr_t)at, bytes);
	return same;
}

struct moe_kmod_adopt adopt_of(int fd, unsigned pages, uint64_t epoch, const char *name)
{
	struct moe_kmod_adopt a = {.fd = fd, .epoch = epoch, .bytes = pages * HUGE_BYTES, .node = -1};

	snprintf(a.name, sizeof a.name, "%s", name);
	return a;
}

uint64_t pool_new(int dev, unsigned pages, unsigned seed, uint64_t epoch)
{
	int fd = pool_file(pages, seed, -1, ALL_SEALS);
	struct moe_kmod_adopt a = adopt_of(fd, pages, epoch, "model");

	if (ioctl(dev, MOE_KMOD_ADOPT, &a) < 0) {
		diag("ADOPT: %s", strerror(errno));
		a.id = 0;
	}
	close(fd);
	return a.id;
}

int pool_release(int dev, uint64_t id)
{
	return ioctl(dev, MOE_KMOD_RELEASE, &(struct moe_kmod_release){.id = id});
}

struct moe_kmod_lease lease_of(uint64_t pool, uint64_t epoch, uint64_t offset, uint64_t bytes)
{
	return (struct moe_kmod_lease){.pool = pool, .epoch = epoch, .offset = offset, .bytes = bytes};
}

uint64_t lease_new(int dev, uint64_t pool, uint64_t epoch)
{
	struct moe_kmod_lease l = lease_of(pool, epoch, 0, 4096);

	return ioctl(dev, MOE_KMOD_LEASE, &l) < 0 ? 0 : l.id;
}

/* -- children --------------------------------------------------------------------------------------------------- */

static int to_parent = -1, from_parent = -1;

void child_ready(void)
{
	char byte = 'r';

	if (write(to_parent, &byte, 1) != 1 || read(from_parent, &byte, 1) != 1)
		_exit(99);
}

struct child child_start(void (*run)(void *arg), void *arg)
{
	int up[2], down[2];
	struct child c;

	if (pipe2(up, O_CLOEXEC) < 0 || pipe2(down, O_CLOEXEC) < 0)
		exit(1);
	fflush(stdout);
	c = (struct child){.pid = fork(), .ready = up[0], .go = down[1]};
	if (c.pid == 0) {
		close(up[0]);
		close(down[1]);
		to_parent = up[1];
		from_parent = down[0];
		run(arg);
		_exit(0);
	}
	close(up[1]);
	close(down[0]);
	return c;
}

void child_wait_ready(struct child *c)
{
	char byte;

	if (read(c->ready, &byte, 1) != 1)
		diag("the child ended early");
}

void child_go(struct child *c)
{
	if (write(c->go, "g", 1) != 1)
		diag("the child is gone");
}

int child_end(struct child *c, int sig)
{
	int status = -1;

	if (sig)
		kill(c->pid, sig);
	waitpid(c->pid, &status, 0);
	close(c->ready);
	close(c->go);
	return status;
}

/* -- the module and the kernel's log ---------------------------------------------------------------------------- */

int module_load_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = (int)syscall(SYS_finit_module, fd, "", 0);

	close(fd);
	return r;
}

int module_load(void)
{
	return module_load_file("/moe_expert.ko");
}

int module_unload(void)
{
	return (int)syscall(SYS_delete_module, "moe_expert", O_NONBLOCK);
}

/*
 * With lockdep io_uring warns of a completion that is not posted by the ring's task; 6.12 also where the ring is being
 * freed, by the kernel's own worker, which has each command cancelled (its developers call that a false alarm). Such a
 * report is none; one with another caller is.
 */
static void forgive_ring_exit(char *text)
{
	static const char begin[] = "WARNING:", end[] = "end trace";

	for (char *at = strstr(text, begin), *next; at; at = next) {
		char *const last = strstr(at, end), *const worker = strstr(at, "io_ring_exit_work"),
			    *const whose = strstr(at, "io_get_cqe"), *const line = strchr(at, '\n');

		next = strstr(at + 1, begin);
		if (!last || !worker || !whose || worker > last || whose > line || (next && next < last))
			continue;
		diag("forgiven, io_uring's own: %.*s", (int)(line - at), at);
		memset(at, ' ', (size_t)(last - at));
	}
}

bool log_is_clean(void)
{
	static const char *const bad[] = {
		"WARNING:", "BUG:",       "Call Trace", "refcount_t", "Bad page", "general protection",
		"Oops",     "INFO: task", "leaked",     "UBSAN:",     "DMA-API:", "kmemleak:"};
	static char text[LOG_BYTES];
	int bytes = klogctl(4 /* read and clear */, text, sizeof text - 1);
	bool clean = bytes >= 0;

	text[bytes > 0 ? bytes : 0] = '\0';
	forgive_ring_exit(text);
	for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
			if (strstr(line, bad[i])) {
				diag("the kernel's log: %s", line);
				clean = false;
			}
	return clean;
}

bool write_file(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	bool good = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);

	close(fd);
	return good;
}

#define LEAKS DEBUGGING "kmemleak"

void leaks_forget(void)
{
	if (write_file(LEAKS, "scan"))
		write_file(LEAKS, "clear");
}

/* After the first thing that it finds, and when it runs out of memory, lockdep looks no more. */
void locks_watched(void)
{
	FILE *file = fopen("/proc/lockdep_stats", "re");
	char line[256];
	int on = -1;

	while (file && on < 0 && fgets(line, sizeof line, file))
		if (sscanf(line, " debug_locks: %d", &on) != 1)
			on = -1;
	if (file)
		fclose(file);
	if (on < 0)
		tap_skip("this kernel does not watch locks: no /proc/lockdep_stats (make check-kmod-debug)");
	else
		ok(on == 1, "lockdep has watched to the end");
}

/* It tells only of what is older than 5 s, and whose content two scans have found the same. */
void leaks_none(void)
{
	char line[256];
	FILE *file;
	int lines = 0;

	if (access(LEAKS, W_OK) < 0) {
		tap_skip("this kernel does not look for leaks: no kmemleak (make check-kmod-debug)");
		return;
	}
	sleep(6);
	write_file(LEAKS, "scan");
	write_file(LEAKS, "scan");
	file = fopen(LEAKS, "re");
	for (; file && fgets(line, sizeof line, file); lines++)
		diag("kmemleak: %s", strtok(line, "\n"));
	ok(file && lines == 0, "kmemleak finds no leak");
	if (file)
		fclose(file);
}
