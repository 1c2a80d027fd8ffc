/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_manifest.h - the table that tells where each expert record lies: one immutable memfd per loaded model.
 *
 *   struct moe_manifest | __s32 layer_index[n_layers], padded to 8 bytes |
 *   struct moe_record records[n_moe_layers][n_experts]
 *
 * layer_index[l] is the row of the model's layer l, or -1 when that layer is dense. All records of a model have the
 * same size and inner layout (layout version 1):
 *
 *   gate [inter][hidden] at 0, up [inter][hidden] at up_offset, down [hidden][inter] at down_offset, row-major,
 *   elements of `type`; each part starts on a 64-byte boundary, the record on a 4096-byte boundary; padding is zero.
 *
 * A record's digest is XXH3-128 (seed 0, canonical big-endian form) of its record_bytes, padding included. The model's
 * digest is XXH3-128 of the 20 bytes "moe-expertd layout 1" (no NUL), the eight __u32 from n_layers to activation,
 * layer_index and all record digests, in this order: equal digests mean equal experts, whatever files they came from.
 */
#ifndef MOE_UAPI_MANIFEST_H
#define MOE_UAPI_MANIFEST_H

#include <linux/types.h>

#define MOE_MANIFEST_MAGIC 0x3173656665724d45ULL
#define MOE_LAYOUT_VERSION 1
#define MOE_LAYOUT_SEED "moe-expertd layout 1"
#define MOE_DIGEST_BYTES 16
#define MOE_NAME_BYTES 64
#define MOE_POOLS_MAX 16
#define MOE_RECORD_ALIGN 4096
#define MOE_PART_ALIGN 64

enum moe_activation { MOE_ACTIVATION_SILU = 0, MOE_ACTIVATION_GELU = 1, MOE_ACTIVATION_GELU_TANH = 2 };

/* One pool file: the records that live on one NUMA node. */
struct moe_pool_info {
	__u64 bytes;
	__u64 page_bytes; /* 4096, 2 MiB or 1 GiB; with `transparent` what the kernel promised to try */
	__s32 node;
	__u32 transparent; /* 1: transparent huge pages on shmem */
};

struct moe_record {
	__u32 pool; /* index of the pool file */
	__u32 reserved;
	__u64 offset; /* in the pool file */
	__u8 digest[MOE_DIGEST_BYTES];
};

struct moe_manifest {
	__u64 magic; /* MOE_MANIFEST_MAGIC */
	__u64 bytes; /* of the whole manifest */
	__u64 epoch; /* changes with each load */
	__u8 digest[MOE_DIGEST_BYTES];
	char name[MOE_NAME_BYTES]; /* NUL-terminated */
	__u32 layout;              /* MOE_LAYOUT_VERSION */
	__u32 n_pools;
	__u32 n_layers; /* the eight numbers that enter the digest begin here */
	__u32 n_moe_layers;
	__u32 n_experts; /* per layer */
	__u32 topk;
	__u32 hidden;
	__u32 inter;
	__u32 type;       /* enum moe_type: MOE_TYPE_BF16 or MOE_TYPE_F16 */
	__u32 activation; /* enum moe_activation */
	__u32 reserved[2];
	__u64 record_bytes; /* a multiple of MOE_RECORD_ALIGN */
	__u64 up_offset;
	__u64 down_offset;
	__u64 records_offset; /* of the record table in the manifest */
	struct moe_pool_info pools[MOE_POOLS_MAX];
};

/*
 * A tensor-parallel slice, by pointer arithmetic: rank r of n owns rows r*inter/n .. (r+1)*inter/n of gate and up and
 * the same columns of down. A part is `rows` rows of `width` bytes, `pitch` bytes apart in the record; in a slot the
 * parts lie packed (pitch = width), each on a 64-byte boundary, at slot_offset.
 */
struct moe_slice_part {
	__u64 offset; /* in the record */
	__u64 pitch;
	__u64 width;
	__u64 rows;
	__u64 slot_offset;
};

struct moe_slice {
	struct moe_slice_part part[3]; /* gate, up, down */
	__u32 inter;                   /* the slice's share of the intermediate dimension */
	__u32 reserved;
	__u64 bytes; /* of a slot that holds the slice, a multiple of 64 */
};

/* All types that a record can hold today have two bytes an element. rank < size, inter % size == 0. */
static inline void moe_slice_of(struct moe_slice *ret, const struct moe_manifest *m, __u32 rank, __u32 size)
{
	const __u64 element = 2;
	const __u32 inter = m->inter / size;
	const __u64 offsets[3] = {0, m->up_offset, m->down_offset};
	__u64 at = 0;
	int i;

	for (i = 0; i < 3; i++) {
		struct moe_slice_part *p = &ret->part[i];
		const int down = i == 2;

		p->pitch = (down ? m->inter : m->hidden) * element;
		p->width = (down ? inter : m->hidden) * element;
		p->rows = down ? m->hidden : inter;
		p->offset = offsets[i] + (down ? rank * p->width : (__u64)rank * inter * p->pitch);
		p->slot_offset = at;
		at += (p->rows * p->width + MOE_PART_ALIGN - 1) & ~(__u64)(MOE_PART_ALIGN - 1);
	}
	ret->inter = inter;
	ret->reserved = 0;
	ret->bytes = at;
}

#ifdef __cplusplus
static_assert(sizeof(struct moe_record) == 32 && sizeof(struct moe_pool_info) == 24, "manifest entries");
static_assert(sizeof(struct moe_manifest) == 568, "moe_manifest");
#else
_Static_assert(sizeof(struct moe_record) == 32 && sizeof(struct moe_pool_info) == 24, "manifest entries");
_Static_assert(sizeof(struct moe_manifest) == 568, "moe_manifest");
#endif

#endif
