/* SPDX-License-Identifier: MIT */
/*
 * copy - rows of bytes become one packed run, by stores that go past the caches.
 *
 * Such a store reads nothing of its line and pushes nothing out of a cache, but only whole lines of 64 are written so:
 * rows that are no multiple of a line are packed by ordinary stores. These stores are weakly ordered: the fence at the
 * end comes before whatever tells another thread or process that the bytes are there.
 *
 * The level brings stream_line(to, from): 64 bytes, `to` on a boundary of 64.
 */
#ifndef KERNELS_VEC_COPY_H
#define KERNELS_VEC_COPY_H

#include <string.h>

#define COPY_AHEAD 4096 /* bytes that are asked for before they are read; beyond the end that does no harm */

static inline void copy_lines(size_t bytes, const char *from, size_t ahead, char *to)
{
	for (size_t i = 0; i < bytes; i += 64) {
		_mm_prefetch(from + i + ahead, _MM_HINT_T0);
		stream_line(to + i, from + i);
	}
}

static inline void copy_run(size_t bytes, const char *from, char *to)
{
	const size_t before = -(uintptr_t)to & 63, head = before < bytes ? before : bytes;
	const size_t lines = (bytes - head) & ~(size_t)63;

	memcpy(to, from, head);
	copy_lines(lines, from + head, COPY_AHEAD, to + head);
	memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

static inline void vec_copy_rows(size_t rows, size_t width, size_t pitch, const char *from, char *to)
{
	const size_t ahead = (COPY_AHEAD + width - 1) / (width ? width : 1) * pitch;

	if (pitch == width)
		copy_run(rows * width, from, to);
	else
		for (size_t r = 0; r < rows; r++, from += pitch, to += width) {
			if (width % 64 || (uintptr_t)to % 64)
				memcpy(to, from, width);
			else
				copy_lines(width, from, ahead, to);
		}
	_mm_sfence();
}

#endif
