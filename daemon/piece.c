/* SPDX-License-Identifier: MIT */
#include "daemon/piece.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/util.h"
#include "daemon/shardfile.h"

#define ALIGN_DOWN(value, align) ((value) & ~((__typeof__(value))(align)-1))

static int compare(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

void piece_sort(struct piece *pieces, uint64_t n)
{
	qsort(pieces, n, sizeof *pieces, compare);
}

int piece_check(const struct piece *pieces, uint64_t n, const struct shard *shards, uint64_t *ret_bytes,
		uint64_t *ret_granule, struct moe_error *err)
{
	uint64_t bytes = 0, largest = 1;

	for (uint64_t i = 0; i < n; i++) {
		const struct piece *piece = &pieces[i];
		const struct repack *repack = &piece->repack;

		if (repack->granule_bytes == 0 || repack->granule_bytes > PIECE_GRANULE_MAX || repack->bytes == 0 ||
		    repack->bytes % repack->granule_bytes)
			return moe_error_set(err, -E2BIG,
					     "%s: expert tensor at offset %" PRIu64 ": %" PRIu64
					     " bytes in granules of "
					     "%" PRIu64 " found, whole granules of at most %u bytes expected: this "
					     "matrix is too large to be laid out anew while it is read",
					     shards[piece->shard].path, piece->offset, repack->bytes,
					     repack->granule_bytes, PIECE_GRANULE_MAX);
		if (i > 0 && piece->shard == piece[-1].shard &&
		    piece->offset < piece[-1].offset + piece[-1].repack.bytes)
			return moe_error_set(err, -ENOTSUP,
					     "%s: expert tensor at offset %" PRIu64 ": it begins within the one at "
					     "%" PRIu64 " of %" PRIu64 " bytes, tensors of their own expected",
					     shards[piece->shard].path, piece->offset, piece[-1].offset,
					     piece[-1].repack.bytes);
		largest = MAX(largest, repack->granule_bytes);
		bytes += repack->bytes;
	}
	*ret_bytes = bytes;
	*ret_granule = largest;
	return 0;
}

uint32_t piece_block_bytes(uint32_t asked, uint64_t granule)
{
	/* Granules begin and end anywhere in a unit. */
	const uint32_t needed = granule > 1 ? (uint32_t)granule + 2 * SHARDFILE_ALIGN : 0;

	return ALIGN_UP(MAX(asked, needed), SHARDFILE_ALIGN);
}

static uint64_t piece_end(const struct piece *piece)
{
	return piece->offset + piece->repack.bytes;
}

/* An extent is as many pieces as touch or share aligned units, so that no unit is read twice. */
static bool begin_extent(struct walk *w)
{
	const struct piece *piece;
	uint64_t i = w->extent_piece, end;

	if (i == w->n_pieces)
		return false;
	piece = &w->pieces[i];
	w->piece = i;
	w->position = ALIGN_DOWN(piece->offset, SHARDFILE_ALIGN);
	end = ALIGN_UP(piece_end(piece), SHARDFILE_ALIGN);
	for (i++; i < w->n_pieces && w->pieces[i].shard == piece->shard; i++) {
		if (ALIGN_DOWN(w->pieces[i].offset, SHARDFILE_ALIGN) > end)
			break;
		end = ALIGN_UP(piece_end(&w->pieces[i]), SHARDFILE_ALIGN);
	}
	w->extent_piece = i;
	w->extent_end = end;
	return true;
}

/*
 * Where a block that cannot reach over `end` ends: there, or before the granule that lies across it. Blocks hold the
 * largest granule and two units more, so that is always after the unit in which the block begins.
 */
static uint64_t cut(const struct walk *w, uint64_t end)
{
	for (uint64_t i = w->piece; i < w->extent_piece && w->pieces[i].offset < end; i++) {
		const struct piece *piece = &w->pieces[i];

		if (piece_end(piece) > end)
			return end - (end - piece->offset) % piece->repack.granule_bytes;
	}
	return end;
}

bool walk_next(struct walk *w, struct block *ret)
{
	uint64_t offset, end, length;

	if (w->position == w->extent_end && !begin_extent(w))
		return false;
	while (piece_end(&w->pieces[w->piece]) <= w->position)
		w->piece++;
	offset = ALIGN_DOWN(w->position, SHARDFILE_ALIGN);
	end = w->extent_end;
	if (end - offset > w->block_bytes)
		end = cut(w, offset + w->block_bytes);
	length = ALIGN_UP(end, SHARDFILE_ALIGN) - offset;
	*ret = (struct block){.shard = w->pieces[w->piece].shard,
			      .length = (uint32_t)length,
			      .expected = (uint32_t)MIN(length, w->shards[w->pieces[w->piece].shard].bytes - offset),
			      .offset = offset,
			      .begin = w->position,
			      .end = end,
			      .piece = w->piece};
	w->position = end;
	return true;
}

bool block_holds(const struct block *block, const struct piece *piece, uint64_t *ret_first, uint64_t *ret_n,
		 uint64_t *ret_at)
{
	const uint64_t granule = piece->repack.granule_bytes;
	const uint64_t begin = MAX(piece->offset, block->begin), end = MIN(piece_end(piece), block->end);

	if (piece->shard != block->shard || begin >= end)
		return false;
	*ret_first = (begin - piece->offset) / granule;
	*ret_n = (end - begin) / granule;
	*ret_at = begin - block->offset;
	return true;
}
