/* SPDX-License-Identifier: MIT */
/*
 * cuda-barriers - runs a kernel that was compiled for coroutines (CUDA_COROUTINES): each thread as far as the next
 * barrier, in an order of the caller's; and with one of the barriers left out.
 *
 * A thread that reaches a barrier waits until all have reached one, as on a device; one that has ended is not waited
 * for, and all must end at the same number of barriers.
 */
#ifndef TESTS_CUDA_BARRIERS_H
#define TESTS_CUDA_BARRIERS_H

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define CUDA_COROUTINES
#include "kernels/cuda/dialect.h"
#include "tests/tap.h"

#define THREADS_MAX 1024
#define STACK_BYTES (32 << 10)
#define BARRIERS_MAX 64

/* What a barrier in the text is called, and whether it is left out. */
struct barrier {
	const char *file;
	int line;
	bool passed;
};

struct twin_self twin;
static unsigned long long seed;
static struct barrier barriers[BARRIERS_MAX];
static int n_barriers, left_out = -1;

static ucontext_t scheduler, contexts[THREADS_MAX];
static char *stacks;
static bool over[THREADS_MAX];
static unsigned passed[THREADS_MAX]; /* barriers, by each thread */
extern char __start_cuda_shared[], __stop_cuda_shared[];
static void (*entry)(const void *params);
static const void *entry_params;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static int barrier_of(const char *file, int line)
{
	int i;

	for (i = 0; i < n_barriers; i++)
		if (barriers[i].line == line && strcmp(barriers[i].file, file) == 0)
			return i;
	if (n_barriers == BARRIERS_MAX)
		abort();
	barriers[n_barriers++] = (struct barrier){file, line, false};
	return i;
}

void coroutine_barrier(const char *file, int line)
{
	const int which = barrier_of(file, line);
	const unsigned thread = twin.thread;

	barriers[which].passed = true;
	if (which == left_out)
		return;
	passed[thread]++;
	swapcontext(&contexts[thread], &scheduler);
}

static void thread_main(void)
{
	entry(entry_params);
	over[twin.thread] = true;
}

static void thread_start(unsigned thread)
{
	getcontext(&contexts[thread]);
	contexts[thread].uc_stack.ss_sp = stacks + (size_t)thread * STACK_BYTES;
	contexts[thread].uc_stack.ss_size = STACK_BYTES;
	contexts[thread].uc_link = &scheduler;
	makecontext(&contexts[thread], thread_main, 0);
	over[thread] = false;
	passed[thread] = 0;
}

enum schedule { FORWARDS, BACKWARDS, RANDOM, SCHEDULES };

static void order_make(unsigned *order, unsigned n, enum schedule schedule)
{
	for (unsigned i = 0; i < n; i++)
		order[i] = schedule == BACKWARDS ? n - 1 - i : i;
	for (unsigned i = n; schedule == RANDOM && i > 1; i--) {
		const unsigned j = below(i), kept = order[i - 1];

		order[i - 1] = order[j];
		order[j] = kept;
	}
}

/* One block; false when its threads end at different numbers of barriers. */
static bool block_run(unsigned threads, enum schedule schedule)
{
	unsigned order[THREADS_MAX], running = threads;
	bool even = true;

	memset(__start_cuda_shared, 0xa5, (size_t)(__stop_cuda_shared - __start_cuda_shared));
	for (unsigned i = 0; i < threads; i++)
		thread_start(i);
	while (running) {
		order_make(order, threads, schedule);
		running = 0;
		for (unsigned i = 0; i < threads; i++) {
			twin.thread = order[i];
			if (!over[twin.thread])
				swapcontext(&scheduler, &contexts[twin.thread]);
			running += !over[order[i]];
		}
	}
	for (unsigned i = 1; i < threads; i++)
		even = even && passed[i] == passed[0];
	return even;
}

/* A whole grid; false as block_run. */
static bool grid_run(void (*kernel)(const void *params), const void *params, unsigned blocks, unsigned threads,
		     enum schedule schedule)
{
	bool even = true;

	entry = kernel;
	entry_params = params;
	twin = (struct twin_self){.blocks = blocks, .threads = threads};
	for (twin.block = 0; twin.block < blocks; twin.block++)
		even = block_run(threads, schedule) && even;
	return even;
}

static void coroutines_start(void)
{
	seed = tap_seed();
	stacks = aligned_alloc(4096, (size_t)THREADS_MAX * STACK_BYTES);
	require(stacks != NULL, "stacks for %d threads", THREADS_MAX);
}

/* Whether `same` says no of the subject without that barrier, in some order. In a child: without a barrier anything may
 * happen, a crash or a loop without end too. */
static bool is_noticed(bool (*same)(void *subject, enum schedule schedule), void *subject, int barrier)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		bool good = true;

		alarm(30);
		left_out = barrier;
		for (int i = 0; i < SCHEDULES && good; i++)
			good = same(subject, (enum schedule)i);
		_exit(!good);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

/* Each barrier that was passed, `least` of them or more, is noticed by one of n subjects when it is left out. */
static void test_mutants(bool (*notices)(void *subjects, size_t i, int barrier), void *subjects, size_t n, int least)
{
	for (int i = 0; i < n_barriers; i++) {
		const char *name = strrchr(barriers[i].file, '/');
		bool found = false;

		for (size_t j = 0; j < n && !found; j++)
			found = notices(subjects, j, i);
		ok(found, "%s:%d: a barrier that is left out is noticed", name ? name + 1 : barriers[i].file,
		   barriers[i].line);
	}
	ok(n_barriers >= least, "%d barriers were passed", n_barriers);
}

#endif
