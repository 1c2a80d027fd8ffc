/* SPDX-License-Identifier: MIT */
/* peak - tile multiplications as often as the processor can: four independent tiles of sums, no memory. */
#include "kernels/amx/tiles.h"

#define PEAK_FUNCTION(name, dot, operations)                                                                           \
	uint64_t name(uint64_t rounds)                                                                                 \
	{                                                                                                              \
		tiles_configure(TILE_ROWS, TILE_BYTES);                                                                \
		for (uint64_t r = 0; r < rounds; r++) {                                                                \
			dot(0, 4, 6);                                                                                  \
			dot(1, 4, 7);                                                                                  \
			dot(2, 5, 6);                                                                                  \
			dot(3, 5, 7);                                                                                  \
		}                                                                                                      \
		tiles_release();                                                                                       \
		return rounds * 4 * (operations);                                                                      \
	}

PEAK_FUNCTION(peak_bf16_amx, TILE_BF16, 16 * 16 * 32 * 2)
PEAK_FUNCTION(peak_int8_amx, TILE_S8_S8, 16 * 16 * 64 * 2)
