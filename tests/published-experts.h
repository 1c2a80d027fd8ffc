/* SPDX-License-Identifier: MIT */
/*
 * published-experts - folders of experts in each published packing, and what a plain reading of their bytes gives:
 * one code, one scale, one zero point at a time. Nothing of lib/model is used.
 */
#ifndef TESTS_PUBLISHED_EXPERTS_H
#define TESTS_PUBLISHED_EXPERTS_H

#include "tests/published-folder.h"
#include "uapi/moe_manifest.h"

enum how { PLAIN, BYTES, PACKED, GPTQ, AWQ, FUSED };

struct publication {
	const char *name, *quant; /* of quantization_config; "" : none */
	uint32_t format;
	enum how how;
	const char *dtype, *scale; /* of codes and of scales */
	uint32_t group;
	bool zeros, less_one;
	enum { PER_BLOCK, PER_ROW, PER_ROW_1, PER_TENSOR } scales; /* of BYTES */
	bool plain_down; /* down is left in BF16, so that inter may be any number */
};

#define LAYERS 2u
#define EXPERTS 3u
#define CT(format, weights)                                                                                            \
	"{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                                                \
	"\",\"ignore\":[\"lm_head\"],\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights   \
	"}}}}"
#define CT4(group, symmetric)                                                                                          \
	CT("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"actorder\":null,"               \
			     "\"group_size\":" #group ",\"symmetric\":" #symmetric)
#define GPTQ4(group, sym, format)                                                                                      \
	"{\"quant_method\":\"gptq\",\"bits\":4,\"desc_act\":false,\"group_size\":" #group ",\"sym\":" #sym             \
	",\"checkpoint_format\":\"" format "\"}"
#define AWQ4(group)                                                                                                    \
	"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":" #group ",\"version\":\"gemm\",\"zero_point\":true}"

static const struct publication publications[] = {
	{"BF16", "", MOE_FORMAT_BF16, PLAIN, "BF16", .scale = ""},
	{"F16", "", MOE_FORMAT_F16, PLAIN, "F16", .scale = ""},
	{"BF16 in a quantized folder", AWQ4(128), MOE_FORMAT_BF16, PLAIN, "BF16", .scale = ""},
	{"FP8 blocks",
	 "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]"
	 "}",
	 MOE_FORMAT_FP8_BLOCK, BYTES, "F8_E4M3", "F32", .scales = PER_BLOCK},
	{"FP8 blocks with BF16 scales", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
	 MOE_FORMAT_FP8_BLOCK, BYTES, "F8_E4M3", "BF16", .scales = PER_BLOCK},
	{"FP8 with one scale", "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}", MOE_FORMAT_FP8_ROW, BYTES,
	 "F8_E4M3", "F32", .scales = PER_TENSOR},
	{"FP8 rows, BF16 scales",
	 CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true"),
	 MOE_FORMAT_FP8_ROW, BYTES, "F8_E4M3", "BF16", .scales = PER_ROW_1},
	{"FP8 rows, F32 scales",
	 CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true"),
	 MOE_FORMAT_FP8_ROW, BYTES, "F8_E4M3", "F32", .scales = PER_ROW},
	{"FP8 blocks of compressed-tensors",
	 CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"symmetric\":true,"
			       "\"block_structure\":[128,128]"),
	 MOE_FORMAT_FP8_BLOCK, BYTES, "F8_E4M3", "BF16", .scales = PER_BLOCK},
	{"INT8", CT("int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true"),
	 MOE_FORMAT_INT8, BYTES, "I8", "F16", .scales = PER_ROW_1},
	{"INT4 in 32", CT4(32, true), MOE_FORMAT_INT4_G32_BF16, PACKED, "I32", "BF16", 32},
	{"INT4 in 64", CT4(64, true), MOE_FORMAT_INT4_G64_F16, PACKED, "I32", "F16", 64},
	{"INT4 in 128", CT4(128, true), MOE_FORMAT_INT4_G128_BF16, PACKED, "I32", "BF16", 128},
	{"INT4 in 32 with zero points", CT4(32, false), MOE_FORMAT_INT4_G32_F16_ZP, PACKED, "I32", "F16", 32, true},
	{"INT4 in 128 with zero points", CT4(128, false), MOE_FORMAT_INT4_G128_BF16_ZP, PACKED, "I32", "BF16", 128,
	 true},
	{"GPTQ in 128, symmetric", GPTQ4(128, true, "gptq"), MOE_FORMAT_INT4_G128_F16, GPTQ, "I32", "F16", 128},
	{"GPTQ in 32", GPTQ4(32, false, "gptq"), MOE_FORMAT_INT4_G32_F16_ZP, GPTQ, "I32", "F16", 32, true, true},
	{"GPTQ in 64, second version", GPTQ4(64, false, "gptq_v2"), MOE_FORMAT_INT4_G64_BF16_ZP, GPTQ, "I32", "BF16",
	 64, true},
	{"AWQ in 128", AWQ4(128), MOE_FORMAT_INT4_G128_F16_ZP, AWQ, "I32", "F16", 128, true},
	{"AWQ in 32", AWQ4(32), MOE_FORMAT_INT4_G32_BF16_ZP, AWQ, "I32", "BF16", 32, true},
	{"INT4 in 32 but for down", CT4(32, false), MOE_FORMAT_INT4_G32_BF16_ZP, PACKED, "I32", "BF16", 32, true,
	 .plain_down = true},
	{"GPTQ in 32 but for down", GPTQ4(32, false, "gptq"), MOE_FORMAT_INT4_G32_F16_ZP, GPTQ, "I32", "F16", 32, true,
	 true, .plain_down = true},
	{"AWQ in 64 but for down", AWQ4(64), MOE_FORMAT_INT4_G64_F16_ZP, AWQ, "I32", "F16", 64, true,
	 .plain_down = true},
	{"MXFP4", "{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"model.layers.*.self_attn\"]}",
	 MOE_FORMAT_MXFP4, FUSED, "U8", "U8", 32},
};

static inline void publish_config(struct folder *f, const struct publication *p, uint32_t hidden, uint32_t inter)
{
	snprintf(f->config, sizeof f->config,
		 "{\"model_type\":\"%s\",\"num_hidden_layers\":%u,\"hidden_size\":%u,\"%s\":%u,\"%s\":%u,"
		 "\"num_experts_per_tok\":2,\"hidden_act\":\"silu\"%s%s}",
		 p->how == FUSED ? "gpt_oss" : "qwen3_moe", LAYERS, hidden,
		 p->how == FUSED ? "intermediate_size" : "moe_intermediate_size", inter,
		 p->how == FUSED ? "num_local_experts" : "num_experts", EXPERTS,
		 p->quant[0] ? ",\"quantization_config\":" : "", p->quant);
}

static inline void publish_bytes(struct folder *f, const struct publication *p, const char *stem, uint32_t rows,
				 uint32_t cols)
{
	const char *name = strstr(p->quant, "\"fp8\"") && p->scales == PER_BLOCK ? "weight_scale_inv" : "weight_scale";

	folder_add(f, p->dtype, rows, cols, 0, 0, "%s.weight", stem);
	if (p->scales == PER_BLOCK)
		folder_add(f, p->scale, (rows + 127) / 128, (cols + 127) / 128, 0, 0, "%s.%s", stem, name);
	else if (p->scales == PER_TENSOR)
		folder_add(f, p->scale, 0, 0, 0, 0, "%s.%s", stem, name);
	else
		folder_add(f, p->scale, rows, p->scales == PER_ROW_1, 0, 0, "%s.%s", stem, name);
}

static inline void publish_part(struct folder *f, const struct publication *p, const char *stem, uint32_t rows,
				uint32_t cols)
{
	switch (p->how) {
	case PLAIN:
		folder_add(f, p->dtype, rows, cols, 0, 0, "%s.weight", stem);
		break;
	case BYTES:
		publish_bytes(f, p, stem, rows, cols);
		break;
	case PACKED:
		folder_add(f, "I32", rows, cols / 8, 0, 0, "%s.weight_packed", stem);
		folder_add(f, p->scale, rows, cols / p->group, 0, 0, "%s.weight_scale", stem);
		folder_add(f, "I32", 2, 0, 0, 0, "%s.weight_shape", stem);
		if (p->zeros)
			folder_add(f, "I32", (rows + 7) / 8, cols / p->group, 0, 0, "%s.weight_zero_point", stem);
		break;
	case GPTQ:
	case AWQ:
		folder_add(f, "I32", p->how == GPTQ ? cols / 8 : cols, p->how == GPTQ ? rows : rows / 8, 0, 0,
			   "%s.qweight", stem);
		folder_add(f, p->scale, cols / p->group, rows, 0, 0, "%s.scales", stem);
		folder_add(f, "I32", cols / p->group, (rows + 7) / 8, 0, 0, "%s.qzeros", stem);
		if (p->how == GPTQ)
			folder_add(f, "I32", cols, 0, 0, 0, "%s.g_idx", stem);
		break;
	case FUSED:
		break;
	}
}

/* How a part is published. */
static inline const struct publication *publication_of_part(const struct publication *p, uint32_t part)
{
	return p->plain_down && part == MOE_PART_DOWN ? &publications[0] : p;
}

static inline void publish(struct folder *f, const struct publication *p, uint32_t hidden, uint32_t inter)
{
	static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
	char stem[80];

	publish_config(f, p, hidden, inter);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		for (uint32_t i = 0; i < EXPERTS * 3 && p->how != FUSED; i++) {
			snprintf(stem, sizeof stem, "model.layers.%u.mlp.experts.%u.%s", layer, i / 3, parts[i % 3]);
			publish_part(f, publication_of_part(p, i % 3), stem, i % 3 == 2 ? hidden : inter,
				     i % 3 == 2 ? inter : hidden);
		}
		for (uint32_t down = 0; down < 2 && p->how == FUSED; down++) {
			const uint32_t rows = down ? hidden : 2 * inter, cols = down ? inter : hidden;

			snprintf(stem, sizeof stem, "model.layers.%u.mlp.experts.%s", layer,
				 down ? "down_proj" : "gate_up_proj");
			folder_add(f, "U8", EXPERTS, rows, cols / 32, 16, "%s_blocks", stem);
			folder_add(f, "U8", EXPERTS, rows, cols / 32, 0, "%s_scales", stem);
			folder_add(f, "BF16", EXPERTS, rows, 0, 0, "%s_bias", stem);
		}
	}
	folder_add(f, "U8", 3, 0, 0, 0, "model.norm.weight");
	folder_write_all(f);
}

/* -- plain reading ------------------------------------------------------------------------------------------------ */

struct matrix_at {
	struct folder *folder;
	const struct publication *how;
	uint32_t layer, expert, part, rows, cols;
};

static inline const uint8_t *part_data(const struct matrix_at *m, const char *suffix)
{
	static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
	struct folder_tensor *t;

	if (m->how->how != FUSED) {
		t = folder_find(m->folder, "model.layers.%u.mlp.experts.%u.%s.%s", m->layer, m->expert, parts[m->part],
				suffix);
		return t ? t->data : NULL;
	}
	t = folder_find(m->folder, "model.layers.%u.mlp.experts.%s_%s", m->layer,
			m->part == 2 ? "down_proj" : "gate_up_proj", suffix);
	return t ? t->data + m->expert * (t->bytes / EXPERTS) : NULL;
}

/* The row in a fused tensor: gate's 0, up's 0, gate's 1 ... */
static inline uint64_t fused_row(const struct matrix_at *m, uint64_t row)
{
	return m->how->how != FUSED || m->part == 2 ? row : 2 * row + m->part;
}

static inline uint32_t nibble(const uint8_t *words, uint64_t word, uint32_t i)
{
	return words[word * 4 + i / 2] >> (i % 2 * 4) & 15;
}

static inline uint32_t source_word(const uint8_t *words, uint64_t word)
{
	const uint8_t *at = words + word * 4;

	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* the nibble that row i of eight is in */

static inline uint32_t source_code(const struct matrix_at *m, uint64_t row, uint64_t col)
{
	const uint8_t *data;

	switch (m->how->how) {
	case PLAIN:
		data = part_data(m, "weight") + (row * m->cols + col) * 2;
		return data[0] | (uint32_t)data[1] << 8;
	case BYTES:
		return part_data(m, "weight")[row * m->cols + col];
	case PACKED:
		return nibble(part_data(m, "weight_packed"), (row * m->cols + col) / 8, col % 8);
	case GPTQ:
		return nibble(part_data(m, "qweight"), col / 8 * m->rows + row, col % 8);
	case AWQ:
		return nibble(part_data(m, "qweight"), (col * m->rows + row) / 8, awq_place[row % 8]);
	default:
		data = part_data(m, "blocks") + (fused_row(m, row) * m->cols + col) / 2;
		return *data >> (col % 2 * 4) & 15;
	}
}

static inline float source_float(const char *dtype, const uint8_t *data, uint64_t i)
{
	uint32_t bits;
	float value;
	_Float16 half;

	if (strcmp(dtype, "F16") == 0) {
		memcpy(&half, data + i * 2, 2);
		value = (float)half;
		bits = (uint32_t)(data[i * 2 + 1] & 0x80) << 24 | 0x7f800000 | (data[i * 2 + 1] & 3u) << 21 |
		       data[i * 2] << 13;
		if (value != value) /* the conversion would make a signalling NaN quiet */
			memcpy(&value, &bits, 4);
		return value;
	}
	bits = strcmp(dtype, "F32") == 0 ? 0 : (uint32_t)data[i * 2] << 16 | (uint32_t)data[i * 2 + 1] << 24;
	if (strcmp(dtype, "F32") == 0)
		memcpy(&bits, data + i * 4, 4);
	memcpy(&value, &bits, 4);
	return value;
}

/* The scale of BYTES at a place. */
static inline float source_scale(const struct matrix_at *m, uint64_t row, uint64_t col)
{
	const uint8_t *data = part_data(m, "weight_scale_inv");
	const uint64_t i = m->how->scales == PER_BLOCK    ? row / 128 * ((m->cols + 127) / 128) + col / 128
			   : m->how->scales == PER_TENSOR ? 0
							  : row;

	return source_float(m->how->scale, data ? data : part_data(m, "weight_scale"), i);
}

/* The scale of a group as it stands in the file: 16 bits, or 8 of MXFP4. */
static inline uint32_t source_group_scale(const struct matrix_at *m, uint64_t row, uint64_t group)
{
	const uint64_t groups = m->cols / m->how->group;
	const uint8_t *data;

	if (m->how->how == FUSED)
		return part_data(m, "scales")[fused_row(m, row) * groups + group];
	data = m->how->how == PACKED ? part_data(m, "weight_scale") + (row * groups + group) * 2
				     : part_data(m, "scales") + (group * m->rows + row) * 2;
	return data[0] | (uint32_t)data[1] << 8;
}

static inline uint32_t source_zero(const struct matrix_at *m, uint64_t row, uint64_t group)
{
	const uint64_t eights = (m->rows + 7) / 8, groups = m->cols / m->how->group;
	uint32_t word;

	if (m->how->how == PACKED)
		return nibble(part_data(m, "weight_zero_point"), row / 8 * groups + group, row % 8);
	word = source_word(part_data(m, "qzeros"), group * eights + row / 8);
	if (m->how->less_one) /* as GPTQModel undoes what it has done: on words, with borrows */
		word += 0x11111111u;
	return word >> 4 * (m->how->how == AWQ ? awq_place[row % 8] : row % 8) & 15;
}

#endif
