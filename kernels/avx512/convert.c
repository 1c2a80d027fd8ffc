/* SPDX-License-Identifier: MIT */
#include "kernels/avx512/vec.h"
#include "kernels/levels.h"
#include "kernels/vec/convert.h"

void bf16_to_f32_avx512(size_t n, const uint16_t *from, float *to)
{
	vec_bf16_to_f32(n, from, to);
}

void f32_to_bf16_avx512(size_t n, const float *from, uint16_t *to)
{
	vec_f32_to_bf16(n, from, to);
}
