/* SPDX-License-Identifier: MIT */
#include "tools/worker/group.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/util.h"

#define SPIN_NS 20000u         /* a barrier's usual wait when every rank has a core */
#define LOOK_NS 50000000u      /* how often a waiter looks after the others */
#define LEAVE_NS 2000000000ull /* rank 0 gives the others this long to say why they failed */

struct group_shared {
	_Atomic uint32_t generation; /* futex word: changes when a barrier opens */
	uint32_t pad0[15];
	_Atomic uint32_t arrived;
	uint32_t pad1[15];
	_Atomic uint32_t failed; /* 0; 1: somebody writes the text; 2: it is there */
	char text[MOE_ERROR_TEXT_MAX];
	float values[]; /* [2][size][floats] */
};

static float *values_of(const struct group *g, uint32_t turn, uint32_t rank)
{
	return g->shared->values + ((uint64_t)turn * g->size + rank) * g->floats;
}

void group_fail(struct group *g, uint32_t rank, const char *text)
{
	uint32_t none = 0;

	if (!g->shared || !atomic_compare_exchange_strong(&g->shared->failed, &none, 1))
		return;
	snprintf(g->shared->text, sizeof(g->shared->text), "rank %u: %.400s", rank, text);
	atomic_store(&g->shared->failed, 2);
	futex_wake(&g->shared->generation, FUTEX_ALL);
}

/* Collects children that have ended; one that ended before its time has failed the group. */
static void look_after_children(struct group *g)
{
	for (uint32_t i = 1; g->children && i < g->size; i++) {
		char text[96];
		int status;

		if (g->children[i] <= 0 || waitpid(g->children[i], &status, WNOHANG) != g->children[i])
			continue;
		g->children[i] = 0;
		if (WIFSIGNALED(status))
			snprintf(text, sizeof(text), "killed by signal %d", WTERMSIG(status));
		else
			snprintf(text, sizeof(text), "ended with exit code %d", WEXITSTATUS(status));
		group_fail(g, i, text);
	}
}

static int failure(struct group *g, struct moe_error *err)
{
	const uint64_t until = now_ns() + LEAVE_NS;

	while (atomic_load(&g->shared->failed) == 1 && now_ns() < until)
		futex_wait(&g->shared->generation, atomic_load(&g->shared->generation), 1000000);
	return moe_error_set(err, -ECANCELED, "%s",
			     atomic_load(&g->shared->failed) == 2 ? g->shared->text : "a rank of the group has failed");
}

static int group_wait(struct group *g, struct moe_error *err)
{
	struct group_shared *s = g->shared;
	const uint32_t generation = atomic_load_explicit(&s->generation, memory_order_acquire);
	const uint64_t spin_until = now_ns() + SPIN_NS;

	if (atomic_fetch_add(&s->arrived, 1) + 1 == g->size) {
		atomic_store_explicit(&s->arrived, 0, memory_order_relaxed);
		/* Pairs with the acquire loads of the generation: all that was written before is seen after. */
		atomic_store_explicit(&s->generation, generation + 1, memory_order_release);
		futex_wake(&s->generation, FUTEX_ALL);
		return 0;
	}
	while (atomic_load_explicit(&s->generation, memory_order_acquire) == generation) {
		if (atomic_load(&s->failed))
			return failure(g, err);
		if (now_ns() < spin_until) {
			cpu_relax();
			continue;
		}
		if (futex_wait(&s->generation, generation, LOOK_NS) == -ETIMEDOUT)
			look_after_children(g);
	}
	return 0;
}

int group_sum(struct group *g, float *values, uint64_t n, struct moe_error *err)
{
	const uint32_t turn = g->turn;
	int r;

	if (!g->shared)
		return 0;
	if (n > g->floats)
		return moe_error_set(err, -EINVAL, "a sum of %llu floats, expected at most %llu", (unsigned long long)n,
				     (unsigned long long)g->floats);
	g->turn = !turn;
	memcpy(values_of(g, turn, g->rank), values, n * sizeof(float));
	r = group_wait(g, err);
	if (r < 0)
		return r;
	memcpy(values, values_of(g, turn, 0), n * sizeof(float));
	for (uint32_t rank = 1; rank < g->size; rank++) {
		const float *other = values_of(g, turn, rank);

		for (uint64_t i = 0; i < n; i++)
			values[i] += other[i];
	}
	return 0;
}

/* In the child: becomes the rank, and dies with its parent. */
static void become_rank(struct group *g, uint32_t rank, pid_t parent)
{
	free(steal_ptr(g->children));
	g->rank = rank;
	signal(SIGINT, SIG_IGN); /* the terminal sends it to everybody: rank 0 decides */
	signal(SIGHUP, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
}

int group_new(struct group *ret, uint32_t size, uint64_t floats, struct moe_error *err)
{
	struct group g = {.size = size, .floats = floats};
	const pid_t parent = getpid();
	void *shared;

	if (size == 1) {
		*ret = g;
		return 0;
	}
	g.bytes = sizeof(*g.shared) + 2 * size * floats * sizeof(float);
	shared = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return moe_error_sys(err, -errno, "cannot map %llu bytes for a group of %u",
				     (unsigned long long)g.bytes, size);
	g.shared = shared;
	while (g.id == 0)
		if (getrandom(&g.id, sizeof(g.id), 0) < 0)
			g.id = now_ns() ^ (uint64_t)parent << 32;
	g.children = calloc(size, sizeof(*g.children));
	*ret = g;
	if (!g.children)
		return moe_error_set(err, -ENOMEM, "no memory for a group of %u", size);
	fflush(NULL);
	for (uint32_t rank = 1; rank < size; rank++) {
		const pid_t pid = fork();

		if (pid < 0)
			return moe_error_sys(err, -errno, "cannot fork rank %u of %u", rank, size);
		if (pid == 0) {
			become_rank(ret, rank, parent);
			return 0;
		}
		ret->children[rank] = pid;
	}
	return 0;
}

int group_end(struct group *g, bool failed, struct moe_error *err)
{
	int result = 0;

	for (uint32_t i = 1; g->children && i < g->size; i++) {
		int status = 0;

		if (g->children[i] <= 0)
			continue;
		if (failed)
			kill(g->children[i], SIGKILL);
		while (waitpid(g->children[i], &status, 0) < 0 && errno == EINTR)
			;
		if (status != 0 && !failed && result == 0)
			result = moe_error_set(err, -ECHILD, "%s",
					       g->shared->text[0] ? g->shared->text : "a rank failed at its end");
		g->children[i] = 0;
	}
	free(steal_ptr(g->children));
	if (g->shared)
		munmap(steal_ptr(g->shared), g->bytes);
	return result;
}
