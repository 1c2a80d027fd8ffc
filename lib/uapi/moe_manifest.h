/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_manifest.h - the table that tells where each expert record lies: one immutable memfd per loaded model.
 *
 *   struct moe_manifest | __s32 layer_index[n_layers], padded to 8 bytes | struct moe_layout layouts[n_layouts] |
 *   struct moe_record records[n_moe_layers][n_experts]
 *
 * layer_index[l] is the row of the model's layer l, or -1 when that layer is dense. A record holds gate
 * [inter][hidden], up [inter][hidden] and down [hidden][inter]; its layout says in which format each is and where its
 * planes (moe_format.h) begin: on 64-byte boundaries, gate's codes at 0. All records of a layer have the same layout;
 * gate and up have the same format.
 *
 * A record is cut by rows: each pool file holds a share of the rows of each part (moe_share_row), and all pool files
 * are laid out alike. A record begins at the same offset in each of them, on a 4096-byte boundary; its planes begin at
 * the same offsets behind it and have room for the largest share (moe_share_room). What no row covers is zero.
 *
 * Of a model with MOE_MANIFEST_TIERED the pool files are frames of record_bytes each, and records come and go: the
 * offsets of the record table are 0 and say nothing. Only a lease tells where a record is (struct moe_cqe), and for as
 * long as it is held.
 *
 * Digests are those of the records as one pool file holds them, so that they do not depend on the number of files. A
 * record's is XXH3-128 (seed 0, canonical big-endian form) of its record_bytes, padding included. The model's is
 * XXH3-128 of the 20 bytes "moe-expertd layout 2" (no NUL), the eight __u32 from n_layers to limit, layer_index, of
 * each layout record_bytes and the parts, each row's layout number (__u32) and all record digests, in this order. One
 * pool file's planes are placed in the order of parts and planes, each on the first 64-byte boundary behind the last.
 * Equal digests mean equal experts, whatever files they came from and wherever they lie.
 */
#ifndef MOE_UAPI_MANIFEST_H
#define MOE_UAPI_MANIFEST_H

#include <linux/types.h>

#include "moe_format.h"

#define MOE_MANIFEST_MAGIC 0x3273656665724d45ULL
#define MOE_LAYOUT_VERSION 3
#define MOE_LAYOUT_SEED "moe-expertd layout 2" /* version 3 has the digests of version 2 */
#define MOE_DIGEST_BYTES 16
#define MOE_NAME_BYTES 64
#define MOE_POOLS_MAX 16
#define MOE_LAYOUTS_MAX 64
#define MOE_RECORD_ALIGN 4096
/* moe_manifest.flags */
#define MOE_MANIFEST_TIERED 0x01 /* pool files hold fewer records than there are: see below */
#define MOE_PART_ALIGN 64

/*
 * h = act(g) * u of g = gate x, u = up x, biases included; SWIGLU_CLAMPED (gpt-oss) with the manifest's limit L:
 * g' = min(g, L), u' = min(max(u, -L), L), h = g' / (1 + e^(-1.702 g')) * (u' + 1).
 */
enum moe_activation {
	MOE_ACTIVATION_SILU = 0,
	MOE_ACTIVATION_GELU = 1,
	MOE_ACTIVATION_GELU_TANH = 2,
	MOE_ACTIVATION_SWIGLU_CLAMPED = 3
};

enum moe_part_name { MOE_PART_GATE, MOE_PART_UP, MOE_PART_DOWN, MOE_PARTS };

struct moe_part {
	__u32 format; /* enum moe_format */
	__u32 rows;   /* of all shares */
	__u32 cols;
	__u32 reserved;
	__u64 plane[MOE_PLANES]; /* offset in the record in each pool file; 0: absent (but for gate's codes) */
};

struct moe_layout {
	__u64 record_bytes; /* in each pool file; a multiple of MOE_RECORD_ALIGN */
	__u32 shares;       /* pool files: share s is in pools[s] */
	__u32 reserved;
	struct moe_part part[MOE_PARTS];
};

/* One pool file: a share of every record, on one NUMA node. */
struct moe_pool_info {
	__u64 bytes;
	__u64 page_bytes; /* 4096, 2 MiB or 1 GiB; with `transparent` what the kernel promised to try */
	__s32 node;
	__u32 transparent; /* 1: transparent huge pages on shmem */
};

struct moe_record {
	__u32 reserved;
	__u32 layout; /* index of the record's layout */
	__u64 offset; /* in each pool file */
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
	__u32 activation; /* enum moe_activation */
	__u32 limit;      /* of SWIGLU_CLAMPED: the bits of a binary32; else 0 */
	__u32 n_layouts;
	__u32 flags;          /* MOE_MANIFEST_* */
	__u64 record_bytes;   /* of the largest record, in each pool file */
	__u64 layouts_offset; /* of the layouts in the manifest */
	__u64 records_offset; /* of the record table in the manifest */
	struct moe_pool_info pools[MOE_POOLS_MAX];
};

/*
 * The first row of a share of a part with `rows` rows. Shares are cut in units of 16 rows: share s has units
 * s * units / shares .. (s + 1) * units / shares. Of share `shares`: the number of rows.
 */
static inline __u32 moe_share_row(__u32 rows, __u32 share, __u32 shares)
{
	const __u64 units = ((__u64)rows + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
	const __u64 row = units * share / shares * MOE_PANEL_ROWS;

	return row < rows ? (__u32)row : rows;
}

/* Rows that each pool file has room for: no share has more. */
static inline __u32 moe_share_room(__u32 rows, __u32 shares)
{
	const __u64 units = ((__u64)rows + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
	const __u64 room = (units + shares - 1) / shares * MOE_PANEL_ROWS;

	return room < rows ? (__u32)room : rows;
}

/* The number of columns or rows of the intermediate dimension that a slice cannot cut. */
static inline __u32 moe_slice_unit(const struct moe_layout *layout)
{
	const struct moe_format_spec *down = &moe_formats[layout->part[MOE_PART_DOWN].format];
	const __u32 rows = moe_formats[layout->part[MOE_PART_GATE].format].panel ? MOE_PANEL_ROWS : 1;
	const __u32 scales = moe_formats[layout->part[MOE_PART_GATE].format].scale == MOE_SCALE_F32_TILE
				     ? MOE_PANEL_ROWS
				     : 1;
	const __u32 cols = down->block ? down->block : 1;
	const __u32 unit = rows > scales ? rows : scales;

	return unit > cols ? unit : cols; /* all are powers of two */
}

/* Units of the intermediate dimension: the largest tp_size. */
static inline __u32 moe_slice_units(const struct moe_layout *layout)
{
	return (layout->part[MOE_PART_GATE].rows - 1) / moe_slice_unit(layout) + 1;
}

/*
 * A tensor-parallel slice, by pointer arithmetic. The intermediate dimension is cut into units of moe_slice_unit();
 * rank r of n owns units r * units / n .. (r + 1) * units / n: those rows of gate and up, and the same columns of down
 * (and rank 0 the bias of down, which counts once). A plane is `rows` bands of `width` bytes, `pitch` bytes apart in
 * the record; in a slot they lie packed (pitch = width), each plane on a 64-byte boundary, at slot_offset. rows = 0: no
 * such plane. Where there are several shares, moe_slice_share() says which of the bands each pool file has.
 */
struct moe_slice_plane {
	__u64 offset; /* in the record, as if its pool file had all rows */
	__u64 pitch;
	__u64 width;
	__u64 rows;
	__u64 slot_offset;
};

struct moe_slice {
	struct moe_slice_plane plane[MOE_PARTS][MOE_PLANES];
	__u32 first; /* of the intermediate dimension */
	__u32 inter; /* the slice's share of it */
	__u64 bytes; /* of a slot that holds the slice, a multiple of 64 */
};

static inline void moe_slice_plane_of(struct moe_slice_plane *ret, const struct moe_part *part, enum moe_plane plane,
				      __u32 row, __u32 rows, __u32 col, __u32 cols)
{
	const __u32 band = moe_band_rows(part->format, plane);

	ret->pitch = moe_band_bytes(part->format, plane, part->cols);
	ret->width = moe_band_bytes(part->format, plane, cols);
	ret->rows = (rows + band - 1) / band;
	ret->offset = part->plane[plane] + row / band * ret->pitch;
	if (plane == MOE_PLANE_CODES || plane == MOE_PLANE_SCALES)
		ret->offset += moe_band_bytes(part->format, plane, col);
}

/* rank < size <= units of the layout. */
static inline void moe_slice_of(struct moe_slice *ret, const struct moe_layout *layout, __u32 rank, __u32 size)
{
	const __u32 inter = layout->part[MOE_PART_GATE].rows, unit = moe_slice_unit(layout);
	const __u64 units = moe_slice_units(layout);
	const __u64 first = rank * units / size * unit, next = (rank + 1) * units / size * unit;
	__u64 at = 0;
	int i, plane;

	ret->first = (__u32)first;
	ret->inter = (__u32)((next < inter ? next : inter) - first);
	for (i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *part = &layout->part[i];
		const int down = i == MOE_PART_DOWN;

		for (plane = 0; plane < MOE_PLANES; plane++) {
			struct moe_slice_plane *p = &ret->plane[i][plane];

			moe_slice_plane_of(p, part, (enum moe_plane)plane, down ? 0 : ret->first,
					   down ? part->rows : ret->inter, down ? ret->first : 0,
					   down ? ret->inter : part->cols);
			if ((plane != MOE_PLANE_CODES && part->plane[plane] == 0) ||
			    (down && plane == MOE_PLANE_BIAS && rank > 0))
				p->rows = 0;
			p->slot_offset = at;
			at += (p->rows * p->width + MOE_PART_ALIGN - 1) & ~(__u64)(MOE_PART_ALIGN - 1);
		}
	}
	ret->bytes = at;
}

/*
 * What one pool file has of a slice: of each plane a range of its bands (perhaps none), where they lie in the record
 * there, and where in the slot, which is the slice's. first and inter: the rows of gate and up. The only share is the
 * slice itself.
 */
static inline void moe_slice_share(struct moe_slice *ret, const struct moe_slice *slice,
				   const struct moe_layout *layout, __u32 share)
{
	int i, plane;

	*ret = *slice;
	for (i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *part = &layout->part[i];
		const __u32 begin = moe_share_row(part->rows, share, layout->shares);
		const __u32 end = moe_share_row(part->rows, share + 1, layout->shares);
		const __u32 from = i == MOE_PART_DOWN ? 0 : slice->first;
		const __u32 to = i == MOE_PART_DOWN ? part->rows : slice->first + slice->inter;
		const __u32 first = begin > from ? begin : from, next = end < to ? end : to;
		const __u32 rows = next > first ? next - first : 0;

		if (i != MOE_PART_DOWN) {
			ret->first = first;
			ret->inter = rows;
		}
		for (plane = 0; plane < MOE_PLANES; plane++) {
			const __u32 band = moe_band_rows(part->format, (enum moe_plane)plane);
			struct moe_slice_plane *p = &ret->plane[i][plane];

			if (p->rows == 0)
				continue;
			p->rows = (rows + band - 1) / band;
			if (rows == 0)
				continue;
			p->offset += (first - from) / band * p->pitch;
			p->offset -= begin / band * p->pitch;
			p->slot_offset += (first - from) / band * p->width;
		}
	}
}

#ifdef __cplusplus
static_assert(sizeof(struct moe_record) == 32 && sizeof(struct moe_pool_info) == 24, "manifest entries");
static_assert(sizeof(struct moe_manifest) == 560, "moe_manifest");
#else
_Static_assert(sizeof(struct moe_record) == 32 && sizeof(struct moe_pool_info) == 24, "manifest entries");
_Static_assert(sizeof(struct moe_manifest) == 560, "moe_manifest");
#endif

#endif
