/* SPDX-License-Identifier: MIT */
/*
 * ffn-model - an expert layer's weights in this process's memory, for the pool alone: no daemon, no files.
 *
 * Records have the layout that the store would give them; each is a copy of one of a few templates of random codes with
 * scales that keep sums small, so that filling gigabytes takes seconds. What is timed does not depend on the values.
 */
#ifndef TOOLS_BENCH_FFN_MODEL_H
#define TOOLS_BENCH_FFN_MODEL_H

#include "daemon/store.h"
#include "uapi/moe_manifest.h"

struct ffn_shape {
	const char *name;
	uint32_t hidden, inter, experts, topk;
	uint32_t activation;
	bool bias;
};

struct ffn_model {
	struct moe_manifest manifest;
	struct moe_layout layout;
	struct moe_slice slice;
	struct resident resident;
	struct moe_record *records;
	uint64_t bytes; /* of the weights in memory */
};

/* At least `bytes` of weights and `experts_min` experts in one layer, all in `format`. */
int ffn_model_make(struct ffn_model *ret, const struct ffn_shape *shape, uint32_t format, uint64_t bytes,
		   uint32_t experts_min, struct moe_error *err);
void ffn_model_free(struct ffn_model *model);

/* Bytes of one expert as the format is published: what a limit of reading counts. */
double ffn_published_bytes(const struct ffn_shape *shape, uint32_t format);

#endif
