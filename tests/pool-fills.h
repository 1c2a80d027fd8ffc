/* SPDX-License-Identifier: MIT */
/*
 * pool-fills - copies of slices of a fake model's experts, and whether they are what they should be.
 */
#ifndef TESTS_POOL_FILLS_H
#define TESTS_POOL_FILLS_H

#include "tests/pool-fixture.h"

struct fill {
	struct pool_copy copy;
	const struct fake *model;
	struct moe_slice slice;
	uint32_t rank, size;
	struct pool_result result;
	sem_t ended;
	uint8_t *dst;
};

static void fill_done(struct pool_copy *copy, const struct pool_result *result)
{
	struct fill *fill = container_of(copy, struct fill, copy);

	fill->result = *result;
	sem_post(&fill->ended);
}

static struct fill *fill_make(const struct fake *f, uint32_t rank, uint32_t size)
{
	struct fill *fill = allocate(sizeof(*fill));

	*fill = (struct fill){0};
	sem_init(&fill->ended, 0, 0);
	fill->model = f;
	fill->copy.model = &f->model;
	fill->copy.row = pick(2);
	fill->copy.slice = &fill->slice;
	fill->rank = rank;
	fill->size = size;
	moe_slice_of(&fill->slice, &f->layouts[fill->copy.row], rank, size);
	fill->dst = allocate(fill->slice.bytes + 64);
	memset(fill->dst, 0xa5, fill->slice.bytes + 64);
	fill->copy.bytes = fill->slice.bytes;
	fill->copy.expert = pick(f->manifest.n_experts);
	fill->copy.priority = pick(POOL_PRIORITIES);
	fill->copy.dst = fill->dst;
	fill->copy.done = fill_done;
	return fill;
}

/* All of the slice, or the range that was asked for, and no other byte. */
__attribute__((unused)) static bool fill_good(const struct fill *fill)
{
	const struct pool_copy *c = &fill->copy;
	const uint64_t end = c->from + c->bytes;
	uint8_t *expected = allocate(fill->slice.bytes + 64);
	struct moe_slice slice; /* the same of the whole record */
	bool good;

	memset(expected, 0xa5, fill->slice.bytes + 64); /* padding stays as it was */
	moe_slice_of(&slice, &fill->model->whole[c->row], fill->rank, fill->size);
	plain_pack(&slice, fake_record(fill->model, c->row, c->expert), expected);
	memset(expected, 0xa5, c->from);
	memset(expected + end, 0xa5, fill->slice.bytes + 64 - end);
	good = fill->result.status == 0 && fill->result.bytes == c->bytes &&
	       memcmp(fill->dst, expected, fill->slice.bytes + 64) == 0;
	free(expected);
	return good;
}

static void fill_free(struct fill *fill)
{
	sem_destroy(&fill->ended);
	free(fill->dst);
	free(fill);
}

#endif
