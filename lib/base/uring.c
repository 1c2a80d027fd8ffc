/* SPDX-License-Identifier: MIT */
#include "uring.h"

#include <errno.h>
#include <grp.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "util.h"

#define OPS 256
#define CAP_SYS_ADMIN_BIT 21

/* Of Linux 6.7, later than liburing 2.3. */
#define OP_READ_MULTISHOT 49
#define OP_WAITID 50
#define OP_FUTEX_WAIT 51

const struct uring_fact uring_facts[URING_FEATURES] = {
	[URING_SINGLE_ISSUER] = {"single_issuer", "6.0"},
	[URING_DEFER_TASKRUN] = {"defer_taskrun", "6.1"},
	[URING_COOP_TASKRUN] = {"coop_taskrun", "5.19"},
	[URING_REGISTERED_RING] = {"registered_ring", "5.18"},
	[URING_POLL_ADD] = {"poll_add", ""},
	[URING_POLL_REMOVE] = {"poll_remove", ""},
	[URING_READ] = {"read", "5.6"},
	[URING_READ_FIXED] = {"read_fixed", ""},
	[URING_ACCEPT] = {"accept", "5.5"},
	[URING_ACCEPT_MULTISHOT] = {"accept_multishot", "5.19"},
	[URING_RECVMSG] = {"recvmsg", "5.3"},
	[URING_READ_MULTISHOT] = {"read_multishot", "6.7"},
	[URING_WAITID] = {"waitid", "6.7"},
	[URING_FUTEX_WAIT] = {"futex_wait", "6.7"},
};

static const struct {
	enum uring_feature feature;
	uint32_t op;
} operations[] = {
	{URING_POLL_ADD, IORING_OP_POLL_ADD},
	{URING_POLL_REMOVE, IORING_OP_POLL_REMOVE},
	{URING_READ, IORING_OP_READ},
	{URING_READ_FIXED, IORING_OP_READ_FIXED},
	{URING_ACCEPT, IORING_OP_ACCEPT},
	{URING_RECVMSG, IORING_OP_RECVMSG},
	{URING_READ_MULTISHOT, OP_READ_MULTISHOT},
	{URING_WAITID, OP_WAITID},
	{URING_FUTEX_WAIT, OP_FUTEX_WAIT},
};

/* -- what is there ------------------------------------------------------------------------------------------------ */

static int setup(uint32_t flags)
{
	struct io_uring_params params = {.flags = flags};
	const long fd = syscall(SYS_io_uring_setup, 1, &params);

	return fd < 0 ? -errno : (int)fd;
}

static int64_t probe_setups(void)
{
	static const struct {
		enum uring_feature feature;
		uint32_t flags;
	} setups[] = {
		{URING_SINGLE_ISSUER, IORING_SETUP_SINGLE_ISSUER},
		{URING_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN},
		{URING_COOP_TASKRUN, IORING_SETUP_COOP_TASKRUN},
	};
	int64_t there = 0;

	for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
		const int fd = setup(setups[i].flags);

		there |= (int64_t)(fd >= 0) << setups[i].feature;
		close_fd(fd < 0 ? -1 : fd);
	}
	return there;
}

static int64_t probe_operations(int fd)
{
	const size_t bytes = sizeof(struct io_uring_probe) + OPS * sizeof(struct io_uring_probe_op);
	_cleanup_free_ struct io_uring_probe *probe = calloc(1, bytes);
	int64_t there = 0;

	if (!probe || syscall(SYS_io_uring_register, fd, IORING_REGISTER_PROBE, probe, OPS) < 0)
		return 0;
	for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
		if (operations[i].op < probe->ops_len && probe->ops[operations[i].op].flags & IO_URING_OP_SUPPORTED)
			there |= (int64_t)1 << operations[i].feature;
	return there;
}

static bool probe_registered_ring(int fd)
{
	struct io_uring_rsrc_update at = {.offset = UINT32_MAX, .data = (__u64)fd};

	if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_RING_FDS, &at, 1) != 1)
		return false;
	syscall(SYS_io_uring_register, fd, IORING_UNREGISTER_RING_FDS, &at, 1);
	return true;
}

/* The result of an operation that ends at once, in a ring of its own; -EIO: none came. */
static int try_operation(const struct io_uring_sqe *sqe)
{
	struct io_uring_params p = {0};
	_cleanup_close_ int fd = (int)syscall(SYS_io_uring_setup, 1, &p);
	size_t bytes;
	uint8_t *rings;
	struct io_uring_sqe *sqes;
	int r = -EIO;

	if (fd < 0 || !(p.features & IORING_FEAT_SINGLE_MMAP))
		return r;
	bytes = MAX(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
		    p.sq_off.array + p.sq_entries * sizeof(uint32_t));
	rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	sqes = mmap(NULL, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
	if (rings != MAP_FAILED && sqes != MAP_FAILED) {
		*sqes = *sqe;
		*(uint32_t *)(rings + p.sq_off.array) = 0;
		__atomic_store_n((uint32_t *)(rings + p.sq_off.tail), 1, __ATOMIC_RELEASE); /* partner: the kernel */
		if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1)
			r = ((const struct io_uring_cqe *)(rings + p.cq_off.cqes))->res;
	}
	if (rings != MAP_FAILED)
		munmap(rings, bytes);
	if (sqes != MAP_FAILED)
		munmap(sqes, p.sq_entries * sizeof *sqes);
	return r;
}

/* Of what is no socket: a kernel that does not know the flag says that first. */
static bool probe_accept_multishot(int fd)
{
	const struct io_uring_sqe sqe = {.opcode = IORING_OP_ACCEPT, .ioprio = IORING_ACCEPT_MULTISHOT, .fd = fd};

	return try_operation(&sqe) == -ENOTSOCK;
}

int64_t uring_probe(void)
{
	_cleanup_close_ int fd = setup(0);
	int64_t there;

	if (fd < 0) {
		const int r = fd;

		fd = -1;
		return r;
	}
	there = probe_setups() | probe_operations(fd);
	there |= (int64_t)probe_accept_multishot(fd) << URING_ACCEPT_MULTISHOT;
	return there | (int64_t)probe_registered_ring(fd) << URING_REGISTERED_RING;
}

/* -- who forbids it ----------------------------------------------------------------------------------------------- */

/* The number after `key` in a file of /proc, or the file's own if key is "". */
static long read_field(const char *path, const char *key, int base, long otherwise)
{
	FILE *file = fopen(path, "re");
	char line[256];
	long value = otherwise;

	while (file && value == otherwise && fgets(line, sizeof line, file)) {
		char *end;
		const long number = strncmp(line, key, strlen(key)) == 0 ? strtol(line + strlen(key), &end, base) : 0;

		if (strncmp(line, key, strlen(key)) == 0 && end != line + strlen(key))
			value = number;
	}
	if (file)
		fclose(file);
	return value;
}

static bool in_group(long group)
{
	gid_t groups[1024];
	const int n = getgroups(sizeof groups / sizeof *groups, groups);
	bool in = group >= 0 && getegid() == (gid_t)group;

	for (int i = 0; i < n; i++)
		in |= group >= 0 && groups[i] == (gid_t)group;
	return in;
}

enum uring_cause uring_cause(int code, char *found, uint32_t size)
{
	const long disabled = read_field("/proc/sys/kernel/io_uring_disabled", "", 10, -1);
	const long group = read_field("/proc/sys/kernel/io_uring_group", "", 10, -1);
	const long capable = read_field("/proc/self/status", "CapEff:", 16, 0) >> CAP_SYS_ADMIN_BIT & 1;
	const long filter = read_field("/proc/self/status", "Seccomp:", 10, 0);

	if (code == -ENOSYS) {
		snprintf(found, size, "the kernel has no io_uring, or %s hides it (ENOSYS)",
			 filter > 0 ? "the seccomp filter of this process" : "something");
		return URING_CAUSE_ABSENT;
	}
	if (code != -EPERM && code != -EACCES) {
		snprintf(found, size, "io_uring_setup: %s", strerror(-code));
		return URING_CAUSE_OTHER;
	}
	if (disabled == 2) {
		snprintf(found, size, "kernel.io_uring_disabled is 2: forbidden to every process");
		return URING_CAUSE_SYSCTL;
	}
	if (disabled == 1 && !capable && !in_group(group)) {
		snprintf(found, size,
			 "kernel.io_uring_disabled is 1: only for CAP_SYS_ADMIN and the group in kernel.io_uring_group "
			 "(%ld%s)",
			 group, group < 0 ? ": none" : "");
		return URING_CAUSE_GROUP;
	}
	snprintf(found, size, "%s (kernel.io_uring_disabled %s)",
		 filter > 0 ? "a seccomp filter of this process refuses it" : "a security module seems to refuse it",
		 disabled < 0 ? "is not there"
		 : disabled   ? "is 1, which does not bind here"
			      : "is 0");
	return filter > 0 ? URING_CAUSE_SECCOMP : URING_CAUSE_MODULE;
}

const char *uring_fix(enum uring_cause cause)
{
	switch (cause) {
	case URING_CAUSE_SYSCTL:
		return "sysctl kernel.io_uring_disabled=0 (on the host, also for a container)";
	case URING_CAUSE_GROUP:
		return "sysctl kernel.io_uring_disabled=0; or sysctl kernel.io_uring_group=GID and that group for the "
		       "daemon (SupplementaryGroups= of the unit)";
	case URING_CAUSE_SECCOMP:
		return "docker or podman run --security-opt seccomp=PROFILE.json, a profile that allows "
		       "io_uring_setup, "
		       "io_uring_enter and io_uring_register; a systemd unit: SystemCallFilter=@aio besides what it "
		       "has";
	case URING_CAUSE_MODULE:
		return "look for denials in the audit log (ausearch -m avc): SELinux has a class io_uring";
	case URING_CAUSE_ABSENT:
		return "a kernel of 6.1 or later with CONFIG_IO_URING; in a container a seccomp profile that allows "
		       "io_uring_setup, io_uring_enter and io_uring_register";
	default:
		return "see io_uring_setup(2) for this error";
	}
}

int uring_refused(struct moe_error *err, int code)
{
	char found[192];
	const enum uring_cause cause = uring_cause(code, found, sizeof found);

	if (cause == URING_CAUSE_OTHER)
		return moe_error_sys(err, code, "io_uring_setup");
	return moe_error_set(err, -EOPNOTSUPP, "io_uring is forbidden here: %s; to allow it: %s", found,
			     uring_fix(cause));
}
