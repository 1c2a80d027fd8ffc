/* SPDX-License-Identifier: MIT */
/* form-int4 - 4-bit codes in groups, packed eight to a word the way each of three tools does it. */
#include <endian.h>
#include <string.h>

#include "tools/mkmodel/form.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/search.h"

/* The rows that AWQ puts into a word from its lowest bits on. */
static const uint8_t awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* Where the tensors of one matrix begin. */
struct places {
	uint8_t *codes, *scales, *zeros, *rest;
};

static struct affine choose(const struct form *form, const float *x, enum tensor_type type)
{
	const struct grid grid = {-8, 7};

	/* GPTQ stores a zero point less one: 0 would wrap around. 16, which could be stored, some readers cut. */
	if (form->zeros)
		return search_affine(x, form->group, form->kind == FORM_GPTQ, 15, type);
	return (struct affine){search_scale(x, form->group, grid, type, false), 8};
}

/* Adds a code to word `word` of an array of zeroed little-endian words. */
static void put(uint8_t *words, uint64_t word, uint32_t place, uint32_t code)
{
	words[word * 4 + place / 2] |= (uint8_t)(code << place % 2 * 4);
}

static void put_code(const struct form *form, const struct places *at, uint32_t rows, uint32_t cols, uint32_t row,
		     uint32_t col, uint32_t code)
{
	switch (form->kind) {
	case FORM_GPTQ:
		put(at->codes, (uint64_t)(col / 8) * rows + row, col % 8, code);
		break;
	case FORM_AWQ:
		for (uint32_t place = 0; place < 8; place++)
			if (awq_order[place] == row % 8)
				put(at->codes, (uint64_t)col * (rows / 8) + row / 8, place, code);
		break;
	default:
		put(at->codes, ((uint64_t)row * cols + col) / 8, col % 8, code);
	}
}

static void put_group(const struct form *form, const struct places *at, uint32_t rows, uint32_t groups, uint32_t row,
		      uint32_t group, struct affine chosen, enum tensor_type type)
{
	const bool by_row = form->kind == FORM_INT4;
	const uint64_t scale = by_row ? (uint64_t)row * groups + group : (uint64_t)group * rows + row;
	const uint64_t word = by_row ? (uint64_t)(row / 8) * groups + group : (uint64_t)group * (rows / 8) + row / 8;

	number_store(type, chosen.scale, at->scales + 2 * scale);
	if (form->kind == FORM_GPTQ)
		put(at->zeros, word, row % 8, chosen.zero - 1u);
	else if (form->kind == FORM_INT4 && form->zeros)
		put(at->zeros, word, row % 8, chosen.zero);
	for (uint32_t place = 0; form->kind == FORM_AWQ && place < 8; place++)
		if (awq_order[place] == row % 8)
			put(at->zeros, word, place, chosen.zero);
}

static struct places find_places(const struct form *form, const struct form_tensor *tensors, uint8_t *ret)
{
	struct places at = {.codes = ret};

	at.scales = ret + tensors[0].bytes;
	at.rest = at.scales + tensors[1].bytes;
	at.zeros = at.rest + tensors[2].bytes;
	if (form->kind != FORM_INT4) { /* codes, zeros, scales, group indices */
		at.zeros = at.scales;
		at.scales = at.rest;
		at.rest = at.scales + tensors[2].bytes;
	}
	return at;
}

/* What depends on the shape alone. */
static void put_rest(const struct form *form, uint32_t rows, uint32_t cols, uint8_t *to)
{
	if (form->kind == FORM_INT4) {
		const uint64_t shape[2] = {htole64(rows), htole64(cols)};

		memcpy(to, shape, sizeof shape);
	}
	for (uint32_t c = 0; form->kind == FORM_GPTQ && c < cols; c++) {
		const uint32_t group = htole32(c / form->group);

		memcpy(to + 4 * (uint64_t)c, &group, sizeof group);
	}
}

void form_int4(const struct form *form, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
	       uint8_t *ret)
{
	const uint32_t groups = cols / form->group;
	struct form_tensor tensors[FORM_TENSORS_MAX];
	const int n = form_tensors(form, rows, cols, type, tensors, NULL);
	struct places at = find_places(form, tensors, ret);

	for (int i = 0; i < n; ret += tensors[i++].bytes)
		memset(ret, 0, tensors[i].bytes);
	put_rest(form, rows, cols, at.rest);
	if (form->kind != FORM_INT4)
		type = TENSOR_F16;
	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t g = 0; g < groups; g++, w += form->group) {
			const struct affine chosen = choose(form, w, type);
			const struct grid grid = {-(float)chosen.zero, 15 - (float)chosen.zero};

			put_group(form, &at, rows, groups, row, g, chosen, type);
			for (uint32_t i = 0; i < form->group; i++)
				put_code(form, &at, rows, cols, row, g * form->group + i,
					 (uint32_t)(search_code(w[i], grid, chosen.scale) + chosen.zero));
		}
}
