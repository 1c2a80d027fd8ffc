/* SPDX-License-Identifier: MIT */
/*
 * experts - who computes the routed experts of a layer: this process itself, or moe-expertd through libmoe-expert.
 *
 * A layer's step is begun, and ended before the next one is begun; between the two the caller may do other work. The
 * result of a rank of a group is its partial sum: the group adds them up. Back-ends are alternative files
 * (experts-local.c, experts-daemon.c), each with one constructor.
 */
#ifndef WORKER_EXPERTS_H
#define WORKER_EXPERTS_H

#include "moe-expert.h"
#include "tools/worker/group.h"
#include "tools/worker/options.h"
#include "tools/worker/weights.h"

/* (token, expert) pairs by the path on which they were computed, and what was copied for them. */
struct experts_stats {
	uint64_t hit, miss_buffer, pool, cpu, local;
	uint64_t deferred; /* by the CPU pool too, but added to the next MoE layer (--defer) */
	uint64_t resident; /* of them, pairs whose expert was in a cache slot before the step */
	uint64_t fills, fill_bytes;
	uint64_t reads, read_bytes; /* experts that the device read in the pool (--zero-copy) */
};

struct experts_step {
	uint32_t layer, tokens;
	const int32_t *ids;   /* [tokens][topk] */
	const float *weights; /* [tokens][topk] */
	const float *x;       /* [tokens][hidden] */
	/* Not 0: a stream of the device that slots lie on; x and y are there too, as moe_submit_on takes them. */
	uintptr_t stream;
	uint64_t on_x, on_y;
};

/* A step of one token that can be captured (moe_lane_submit): device addresses. */
struct experts_lane {
	uint32_t layer, lane; /* lane: 0 or 1, in turn */
	uintptr_t stream;
	uint64_t x, ids, weights, y;
};

struct experts {
	struct experts_stats stats;
	int (*phase)(struct experts *experts, enum moe_step_phase phase, uint64_t number, struct moe_error *err);
	int (*begin)(struct experts *experts, const struct experts_step *step, struct moe_error *err);
	/* Writes y [tokens][hidden] whole; NULL with a step on a stream. */
	int (*end)(struct experts *experts, float *y, struct moe_error *err);

	/* Captured steps; NULL where there are none. Between fix and release the slots keep what is in them. Once the
	 * stream has been waited for, `replayed` says whether all lanes did well, and counts the pairs of a pass: ids
	 * [n_moe_layers][pitch], topk of each. */
	int (*lanes_fix)(struct experts *experts, struct moe_error *err);
	void (*lanes_release)(struct experts *experts);
	int (*lane)(struct experts *experts, const struct experts_lane *step, struct moe_error *err);
	int (*replayed)(struct experts *experts, const int32_t *ids, uint32_t pitch, struct moe_error *err);
	struct experts *(*free)(struct experts *experts);
};

/* The plain implementation: reads the experts' tensors in the mapped shards of `model`; quantized ones are laid out and
 * decoded as the formats are defined, to FP32. Computes rank group->rank's share of the intermediate dimension. */
int experts_local_new(struct experts **ret, const struct model *model, const struct arch *arch,
		      const struct group *group, uint32_t tokens_max, struct moe_error *err);

/* Attached to the model behind `socket` as the group's rank, once it has been shown to be `model`.
 * model_name NULL: the only one loaded. */
int experts_daemon_new(struct experts **ret, const struct options *options, const char *socket, const char *model_name,
		       const struct model *model, const struct arch *arch, const struct group *group,
		       uint32_t tokens_max, struct moe_error *err);

static inline struct experts *experts_free(struct experts *experts)
{
	return experts ? experts->free(experts) : NULL;
}

#endif
