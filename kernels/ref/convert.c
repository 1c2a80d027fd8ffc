/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "kernels/levels.h"

void bf16_to_f32_ref(size_t n, const uint16_t *from, float *to)
{
	for (size_t i = 0; i < n; i++) {
		const uint32_t bits = (uint32_t)from[i] << 16;

		memcpy(&to[i], &bits, sizeof(bits));
	}
}

void f32_to_bf16_ref(size_t n, const float *from, uint16_t *to)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &from[i], sizeof(bits));
		if (isnan(from[i]))
			to[i] = (uint16_t)(bits >> 16 | 0x40); /* quiet, so that cutting the fraction leaves a NaN */
		else
			to[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
}
