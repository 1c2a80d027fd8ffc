/* SPDX-License-Identifier: MIT */
/*
 * piece - sources of records where they lie in their files, and the aligned blocks in which they are read.
 *
 * Law: pieces are given in file order and do not overlap; neighbours that touch or share aligned units form an extent,
 * and an extent is read in blocks, one behind the other. A block ends where a granule ends, so that repack() gets whole
 * granules only; no byte is in two blocks, but for the aligned unit in which a granule ends and the next one begins.
 * So whoever has repacked all blocks has repacked each byte of each piece once. The loader (loader.h) walks over all
 * pieces of a model, a reader (reader.h) over those of one record.
 *
 * Pure: no I/O, no allocation.
 */
#ifndef DAEMON_PIECE_H
#define DAEMON_PIECE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/expert.h"
#include "model/model.h"
#include "moe-error.h"

/* Beyond any published granule: a block, and all of the memory for blocks, must hold the largest. */
#define PIECE_GRANULE_MAX (16u << 20)

/* One source: where its repack.bytes begin in which shard, and the record that they feed. */
struct piece {
	uint64_t offset; /* in the shard */
	uint32_t shard, record;
	struct repack repack;
};

/* An aligned range of one shard, and the bytes of it that are this block's to repack: whole granules. */
struct block {
	uint32_t shard;
	uint32_t length;   /* to ask for: a multiple of SHARDFILE_ALIGN, may reach over the end of the file */
	uint32_t expected; /* bytes that the file has there */
	uint64_t offset;
	uint64_t begin, end; /* in the shard */
	uint64_t piece;      /* the first one that ends after `begin` */
};

struct walk {
	const struct piece *pieces;
	uint64_t n_pieces;
	const struct shard *shards;
	uint32_t block_bytes;  /* as piece_block_bytes() says */
	uint64_t piece;        /* the first that ends after `position` */
	uint64_t extent_piece; /* the first after the extent */
	uint64_t position;     /* all before it is in a block */
	uint64_t extent_end;   /* a whole unit's */
};

/* Sorts them into file order. */
void piece_sort(struct piece *pieces, uint64_t n);

/* That sorted pieces keep the law: -E2BIG, -ENOTSUP. Their bytes, and the largest granule. */
int piece_check(const struct piece *pieces, uint64_t n, const struct shard *shards, uint64_t *ret_bytes,
		uint64_t *ret_granule, struct moe_error *err);

/* Of a block: what is asked for, or what such granules need. */
uint32_t piece_block_bytes(uint32_t asked, uint64_t granule);

/* The next block; false: there is none any more. A walk begins with all after block_bytes zero. */
bool walk_next(struct walk *walk, struct block *ret);

/* The piece's granules first .. first + n lie in the block, n > 0, `at` bytes behind its offset. False: it has none. */
bool block_holds(const struct block *block, const struct piece *piece, uint64_t *ret_first, uint64_t *ret_n,
		 uint64_t *ret_at);

#endif
