/* SPDX-License-Identifier: MIT */
/*
 * loader-task - random tasks for the loader: files, pieces of them, and where each byte must end up.
 */
#ifndef TESTS_LOADER_TASK_H
#define TESTS_LOADER_TASK_H

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/util.h"
#include "daemon/loader.h"
#include "tests/plain-experts.h"
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
 * One random task. A record is three matrices in BF16, without gaps when whole, their rows dealt to the nodes. A
 * piece's place in its record is repack.parameter[0]; each byte lands there turned by the number of its granule, so
 * that granules are not confused.
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

#endif
