/* SPDX-License-Identifier: MIT */
/* store: a folder becomes exactly its experts, whatever its shards look like; what is wrong is refused and leaves
 * nothing. */
#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "model/model.h"
#include "tests/leaks.h"
#include "tests/mixtral-folder.h"
#include "tests/tap.h"
#include "tests/whole-record.h"

#define TURNS 6
#define TIERED (10 * 8192) /* bytes: ten of fifteen records */

/* Parts end off every boundary: 24 * 50 * 2 bytes. */
#define SMALL                                                                                                          \
	{                                                                                                              \
		.layers = 3, .experts = 5, .hidden = 24, .inter = 50, .shards = 4, .order = 1, .dtype = "BF16",        \
		.missing = -1                                                                                          \
	}

static struct host *host;

static struct store_params params_for(const struct mixtral *m)
{
	return (struct store_params){.path = m->path, .pages = PAGES_4K, .epoch = 3, .host = host};
}

static struct resident *load(const struct store_params *params)
{
	struct resident *r = NULL;
	struct moe_error err = {0};

	if (store_load(&r, params, &err) < 0)
		diag("%s", err.text);
	return r;
}

/* -- what a record must hold -------------------------------------------------------------------------------------- */

static void expect_record(uint8_t *ret, const struct mixtral *m, const struct moe_layout *layout, uint32_t row,
			  uint32_t expert)
{
	memset(ret, 0, layout->record_bytes);
	for (uint32_t part = 0; part < 3; part++)
		mixtral_content(ret + layout->part[part].plane[MOE_PLANE_CODES], mixtral_part_bytes(m),
				mixtral_seed(row, expert, part));
}

static bool records_right(const struct mixtral *m, const struct resident *r)
{
	for (uint32_t i = 0; i < m->layers * m->experts; i++) {
		const uint32_t row = i / m->experts, expert = i % m->experts;
		struct moe_layout layout;
		_cleanup_free_ uint8_t *found = whole_record(r, row, expert, &layout);
		_cleanup_free_ uint8_t *expected = malloc(layout.record_bytes);
		XXH128_canonical_t digest;

		expect_record(expected, m, &layout, row, expert);
		if (memcmp(found, expected, layout.record_bytes) != 0) {
			diag("record %u of row %u differs", expert, row);
			return false;
		}
		XXH128_canonicalFromHash(&digest, XXH3_128bits(expected, layout.record_bytes));
		if (memcmp(digest.digest, r->records[i].digest, sizeof digest.digest) != 0) {
			diag("digest of record %u of row %u differs", expert, row);
			return false;
		}
	}
	return true;
}

/* The law of the uapi header, written once more. */
static bool digest_right(const struct resident *r)
{
	const struct moe_manifest *m = r->manifest;
	const size_t size = 20 + 32 + m->n_layers * 4 + m->n_layouts * (8 + 144) + m->n_moe_layers * 4 +
			    (size_t)m->n_moe_layers * m->n_experts * 16;
	_cleanup_free_ uint8_t *text = malloc(size);
	uint8_t *at = text;
	XXH128_canonical_t digest;

	at = mempcpy(at, "moe-expertd layout 2", 20);
	at = mempcpy(at,
		     (uint32_t[]){m->n_layers, m->n_moe_layers, m->n_experts, m->topk, m->hidden, m->inter,
				  m->activation, m->limit},
		     32);
	at = mempcpy(at, r->layer_index, m->n_layers * 4);
	for (uint32_t i = 0; i < m->n_layouts; i++) {
		struct moe_layout whole; /* in one pool file */

		layout_spread(&whole, &r->layouts[i], 1);
		at = mempcpy(mempcpy(at, &whole.record_bytes, 8), whole.part, 144);
	}
	for (uint32_t row = 0; row < m->n_moe_layers; row++)
		at = mempcpy(at, &r->records[row * m->n_experts].layout, 4);
	for (uint32_t i = 0; i < m->n_moe_layers * m->n_experts; i++)
		at = mempcpy(at, r->records[i].digest, 16);
	XXH128_canonicalFromHash(&digest, XXH3_128bits(text, size));
	return at == text + size && memcmp(digest.digest, m->digest, 16) == 0;
}

static bool layout_right(const struct mixtral *m, const struct moe_layout *l, uint32_t format)
{
	const uint64_t part = ALIGN_UP(mixtral_part_bytes(m), (uint64_t)64);
	bool good = l->record_bytes == ALIGN_UP(2 * part + mixtral_part_bytes(m), (uint64_t)4096) && l->shares == 1 &&
		    !l->reserved;

	for (uint32_t i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *p = &l->part[i];

		good = good && p->format == format && p->rows == (i == 2 ? m->hidden : m->inter) &&
		       p->cols == (i == 2 ? m->inter : m->hidden) && p->plane[0] == i * part && !p->plane[1] &&
		       !p->plane[2] && !p->plane[3] && !p->reserved;
	}
	return good;
}

static void check_manifest(const struct mixtral *m, const struct resident *r)
{
	const struct moe_manifest *f = r->manifest;
	struct stat st;

	ok(f->magic == MOE_MANIFEST_MAGIC && f->layout == MOE_LAYOUT_VERSION && f->epoch == 3 &&
		   strcmp(f->name, strrchr(m->path, '/') + 1) == 0 && strcmp(r->path, m->path) == 0 &&
		   strcmp(r->family, "mixtral") == 0,
	   "manifest: magic, layout, epoch, name %s, family %s", f->name, r->family);
	ok(f->n_layers == m->layers && f->n_moe_layers == m->layers && f->n_experts == m->experts && f->topk == 2 &&
		   f->hidden == m->hidden && f->inter == m->inter && f->activation == MOE_ACTIVATION_SILU &&
		   f->limit == 0,
	   "manifest: the eight numbers");
	ok(f->n_layouts == 1 && f->layouts_offset % 8 == 0 &&
		   r->layouts == (const void *)((const char *)f + f->layouts_offset) &&
		   layout_right(m, r->layouts, MOE_FORMAT_BF16) && f->record_bytes == r->layouts->record_bytes,
	   "manifest: one layout, that of plain BF16");
	ok(fstat(r->manifest_fd, &st) == 0 && (uint64_t)st.st_size == f->bytes && f->records_offset % 8 == 0 &&
		   f->bytes == f->records_offset + (uint64_t)m->layers * m->experts * sizeof(struct moe_record),
	   "manifest: its bytes");
	ok((fcntl(r->manifest_fd, F_GET_SEALS) & 15) == (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) &&
		   (fcntl(r->pools[0].fd, F_GET_SEALS) & 15) ==
			   (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
	   "manifest and pool are sealed");
	ok(f->pools[0].bytes == r->pools[0].bytes && f->pools[0].node == r->pools[0].node &&
		   f->pools[0].page_bytes == 4096 && !f->pools[0].transparent,
	   "manifest: the pool");
}

static void test_load(const struct mixtral *m)
{
	struct store_params params = params_for(m);
	struct resident *r = load(&params);

	require(r != NULL, "a folder loads");
	check_manifest(m, r);
	ok(records_right(m, r), "each record is its tensors, zeros between them, and its digest is right");
	ok(digest_right(r), "the model's digest follows the law");
	ok(r->read_bytes >= mixtral_part_bytes(m) * m->layers * m->experts * 3 && r->load_ns > 0 && r->sessions == 0,
	   "%llu bytes read, %s", (unsigned long long)r->read_bytes, r->direct ? "direct" : "buffered");
	r = resident_free(r);
	ok(r == NULL && resident_free(NULL) == NULL, "free takes both");
	params.name = "given";
	params.pages = PAGES_AUTO;
	params.writable_clients = true;
	r = load(&params);
	require(r != NULL, "the same with a name, any pages, writable for clients");
	ok(strcmp(r->manifest->name, "given") == 0 && records_right(m, r) &&
		   (fcntl(r->pools[0].fd, F_GET_SEALS) & F_SEAL_WRITE) == 0,
	   "the name counts, the records are the same (on %s pages), the pool is writable",
	   pages_rung_name(r->pools[0].rung));
	resident_free(r);
}

/* -- the digest says what the experts are, and nothing else ------------------------------------------------------- */

static void load_digest(uint8_t ret[16], const struct mixtral *m, const struct loader_tuning *tuning)
{
	struct store_params params = params_for(m);
	struct resident *r;

	if (tuning)
		params.tuning = *tuning;
	r = load(&params);
	require(r != NULL && records_right(m, r), "loaded, records right");
	memcpy(ret, r->manifest->digest, 16);
	resident_free(r);
}

static void test_tunings(const struct mixtral *m)
{
	static const struct loader_tuning tunings[] = {
		{.block_bytes = 1, .depth = 1, .slots = 1},
		{.block_bytes = 4096, .depth = 3, .slots = 4},
		{.block_bytes = 12288, .depth = 2, .slots = 40},
		{.block_bytes = 1 << 20},
		{.buffered = true, .block_bytes = 4096},
		{.no_io_uring = true, .block_bytes = 4096, .depth = 2, .slots = 2},
		{.no_io_uring = true, .buffered = true},
	};
	uint8_t digest[16], other[16];

	load_digest(digest, m, NULL);
	for (size_t i = 0; i < ARRAY_LEN(tunings); i++) {
		load_digest(other, m, &tunings[i]);
		ok(memcmp(digest, other, 16) == 0, "blocks of %u, depth %u, %s, %s: the same digest",
		   tunings[i].block_bytes, tunings[i].depth, tunings[i].buffered ? "buffered" : "direct",
		   tunings[i].no_io_uring ? "threads" : "io_uring");
	}
}

static void test_sharding(const struct mixtral *m)
{
	uint8_t digest[16], other[16];

	load_digest(digest, m, NULL);
	for (uint32_t shards = 1; shards <= 9; shards += 4) {
		struct mixtral same = *m;

		same.shards = shards;
		same.order = shards + 10;
		mixtral_write(&same);
		load_digest(other, &same, &(struct loader_tuning){.block_bytes = 4096});
		ok(memcmp(digest, other, 16) == 0, "%u shards in another order: the same digest", shards);
		mixtral_remove(&same);
	}
}

/* One bit in the middle of one expert's tensor. */
static void flip_bit(const struct mixtral *m, uint32_t layer, uint32_t expert)
{
	const struct tensor *tensor;
	struct model *model;
	struct moe_error err;
	char name[256];
	uint8_t byte;
	off_t at;
	int fd;

	require(model_open(&model, m->path, &err) == 0, "a model to change");
	model_expert_name(name, sizeof name, model->config.family, layer, expert, PART_DOWN);
	tensor = model_tensor(model, name);
	require(tensor != NULL, "a tensor to change");
	at = (off_t)(tensor->offset + tensor->bytes / 2);
	fd = open(model->shards[tensor->shard].path, O_RDWR | O_CLOEXEC);
	require(pread(fd, &byte, 1, at) == 1, "a byte of it");
	byte ^= 0x40;
	require(pwrite(fd, &byte, 1, at) == 1, "is changed");
	close(fd);
	model_free(model);
}

static void test_changed_byte(void)
{
	struct mixtral m = SMALL;
	struct resident *before, *after;
	struct store_params params;
	uint32_t changed = 0;

	m.shards = 1;
	mixtral_write(&m);
	params = params_for(&m);
	before = load(&params);
	require(before != NULL, "before the change");
	flip_bit(&m, 1, 3);
	after = load(&params);
	require(after != NULL, "after the change");
	for (uint32_t i = 0; i < m.layers * m.experts; i++)
		changed += memcmp(before->records[i].digest, after->records[i].digest, 16) != 0;
	ok(changed == 1 && memcmp(before->records[8].digest, after->records[8].digest, 16) != 0,
	   "one bit changes its record's digest and no other (%u)", changed);
	ok(memcmp(before->manifest->digest, after->manifest->digest, 16) != 0, "and the model's");
	resident_free(before);
	resident_free(after);
	mixtral_remove(&m);
}

static void test_f16(void)
{
	struct mixtral m = SMALL;
	struct store_params params;
	struct resident *r;

	m.dtype = "F16";
	mixtral_write(&m);
	params = params_for(&m);
	r = load(&params);
	require(r != NULL, "F16 loads");
	ok(layout_right(&m, r->layouts, MOE_FORMAT_F16) && records_right(&m, r) && digest_right(r),
	   "F16: layout and records");
	resident_free(r);
	mixtral_remove(&m);
}

/* -- NUMA --------------------------------------------------------------------------------------------------------- */

static void test_nodes(const struct mixtral *m, uint32_t n)
{
	_cleanup_free_ struct host *several = malloc(sizeof *several);
	const uint32_t units = DIV_UP(MIN(m->hidden, m->inter), 16u), shares = MIN(n, units);
	struct store_params params = params_for(m);
	struct resident *one = load(&params), *r;

	*several = *host;
	several->n_nodes = n;
	for (uint32_t i = 1; i < n; i++)
		several->nodes[i] = several->nodes[0]; /* the same memory, dealt as if there were more */
	params.host = several;
	params.tuning = (struct loader_tuning){.block_bytes = 4096, .depth = 4, .slots = 5};
	r = load(&params);
	require(one && r, "%u nodes: loads", n);
	ok(whole_places_right(r, shares), "%u nodes: %u pool files, laid out alike", n, shares);
	ok(records_right(m, r) && digest_right(r) &&
		   memcmp(r->manifest->digest, one->manifest->digest, MOE_DIGEST_BYTES) == 0,
	   "%u nodes: the same records in shares, the same digest", n);
	resident_free(r);
	resident_free(one);
}

/* -- refused, with nothing left ----------------------------------------------------------------------------------- */

static void check_refused(const struct store_params *params, int code, const char *word, const char *what)
{
	struct resident *r = (struct resident *)1;
	struct leaks before;
	struct moe_error err = {0};
	bool right = true;

	for (int i = -1; i < TURNS; i++) {
		if (i == 0)
			before = leaks_now();
		right &= store_load(&r, params, &err) == code && err.code == code && strstr(err.text, word) &&
			 r == (struct resident *)1;
	}
	ok(right, "%s (%d): %s", what, err.code, err.text);
	ok(leaks_none(&before, TURNS), "%s: nothing leaks", what);
}

static int cancel_at(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	const uint64_t *at = userdata;

	return done >= *at ? 1 : 0;
}

static void test_refused(const struct mixtral *m)
{
	const uint64_t bytes = mixtral_part_bytes(m) * m->layers * m->experts * 3;
	struct store_params params = params_for(m);
	uint64_t at = 0;

	params.memory_max = bytes;
	check_refused(&params, -ENOMEM, "allowed", "memory_max below what records take");
	params.memory_max = 0;
	params.pages = PAGES_1G;
	if (host->nodes[0].huge_1g_free > 0)
		tap_skip("1g pages required but absent: they are there");
	else
		/* Without /sys the reserve is not known beforehand, and the kernel's own refusal is told. */
		check_refused(&params, -ENOMEM, host->nodes[0].huge_1g_total >= 0 ? "1 GiB hugepages" : "1g pages",
			      "1 GiB pages required but absent");
	params.pages = PAGES_4K;
	params.progress = cancel_at;
	params.userdata = &at;
	check_refused(&params, -ECANCELED, "cancel", "canceled at once");
	at = bytes;
	check_refused(&params, -ECANCELED, "cancel", "canceled at the end");
	params = params_for(m);
	params.path = "/nonexistent";
	check_refused(&params, -ENOENT, "/nonexistent", "no such folder");
}

static void test_damaged(void)
{
	struct mixtral m = SMALL;
	struct store_params params;
	char path[160], name[64];
	struct stat st;

	mixtral_write(&m);
	params = params_for(&m);
	mixtral_shard_name(&m, 2, name, sizeof name);
	snprintf(path, sizeof path, "%s/%s", m.path, name);
	require(stat(path, &st) == 0 && truncate(path, st.st_size - 1) == 0, "a shard loses a byte");
	check_refused(&params, -EINVAL, name, "truncated shard");
	require(unlink(path) == 0, "a shard goes away");
	check_refused(&params, -ENOENT, name, "missing shard");
	mixtral_remove(&m);
	m.missing = 17;
	mixtral_write(&m);
	params = params_for(&m);
	check_refused(&params, -ENOENT, "model.layers.1.block_sparse_moe.experts.0.w2.weight", "missing tensor");
	mixtral_remove(&m);
	m.missing = -1;
	m.dtype = "I16";
	mixtral_write(&m);
	params = params_for(&m);
	check_refused(&params, -ENOTSUP, "I16", "a type that is no weight");
	mixtral_remove(&m);
}

/* -- files that change meanwhile ---------------------------------------------------------------------------------- */

struct meddling {
	void (*with)(const char *path);
	const char *path;
	bool under_way; /* when something was read; else before anything was */
};

static void write_anew(const char *path)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 12345}};

	utimensat(AT_FDCWD, path, times, 0);
}

/* By another with the same bytes. */
static void replace(const char *path)
{
	char command[512];

	snprintf(command, sizeof command, "cp -p %s %s.new && mv %s.new %s", path, path, path, path);
	if (system(command) != 0)
		diag("%s: fails", command);
}

static void make_fifo(const char *path)
{
	unlink(path);
	mkfifo(path, 0600);
}

static int meddle(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	struct meddling *m = userdata;

	if (m->with && (done > 0) == m->under_way)
		m->with(m->path);
	if ((done > 0) == m->under_way)
		m->with = NULL;
	return 0;
}

static void check_meddled(struct mixtral *m, uint64_t pool_max, const struct meddling *meddling, int code,
			  const char *word)
{
	struct store_params params = params_for(m);
	struct meddling now = *meddling;
	struct resident *r = NULL;
	struct moe_error err = {0};
	char path[192], name[64];

	mixtral_write(m);
	mixtral_shard_name(m, m->shards - 1, name, sizeof name);
	snprintf(path, sizeof path, "%s/%s", m->path, name);
	params.path = m->path;
	params.pool_max = pool_max;
	params.tuning = (struct loader_tuning){
		.block_bytes = 4096, .depth = 1, .slots = 1}; /* the last file is open late */
	params.progress = meddle;
	params.userdata = &now;
	now.path = path;
	alarm(60); /* a FIFO waits for ever */
	ok(store_load(&r, &params, &err) == code && strstr(err.text, word) && !r, "%s file, %s: %s",
	   pool_max ? "tiered" : "whole", word, err.text);
	alarm(0);
	mixtral_remove(m);
}

static void test_meddled(void)
{
	struct mixtral m = SMALL;

	for (int i = 0; i < 2; i++) {
		const uint64_t pool_max = i ? TIERED : 0;

		check_meddled(&m, pool_max, &(struct meddling){.with = write_anew}, -ESTALE, "written to while");
		check_meddled(&m, pool_max, &(struct meddling){.with = replace}, -ESTALE, "replaced");
		check_meddled(&m, pool_max, &(struct meddling){.with = make_fifo}, -EINVAL, "not a regular file");
	}
	m.shards = 1; /* open when the first record has been read */
	check_meddled(&m, TIERED, &(struct meddling){.with = write_anew, .under_way = true}, -ESTALE,
		      "was written to while it was read");
}

struct seen {
	_Atomic uint64_t moved;
	uint64_t last, last_moved, total;
	unsigned calls;
	bool monotonic, stood; /* stood: nothing moved, though more was read */
};

static int see(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	struct seen *seen = userdata;

	seen->monotonic &= done >= seen->last && done <= total;
	seen->stood |= done > seen->last && done < total && seen->moved <= seen->last_moved;
	seen->last_moved = seen->moved;
	seen->last = done;
	seen->total = total;
	seen->calls++;
	return 0;
}

static void test_progress(const struct mixtral *m, uint64_t pool_max)
{
	struct store_params params = params_for(m);
	struct seen seen = {.monotonic = true};
	struct resident *r;

	params.pool_max = pool_max;
	params.progress = see;
	params.userdata = &seen;
	params.moved = &seen.moved;
	r = load(&params);
	require(r != NULL, "loads with a progress callback");
	ok(!seen.stood, "what has moved goes on with what is read");
	ok(seen.monotonic && seen.calls > 0 && seen.last == seen.total &&
		   seen.total == mixtral_part_bytes(m) * m->layers * m->experts * 3,
	   "progress: %u calls, never back, the last one says all", seen.calls);
	resident_free(r);
}

int main(void)
{
	struct mixtral m = SMALL;

	log_open("test-store", LOG_LEVEL_WARNING);
	host = malloc(sizeof *host);
	require(host != NULL, "memory for the host");
	host_read(host, true);
	host->n_nodes = 1; /* but in test_nodes */
	mixtral_write(&m);
	test_load(&m);
	test_tunings(&m);
	test_sharding(&m);
	test_changed_byte();
	test_f16();
	test_nodes(&m, 2);
	test_nodes(&m, 3);
	test_nodes(&m, 16);
	test_refused(&m);
	test_damaged();
	test_progress(&m, 0);
	if (host->io_uring_works) {
		test_meddled();
		test_progress(&m, TIERED);
	} else {
		tap_skip("io_uring is not permitted here: tiered models were not tested");
	}
	mixtral_remove(&m);
	free(host);
	return tap_done();
}
