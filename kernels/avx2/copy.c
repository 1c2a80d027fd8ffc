/* SPDX-License-Identifier: MIT */
#include <immintrin.h>

#include "kernels/levels.h"

static inline void stream_line(char *to, const char *from)
{
	_mm256_stream_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
	_mm256_stream_si256((__m256i *)(to + 32), _mm256_loadu_si256((const __m256i *)(from + 32)));
}

#include "kernels/vec/copy.h"

void copy_rows_avx2(size_t rows, size_t width, size_t pitch, const void *from, void *to)
{
	vec_copy_rows(rows, width, pitch, from, to);
}
