/* SPDX-License-Identifier: MIT */
#include <immintrin.h>

#include "kernels/levels.h"

static inline void stream_line(char *to, const char *from)
{
	_mm512_stream_si512((__m512i *)to, _mm512_loadu_si512(from));
}

#include "kernels/vec/copy.h"

void copy_rows_avx512(size_t rows, size_t width, size_t pitch, const void *from, void *to)
{
	vec_copy_rows(rows, width, pitch, from, to);
}
