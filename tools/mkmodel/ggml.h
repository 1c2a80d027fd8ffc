/* SPDX-License-Identifier: MIT */
/*
 * ggml - the block formats of GGUF files: a row of weights becomes blocks, each with its scales and codes.
 *
 *   q8_0    32 weights, 34 bytes: F16 d | s8 codes[32]; d * code
 *   q4_0    32, 18: F16 d | byte i has weight i in its low, i + 16 in its high half; d * (code - 8)
 *   q4_1    32, 20: F16 d, m | the same halves; d * code + m
 *   mxfp4   32, 17: exponent byte | the same halves; 2^(exponent - 127) * E2M1
 *   q4_k    256, 144: F16 d, dmin | 12 bytes of 8 scales and 8 minima of 6 bits | byte 32 j + i has weight 64 j + i in
 *           its low, 64 j + 32 + i in its high half; d * scale * code - dmin * minimum for each 32
 *   q5_k    256, 176: as q4_k, with 32 bytes before the halves: bit g of byte i is the fifth bit of weight 32 g + i
 *   q6_k    256, 210: 128 bytes of low halves, 64 of the upper two bits, s8 scales[16] | F16 d; for each 16
 *           d * scale * (code - 32). Of 128 weights each, byte i of the low ones has weight i and 64 + i, byte 32 + i
 *           has 32 + i and 96 + i; byte i of the upper ones has i, 32 + i, 64 + i, 96 + i from its lowest bits on
 *   iq4_xs  256, 136: F16 d | u16: upper two bits of 8 scales | 4 bytes: their low halves | for each 32 weights 16
 *           bytes of halves as in q4_0; d * (scale - 32) * value of the code
 */
#ifndef MKMODEL_GGML_H
#define MKMODEL_GGML_H

#include <stddef.h>
#include <stdint.h>

#define GGML_TYPE_F32 0
#define GGML_TYPE_F16 1
#define GGML_TYPE_BF16 30

struct ggml_type {
	const char *name;
	uint32_t number;    /* of the type in a GGUF file */
	uint32_t file_type; /* general.file_type of a file whose matrices are mostly of this type */
	uint32_t cols, bytes;
	void (*block)(const float *x, uint8_t *to); /* x: `cols` finite weights */
};

/* NULL: no such type. */
const struct ggml_type *ggml_find(const char *name);

/* "q8_0, q4_0, ...": for texts. */
void ggml_list(char *ret, size_t size);

/* -- the parts of it ---------------------------------------------------------------------------------------------- */

void ggml_q4_k(const float *x, uint8_t *to);
void ggml_q5_k(const float *x, uint8_t *to);
void ggml_q6_k(const float *x, uint8_t *to);
void ggml_iq4_xs(const float *x, uint8_t *to);

#endif
