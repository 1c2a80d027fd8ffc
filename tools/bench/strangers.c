/* SPDX-License-Identifier: MIT */
/* strangers - programs that compute on the CPUs that are measured, and know nothing of what is measured there. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tools/bench/bench.h"

/* The i-th CPU of this process, from the first one on again; the kernel would put two on one. */
static void take_cpu(uint32_t i)
{
	cpu_set_t ours, one;
	int left;

	if (sched_getaffinity(0, sizeof ours, &ours) < 0)
		return;
	left = (int)(i % (uint32_t)CPU_COUNT(&ours));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &ours) && left-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof one, &one);
			return;
		}
}

static void compute(pid_t parent)
{
	volatile uint64_t sum = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == parent)
		for (uint64_t i = 0; i < 100000000; i++)
			sum += i;
	_exit(0);
}

int strangers_start(struct strangers *ret, uint32_t n, struct moe_error *err)
{
	const pid_t parent = getpid();

	*ret = (struct strangers){.pids = calloc(n + 1, sizeof *ret->pids)};
	if (!ret->pids)
		return moe_error_set(err, -ENOMEM, "no memory for %u programs", n);
	while (ret->n < n) {
		const pid_t pid = fork();

		if (pid == 0) {
			take_cpu(ret->n);
			compute(parent);
		}
		if (pid < 0) {
			const int r = moe_error_sys(err, -errno, "cannot start a program that computes beside it");

			strangers_end(ret);
			return r;
		}
		ret->pids[ret->n++] = pid;
	}
	return 0;
}

void strangers_end(struct strangers *strangers)
{
	while (strangers->n > 0) {
		kill(strangers->pids[--strangers->n], SIGKILL);
		waitpid(strangers->pids[strangers->n], NULL, 0);
	}
	free(strangers->pids);
	strangers->pids = NULL;
}
