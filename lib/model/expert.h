/* SPDX-License-Identifier: MIT */
/*
 * expert - from the tensors of a published model to the records that are served: which formats, which bytes, and how
 * they are laid out anew.
 *
 * A layer's layout says in which format each part of its experts is and where its planes begin (moe_manifest.h). A
 * source is one contiguous range of one shard that feeds one record: a weight tensor, its scales, its zero points, its
 * bias, or an expert's part of a tensor that holds them all. A source is cut into granules (a plain row-major tensor
 * has granules of one byte); repack() takes any whole granules of it, in any order and from any thread, and writes what
 * they bring to one share of the record (moe_share_row), nothing else. Once every byte of every source has been
 * repacked to every share, the record is complete.
 *
 * Pure: no I/O, no allocation. Whatever the bytes are, repack() stays inside the share.
 */
#ifndef MODEL_EXPERT_H
#define MODEL_EXPERT_H

#include "model/model.h"
#include "uapi/moe_manifest.h"

/* How a source's bytes become bytes of the record; the kinds and their parameters are repack.c's. */
struct repack {
	uint32_t kind;
	uint32_t part;          /* enum moe_part_name; of a source that feeds gate and up: MOE_PART_GATE */
	uint64_t granule_bytes; /* source bytes of a granule */
	uint64_t bytes;         /* of the source: a whole number of granules */
	uint32_t rows, cols;    /* of the matrix that the source describes, as far as the kind needs them */
	uint32_t parameter[2];
};

/* Sources of one record at most: three parts of codes, scales, zero points, biases and group indices. */
#define EXPERT_SOURCES_MAX 16

struct expert_source {
	uint64_t offset; /* in the shard */
	uint32_t shard;
	struct repack repack;
};

/*
 * Places the planes of gate, up and down in these formats, with or without a bias each: codes, scales, row scales, bias
 * of each part in turn, all rows in one pool file. -EINVAL: gate and up differ, or a format cannot hold that many
 * columns; -EOVERFLOW.
 */
int layout_place(struct moe_layout *ret, const uint32_t format[3], const bool bias[3], uint32_t hidden, uint32_t inter);

/* The same records in so many pool files; `layout` may be for any number itself. */
void layout_spread(struct moe_layout *ret, const struct moe_layout *layout, uint32_t shares);

/* With more shares than this some would have no row of a part. */
uint32_t layout_shares_max(const struct moe_layout *layout);

/* The layout of all experts of a layer that carries experts, in one pool file. Cannot fail: model_open has checked the
 * model. */
void expert_layout(const struct model *model, uint32_t layer, struct moe_layout *ret);

/* The sources of one expert's record; returns how many. The same holds. */
uint32_t expert_sources(const struct model *model, uint32_t layer, uint32_t expert,
			struct expert_source ret[EXPERT_SOURCES_MAX]);

/* One share of a record: layout->record_bytes, 64-byte aligned, zeroed before the first repack(). */
struct record_share {
	const struct moe_layout *layout;
	uint32_t share; /* of layout->shares */
	uint8_t *memory;
};

/*
 * Writes what granules first .. first + n of a source bring to the share: only those of its rows. `bytes` is what lies
 * in the file: n * granule_bytes, at any alignment.
 */
void repack(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n, const void *bytes);

#endif
