/* SPDX-License-Identifier: MIT */
/*
 * panel_pack - a row of activations as 8-bit integers with a scale for each block (PACK_I8_BLOCK, PACK_I8_PAIRS).
 *
 * scale = max|x| / most, code = x / scale rounded to nearest even, so -most .. most; 127 but for PACK_I8_PAIRS. The
 * same bits on every level.
 */
#ifndef KERNELS_VEC_PANEL_PACK_H
#define KERNELS_VEC_PANEL_PACK_H

#include <string.h>

#include "kernels/kernels.h"

/* Where max|x| is so small that most / max|x| would overflow, activations are lifted first. */
#define PACK_SMALL 0x1p-100f
#define PACK_LIFT 0x1p+100f

static inline void panel_pack_block(size_t n, float most, const float *x, int8_t *codes, float *scale, int32_t *sum)
{
	const uint32_t bits = panel_largest(n, x);
	float largest, up;

	memcpy(&largest, &bits, sizeof(largest));
	if (bits == 0 || bits >= 0x7f800000) {
		memset(codes, 0, n);
		*scale = bits ? NAN : 0;
		*sum = 0;
		return;
	}
	up = largest < PACK_SMALL ? PACK_LIFT : 1;
	*scale = largest / most;
	*sum = panel_quantise(n, x, up, most / (largest * up), codes);
}

/* cols is a multiple of the block: every format's block is one. */
static inline void panel_pack(size_t cols, uint32_t block, float most, const float *x, void *packed)
{
	const size_t blocks = cols / block, room = KERNEL_I8_NUMBERS(cols, block);
	int8_t *codes = packed;
	float *scales = (float *)((char *)packed + KERNEL_I8_SCALES(cols));
	int32_t *sums = (int32_t *)((char *)packed + KERNEL_I8_SUMS(cols, block));

	for (size_t b = 0; b < blocks; b++)
		panel_pack_block(block, most, x + b * block, codes + b * block, &scales[b], &sums[b]);
	memset(codes + cols, 0, KERNEL_LINE(cols) - cols);
	memset(scales + blocks, 0, room - blocks * sizeof(float));
	memset(sums + blocks, 0, room - blocks * sizeof(int32_t));
}

#endif
