/* SPDX-License-Identifier: MIT */
/*
 * repack-gguf - from the blocks of a GGUF tensor to panels.
 *
 * A source of kind REPACK_GGUF is an expert's part of a merged tensor: rows of blocks, one after the other, of the
 * type that has the part's format. A granule is as many rows as the largest power of two, up to a panel, that divides
 * the number of rows: whole panels in every published model. Codes and scales keep their values; only the signed codes
 * of Q8_0 and the biased scales of IQ4_XS are written another way.
 */
#ifndef MODEL_REPACK_GGUF_H
#define MODEL_REPACK_GGUF_H

#include "model/repack.h"

/* Rows of a granule. */
static inline uint32_t repack_gguf_granule(uint32_t rows)
{
	const uint32_t most = MOE_PANEL_ROWS | rows;

	return most & -most;
}

/* As repack() (expert.h), for this kind. */
void repack_gguf(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
		 const void *bytes);

#endif
