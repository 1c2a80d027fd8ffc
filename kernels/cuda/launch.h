/* SPDX-License-Identifier: MIT */
/*
 * launch - one layer's step on a CUDA device as a list of kernel launches. Host code without any driver call: who calls
 * hands the list to cuLaunchKernel, in order, on one stream.
 *
 * Law: a list depends on shapes and addresses only, never on ids: the same list may be captured in a graph and replayed
 * with other ids, weights, maps and activations at the same addresses. Thread-safe: no state.
 */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include <stdbool.h>

#include "kernels/cuda/cuda-kernels.h"
#include "kernels/kernels.h"
#include "uapi/moe_manifest.h"

#define CUDA_LAUNCHES_MAX 6 /* of one step */
#define CUDA_SCRATCH_ALIGN 256

enum cuda_path {
	CUDA_PATH_AUTO,   /* prefill from CUDA_DECODE_PAIRS pairs for each expert of the layer on */
	CUDA_PATH_DECODE, /* the weights are read once for each CUDA_DECODE_PAIRS pairs of an expert */
	CUDA_PATH_PREFILL /* tensor cores */
};

/* y[t] = sum over pairs with map[ids[t][k]] >= 0 of weights[t][k] * expert(x[t]); zeros where a token has no pair. All
 * addresses are device addresses, aligned to 16 bytes; slots and scratch to CUDA_SCRATCH_ALIGN, slot_bytes to 64. */
struct cuda_experts {
	uint64_t slots; /* slot i begins at slots + i * slot_bytes, laid out as struct moe_slice says */
	uint64_t slot_bytes;
	const struct moe_layout *layout; /* read by the call only */
	const struct moe_slice *slice;
	uint32_t hidden;
	uint32_t activation; /* enum moe_activation */
	float limit;
	uint32_t tokens, topk, n_experts; /* n_experts <= CUDA_EXPERTS_MAX */
	enum cuda_path path;
	uint64_t x;       /* const float [tokens][hidden] */
	uint64_t y;       /* float [tokens][hidden], written whole */
	uint64_t ids;     /* const int32_t [tokens][topk]; -1 is padding */
	uint64_t weights; /* const float [tokens][topk] */
	uint64_t map;     /* const int32_t [n_experts]: slot or -1 */
	/* 0, or the pool files: then the map's values from n_slots on are records, at records[value - n_slots], and the
	 * path is that of decode. */
	uint32_t n_slots, n_shares;
	uint64_t records; /* const uint64_t [][n_shares]: device addresses */
	uint64_t shares;  /* const struct cuda_share [n_shares], of cuda_share_of() */
	uint64_t scratch; /* cuda_scratch_bytes() bytes that nobody else uses until the launches are over */
};

struct cuda_launch {
	enum cuda_kernel_id kernel;
	unsigned grid[3], block[3];
	unsigned shared_bytes; /* dynamic: always 0 */
	union {
		struct cuda_group group;
		struct cuda_pack pack;
		struct cuda_product product;
		struct cuda_combine combine;
		struct cuda_add add;
		struct cuda_policy policy;
		struct cuda_read read;
		struct cuda_peak peak;
	} params; /* cuda_kernels[kernel].params_bytes of it: &params is kernelParams[0] */
};

/* Bytes of scratch that a step needs; it grows with tokens only: ask once with the most tokens. With PATH_AUTO, enough
 * for either path. */
uint64_t cuda_scratch_bytes(const struct cuda_experts *work);

/* How the rows of a slice that pool file `share` of `shares` has lie in a record there. */
void cuda_share_of(struct cuda_share *ret, const struct moe_layout *layout, const struct moe_slice *slice,
		   uint32_t share, uint32_t shares);

/* The launches of one step. Returns how many (0 where there are no tokens), or -EINVAL: n_experts, topk or a format is
 * out of range; -E2BIG: a grid would have 2^31 blocks or more. */
int cuda_launch_experts(const struct cuda_experts *work, struct cuda_launch ret[CUDA_LAUNCHES_MAX]);

/* y[i] += z[i] for n floats. */
void cuda_launch_add(uint64_t y, uint64_t z, uint64_t n, struct cuda_launch *ret);

/* One decode step of one layer's cache on the device; *policy is copied. */
void cuda_launch_policy(const struct cuda_policy *policy, struct cuda_launch *ret);

/* Limits, for moe-bench, of so many blocks: reading (bytes: a multiple of 16), and the tensor cores' bfloat16. Sums:
 * 256 numbers of 32 bits for each block. */
void cuda_launch_read(uint64_t from, uint64_t bytes, uint64_t sums, uint32_t blocks, struct cuda_launch *ret);
void cuda_launch_peak(uint32_t rounds, uint64_t sums, uint32_t blocks, struct cuda_launch *ret);

/* One product alone: fills in spec and tiles of *product from the rest. items: at least as many as there may be. */
void cuda_launch_product(struct cuda_product *product, bool prefill, bool down, uint32_t items,
			 struct cuda_launch *ret);

/* How a product wants its activations, and with which block (PACK_I8_BLOCK): of the decode or the prefill path. */
enum kernel_pack cuda_pack_of(uint32_t format, bool prefill, uint32_t *ret_block);

/* Bytes from packed row to packed row. */
uint64_t cuda_pack_pitch(enum kernel_pack pack, uint32_t block, uint32_t cols);

/* For simulators and tests (twins.c): does on the host what the launch does on a device. All addresses are host
 * memory. */
void cuda_launch_twin(const struct cuda_launch *launch, enum cuda_twin_order order);

#endif
