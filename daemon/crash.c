/* SPDX-License-Identifier: MIT */
#include "daemon/crash.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

#define PLAN_BYTES 65536

static const char *const names[CRASH_POINTS] = {
	[MOE_REQUEST_CLAIMED] = "claimed",
	[MOE_REQUEST_QUEUED] = "queued",
	[MOE_REQUEST_RUNNING] = "running",
	[MOE_REQUEST_DONE] = "done",
	[MOE_REQUEST_COMPLETED] = "completed",
	[MOE_REQUEST_RETIRED] = "retired",
	[MOE_REQUEST_REAPED] = "reaped",
	[MOE_REQUEST_FREE] = "free",
	[CRASH_INFLIGHT] = "inflight",
	[CRASH_JOURNALLED] = "journalled",
	[CRASH_LAST] = "last",
	[CRASH_CQE] = "cqe",
	[CRASH_ALONE] = "alone",
	[CRASH_SEQ] = "seq",
	[CRASH_TAIL] = "tail",
	[CRASH_EFFECT] = "effect",
	[CRASH_CLEARED] = "cleared",
	[CRASH_RECOVERY] = "recovery",
	[CRASH_ATTACH] = "attach",
	[CRASH_AGREED] = "agreed",
	[CRASH_COPYING] = "copying",
	[CRASH_COPIED] = "copied",
	[CRASH_CHECKED] = "checked",
	[CRASH_MOVED] = "moved",
};

uint32_t crash_armed = CRASH_POINTS;
static _Atomic uint32_t left;

void crash_now(void)
{
	if (atomic_fetch_sub(&left, 1) == 1)
		kill(getpid(), SIGKILL);
}

/* The first line, which is taken off the file. */
static int take_line(const char *path, char *line, size_t size)
{
	char plan[PLAN_BYTES], *end;
	_cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : read(fd, plan, sizeof plan - 1);

	if (n <= 0)
		return -1;
	plan[n] = '\0';
	end = strchr(plan, '\n');
	if (!end || (size_t)(end - plan) >= size)
		return -1;
	*end++ = '\0';
	memcpy(line, plan, (size_t)(end - plan));
	if (pwrite(fd, end, (size_t)(plan + n - end), 0) < 0 || ftruncate(fd, plan + n - end) < 0)
		return -1;
	return 0;
}

void crash_init(void)
{
	const char *path = getenv("MOE_CRASH_PLAN");
	char line[64], name[32];
	unsigned count;

	if (!path || take_line(path, line, sizeof line) < 0 || sscanf(line, "%31s %u", name, &count) != 2)
		return;
	for (uint32_t i = 0; i < CRASH_POINTS; i++)
		if (names[i] && strcmp(names[i], name) == 0) {
			atomic_store(&left, count);
			crash_armed = i;
			log_warning("by MOE_CRASH_PLAN: this daemon kills itself at '%s', time %u", name, count);
		}
}
