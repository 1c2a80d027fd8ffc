/* SPDX-License-Identifier: MIT */
/*
 * The blocks of GGUF tensors and the records made of them say the same numbers, exactly: each side is decoded here by
 * its own definition, element by element, and neither decoder shares code with the library.
 */
#include <math.h>
#include <unistd.h>

#include "model/expert.h"
#include "model/gguf.h"
#include "tests/gguf-file.h"
#include "tests/plain-experts.h"

#define EXPERTS 3u
#define GUARD 64

static char path[TAP_TMP];
static unsigned long long seed;

static double half_value(uint16_t h)
{
	const int exponent = h >> 10 & 31, fraction = h & 1023;
	double value;

	if (exponent == 31)
		value = fraction ? (double)NAN : (double)INFINITY;
	else if (exponent == 0)
		value = ldexp(fraction, -24);
	else
		value = ldexp(1024 + fraction, exponent - 25);
	return h & 0x8000 ? -value : value;
}

static double half_at(const uint8_t *p)
{
	return half_value((uint16_t)(p[0] | p[1] << 8));
}

static double bf16_at(const uint8_t *p)
{
	const uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
	float value;

	memcpy(&value, &bits, sizeof value);
	return (double)value;
}

static const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
static const double iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static double power_of_two(uint8_t e8m0)
{
	return e8m0 == 255 ? (double)NAN : ldexp(1, e8m0 - 127);
}

/* -- ggml's side: element `i` of the block at p ------------------------------------------------------------------- */

/* Of a block of 32, element i < 16 is in the lower half of byte i, element i >= 16 in the upper half of byte i - 16. */
static unsigned near_nibble(const uint8_t *p, unsigned i)
{
	return i < 16 ? p[i] & 15u : p[i - 16] >> 4;
}

/* Of each 64 elements the first 32 are in the lower halves of 32 bytes, the others in the upper ones. */
static unsigned far_nibble(const uint8_t *p, unsigned i)
{
	const uint8_t byte = p[i / 64 * 32 + i % 32];

	return i % 64 < 32 ? byte & 15u : byte >> 4;
}

/* The 6-bit scale and minimum of group g. */
static void scale_and_minimum(const uint8_t *p, unsigned g, double *scale, double *minimum)
{
	if (g < 4) {
		*scale = p[g] & 63;
		*minimum = p[g + 4] & 63;
	} else {
		*scale = (p[g + 4] & 15) + (p[g - 4] >> 6) * 16;
		*minimum = (p[g + 4] >> 4) + (p[g] >> 6) * 16;
	}
}

static double k_element(const uint8_t *p, const uint8_t *nibbles, const uint8_t *fifths, unsigned i)
{
	unsigned code = far_nibble(nibbles, i);
	double scale, minimum;

	if (fifths)
		code += (fifths[i % 32] >> i / 32 & 1u) * 16;
	scale_and_minimum(p + 4, i / 32, &scale, &minimum);
	return half_at(p) * scale * code - half_at(p + 2) * minimum;
}

static double q6_k_element(const uint8_t *p, unsigned i)
{
	const unsigned n = i / 128, in = i % 128;
	const uint8_t low = p[n * 64 + in % 64], high = p[128 + n * 32 + in % 32];
	const unsigned code = (in < 64 ? low & 15u : low >> 4) + (high >> in / 32 * 2 & 3u) * 16;

	return half_at(p + 208) * (int8_t)p[192 + i / 16] * ((int)code - 32);
}

static double iq4_xs_element(const uint8_t *p, unsigned i)
{
	const unsigned g = i / 32, high = (unsigned)(p[2] | p[3] << 8) >> 2 * g & 3;
	const unsigned low = g % 2 ? p[4 + g / 2] >> 4 : p[4 + g / 2] & 15u;

	return half_at(p) * ((int)(low + high * 16) - 32) * iq4nl[near_nibble(p + 8 + g * 16, i % 32)];
}

static double ggml_element(enum gf_type type, const uint8_t *p, unsigned i)
{
	switch (type) {
	case GF_BF16:
		return bf16_at(p);
	case GF_F16:
		return half_at(p);
	case GF_Q8_0:
		return half_at(p) * (int8_t)p[2 + i];
	case GF_Q4_0:
		return half_at(p) * ((int)near_nibble(p + 2, i) - 8);
	case GF_Q4_1:
		return half_at(p) * near_nibble(p + 4, i) + half_at(p + 2);
	case GF_MXFP4:
		return power_of_two(p[0]) * e2m1[near_nibble(p + 1, i)];
	case GF_Q4_K:
		return k_element(p, p + 16, NULL, i);
	case GF_Q5_K:
		return k_element(p, p + 48, p + 16, i);
	case GF_Q6_K:
		return q6_k_element(p, i);
	case GF_IQ4_XS:
		return iq4_xs_element(p, i);
	default:
		abort();
	}
}

/* -- our side: moe_format.h, word by word ------------------------------------------------------------------------- */

/* Byte 4r + c % 4 of vector c / 4: where the code of row r and column c (of 32) of a block is. */
static unsigned panel_code(const uint8_t *block, unsigned bits, unsigned r, unsigned c)
{
	const unsigned v = c / 4, i = 4 * r + c % 4, nibble = block[64 * (v / 2) + i] >> 4 * (v % 2) & 15;

	switch (bits) {
	case 8:
		return block[64 * v + i];
	case 4:
		return nibble;
	case 5:
		return nibble | (block[256 + i] >> v & 1u) << 4;
	case 6:
		return nibble | (block[256 + 64 * (v / 4) + i] >> 2 * (v % 4) & 3u) << 4;
	default:
		abort();
	}
}

static double code_value(const struct moe_format_spec *f, unsigned code)
{
	if (f->code == MOE_CODE_UINT)
		return (double)code - f->offset;
	return f->code == MOE_CODE_E2M1 ? e2m1[code] : iq4nl[code];
}

/* Scale and minimum of row r (of 16) and group g of the scale block at p. */
static double panel_scale(const struct moe_format_spec *f, const uint8_t *p, unsigned r, unsigned g, double *minimum)
{
	const unsigned groups = f->block / f->group;
	const uint8_t *s;

	*minimum = 0;
	switch (f->scale) {
	case MOE_SCALE_E8M0:
		return power_of_two(p[r]);
	case MOE_SCALE_F16:
		if (f->zero == MOE_ZERO_F16)
			*minimum = half_at(p + 32 + 2 * r);
		return half_at(p + 2 * r);
	case MOE_SCALE_F16_S8:
		return half_at(p + 2 * r) * (int8_t)p[32 + 16 * g + r];
	case MOE_SCALE_F16_U8:
		s = p + 64;
		*minimum = -(half_at(p + 32 + 2 * r) * s[16 * groups + 16 * g + r]);
		return half_at(p + 2 * r) * s[16 * g + r];
	default:
		abort();
	}
}

static double record_element(const uint8_t *record, const struct moe_part *part, uint32_t row, uint32_t col)
{
	const struct moe_format_spec *f = &moe_formats[part->format];
	const uint64_t codes = moe_band_bytes(part->format, MOE_PLANE_CODES, part->cols);
	const uint64_t scales = moe_band_bytes(part->format, MOE_PLANE_SCALES, part->cols);
	const uint8_t *c = record + part->plane[MOE_PLANE_CODES], *s = record + part->plane[MOE_PLANE_SCALES];
	double minimum, scale;

	if (!f->panel)
		return ggml_element(part->format == MOE_FORMAT_F16 ? GF_F16 : GF_BF16,
				    c + ((uint64_t)row * part->cols + col) * 2, 0);
	c += row / 16 * codes + col / 32 * (32 * 16 * f->bits / 8);
	s += row / 16 * scales + (uint64_t)(col / f->block * f->block_bytes);
	scale = panel_scale(f, s, row % 16, col % f->block / f->group, &minimum);
	return scale * code_value(f, panel_code(c, f->bits, row % 16, col % 32)) + minimum;
}

/* -- the comparison ----------------------------------------------------------------------------------------------- */

static bool same(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

/* How many elements of a part differ; `source` is the expert's share of the tensor. */
static uint64_t differences(const uint8_t *record, const struct moe_part *part, enum gf_type type,
			    const uint8_t *source)
{
	uint64_t bytes, block = gf_block(type, &bytes), wrong = 0;
	const uint64_t pitch = part->cols / block * bytes;

	for (uint32_t row = 0; row < part->rows; row++) {
		for (uint32_t col = 0; col < part->cols; col++) {
			const double expected = ggml_element(type, source + row * pitch + col / block * bytes,
							     col % block);
			const double found = record_element(record, part, row, col);

			if (same(found, expected))
				continue;
			if (wrong++ == 0)
				diag("row %u, column %u: found %g; expected %g", row, col, found, expected);
		}
	}
	return wrong;
}

/* Bytes of rows beyond the last and between planes are zero. */
static bool rest_is_zero(const uint8_t *record, const struct moe_layout *layout)
{
	uint8_t *covered = calloc(1, layout->record_bytes);
	bool zero = true;

	for (int i = 0; i < MOE_PARTS; i++) {
		const struct moe_part *part = &layout->part[i];
		const struct moe_format_spec *f = &moe_formats[part->format];
		const uint64_t codes = part->rows * (uint64_t)part->cols * f->bits / 8;
		const uint64_t pitch = moe_band_bytes(part->format, MOE_PLANE_CODES, part->cols);

		if (!f->panel)
			memset(covered + part->plane[MOE_PLANE_CODES], 1, codes);
		for (uint64_t at = 0; f->panel && at < pitch * ((part->rows + 15) / 16); at++)
			if (at / pitch * 16 + at % 64 / 4 < part->rows)
				covered[part->plane[MOE_PLANE_CODES] + at] = 1;
		if (moe_format_has(part->format, MOE_PLANE_SCALES))
			memset(covered + part->plane[MOE_PLANE_SCALES], 1,
			       moe_band_bytes(part->format, MOE_PLANE_SCALES, part->cols) * ((part->rows + 15) / 16));
		if (part->plane[MOE_PLANE_BIAS])
			memset(covered + part->plane[MOE_PLANE_BIAS], 1, part->rows * 4);
	}
	for (uint64_t i = 0; i < layout->record_bytes; i++)
		zero &= covered[i] || !record[i];
	free(covered);
	return zero;
}

/* All granules of a source in a random order, in random runs, at odd addresses. */
static void repack_source(const struct expert_source *s, const struct record_share *to, const uint8_t *file)
{
	const uint64_t granules = s->repack.bytes / s->repack.granule_bytes;
	const uint64_t run = granules < 8 ? 1 : 1 + tap_random(&seed) % (granules / 4),
		       runs = (granules + run - 1) / run;
	uint64_t *order = calloc(runs, sizeof *order);

	for (uint64_t i = 0; i < runs; i++) {
		const uint64_t j = tap_random(&seed) % (i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (uint64_t i = 0; i < runs; i++) {
		const uint64_t first = order[i] * run, n = first + run > granules ? granules - first : run;
		const uint64_t bytes = n * s->repack.granule_bytes;
		uint8_t *copy = malloc(bytes + 1); /* of its own, so that a byte read too far is seen */

		memcpy(copy + 1, file + s->offset + first * s->repack.granule_bytes, bytes);
		repack(&s->repack, to, first, n, copy + 1);
		free(copy);
	}
	free(order);
}

static bool guarded(const uint8_t *bytes)
{
	for (int i = 0; i < GUARD; i++)
		if (bytes[i] != 0xa5)
			return false;
	return true;
}

static const char *const parts[] = {"gate", "up", "down"};

/* Every second layer has gate and up in one tensor. */
static bool fused(uint32_t layer)
{
	return layer % 2;
}

/* Differences of one part, weights and bias; `file` is the whole file that `f` has become. */
static uint64_t check_part(const struct gguf_file *f, const uint8_t *file, uint32_t layer, uint32_t expert, int i,
			   const struct moe_part *part, enum gf_type type, const uint8_t *record)
{
	const bool both = fused(layer) && i < 2;
	const char *what = both ? "gate_up" : parts[i];
	/* of gate and up in one: an expert's gate, then its up */
	const uint64_t place = both ? expert * 2 + (uint64_t)i : expert;
	uint64_t bytes, block = gf_block(type, &bytes), wrong;
	const uint64_t share = (uint64_t)part->rows * part->cols / block * bytes;
	char name[64];

	snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, what);
	wrong = differences(record, part, type, file + gf_offset(f, name) + place * share);
	snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.bias", layer, what);
	if (part->plane[MOE_PLANE_BIAS])
		wrong += memcmp(record + part->plane[MOE_PLANE_BIAS],
				file + gf_offset(f, name) + place * part->rows * 4, part->rows * 4) != 0;
	return wrong;
}

/* The record in 2 to 5 shares, each made of the sources. */
static bool shares_right(const struct moe_layout *layout, uint8_t *record, const struct expert_source *sources,
			 uint32_t n, const uint8_t *file)
{
	bool good = true;

	for (uint32_t shares = 2; shares <= 5 && shares <= layout_shares_max(layout); shares++) {
		struct moe_layout spread;

		layout_spread(&spread, layout, shares);
		for (uint32_t s = 0; s < shares; s++) {
			uint8_t *room = aligned_alloc(64, spread.record_bytes + 2 * GUARD);
			uint8_t *mine = room + GUARD, *expected = calloc(1, spread.record_bytes);
			const struct record_share to = {.layout = &spread, .share = s, .memory = mine};

			memset(room, 0xa5, spread.record_bytes + 2 * GUARD);
			memset(mine, 0, spread.record_bytes);
			for (uint32_t i = 0; i < n; i++)
				repack_source(&sources[i], &to, file);
			plain_move_share(layout, record, &spread, s, expected, false);
			good &= memcmp(mine, expected, spread.record_bytes) == 0 && guarded(room) &&
				guarded(mine + spread.record_bytes);
			free(expected);
			free(room);
		}
	}
	return good;
}

static void check_expert(const struct model *model, const struct gguf_file *f, const uint8_t *file, uint32_t layer,
			 uint32_t expert, const enum gf_type type[3], bool bias)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	struct moe_layout layout;
	uint8_t *room, *record;
	uint64_t wrong = 0;
	uint32_t n;

	expert_layout(model, layer, &layout);
	n = expert_sources(model, layer, expert, sources);
	room = aligned_alloc(64, layout.record_bytes + 2 * GUARD);
	memset(room, 0xa5, layout.record_bytes + 2 * GUARD);
	record = room + GUARD;
	memset(record, 0, layout.record_bytes);
	for (uint32_t i = 0; i < n; i++)
		repack_source(&sources[n - 1 - i], &(struct record_share){.layout = &layout, .memory = record}, file);
	for (int i = 0; i < MOE_PARTS; i++)
		wrong += (layout.part[i].plane[MOE_PLANE_BIAS] != 0) != bias ||
			 check_part(f, file, layer, expert, i, &layout.part[i], type[i], record);
	ok(wrong == 0, "layer %u, expert %u, %s and %s, %u x %u: the record says what the file says", layer, expert,
	   moe_formats[layout.part[MOE_PART_GATE].format].name, moe_formats[layout.part[MOE_PART_DOWN].format].name,
	   layout.part[MOE_PART_GATE].rows, layout.part[MOE_PART_GATE].cols);
	ok(rest_is_zero(record, &layout), "what no row covers is zero");
	ok(shares_right(&layout, record, sources, n, file), "each share has its rows of it, and nothing else");
	ok(guarded(room) && guarded(record + layout.record_bytes), "nothing is written beyond the record");
	free(room);
}

struct pair {
	enum gf_type gate_up, down;
};

static void add_layer(struct gguf_file *f, uint32_t layer, const struct pair *pair, uint32_t hidden, uint32_t inter,
		      bool bias)
{
	char name[64];

	for (int part = fused(layer) ? 1 : 0; part < 3; part++) {
		const char *what = fused(layer) && part == 1 ? "gate_up" : parts[part];
		const uint64_t rows = part == 2 ? hidden : fused(layer) ? 2 * inter : inter;

		snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, what);
		gf_tensor(f, name, part == 2 ? pair->down : pair->gate_up, 3,
			  (uint64_t[]){part == 2 ? inter : hidden, rows, EXPERTS});
		snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.bias", layer, what);
		if (bias)
			gf_tensor(f, name, GF_F32, 2, (uint64_t[]){rows, EXPERTS});
	}
}

/* One layer for each pair. */
static void check_model(const char *architecture, const struct pair *pairs, uint32_t n, uint32_t hidden, uint32_t inter,
			bool bias)
{
	struct gguf_file f = gf_new(tap_random(&seed));
	struct moe_error err = {0};
	struct model *model = NULL;
	uint8_t *file;
	size_t bytes;

	gf_config(&f, architecture, n, hidden, EXPERTS, 2, "expert_feed_forward_length", inter);
	for (uint32_t i = 0; i < n; i++)
		add_layer(&f, i, &pairs[i], hidden, inter, bias);
	gf_write(&f, path);
	file = gf_bytes(&f, &bytes);
	require(model_open(&model, path, &err) == 0, "%s of %u layers is opened%s%s", architecture, n,
		err.text[0] ? ": " : "", err.text);
	for (uint32_t layer = 0; layer < n; layer++)
		check_expert(model, &f, file, layer, layer % EXPERTS,
			     (enum gf_type[]){pairs[layer].gate_up, pairs[layer].gate_up, pairs[layer].down}, bias);
	model_free(model);
	free(file);
	gf_free(&f);
}

int main(void)
{
	static const struct pair all[] = {
		{GF_Q4_K, GF_Q6_K}, {GF_Q6_K, GF_Q4_K},  {GF_Q5_K, GF_IQ4_XS}, {GF_IQ4_XS, GF_Q5_K}, {GF_Q8_0, GF_Q4_0},
		{GF_Q4_0, GF_Q4_1}, {GF_Q4_1, GF_MXFP4}, {GF_MXFP4, GF_Q8_0},  {GF_BF16, GF_F16},    {GF_F16, GF_BF16}};
	static const struct pair odd_gate[] = {{GF_Q4_K, GF_BF16}, {GF_Q5_K, GF_BF16},   {GF_Q6_K, GF_F16},
					       {GF_Q8_0, GF_F16},  {GF_IQ4_XS, GF_BF16}, {GF_Q4_0, GF_F16},
					       {GF_Q4_1, GF_BF16}, {GF_MXFP4, GF_F16},   {GF_F16, GF_F16}};
	static const struct pair odd_down[] = {{GF_BF16, GF_Q4_K}, {GF_BF16, GF_Q5_K},   {GF_F16, GF_Q6_K},
					       {GF_F16, GF_Q8_0},  {GF_BF16, GF_IQ4_XS}, {GF_F16, GF_Q4_0},
					       {GF_BF16, GF_Q4_1}, {GF_F16, GF_MXFP4}};
	static const struct pair oss[] = {{GF_MXFP4, GF_MXFP4}, {GF_BF16, GF_Q8_0}};

	seed = tap_seed();
	require(mkstemps(tap_tmp(path, "moe-test-XXXXXX.gguf"), 5) >= 0, "a file to write to");
	check_model("qwen3moe", all, sizeof all / sizeof all[0], 512, 256, false);
	check_model("qwen2moe", all, sizeof all / sizeof all[0], 256, 768, true);
	check_model("glm4moe", odd_gate, sizeof odd_gate / sizeof odd_gate[0], 256, 39, false);
	check_model("deepseek2", odd_gate, sizeof odd_gate / sizeof odd_gate[0], 256, 44, true);
	check_model("olmoe", odd_down, sizeof odd_down / sizeof odd_down[0], 38, 256, true);
	check_model("gpt-oss", oss, sizeof oss / sizeof oss[0], 96, 160, true);
	unlink(path);
	return tap_done();
}
