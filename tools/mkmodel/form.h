/* SPDX-License-Identifier: MIT */
/*
 * form - the quantized forms in which folders are published: what a matrix W [rows][cols] is replaced by.
 *
 *   fp8-block    X.weight F8_E4M3 [rows][cols], X.weight_scale_inv F32, one for each 128 x 128 (DeepSeek)
 *   fp8-channel  X.weight F8_E4M3, X.weight_scale [rows][1] (compressed-tensors, float-quantized)
 *   int8         X.weight I8, X.weight_scale [rows][1] (compressed-tensors, int-quantized)
 *   int4-ct-gN   X.weight_packed I32 [rows][cols / 8], the first column in the lowest bits, codes 8 above their value;
 *                X.weight_scale [rows][cols / N], X.weight_shape I64 [2]; -zp: X.weight_zero_point I32
 *                [rows / 8][cols / N], the first row in the lowest bits (compressed-tensors, pack-quantized)
 *   gptq-gN      X.qweight I32 [cols / 8][rows], the first column in the lowest bits; X.qzeros I32
 *                [cols / N][rows / 8], each one less than it means; X.scales F16 [cols / N][rows]; X.g_idx I32 [cols]
 *   awq-gN       X.qweight I32 [cols][rows / 8], X.qzeros I32 [cols / N][rows / 8], both with the rows 0, 2, 4, 6, 1,
 *                3, 5, 7 from the lowest bits on; X.scales F16 [cols / N][rows]
 *
 * compressed-tensors keeps its scales in the type of the model.
 */
#ifndef MKMODEL_FORM_H
#define MKMODEL_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

enum form_kind { FORM_FP8_BLOCK, FORM_FP8_CHANNEL, FORM_INT8, FORM_INT4, FORM_GPTQ, FORM_AWQ };

struct form {
	const char *name;
	enum form_kind kind;
	uint32_t group;
	bool zeros; /* has zero points of its own */
};

#define FORM_TENSORS_MAX 4
#define FORM_DIMS_MAX 2

/* One of the tensors that stand for a matrix. */
struct form_tensor {
	const char *suffix; /* after the matrix's name without ".weight" */
	enum tensor_type type;
	uint32_t n_dims;
	uint64_t dims[FORM_DIMS_MAX];
	uint64_t bytes;
};

/* NULL: no such form. */
const struct form *form_find(const char *name);

/* "fp8-block, fp8-channel, ...": for texts. */
void form_list(char *ret, size_t size);

/* The tensors for a matrix; returns how many, or -EINVAL when the form cannot hold that shape. `type`: the model's. */
int form_tensors(const struct form *form, uint32_t rows, uint32_t cols, enum tensor_type type,
		 struct form_tensor ret[FORM_TENSORS_MAX], struct moe_error *err);

/* Their bytes, one tensor after the other; `w` is finite. */
void form_quantize(const struct form *form, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
		   uint8_t *ret);

/* The field "quantization_config" of config.json; `plain`: names of the modules that stay as they are. NULL: memory. */
json_t *form_config(const struct form *form, json_t *plain);

/* -- the parts of it ---------------------------------------------------------------------------------------------- */

void form_fp8_block(const float *w, uint32_t rows, uint32_t cols, uint8_t *codes, uint8_t *scales);
void form_channel(enum form_kind kind, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
		  uint8_t *codes, uint8_t *scales);

/* The three packings of 4-bit codes. */
void form_int4(const struct form *form, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
	       uint8_t *ret);

#endif
