/* SPDX-License-Identifier: MIT */
/*
 * worker-group - the ranks of a worker: sums are formed in rank order and are the same bits everywhere, a rank that
 * fails or dies ends the others' waits with words, and a group that is done leaves nothing.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "tests/tap.h"
#include "tools/worker/group.h"

#define ROUNDS 500
#define FLOATS 1000

/* What rank `rank` brings to a round: magnitudes so different that the order of a sum shows in its bits. */
static float part(uint32_t rank, uint32_t round, uint32_t i)
{
	unsigned long long state = 1 + rank + 64ull * round + 65536ull * i;
	const int power = (int)(tap_random(&state) % 40) - 20;

	return ((tap_random(&state) & 1) ? 1.0f : -1.0f) * (float)(1 + i % 7) *
	       (float)(power < 0 ? 1.0 / (1 << -power) : 1 << power);
}

static bool sums_are_right(struct group *g)
{
	static float values[FLOATS];
	struct moe_error err;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		const uint32_t n = 1 + round * 7 % FLOATS;

		for (uint32_t i = 0; i < n; i++)
			values[i] = part(g->rank, round, i);
		if (group_sum(g, values, n, &err) < 0)
			return false;
		for (uint32_t i = 0; i < n; i++) {
			float sum = part(0, round, i);

			for (uint32_t rank = 1; rank < g->size; rank++)
				sum += part(rank, round, i);
			if (memcmp(&sum, &values[i], sizeof sum) != 0)
				return false;
		}
	}
	return true;
}

static void test_sums(uint32_t size)
{
	struct moe_error err = {0};
	struct group g;
	bool right;

	if (group_new(&g, size, FLOATS, &err) < 0) {
		ok(false, "a group of %u: %s", size, err.text);
		return;
	}
	right = sums_are_right(&g);
	if (g.rank > 0)
		_exit(right ? 0 : 1);
	ok(right, "%u ranks: rank 0's sums are those in rank order, bit by bit", size);
	ok(group_end(&g, false, &err) == 0, "%u ranks: so are the others', and all end well", size);
	ok(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "%u ranks: no process is left", size);
}

/* Rank 1 of three leaves in the middle; the others must hear of it, rank 0 soon. */
static void test_loss(const char *how, void (*leave)(struct group *), const char *words)
{
	struct moe_error err = {0};
	float value = 1;
	struct group g;
	uint64_t start;
	int r;

	if (group_new(&g, 3, FLOATS, &err) < 0) {
		ok(false, "%s: a group: %s", how, err.text);
		return;
	}
	r = group_sum(&g, &value, 1, &err);
	if (g.rank == 1)
		leave(&g);
	start = now_ns();
	if (r == 0)
		r = group_sum(&g, &value, 1, &err);
	if (g.rank > 0)
		_exit(r < 0 ? 3 : 0);
	ok(r == -ECANCELED && strstr(err.text, words), "%s: rank 0's wait ends in words", how);
	diag("%s", err.text);
	ok(now_ns() - start < TAP_SOON_NS, "%s: soon", how);
	group_end(&g, true, &err);
	ok(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "%s: no process is left", how);
}

static void leave_by_signal(struct group *g)
{
	raise(SIGKILL);
}

static void leave_early(struct group *g)
{
	_exit(0);
}

static void leave_with_words(struct group *g)
{
	group_fail(g, g->rank, "the disk is on fire");
	_exit(1);
}

static void test_late_failure(void)
{
	struct moe_error err = {0};
	struct group g;

	if (group_new(&g, 2, FLOATS, &err) < 0) {
		ok(false, "a group of two: %s", err.text);
		return;
	}
	if (g.rank > 0)
		_exit(1);
	ok(group_end(&g, false, &err) == -ECHILD, "a rank that fails after the last sum fails the group");
}

static void test_one(void)
{
	float value = 2.5f;
	struct moe_error err;
	struct group g;

	ok(group_new(&g, 1, FLOATS, &err) == 0 && !g.shared && g.rank == 0, "a group of one makes nothing");
	ok(group_sum(&g, &value, 1, &err) == 0 && value == 2.5f, "its sum is its own");
	ok(group_end(&g, false, &err) == 0, "it ends");
}

int main(void)
{
	test_one();
	for (uint32_t size = 2; size <= 5; size++)
		test_sums(size);
	test_loss("a killed rank", leave_by_signal, "rank 1: killed by signal 9");
	test_loss("a rank that is done early", leave_early, "rank 1: ended with exit code 0");
	test_loss("a rank that fails", leave_with_words, "rank 1: the disk is on fire");
	test_late_failure();
	return tap_done();
}
