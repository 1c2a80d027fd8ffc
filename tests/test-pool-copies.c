/* SPDX-License-Identifier: MIT */
/*
 * test-pool-copies - what the CPU pool copies: slices of experts and any bytes of them, packed, and nothing else; and
 * what of it each node's memory is asked for.
 */
#include <inttypes.h>

#include "daemon/push-copies.h"
#include "tests/pool-fills.h"

static void fill_run(struct pool *pool, struct fill *fill)
{
	pool_submit_copy(pool, &fill->copy);
	while (sem_wait(&fill->ended) < 0)
		continue;
}

static void test_copies(void)
{
	struct pool *pool = pool_make(3, 3);
	struct pool_stats before, after;
	uint64_t bytes = 0;
	struct fake f;
	bool good = true;

	fake_layout(&f, 2, 700, 3072, MOE_FORMAT_BF16, 3); /* parts of 4.3 MB: several units of each share */
	fake_fill(&f);
	pool_stats(pool, &before);
	for (int i = 0; i < 12; i++) {
		const uint32_t size = 1u << pick(4);
		struct fill *fill = fill_make(&f, pick(size), size);

		fill_run(pool, fill);
		good = good && fill_good(fill);
		bytes += fill->slice.bytes;
		fill_free(fill);
	}
	pool_stats(pool, &after);
	ok(good, "slices arrive packed, and nothing behind them");
	ok(after.copy_bytes - before.copy_bytes == bytes && after.jobs - before.jobs == 12, "copies are counted");
	fake_free(&f);
	pool_free(pool);
}

/* A node's memory is asked for its half of an expert's rows, however many tokens have the expert. */
static void test_nodes(void)
{
	enum { HIDDEN = 320, INTER = 192, EXPERT = 3 * HIDDEN * INTER * 2 };
	struct pool *pool = pool_make(2, 3);
	struct pool_node_stats node[3];
	struct fill *fill;
	struct fake f;
	struct job *j;

	fake_layout(&f, 4, HIDDEN, INTER, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	j = job_make(&f, 6, 2, MOE_TYPE_F32, MOE_TYPE_F32, 0);
	job_row(j, &f, 0); /* without biases */
	for (int i = 0; i < 12; i++)
		j->ids[i] = i % 3 == 2 ? 3 : 1;
	job_run(pool, j);
	for (uint32_t i = 0; i < 3; i++)
		pool_node_stats(pool, i, &node[i]);
	ok(node[0].read_bytes == EXPERT && node[1].read_bytes == EXPERT,
	   "two experts' weights: half of them each node's");
	ok(node[0].threads == 2 && node[1].threads == 1 && node[0].busy_ns + node[1].busy_ns > 0,
	   "threads and their time");
	ok(node[0].copy_bytes == 0 && node[2].read_bytes == 0 && node[2].threads == 0, "nothing else");
	do {
		fill = fill_make(&f, 0, 1);
		if (fill->copy.row == 0)
			break;
		fill_free(fill);
	} while (true);
	fill_run(pool, fill);
	for (uint32_t i = 0; i < 2; i++)
		pool_node_stats(pool, i, &node[i]);
	ok(node[0].copy_bytes == EXPERT / 2 && node[1].copy_bytes == EXPERT / 2 && node[0].read_bytes == EXPERT,
	   "a copied expert: half of it each node's");
	fill_free(fill);
	job_free(j);
	fake_free(&f);
	pool_free(pool);
}

/* Where ranges are likely to go wrong: at the ends of planes and rows, or anywhere. */
static uint64_t pick_end(const struct fill *fill)
{
	const struct moe_slice_plane *p = &fill->slice.plane[pick(MOE_PARTS)][pick(MOE_PLANES)];
	uint64_t at = fill->slice.bytes * pick(1024) / 1024;

	if (pick(2))
		at = p->slot_offset + (p->rows ? pick((uint32_t)p->rows + 1) * p->width : 0);
	at += pick(5);
	return MIN(at < 2 ? at : at - 2, fill->slice.bytes);
}

static void pick_range(struct fill *fill)
{
	const uint64_t a = pick_end(fill), b = pick_end(fill);

	fill->copy.from = MIN(MIN(a, b), fill->slice.bytes - 1);
	fill->copy.bytes = MAX(MAX(a, b) - MIN(a, b), 1);
}

/* The same by what a device is told to fetch. */
static bool fetch_good(struct fill *fill)
{
	const struct resident *model = fill->copy.model;
	struct device_copy copies[4 * MOE_PARTS * MOE_PLANES * PUSH_COPIES_EACH];
	uint8_t *maps[4];
	uint32_t n;

	for (uint32_t i = 0; i < model->n_pools; i++)
		maps[i] = model->pools[i].map;
	memset(fill->dst, 0xa5, fill->slice.bytes);
	n = push_copies(copies, &fill->copy, maps, (uintptr_t)fill->dst);
	for (uint32_t i = 0; i < n; i++)
		for (uint64_t row = 0; row < copies[i].rows; row++)
			memcpy((uint8_t *)(uintptr_t)copies[i].to + row * copies[i].width,
			       (const uint8_t *)copies[i].from + row * copies[i].pitch, copies[i].width);
	return n <= model->n_pools * MOE_PARTS * MOE_PLANES * PUSH_COPIES_EACH && fill_good(fill);
}

/* Ranges that follow one another make the whole. */
static bool piecewise(struct pool *pool, struct fill *fill)
{
	const uint64_t piece = 1 + fill->slice.bytes / (1 + pick(9));
	bool good = true;

	for (uint64_t at = 0; at < fill->slice.bytes && good; at += piece) {
		fill->copy.from = at;
		fill->copy.bytes = MIN(piece, fill->slice.bytes - at);
		fill_run(pool, fill);
		good = fill->result.status == 0 && fill->result.bytes == fill->copy.bytes;
	}
	fill->copy.from = 0;
	fill->copy.bytes = fill->result.bytes = fill->slice.bytes;
	return good && fill_good(fill);
}

/* Every format; shapes, slices and nodes by chance. */
static void test_ranges(void)
{
	bool good = true, whole = true, fetched = true;

	for (uint32_t i = 0; i < 3 * (MOE_FORMAT_COUNT - 1) && good && whole; i++) {
		const uint32_t format = 1 + i % (MOE_FORMAT_COUNT - 1), nodes = 1 + pick(4);
		struct pool *pool = pool_make(nodes, 1 + pick(4));
		struct fake f;

		fake_layout(&f, 2, 256 * (1 + pick(3)), 256 * (1 + pick(8)), format, nodes);
		fake_fill(&f);
		for (int k = 0; k < 24 && good; k++) {
			const uint32_t row = pick(2), size = 1 + pick(MIN(moe_slice_units(&f.layouts[row]), 8u));
			struct fill *fill = fill_make(&f, pick(size), size);

			if (k % 8 == 7) {
				whole = piecewise(pool, fill);
			} else {
				pick_range(fill);
				fill_run(pool, fill);
				good = fill_good(fill);
				fetched = fetched && fetch_good(fill);
			}
			if (!good || !whole)
				diag("format %s, rank %u of %u, %u nodes: bytes %" PRIu64 " from %" PRIu64 " of %llu",
				     moe_formats[format].name, fill->rank, size, nodes, fill->copy.bytes,
				     fill->copy.from, (unsigned long long)fill->slice.bytes);
			fill_free(fill);
		}
		fake_free(&f);
		pool_free(pool);
	}
	ok(good, "a range is these bytes of the whole copy, and nothing else is written");
	ok(whole, "ranges that follow one another make the whole");
	ok(fetched, "what a device is told to fetch of a range is the same");
}

/* More than four megabytes, which go past the caches: from an odd byte, through rows that are cut. */
static void test_large_ranges(void)
{
	struct pool *pool = pool_make(2, 3);
	struct fake f;
	bool good = true;

	fake_layout(&f, 1, 700, 3072, MOE_FORMAT_BF16, 2);
	fake_fill(&f);
	for (int i = 0; i < 12 && good; i++) {
		const uint32_t size = 1 + pick(2);
		struct fill *fill = fill_make(&f, pick(size), size);

		pick_range(fill);
		fill_run(pool, fill);
		good = fill_good(fill);
		fill_free(fill);
	}
	ok(good, "the same of slices that are copied past the caches");
	fake_free(&f);
	pool_free(pool);
}

int main(void)
{
	seed = tap_seed();
	test_copies();
	test_nodes();
	test_ranges();
	test_large_ranges();
	return tap_done();
}
