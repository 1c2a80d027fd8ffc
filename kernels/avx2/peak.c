/* SPDX-License-Identifier: MIT */
#include "kernels/levels.h"
#include "kernels/vec/peak.h"

PEAK_FUNCTION(peak_f32_avx2, __m256, _mm256_setzero_ps(), "x", 16, _mm256_fmadd_ps(a, a, a))

/* A product of bytes in three instructions. Only the addition waits for the chain: a scheduler of 64 operations does
 * not look far enough ahead for chains of all three. */
static inline __m256i product(__m256i sum)
{
	const __m256i bytes = _mm256_setzero_si256();
	__m256i pairs;

	__asm__ volatile("vpmaddubsw %2, %2, %1\n\t"
			 "vpmaddwd %2, %1, %1\n\t"
			 "vpaddd %1, %0, %0"
			 : "+x"(sum), "=&x"(pairs)
			 : "x"(bytes));
	return sum;
}

PEAK_FUNCTION(peak_int8_avx2, __m256i, _mm256_setzero_si256(), "x", 64, product(a))
