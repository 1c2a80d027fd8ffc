/* SPDX-License-Identifier: MIT */
/*
 * pingpong - round trips between two bare processes: the floor of any round trip through a daemon.
 *
 * The partner is forked for each call and ends with it. Where the machine has two CPUs the two sides are pinned to
 * different ones, as a daemon that polls and its client are: on one CPU polling would measure the scheduler.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/futex.h"
#include "base/host.h"
#include "base/util.h"
#include "bench.h"

#define WARM 100 /* trips that do not count: the partner's first ones fault its pages in */

struct table {
	_Atomic uint32_t ball; /* odd: the other side's turn */
	char pad[60];
	int fds[2];
};

static void wait_ball(struct table *t, enum pingpong kind, uint32_t want, int fd)
{
	uint64_t count;

	switch (kind) {
	case PINGPONG_EVENTFD:
		if (read(fd, &count, sizeof count) != sizeof count)
			_exit(1);
		return;
	case PINGPONG_FUTEX:
		for (uint32_t seen; (seen = atomic_load(&t->ball)) != want;)
			futex_wait(&t->ball, seen, 0);
		return;
	default:
		for (int i = 1; atomic_load(&t->ball) != want; i++) {
			cpu_relax();
			if (i % 1024 == 0)
				sched_yield(); /* one core for both: let the other side have it */
		}
	}
}

static void throw_ball(struct table *t, enum pingpong kind, uint32_t value, int fd)
{
	const uint64_t one = 1;

	atomic_store_explicit(&t->ball, value, memory_order_release);
	if (kind == PINGPONG_FUTEX)
		futex_wake(&t->ball, 1);
	else if (kind == PINGPONG_EVENTFD && write(fd, &one, sizeof one) != sizeof one)
		_exit(1);
}

static void pin_to(int cpu)
{
	size_t bytes;
	cpu_set_t *one = cpu < 0 ? NULL : host_cpu_mask((uint32_t)cpu, &bytes);

	if (one)
		sched_setaffinity(0, bytes, one);
	CPU_FREE(one);
}

static void partner(struct table *t, enum pingpong kind, int cpu, uint32_t trips)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin_to(cpu);
	for (uint32_t i = 0; i < trips; i++) {
		wait_ball(t, kind, 2 * i + 1, t->fds[0]);
		throw_ball(t, kind, 2 * i + 2, t->fds[1]);
	}
	_exit(0);
}

static int play(const struct pingpong_place *place, struct table *t, enum pingpong kind, uint32_t pause_us,
		double *samples, uint32_t n)
{
	const uint32_t warm = pause_us ? 0 : WARM, trips = warm + n;
	const pid_t other = fork();

	if (other < 0)
		return -errno;
	if (other == 0)
		partner(t, kind, place->partner, trips);
	for (uint32_t i = 0; i < trips; i++) {
		uint64_t begin;

		if (pause_us)
			usleep(pause_us);
		begin = now_ns();
		throw_ball(t, kind, 2 * i + 1, t->fds[0]);
		wait_ball(t, kind, 2 * i + 2, t->fds[1]);
		if (i >= warm)
			samples[i - warm] = (double)(now_ns() - begin);
	}
	waitpid(other, NULL, 0);
	return 0;
}

int limit_pingpong(const struct pingpong_place *place, enum pingpong kind, uint32_t pause_us, double *samples,
		   uint32_t n)
{
	struct table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (t == MAP_FAILED)
		return -errno;
	t->fds[0] = eventfd(0, EFD_CLOEXEC);
	t->fds[1] = eventfd(0, EFD_CLOEXEC);
	r = t->fds[0] < 0 || t->fds[1] < 0 ? -errno : 0;
	if (r == 0)
		r = play(place, t, kind, pause_us, samples, n);
	close_fd(t->fds[0]);
	close_fd(t->fds[1]);
	munmap(t, sizeof *t);
	return r;
}

/* A CPU of ours but that one; -1: there is none. */
static int other_cpu(int cpu)
{
	cpu_set_t ours;

	sched_getaffinity(0, sizeof ours, &ours);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (i != cpu && CPU_ISSET((size_t)i, &ours))
			return i;
	return -1;
}

struct pingpong_place limit_place(int partner_cpu)
{
	const int here = sched_getcpu();
	struct pingpong_place place = {.self = here, .partner = partner_cpu};

	if (partner_cpu < 0)
		place.partner = other_cpu(here);
	else if (partner_cpu == here)
		place.self = other_cpu(here);
	return place.self < 0 || place.partner < 0 ? (struct pingpong_place){-1, -1} : place;
}

void limit_pin(const struct pingpong_place *place, cpu_set_t *ret_before)
{
	sched_getaffinity(0, sizeof *ret_before, ret_before);
	pin_to(place->self);
}
