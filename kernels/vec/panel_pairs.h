/* SPDX-License-Identifier: MIT */
/*
 * panel_pairs - products of sums: half the dot products of many tokens, where a level defines PANEL_PAIRS as 1.
 *
 * Law: of two neighbouring vectors with codes q0 and q1, of 0 .. top, and activations x0 and x1,
 *
 *	q0 x0 + q1 x1 = (a0 + x1) (a1 + x0) - a0 a1 - (most x0 - less x1 + x0 x1)
 *
 * with a0 = q0 + most and a1 = q1 - less. The one dot product's factors are an unsigned and a signed byte, if all
 * |x| <= most <= (255 - top) / 2 and less = 128 - most: a0 + x1 is 0 .. 255, a1 + x0 is -128 .. 127. The share of the
 * weights is made while they are decoded, that of the activations while they are packed. All is exact, so results have
 * the bits that two dot products give. Worth it where additions of bytes have pipes that dot products do not need
 * (docs/decisions/0081).
 */
#ifndef KERNELS_VEC_PANEL_PAIRS_H
#define KERNELS_VEC_PANEL_PAIRS_H

#include <string.h>

#include "kernels/vec/panel_codes.h"

#ifndef PANEL_PAIRS
#define PANEL_PAIRS 0
#endif

/* The largest activation code: of codes 0 .. 15, 0 .. 31 and E2M1's doubled ones. */
#define PANEL_PAIRS_4 120
#define PANEL_PAIRS_5 112
#define PANEL_PAIRS_E2M1 115

#if PANEL_PAIRS
PANEL_INLINE int pairs_most(uint32_t format)
{
	if (moe_formats[format].code == MOE_CODE_E2M1)
		return PANEL_PAIRS_E2M1;
	return moe_formats[format].bits == 5 ? PANEL_PAIRS_5 : PANEL_PAIRS_4;
}

/* `add` in each byte. */
PANEL_INLINE ivec pairs_bytes(int add)
{
	return ivec_set((int32_t)((uint32_t)(add & 0xff) * 0x01010101u));
}

/* a0 and a1 of vectors v and v + 1, as panel_pair() has their codes: four bits look them up in place of masking. */
PANEL_INLINE void panel_decoded(uint32_t format, const uint8_t *block, int v, size_t part, ivec ret[2])
{
	static const uint8_t plain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	const int most = pairs_most(format);

	if (moe_formats[format].bits == 4) {
		const ivec both = ivec_loaded(block + v / 2 * 64 + part * VEC_BYTES);
		const ivec table = panel_looked_up(format) ? panel_table(format) : ivec_table(plain);

		ret[0] = ivec_lookup_low(ivec_add8(table, pairs_bytes(most)), both);
		ret[1] = ivec_lookup_high(ivec_add8(table, pairs_bytes(most - 128)), both);
		return;
	}
	panel_pair(format, block, v, part, ret);
	ret[0] = ivec_add8(ret[0], pairs_bytes(most));
	ret[1] = ivec_add8(ret[1], pairs_bytes(most - 128));
}

/* sums + (a0 + x1) (a1 + x0) */
PANEL_INLINE ivec pairs_dot(ivec sums, const ivec a[2], ivec x0, ivec x1)
{
	return ivec_dot(sums, ivec_add8(a[0], x1), ivec_add8(a[1], x0));
}

/* The shares of a row's activations behind what PACK_I8_BLOCK has; `most` as pairs_most() says. */
static inline void pairs_pack(size_t cols, uint32_t block, int most, void *packed)
{
	const size_t blocks = cols / block;
	int32_t *shares = (int32_t *)((char *)packed + KERNEL_I8_SHARES(cols, block));

	for (size_t b = 0; b < blocks; b++)
		shares[b] = panel_share(most, (const int8_t *)packed + b * block);
	memset(shares + blocks, 0, KERNEL_I8_NUMBERS(cols, block) - blocks * sizeof(int32_t));
}
#else
/* The codes. */
PANEL_INLINE void panel_decoded(uint32_t format, const uint8_t *block, int v, size_t part, ivec ret[2])
{
	panel_pair(format, block, v, part, ret);
}
#endif

#endif
