/* SPDX-License-Identifier: MIT */
/*
 * loader: any pieces, any blocks, any ring: each byte lands where it belongs; files that change, readers that are
 * forbidden and loads that are canceled end in an error and leave nothing. The seed is printed; TEST_SEED repeats a
 * run.
 */
#include "daemon/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/manifest.h"
#include "tests/leaks.h"
#include "tests/plain-experts.h"
#include "tests/forbid.h"
#include "tests/tap.h"

#define SHARDS 3
#define SHARD_MAX 200000u
#define RECORDS 7
#define RECORD_UNITS 21
#define RECORD_BYTES (RECORD_UNITS * UNIT_BYTES)
#define UNIT_BYTES (3 * 16 * HIDDEN * 2) /* of 16 rows of gate, of up and 16 columns of down */
#define HIDDEN 128
#define PIECES_MAX 256
#define NODES 3
#define GRANULES 4
#define TURNS 6

static struct host *host;
static unsigned long long seed;
static char folder[64];

/*
 * One random task: files, pieces of them, and where each byte must end up. A record is three matrices in BF16, without
 * gaps when whole, their rows dealt to the nodes. A piece's place in its record is repack.parameter[0]; each byte lands
 * there turned by the number of its granule, so that granules are not confused.
 */
struct task {
	struct shard shards[SHARDS];
	char paths[SHARDS][96];
	uint8_t *content[SHARDS];
	struct piece pieces[PIECES_MAX];
	uint64_t n_pieces;
	struct loader_record records[RECORDS];
	struct moe_layout whole[RECORDS], layouts[RECORDS];
	uint8_t digests[RECORDS][MOE_DIGEST_BYTES];
	uint8_t *memory[NODES], *expected;
	uint64_t used[RECORDS];
	struct host_node nodes[NODES];
};

static uint64_t random_below(uint64_t bound)
{
	return tap_random(&seed) % bound;
}

static void turn(uint8_t *to, const uint8_t *from, uint64_t granule, uint64_t first, uint64_t n)
{
	for (uint64_t i = 0; i < n * granule; i++)
		to[first * granule + i] = granule == 1 ? from[i] : (uint8_t)(from[i] + 37 * (first + i / granule));
}

static _Atomic bool strayed, pushy;

/* The share's bytes of `bytes` that belong at `at` in a whole record. */
static void put_share(const struct record_share *to, uint64_t at, const uint8_t *bytes, uint64_t n)
{
	uint64_t before = 0;

	for (int i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *part = &to->layout->part[i];
		const uint64_t pitch = part->cols * 2, all = part->rows * pitch;
		const uint64_t begin = moe_share_row(part->rows, to->share, to->layout->shares) * pitch;
		const uint64_t end = moe_share_row(part->rows, to->share + 1, to->layout->shares) * pitch;

		for (uint64_t b = MAX(at, before + begin); b < MIN(at + n, before + end); b++)
			to->memory[part->plane[0] + (b - before - begin)] = bytes[b - at];
		before += all;
	}
}

/* As of model/expert.h. */
static void turn_piece(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		       const void *bytes)
{
	const uint64_t granule = repack->granule_bytes;
	uint8_t *turned;

	/* Whoever repacks lets the reader go first. */
	if (sched_getscheduler(0) != SCHED_BATCH)
		atomic_store(&pushy, true);
	if (n == 0 || (first + n) * granule > repack->bytes || repack->parameter[0] + repack->bytes > RECORD_BYTES) {
		atomic_store(&strayed, true);
		return;
	}
	turned = malloc(repack->bytes);
	turn(turned, bytes, granule, first, n);
	put_share(to, repack->parameter[0] + first * granule, turned + first * granule, n * granule);
	free(turned);
}

static void write_shard(struct task *t, uint32_t i)
{
	const uint64_t bytes = 1 + random_below(SHARD_MAX);
	int fd;

	snprintf(t->paths[i], sizeof t->paths[i], "%s/shard%u", folder, i);
	t->shards[i] = (struct shard){.path = t->paths[i], .bytes = bytes};
	t->content[i] = malloc(bytes);
	for (uint64_t j = 0; j < bytes; j++)
		t->content[i][j] = (uint8_t)tap_random(&seed);
	fd = open(t->paths[i], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, t->content[i], bytes) != (ssize_t)bytes)
		abort();
	close(fd);
}

/* Pieces of one shard, in order, with gaps that are none, a few bytes, or more than an aligned unit. */
static void cut_pieces(struct task *t, uint32_t shard, const uint64_t granules[GRANULES])
{
	uint64_t at = random_below(2) ? 0 : random_below(9000);

	while (t->n_pieces < PIECES_MAX * (shard + 1) / SHARDS && at < t->shards[shard].bytes) {
		static const uint64_t gaps[] = {1, 1, 100, 20000}, sizes[] = {10, 5000, 30000};
		const uint64_t want = 1 + random_below(sizes[random_below(3)]);
		const uint64_t most = MIN(want, t->shards[shard].bytes - at);
		const uint64_t asked = granules[random_below(GRANULES)], granule = MIN(asked, most);
		const uint64_t bytes = most - most % granule;
		const uint32_t record = (uint32_t)random_below(RECORDS);

		if (t->used[record] + bytes <= (RECORD_UNITS - record) * UNIT_BYTES) { /* records differ */
			t->pieces[t->n_pieces++] = (struct piece){.offset = at,
								  .shard = shard,
								  .record = record,
								  .repack = {.granule_bytes = granule,
									     .bytes = bytes,
									     .parameter = {(uint32_t)t->used[record]}}};
			turn(t->expected + record * RECORD_BYTES + t->used[record], t->content[shard] + at, granule, 0,
			     bytes / granule);
			t->used[record] += bytes;
		}
		at += bytes + random_below(gaps[random_below(4)]);
	}
}

static void make_granular_task(struct task *t, const uint64_t granules[GRANULES])
{
	*t = (struct task){.expected = calloc(RECORDS, RECORD_BYTES)};
	for (uint32_t i = 0; i < NODES; i++)
		t->memory[i] = calloc(RECORDS, RECORD_BYTES);
	for (uint32_t i = 0; i < SHARDS; i++) {
		write_shard(t, i);
		cut_pieces(t, i, granules);
	}
	for (uint32_t i = 0; i < RECORDS; i++) {
		t->records[i].offset = i * RECORD_BYTES;
		t->records[i].digest = t->digests[i];
		t->records[i].layout = &t->layouts[i];
		plain_layout(&t->whole[i], MOE_FORMAT_BF16, MOE_FORMAT_BF16, HIDDEN, 16 * (RECORD_UNITS - i), false);
		plain_spread(&t->layouts[i], &t->whole[i], NODES);
		t->records[i].missing = t->used[i] * NODES;
	}
	for (uint32_t i = 0; i < NODES; i++)
		t->nodes[i] = host->nodes[0];
}

/* Bytes as they are, as plain weights. */
static void make_task(struct task *t)
{
	static const uint64_t bytes[GRANULES] = {1, 1, 1, 1};

	make_granular_task(t, bytes);
}

static void free_task(struct task *t)
{
	for (uint32_t i = 0; i < SHARDS; i++)
		free(t->content[i]);
	for (uint32_t i = 0; i < NODES; i++)
		free(t->memory[i]);
	free(t->expected);
}

static struct loader_params params_of(struct task *t)
{
	return (struct loader_params){.name = "test",
				      .shards = t->shards,
				      .n_shards = SHARDS,
				      .pieces = t->pieces,
				      .n_pieces = t->n_pieces,
				      .records = t->records,
				      .repack = turn_piece,
				      .nodes = t->nodes,
				      .n_nodes = NODES,
				      .memory = {t->memory[0], t->memory[1], t->memory[2]},
				      .start_ns = now_ns()};
}

static bool landed_right(const struct task *t)
{
	_Alignas(64) uint8_t record[RECORD_BYTES];
	XXH128_canonical_t digest;

	for (uint32_t i = 0; i < RECORDS; i++) {
		const uint64_t bytes = t->whole[i].record_bytes;

		if (bytes != (RECORD_UNITS - i) * UNIT_BYTES)
			return false;
		memset(record, 0xa5, bytes);
		for (uint32_t n = 0; n < NODES; n++)
			plain_move_share(&t->whole[i], record, &t->layouts[i], n, t->memory[n] + i * RECORD_BYTES,
					 true);
		if (memcmp(record, t->expected + i * RECORD_BYTES, bytes) != 0)
			return false;
		XXH128_canonicalFromHash(&digest, XXH3_128bits(record, bytes));
		if (t->used[i] && memcmp(digest.digest, t->digests[i], sizeof digest.digest) != 0)
			return false;
	}
	return !atomic_load(&strayed);
}

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
	snprintf(folder, sizeof folder, "/tmp/test-loader-XXXXXX");
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
