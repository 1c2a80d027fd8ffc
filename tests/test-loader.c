/* SPDX-License-Identifier: MIT */
/*
 * loader: any pieces, any blocks, any ring: each byte lands where it belongs; files that change, readers that are
 * forbidden and loads that are canceled end in an error and leave nothing. The seed is printed; TEST_SEED repeats a
 * run.
 */
#include "daemon/loader.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/manifest.h"
#include "tests/forbid.h"
#include "tests/leaks.h"
#include "tests/loader-task.h"

static void test_random(const uint64_t granules[GRANULES], const char *what)
{
	bool right = true;
	uint64_t pieces = 0;

	for (int i = 0; right && i < 60; i++) {
		struct task *t = malloc(sizeof *t);
		struct loader_result result;
		struct loader_params params;
		struct moe_error err = {0};

		make_granular_task(t, granules);
		params = params_of(t);
		params.tuning = (struct loader_tuning){.block_bytes = 4096u << random_below(5),
						       .depth = 1 + (uint32_t)random_below(6),
						       .slots = (uint32_t)random_below(12),
						       .buffered = random_below(4) == 0,
						       .no_io_uring = random_below(3) == 0};
		right = loader_run(&result, &params, &err) == 0 && landed_right(t);
		if (!right)
			diag("task %d: block %u depth %u slots %u buffered %d threads %d: %s", i,
			     params.tuning.block_bytes, params.tuning.depth, params.tuning.slots,
			     params.tuning.buffered, params.tuning.no_io_uring, err.text);
		pieces += t->n_pieces;
		free_task(t);
		free(t);
	}
	ok(right, "60 random tasks, %llu pieces, granules of %s: each byte lands where it belongs",
	   (unsigned long long)pieces, what);
}

/* The bytes of all units that hold a part of a piece; *ret_pieces_bytes: of the pieces themselves. */
static uint64_t unit_bytes(const struct task *t, uint64_t *ret_piece_bytes)
{
	uint64_t units = 0, last = UINT64_MAX;

	*ret_piece_bytes = 0;
	for (uint64_t i = 0; i < t->n_pieces; i++) {
		const struct piece *p = &t->pieces[i];

		*ret_piece_bytes += p->repack.bytes;
		for (uint64_t u = p->offset / 4096; u <= (p->offset + p->repack.bytes - 1) / 4096; u++) {
			const uint64_t id = (uint64_t)p->shard << 40 | u;

			units += id != last ? MIN(4096, t->shards[p->shard].bytes - u * 4096) : 0;
			last = id;
		}
	}
	return units;
}

/* No unit is read twice, but for one where a granule is cut; and nothing far from a piece is read at all. */
static void test_read_bytes(const uint64_t granules[GRANULES], bool plain)
{
	struct task *t = malloc(sizeof *t);
	struct loader_result result = {0};
	struct loader_params params;
	struct moe_error err;
	uint64_t units, bytes, most;
	int r;

	make_granular_task(t, granules);
	params = params_of(t);
	params.tuning.block_bytes = plain ? 8192 : 32768;
	units = unit_bytes(t, &bytes);
	r = loader_run(&result, &params, &err);
	/* Blocks are short by less than a granule and a unit; each may bring a unit a second time. */
	most = plain ? units : units + (units / (32768 - granules[GRANULES - 1] - 4096) + t->n_pieces) * 4096;
	ok(r == 0 && result.read_bytes >= units && result.read_bytes <= most,
	   "%s: %llu bytes read; the pieces' aligned units have %llu", plain ? "plain" : "granules",
	   (unsigned long long)result.read_bytes, (unsigned long long)units);
	free_task(t);
	free(t);
}

/* -- refused ------------------------------------------------------------------------------------------------------ */

static void check_pieces(void (*spoil)(struct piece *pieces), int code, const char *word, const char *what)
{
	struct task *t = malloc(sizeof *t);
	struct loader_result result;
	struct loader_params params;
	struct moe_error err = {0};
	int r;

	make_task(t);
	params = params_of(t);
	spoil(t->pieces);
	r = loader_run(&result, &params, &err);
	ok(r == code && strstr(err.text, word) && strstr(err.text, "shard"), "%s (%d): %s", what, r, err.text);
	free_task(t);
	free(t);
}

static void large_granule(struct piece *pieces)
{
	pieces[0].repack.bytes = pieces[0].repack.granule_bytes = PIECE_GRANULE_MAX + 1;
}

static void part_of_granule(struct piece *pieces)
{
	pieces[0].repack.granule_bytes = pieces[0].repack.bytes + 1;
}

static void no_granule(struct piece *pieces)
{
	pieces[0].repack.granule_bytes = 0;
}

static void overlap(struct piece *pieces)
{
	pieces[1].offset = pieces[0].offset;
	pieces[1].shard = pieces[0].shard;
}

/* A granule larger than a block and than what a ring of asked-for slots should hold. */
static void test_large(void)
{
	static const uint64_t granules[GRANULES] = {150000, 60001, 1, 1};
	struct task *t = malloc(sizeof *t);
	struct loader_result result;
	struct loader_params params;
	struct moe_error err = {0};
	int r;

	make_granular_task(t, granules);
	params = params_of(t);
	params.tuning = (struct loader_tuning){.block_bytes = 4096, .depth = 1000, .slots = 1000};
	r = loader_run(&result, &params, &err);
	ok(r == 0 && landed_right(t), "granules larger than a block: %s", r ? err.text : "the block grows");
	free_task(t);
	free(t);
}

/* -- failures ----------------------------------------------------------------------------------------------------- */

struct disturbance {
	struct task *task;
	int (*disturb)(struct task *task);
	bool done;
};

/* Called first when one block of the first shard has been read, or is about to be. */
static int disturb_once(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	struct disturbance *d = userdata;

	if (d->done)
		return 0;
	d->done = true;
	return d->disturb(d->task);
}

static int cut_shard(struct task *t)
{
	return truncate(t->paths[0], 1) < 0;
}

static int grow_shard(struct task *t)
{
	return truncate(t->paths[0], (off_t)t->shards[0].bytes + 5000) < 0;
}

static int touch_shard(struct task *t)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 12345}};

	return utimensat(AT_FDCWD, t->paths[0], times, 0) < 0;
}

static int remove_shard(struct task *t)
{
	return unlink(t->paths[2]) < 0;
}

static int just_cancel(struct task *t)
{
	return 1;
}

/* The first block is not the whole first shard, and there is a third one to read. */
static bool long_enough(const struct task *t)
{
	const struct piece *last = &t->pieces[t->n_pieces - 1];
	uint64_t i = 0;

	while (i < t->n_pieces && t->pieces[i].shard == 0)
		i++;
	return last->shard == 2 && i > 0 && t->pieces[i - 1].offset > 20000;
}

static void check_disturbed(int (*disturb)(struct task *), int code, const char *word, bool threads, const char *what)
{
	struct leaks before;
	struct moe_error err = {0};
	bool right = true;

	for (int i = -1; i < TURNS; i++) {
		struct task *t = malloc(sizeof *t);
		struct disturbance d = {.task = t, .disturb = disturb};
		struct loader_result result = {.read_bytes = 7};
		struct loader_params params;
		int r;

		if (i == 0)
			before = leaks_now();
		do {
			make_task(t);
		} while (!long_enough(t) && (free_task(t), true));
		params = params_of(t);
		params.tuning = (struct loader_tuning){
			.block_bytes = 4096, .depth = 1, .slots = 1, .no_io_uring = threads};
		params.progress = disturb_once;
		params.userdata = &d;
		r = loader_run(&result, &params, &err);
		right &= r == code && err.code == code && strstr(err.text, word) && result.read_bytes == 7;
		free_task(t);
		free(t);
	}
	ok(right, "%s (%d): %s", what, err.code, err.text);
	ok(leaks_none(&before, TURNS), "%s: nothing leaks", what);
}

static int run_child(int (*run)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		const int r = run();

		fflush(stdout);
		_exit(r);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

/* 0: loaded right, by io_uring or by threads as said. */
static int load_once(bool expect_io_uring)
{
	struct task *t = malloc(sizeof *t);
	struct loader_result result;
	struct loader_params params;
	struct moe_error err;

	make_task(t);
	params = params_of(t);
	if (loader_run(&result, &params, &err) < 0)
		return 1;
	if (!landed_right(t))
		return 2;
	return result.io_uring == expect_io_uring ? 0 : 3;
}

static int no_io_uring(void)
{
	return forbid_call(SYS_io_uring_setup, EPERM) ? load_once(false) : 77;
}

static int not_in_kernel(void)
{
	return forbid_call(SYS_io_uring_setup, ENOSYS) ? load_once(false) : 77;
}

static int no_register(void)
{
	return forbid_call(SYS_io_uring_register, ENOMEM) ? load_once(true) : 77;
}

static int no_policy(void)
{
	return forbid_call(SYS_sched_setscheduler, EPERM) ? load_once(host->io_uring_works) : 77;
}

static int no_submit(void)
{
	struct task *t = malloc(sizeof *t);
	struct loader_result result;
	struct loader_params params;
	struct moe_error err;
	struct leaks before;

	if (!forbid_call(SYS_io_uring_enter, EBADF))
		return 77;
	make_task(t);
	params = params_of(t);
	before = leaks_now();
	if (loader_run(&result, &params, &err) != -EBADF)
		return 1;
	return leaks_none(&before, 8) ? 0 : 2;
}

static int no_threads(void)
{
	struct task *t = malloc(sizeof *t);
	struct loader_result result;
	struct loader_params params;
	struct moe_error err;
	struct leaks before;

	make_task(t);
	params = params_of(t);
	before = leaks_now();
	if (!forbid_call(SYS_clone3, EAGAIN) || !forbid_call(SYS_clone, EAGAIN))
		return 77;
	if (loader_run(&result, &params, &err) != -EAGAIN)
		return 1;
	return leaks_none(&before, 8) ? 0 : 2;
}

static void check_child(int (*run)(void), const char *what)
{
	const int r = run_child(run);

	if (r == 77)
		tap_skip("%s: not permitted to set it up here", what);
	else
		ok(r == 0, "%s (child says %d)", what, r);
}

int main(void)
{
	static const uint64_t plain[GRANULES] = {1, 1, 1, 1}, small[GRANULES] = {1, 3, 144, 300};
	static const uint64_t large[GRANULES] = {1, 210, 5000, 25000};

	seed = tap_seed();
	log_open("test-loader", LOG_LEVEL_WARNING);
	host = malloc(sizeof *host);
	tap_tmp(folder, "test-loader-XXXXXX");
	require(host && mkdtemp(folder), "a folder of our own");
	host_read(host, true);
	test_random(plain, "1");
	test_random(small, "1 to 300");
	test_random(large, "up to 25,000");
	ok(!atomic_load(&pushy), "workers let the reader go first");
	test_read_bytes(plain, true);
	test_read_bytes(small, false);
	test_large();
	check_pieces(large_granule, -E2BIG, "at most", "a granule above the limit");
	check_pieces(part_of_granule, -E2BIG, "whole granules", "part of a granule");
	check_pieces(no_granule, -E2BIG, "whole granules", "granules of nothing");
	check_pieces(overlap, -ENOTSUP, "within", "pieces that overlap");
	for (int threads = 0; threads < 2; threads++) {
		check_disturbed(cut_shard, -ESTALE, threads ? "size 1 found" : "found at offset", threads,
				"a shard is cut meanwhile");
		check_disturbed(grow_shard, -ESTALE, "shard0: size", threads, "a shard grows meanwhile");
		if (!threads) /* the thread reader's first report is made before any shard is open */
			check_disturbed(touch_shard, -ESTALE, "shard0: the file was written", false,
					"a shard is written to meanwhile");
		check_disturbed(remove_shard, -ENOENT, "shard2", threads, "a shard is removed meanwhile");
		check_disturbed(just_cancel, -ECANCELED, "canceled", threads, "canceled");
	}
	if (!host->io_uring_works)
		tap_skip("io_uring is not permitted here: its failures were not tested");
	else {
		check_child(no_io_uring, "io_uring forbidden: threads read");
		check_child(not_in_kernel, "io_uring not in the kernel: threads read");
		check_child(no_register, "no locked memory: plain reads");
		check_child(no_submit, "io_uring that takes no reads: an error, nothing leaks");
	}
	check_child(no_policy, "no other scheduling: loaded all the same");
	check_child(no_threads, "no threads to be had: an error, nothing leaks");
	for (int i = 0; i < SHARDS; i++) {
		char path[96];

		snprintf(path, sizeof path, "%s/shard%d", folder, i);
		unlink(path);
	}
	rmdir(folder);
	free(host);
	return tap_done();
}
