/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "kernels/levels.h"

void copy_rows_ref(size_t rows, size_t width, size_t pitch, const void *from, void *to)
{
	for (size_t r = 0; r < rows; r++)
		memcpy((char *)to + r * width, (const char *)from + r * pitch, width);
}
