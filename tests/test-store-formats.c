/* SPDX-License-Identifier: MIT */
/*
 * store: models of every packing, whole or only in one of two layers, become the records that repack() makes of whole
 * sources, however the bytes arrive: any block size, any ring, either reader, one node, two or three. The seed is
 * printed; TEST_SEED repeats a run.
 */
#include "daemon/store.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/manifest.h"
#include "tests/published-experts.h"
#include "tests/whole-record.h"

#define TURNS 5
#define NODES 3

static struct host *hosts[NODES]; /* hosts[i] has i + 1 nodes */
static unsigned long long seed;
static struct folder folder;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) >> 33) % n;
}

/* The second layer's experts are published plain. */
static void publish_mixed(const struct publication *p, uint32_t hidden, uint32_t inter)
{
	static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
	char stem[80];

	publish_config(&folder, p, hidden, inter);
	for (uint32_t i = 0; i < LAYERS * EXPERTS * 3; i++) {
		const uint32_t layer = i / 3 / EXPERTS;

		snprintf(stem, sizeof stem, "model.layers.%u.mlp.experts.%u.%s", layer, i / 3 % EXPERTS, parts[i % 3]);
		publish_part(&folder, layer ? &publications[0] : publication_of_part(p, i % 3), stem,
			     i % 3 == 2 ? hidden : inter, i % 3 == 2 ? inter : hidden);
	}
	folder_write_all(&folder);
}

/* -- what must be there ------------------------------------------------------------------------------------------- */

static uint8_t *expected_record(const struct model *model, const struct moe_layout *layout, uint32_t layer,
				uint32_t expert)
{
	uint8_t *record = aligned_alloc(64, layout->record_bytes);
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(model, layer, expert, sources);

	memset(record, 0, layout->record_bytes);
	for (uint32_t i = 0; i < n; i++) {
		const struct repack *r = &sources[i].repack;
		_cleanup_close_ int fd = open(model->shards[sources[i].shard].path, O_RDONLY | O_CLOEXEC);
		_cleanup_free_ uint8_t *bytes = malloc(r->bytes);

		if (pread(fd, bytes, r->bytes, (off_t)sources[i].offset) != (ssize_t)r->bytes)
			abort();
		repack(r, &(struct record_share){.layout = layout, .memory = record}, 0, r->bytes / r->granule_bytes,
		       bytes);
	}
	return record;
}

static bool records_right(const struct model *model, const struct resident *r)
{
	for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
		struct moe_layout layout;
		_cleanup_free_ uint8_t *found = whole_record(r, i / EXPERTS, i % EXPERTS, &layout);
		_cleanup_free_ uint8_t *expected = expected_record(model, &layout, i / EXPERTS, i % EXPERTS);
		XXH128_canonical_t digest;

		XXH128_canonicalFromHash(&digest, XXH3_128bits(expected, layout.record_bytes));
		if (memcmp(found, expected, layout.record_bytes) != 0 ||
		    memcmp(digest.digest, r->records[i].digest, sizeof digest.digest) != 0) {
			diag("expert %u of layer %u differs", i % EXPERTS, i / EXPERTS);
			return false;
		}
	}
	return true;
}

/* -- loads -------------------------------------------------------------------------------------------------------- */

static struct loader_tuning random_tuning(void)
{
	return (struct loader_tuning){.block_bytes = 4096u << below(6),
				      .depth = 1 + below(6),
				      .slots = below(12),
				      .buffered = below(4) == 0,
				      .no_io_uring = below(3) == 0};
}

static void check_folder(const char *name, uint32_t n_layouts)
{
	struct moe_error err = {0};
	uint8_t digest[MOE_DIGEST_BYTES];
	struct model *model;
	bool good = true;

	require(model_open(&model, folder.path, &err) == 0, "%s opens %s", name, err.text);
	for (uint32_t i = 0; i < TURNS && good; i++) {
		const struct store_params params = {.path = folder.path,
						    .pages = PAGES_4K,
						    .epoch = 1,
						    .host = hosts[i % NODES],
						    .tuning = random_tuning()};
		struct resident *r = NULL;

		good = store_load(&r, &params, &err) == 0 && r->manifest->n_layouts == n_layouts &&
		       whole_places_right(r, 1 + i % NODES) && records_right(model, r) &&
		       (i == 0 || memcmp(digest, r->manifest->digest, sizeof digest) == 0);
		if (!good)
			diag("block %u depth %u slots %u buffered %d threads %d nodes %u: %s",
			     params.tuning.block_bytes, params.tuning.depth, params.tuning.slots,
			     params.tuning.buffered, params.tuning.no_io_uring, 1 + i % NODES, err.text);
		if (r)
			memcpy(digest, r->manifest->digest, sizeof digest);
		resident_free(r);
	}
	ok(good, "%s: %u loads, the same records", name, TURNS);
	model_free(model);
	folder_remove(&folder);
}

static void test_publication(const struct publication *p)
{
	const bool any = p->how == PLAIN || p->how == BYTES; /* tiles and rows may end anywhere */
	char name[80];

	folder.seed = seed;
	publish(&folder, p, any ? 152 : 256, any ? 130 : 128);
	check_folder(p->name, 1);
	if (p->how == FUSED || strcmp(p->quant, "") == 0 || p->how == PLAIN)
		return;
	snprintf(name, sizeof name, "%s in the first layer only", p->name);
	folder.seed = seed + 1;
	publish_mixed(p, any ? 200 : 128, any ? 72 : 256);
	check_folder(name, 2);
}

/* Layers that differ: sizes, names, and memory that is asked for by each record's own size. */
static void test_manifest(void)
{
	const struct publication *p = &publications[3];
	char formats[MANIFEST_FORMATS_TEXT];
	struct store_params params = {.pages = PAGES_4K, .host = hosts[0]};
	struct moe_error err = {0};
	struct resident *r = NULL;
	uint64_t bytes;

	require(p->format == MOE_FORMAT_FP8_BLOCK, "a publication in FP8 blocks");
	publish_mixed(p, 256, 128);
	params.path = folder.path;
	require(store_load(&r, &params, &err) == 0, "a mixed model loads %s", err.text);
	manifest_formats(formats, r->manifest);
	ok(strcmp(formats, "fp8-block/bf16") == 0, "its formats are told: %s", formats);
	ok(manifest_layout(r->manifest, 0) == &r->layouts[0] && manifest_layout(r->manifest, 1) == &r->layouts[1] &&
		   r->layouts[1].record_bytes == 3 * 256 * 128 * 2 && r->manifest->record_bytes == 196608 &&
		   r->layouts[0].record_bytes < 3 * 256 * 128 + 8192,
	   "records of %llu and %llu bytes", (unsigned long long)r->layouts[0].record_bytes,
	   (unsigned long long)r->layouts[1].record_bytes);
	bytes = EXPERTS * (r->layouts[0].record_bytes + r->layouts[1].record_bytes);
	ok(r->manifest->pools[0].bytes >= bytes && r->manifest->pools[0].bytes < bytes + 4096,
	   "the pool has room for these and no more");
	r = resident_free(r);
	params.memory_max = bytes - 1;
	ok(store_load(&r, &params, &err) == -ENOMEM, "a byte less is refused: %s", err.text);
	params.memory_max = bytes;
	ok(store_load(&r, &params, &err) == 0, "as many are enough");
	resident_free(r);
	folder_remove(&folder);
}

int main(void)
{
	seed = tap_seed();
	log_open("test-store-formats", LOG_LEVEL_WARNING);
	for (uint32_t i = 0; i < NODES; i++) {
		hosts[i] = malloc(sizeof *hosts[i]);
		require(hosts[i] != NULL, "memory for a host");
		host_read(hosts[i], false);
		hosts[i]->n_nodes = i + 1;
		for (uint32_t n = 1; n <= i; n++) /* the same memory, dealt as if there were more */
			hosts[i]->nodes[n] = hosts[i]->nodes[0];
	}
	for (size_t i = 0; i < ARRAY_LEN(publications); i++)
		test_publication(&publications[i]);
	test_manifest();
	for (uint32_t i = 0; i < NODES; i++)
		free(hosts[i]);
	return tap_done();
}
