/* SPDX-License-Identifier: MIT */
/*
 * device - what the parts of test-kmod share: commands, pool files, processes that die, and what the module counts.
 *
 * The program runs as root in a machine of its own (tests/kmod/in-qemu.sh): it loads and unloads modules, and all huge
 * pages are its own.
 */
#ifndef TESTS_KMOD_DEVICE_H
#define TESTS_KMOD_DEVICE_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/tap.h"
#include "uapi/moe_kmod.h"

#define HUGE_BYTES (2ull << 20)
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#define DEBUGGING "/debug/" /* where debugfs is, where there is one */
#define COMMANDS 22         /* that there are */
#define SOMEBODY 1000       /* users of this machine, which has no names for them */
#define SOMEBODY_ELSE 1001
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

#define fails(call, error, ...)                                                                                        \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		int failed_ = (call) == -1, errno_ = errno;                                                            \
		ok(failed_ &&errno_ == (error), __VA_ARGS__);                                                          \
		if (!failed_ || errno_ != (error))                                                                     \
			diag("%s", failed_ ? strerror(errno_) : "it succeeded");                                       \
	} while (0)

/* A counter of the module, -1 when it is not loaded; what /proc/meminfo says of huge pages that are free. */
int64_t counter(const char *name);
int64_t huge_free(void);
/* Waits for it: what a process that has just died held is let go of soon. */
bool counter_becomes(const char *name, int64_t value);
bool huge_becomes(int64_t value);

int device_open(void);
int device_open_flags(int flags);

/* A memfd of huge pages with bytes that `seed` determines, on `node` or anywhere (-1), mode 0600, sealed. */
int pool_file(unsigned pages, unsigned seed, int node, int seals);
bool pool_is(int fd, unsigned pages, unsigned seed);
struct moe_kmod_adopt adopt_of(int fd, unsigned pages, uint64_t epoch, const char *name);
/* pool_file and ADOPT in one; the pool's id, the file is closed. */
uint64_t pool_new(int dev, unsigned pages, unsigned seed, uint64_t epoch);
int pool_release(int dev, uint64_t id);

struct moe_kmod_lease lease_of(uint64_t pool, uint64_t epoch, uint64_t offset, uint64_t bytes);
uint64_t lease_new(int dev, uint64_t pool, uint64_t epoch);

/* A child that runs `run`, says so through a pipe (child_ready), and waits to be killed or to be told to end. */
struct child {
	pid_t pid;
	int ready, go;
};
struct child child_start(void (*run)(void *arg), void *arg);
void child_ready(void); /* in the child; it goes on when child_go was called */
void child_wait_ready(struct child *c);
void child_go(struct child *c);          /* one more step */
int child_end(struct child *c, int sig); /* 0: without a signal; its status of waitpid */

int module_load_file(const char *path);
int module_load(void);
int module_unload(void);
/* Whether the kernel's log has what must not be there since the last call. */
bool log_is_clean(void);
bool write_file(const char *path, const char *value);
/* What kmemleak has found is forgotten; what it has found since is told, as a result, where the kernel has it. */
void leaks_forget(void);
void leaks_none(void);
void locks_watched(void);

void test_commands(void);
void test_adopt(void);
void test_pools(void);
void test_keepers(void);
void test_leases(void);
void test_events(void);
void test_deaths(void);
void test_seals(void);
void test_exports(void);
void test_queues(void);
void test_shares(void);
void test_fails(void);
void test_vgem(void);
void test_rings(void);
void test_queue_deaths(void);
void test_ring_deaths(void);
void test_traces(void);
void test_hostile(unsigned long long *seed);

#endif
