/* SPDX-License-Identifier: MIT */
#include "model/pool-size.h"

#include <errno.h>
#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"
#include "model/expert.h"

/* As many shares of a record as there are nodes, where each has rows of each part. */
static uint32_t count_shares(const struct model *model, uint32_t nodes)
{
	uint32_t shares = nodes;

	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		struct moe_layout layout = {0};

		if (!model->config.is_moe[layer])
			continue;
		expert_layout(model, layer, &layout);
		shares = MIN(shares, layout_shares_max(&layout));
	}
	return shares;
}

bool pool_size(struct pool_size *ret, const struct model *model, uint32_t nodes)
{
	const struct model_config *c = &model->config;
	bool good = true;

	*ret = (struct pool_size){.pools = count_shares(model, nodes),
				  .records = (uint64_t)c->n_moe_layers * c->n_experts};
	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		struct moe_layout layout = {0};
		uint64_t bytes;

		if (!c->is_moe[layer])
			continue;
		expert_layout(model, layer, &layout);
		layout_spread(&layout, &layout, ret->pools);
		ret->record = MAX(ret->record, layout.record_bytes);
		good = good && checked_mul(&bytes, layout.record_bytes, c->n_experts) &&
		       checked_add(&ret->file, ret->file, bytes);
	}
	return good && ret->file <= INT64_MAX / ret->pools;
}

static double gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

int pool_frames(const struct pool_size *size, uint32_t experts, uint32_t topk, const struct pool_limits *limits,
		uint64_t *ret_frames, struct moe_error *err)
{
	const uint64_t memory_max = limits->memory_max ? limits->memory_max : UINT64_MAX;
	const uint64_t needed = size->file * size->pools, record = size->record * size->pools;
	const uint64_t max = limits->pool_max ? MIN(memory_max, limits->pool_max) : memory_max;
	const uint64_t least = MIN(pool_frames_min(experts, topk), size->records);

	if (needed <= max) {
		*ret_frames = 0;
		return 0;
	}
	if (!limits->pool_max)
		return moe_error_set(err, -ENOMEM,
				     "%.2f GiB (%" PRIu64 " bytes) needed, at most %.2f GiB (%" PRIu64
				     " bytes) allowed",
				     gib(needed), needed, gib(max), max);
	if (max / record < least)
		return moe_error_set(
			err, -ENOMEM,
			"%" PRIu64 " bytes allowed hold %" PRIu64 " records of %" PRIu64 " bytes, at least %" PRIu64
			" needed (a layer's %u experts and a token's %u beside them): allow %" PRIu64 " bytes or more",
			max, max / record, record, least, experts, topk, least * record);
	*ret_frames = MIN(max / record, size->records);
	return 0;
}
