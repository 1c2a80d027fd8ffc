/* SPDX-License-Identifier: MIT */
/* form-bytes - the forms that have a byte for each weight. */
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "tools/mkmodel/form.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/search.h"

#define TILE 128

static float largest(const float *x, uint32_t n)
{
	float most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmaxf(most, fabsf(x[i]));
	return most;
}

static void fp8_tile(const float *w, uint32_t rows, uint32_t cols, uint64_t pitch, uint8_t *codes, float *ret)
{
	float most = 0, scale;

	for (uint32_t r = 0; r < rows; r++)
		most = fmaxf(most, largest(w + r * pitch, cols));
	scale = most > 0 ? most / E4M3_MAX : 1;
	if (!(scale > 0)) /* the quotient of the smallest numbers */
		scale = most;
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < cols; c++)
			codes[r * pitch + c] = number_to_e4m3(w[r * pitch + c] / scale);
	*ret = scale;
}

void form_fp8_block(const float *w, uint32_t rows, uint32_t cols, uint8_t *codes, uint8_t *scales)
{
	for (uint32_t r = 0; r < rows; r += TILE)
		for (uint32_t c = 0; c < cols; c += TILE) {
			const uint64_t at = (uint64_t)r * cols + c;
			float scale;

			fp8_tile(w + at, MIN(TILE, rows - r), MIN(TILE, cols - c), cols, codes + at, &scale);
			scales += number_store(TENSOR_F32, scale, scales);
		}
}

/* The smallest scale of its type with which no code is cut off, but for half a step. */
static float row_scale(const float *w, uint32_t cols, float top, enum tensor_type type)
{
	const float most = largest(w, cols), scale = number_as(type, most / top);

	if (most == 0)
		return 1;
	return scale > 0 ? scale : number_as(type, most); /* too small a quotient for the type */
}

void form_channel(enum form_kind kind, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
		  uint8_t *codes, uint8_t *scales)
{
	const struct grid grid = {-127, 127};

	for (uint32_t r = 0; r < rows; r++, w += cols, codes += cols) {
		const float scale = row_scale(w, cols, kind == FORM_INT8 ? grid.hi : E4M3_MAX, type);

		for (uint32_t c = 0; c < cols; c++) {
			if (kind == FORM_INT8)
				codes[c] = (uint8_t)search_code(w[c], grid, scale);
			else
				codes[c] = number_to_e4m3(w[c] / scale);
		}
		scales += number_store(type, scale, scales);
	}
}
