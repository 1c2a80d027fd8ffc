/* SPDX-License-Identifier: MIT */
/* How much room a model needs: the limits' edges, and what its records' layouts say. tests/e2e/doctor.t holds a daemon
 * and moectl doctor to the same numbers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/expert.h"
#include "model/pool-size.h"
#include "tests/fixture.h"

#define EXPERTS 10u
#define TOPK 2u
#define RECORD 1000u

/* Two files, three layers. */
static const struct pool_size size = {.pools = 2, .records = 30, .record = RECORD / 2, .file = 30 * RECORD / 2};

/* -1: refused. */
static int64_t frames(uint64_t memory_max, uint64_t pool_max)
{
	const struct pool_limits limits = {memory_max, pool_max};
	struct moe_error err = {0};
	uint64_t n;

	if (pool_frames(&size, EXPERTS, TOPK, &limits, &n, &err) == 0)
		return (int64_t)n;
	return err.code == -ENOMEM && *err.text ? -1 : -2;
}

static void test_limits(void)
{
	ok(frames(0, 0) == 0 && frames(30 * RECORD, 0) == 0, "without a limit, or as much as all records: all stay");
	ok(frames(30 * RECORD - 1, 0) == -1, "a byte less is refused");
	ok(frames(0, 30 * RECORD) == 0 && frames(0, 30 * RECORD - 1) == 29, "where a part may stay, that part does");
	ok(frames(20 * RECORD, 25 * RECORD) == 20 && frames(25 * RECORD, 20 * RECORD) == 20, "the lower limit counts");
	ok(frames(0, 12 * RECORD) == 12 && frames(0, 12 * RECORD - 1) == -1,
	   "a layer's experts and a token's must have room");
	ok(pool_frames_min(EXPERTS, 0) == EXPERTS + 1, "a token has one at least");
}

static void test_memory(void)
{
	const uint64_t bytes = 1ull << 30, besides = pool_besides(bytes);

	ok(!pool_lacks((int64_t)(bytes + besides), bytes) && pool_lacks((int64_t)(bytes + besides) - 1, bytes),
	   "beside a pool %llu bytes must be left", (unsigned long long)besides);
	ok(!pool_lacks(-1, bytes) && pool_lacks(INT64_MAX, UINT64_MAX), "what is unknown refuses nothing");
}

static void test_model(void)
{
	struct model *model;
	struct moe_error err = {0};
	struct pool_size one, two, many;
	struct moe_layout layout = {0};

	require(model_open(&model, fixture_sample(), &err) == 0, "the sample: %s", err.text);
	expert_layout(model, 0, &layout);
	require(pool_size(&one, model, 1) && pool_size(&two, model, 2) && pool_size(&many, model, 1u << 20), "sizes");
	ok(one.pools == 1 && one.record == layout.record_bytes && one.file == one.records * one.record,
	   "one node has all: %llu bytes", (unsigned long long)one.file);
	ok(two.pools == 2 && two.file < one.file && two.file * 2 >= one.file, "two have a half each: %llu",
	   (unsigned long long)two.file);
	ok(many.pools == layout_shares_max(&layout), "no more share a record than it has rows for: %u", many.pools);
	model_free(model);
}

int main(void)
{
	test_limits();
	test_memory();
	test_model();
	return tap_done();
}
