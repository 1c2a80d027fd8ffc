/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */
/*
 * moe_format.h - how the numbers of an expert's matrices lie in a record: the bits of every format that is served.
 *
 * A part (one matrix W [rows][cols]) has up to four planes, each beginning on a 64-byte boundary:
 *
 *   codes        the numbers themselves
 *   scales       what groups of codes are multiplied by (and zero points, minima)
 *   row scales   float [rows]
 *   bias         float [rows]: W x + bias
 *
 * Formats of 16 and 8 bits whose scales stand for 128 columns or more keep the published row-major codes: a GPU kernel
 * eats them as they are, and a CPU reads them at the speed of memory. All others lie in panels of 16 rows, so that one
 * vector register holds the same columns of 16 rows and a group's scales are one vector; rows beyond the last are zero
 * codes with zero scales. A panel is cut into blocks of 32 columns; in a block, vector v (0 .. 7) has columns
 * 4v .. 4v + 3 of all rows, row r's at bytes 4r .. 4r + 3 of the vector (what AVX-512's vpdpbusd and an AMX tile take):
 *
 *   8 bits  512 bytes: vectors 0 .. 7
 *   4 bits  256 bytes: byte 64 j + i holds byte i of vector 2j in its low, of vector 2j + 1 in its high nibble
 *   5 bits  the 256 bytes of the low four bits, then 64: bit v of byte i is the fifth bit of byte i of vector v
 *   6 bits  the 256 bytes of the low four bits, then 128: of byte 64 j + i, bits 2u and 2u + 1 are the upper bits of
 *           byte i of vector 4j + u
 *
 * A weight is scale * (value(code) - zero) or scale * value(code) + minimum, with value(code) as enum moe_code says.
 * The scales plane of a panel holds, for each scale block of `block` columns in order, vectors of 16 rows:
 *
 *   F16, BF16      scale[16] of that type; then zero[16] as __u8 (MOE_ZERO_U8) or minimum[16] of F16 (MOE_ZERO_F16)
 *   E8M0           scale[16] as __u8: 2^(byte - 127), 255 is NaN
 *   F16_U8, F16_S8 d[16] as F16; with MOE_ZERO_K dmin[16] as F16; then for each group of the block s[16] as __u8 or
 *                  __s8; then, with MOE_ZERO_K, for each group m[16] as __u8. scale = d * s, minimum = -(dmin * m).
 *   F32_TILE       (codes in rows) one float for each 16 rows and 128 columns: scales [rows / 16][cols / 128], both
 *                  rounded up
 *   F32_ROW        no scales plane; the row scales
 */
#ifndef MOE_UAPI_FORMAT_H
#define MOE_UAPI_FORMAT_H

#include <linux/types.h>

#define MOE_PANEL_ROWS 16
#define MOE_BLOCK_COLS 32

enum moe_format {
	MOE_FORMAT_NONE = 0,
	MOE_FORMAT_BF16 = 1,
	MOE_FORMAT_F16 = 2,
	MOE_FORMAT_FP8_BLOCK = 3, /* E4M3 with a float per 128 x 128 */
	MOE_FORMAT_FP8_ROW = 4,
	MOE_FORMAT_INT8 = 5, /* with a float per row */
	MOE_FORMAT_INT4_G32_F16 = 6,
	MOE_FORMAT_INT4_G64_F16 = 7,
	MOE_FORMAT_INT4_G128_F16 = 8,
	MOE_FORMAT_INT4_G32_BF16 = 9,
	MOE_FORMAT_INT4_G64_BF16 = 10,
	MOE_FORMAT_INT4_G128_BF16 = 11,
	MOE_FORMAT_INT4_G32_F16_ZP = 12,
	MOE_FORMAT_INT4_G64_F16_ZP = 13,
	MOE_FORMAT_INT4_G128_F16_ZP = 14,
	MOE_FORMAT_INT4_G32_BF16_ZP = 15,
	MOE_FORMAT_INT4_G64_BF16_ZP = 16,
	MOE_FORMAT_INT4_G128_BF16_ZP = 17,
	MOE_FORMAT_MXFP4 = 18,
	MOE_FORMAT_Q8_0 = 19,
	MOE_FORMAT_Q4_0 = 20,
	MOE_FORMAT_Q4_1 = 21,
	MOE_FORMAT_Q4_K = 22,
	MOE_FORMAT_Q5_K = 23,
	MOE_FORMAT_Q6_K = 24,
	MOE_FORMAT_IQ4_XS = 25,
	MOE_FORMAT_COUNT = 26
};

/* What a code is worth before scales. */
enum moe_code {
	MOE_CODE_BF16, /* the upper half of binary32 */
	MOE_CODE_F16,  /* binary16 */
	MOE_CODE_E4M3, /* 1 sign, 4 exponent (bias 7), 3 fraction bits; 0x7f and 0xff are NaN, there is no infinity */
	MOE_CODE_S8,   /* two's complement */
	MOE_CODE_UINT, /* the unsigned code minus `offset` */
	MOE_CODE_E2M1, /* 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative (code 8 is -0) */
	MOE_CODE_IQ4NL /* -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 */
};

enum moe_scale {
	MOE_SCALE_NONE,
	MOE_SCALE_F32_TILE,
	MOE_SCALE_F32_ROW,
	MOE_SCALE_F16,
	MOE_SCALE_BF16,
	MOE_SCALE_E8M0,
	MOE_SCALE_F16_U8,
	MOE_SCALE_F16_S8
};

enum moe_zero { MOE_ZERO_NONE, MOE_ZERO_U8, MOE_ZERO_F16, MOE_ZERO_K };

struct moe_format_spec {
	const char *name;
	__u8 bits;   /* of a code */
	__u8 panel;  /* 1: panels of 16 rows, 0: plain rows */
	__u8 code;   /* enum moe_code */
	__u8 offset; /* of MOE_CODE_UINT */
	__u8 scale;  /* enum moe_scale */
	__u8 zero;   /* enum moe_zero */
	__u16 group; /* columns that share a scale; 0: all */
	__u16 block; /* columns of a scale block: cols is a multiple of it (FP8_BLOCK: the last may be short); 0: any */
	__u16 block_bytes; /* of a scale block in the scales plane: of 16 rows */
};

#define MOE_INT4(name, offset, scale, zero, group, bytes)                                                              \
	{                                                                                                              \
		name, 4, 1, MOE_CODE_UINT, offset, scale, zero, group, group, bytes                                    \
	}

/* clang-format off */
static const struct moe_format_spec moe_formats[MOE_FORMAT_COUNT] __attribute__((unused)) = {
	[MOE_FORMAT_NONE] = {"none", 0, 0, 0, 0, MOE_SCALE_NONE, MOE_ZERO_NONE, 0, 0, 0}, /* for C++: no gap */
	[MOE_FORMAT_BF16] = {"bf16", 16, 0, MOE_CODE_BF16, 0, MOE_SCALE_NONE, MOE_ZERO_NONE, 0, 0, 0},
	[MOE_FORMAT_F16] = {"f16", 16, 0, MOE_CODE_F16, 0, MOE_SCALE_NONE, MOE_ZERO_NONE, 0, 0, 0},
	[MOE_FORMAT_FP8_BLOCK] = {"fp8-block", 8, 0, MOE_CODE_E4M3, 0, MOE_SCALE_F32_TILE, MOE_ZERO_NONE, 128, 128, 4},
	[MOE_FORMAT_FP8_ROW] = {"fp8-row", 8, 0, MOE_CODE_E4M3, 0, MOE_SCALE_F32_ROW, MOE_ZERO_NONE, 0, 0, 0},
	[MOE_FORMAT_INT8] = {"int8", 8, 0, MOE_CODE_S8, 0, MOE_SCALE_F32_ROW, MOE_ZERO_NONE, 0, 0, 0},
	[MOE_FORMAT_INT4_G32_F16] = MOE_INT4("int4-g32-f16", 8, MOE_SCALE_F16, MOE_ZERO_NONE, 32, 32),
	[MOE_FORMAT_INT4_G64_F16] = MOE_INT4("int4-g64-f16", 8, MOE_SCALE_F16, MOE_ZERO_NONE, 64, 32),
	[MOE_FORMAT_INT4_G128_F16] = MOE_INT4("int4-g128-f16", 8, MOE_SCALE_F16, MOE_ZERO_NONE, 128, 32),
	[MOE_FORMAT_INT4_G32_BF16] = MOE_INT4("int4-g32-bf16", 8, MOE_SCALE_BF16, MOE_ZERO_NONE, 32, 32),
	[MOE_FORMAT_INT4_G64_BF16] = MOE_INT4("int4-g64-bf16", 8, MOE_SCALE_BF16, MOE_ZERO_NONE, 64, 32),
	[MOE_FORMAT_INT4_G128_BF16] = MOE_INT4("int4-g128-bf16", 8, MOE_SCALE_BF16, MOE_ZERO_NONE, 128, 32),
	[MOE_FORMAT_INT4_G32_F16_ZP] = MOE_INT4("int4-g32-f16-zp", 0, MOE_SCALE_F16, MOE_ZERO_U8, 32, 48),
	[MOE_FORMAT_INT4_G64_F16_ZP] = MOE_INT4("int4-g64-f16-zp", 0, MOE_SCALE_F16, MOE_ZERO_U8, 64, 48),
	[MOE_FORMAT_INT4_G128_F16_ZP] = MOE_INT4("int4-g128-f16-zp", 0, MOE_SCALE_F16, MOE_ZERO_U8, 128, 48),
	[MOE_FORMAT_INT4_G32_BF16_ZP] = MOE_INT4("int4-g32-bf16-zp", 0, MOE_SCALE_BF16, MOE_ZERO_U8, 32, 48),
	[MOE_FORMAT_INT4_G64_BF16_ZP] = MOE_INT4("int4-g64-bf16-zp", 0, MOE_SCALE_BF16, MOE_ZERO_U8, 64, 48),
	[MOE_FORMAT_INT4_G128_BF16_ZP] = MOE_INT4("int4-g128-bf16-zp", 0, MOE_SCALE_BF16, MOE_ZERO_U8, 128, 48),
	[MOE_FORMAT_MXFP4] = {"mxfp4", 4, 1, MOE_CODE_E2M1, 0, MOE_SCALE_E8M0, MOE_ZERO_NONE, 32, 32, 16},
	[MOE_FORMAT_Q8_0] = {"q8_0", 8, 1, MOE_CODE_UINT, 128, MOE_SCALE_F16, MOE_ZERO_NONE, 32, 32, 32},
	[MOE_FORMAT_Q4_0] = {"q4_0", 4, 1, MOE_CODE_UINT, 8, MOE_SCALE_F16, MOE_ZERO_NONE, 32, 32, 32},
	[MOE_FORMAT_Q4_1] = {"q4_1", 4, 1, MOE_CODE_UINT, 0, MOE_SCALE_F16, MOE_ZERO_F16, 32, 32, 64},
	[MOE_FORMAT_Q4_K] = {"q4_k", 4, 1, MOE_CODE_UINT, 0, MOE_SCALE_F16_U8, MOE_ZERO_K, 32, 256, 320},
	[MOE_FORMAT_Q5_K] = {"q5_k", 5, 1, MOE_CODE_UINT, 0, MOE_SCALE_F16_U8, MOE_ZERO_K, 32, 256, 320},
	[MOE_FORMAT_Q6_K] = {"q6_k", 6, 1, MOE_CODE_UINT, 32, MOE_SCALE_F16_S8, MOE_ZERO_NONE, 16, 256, 288},
	[MOE_FORMAT_IQ4_XS] = {"iq4_xs", 4, 1, MOE_CODE_IQ4NL, 0, MOE_SCALE_F16_S8, MOE_ZERO_NONE, 32, 256, 160},
};
/* clang-format on */
#undef MOE_INT4

enum moe_plane { MOE_PLANE_CODES, MOE_PLANE_SCALES, MOE_PLANE_ROW_SCALES, MOE_PLANE_BIAS, MOE_PLANES };

/* Rows that lie together in a plane: a band. */
static inline __u32 moe_band_rows(__u32 format, enum moe_plane plane)
{
	const struct moe_format_spec *f = &moe_formats[format];

	if (plane == MOE_PLANE_CODES)
		return f->panel ? MOE_PANEL_ROWS : 1;
	return plane == MOE_PLANE_SCALES ? MOE_PANEL_ROWS : 1;
}

/* Bytes of `cols` columns of a band; where cols is no multiple of the scale block, the last block counts in full. */
static inline __u64 moe_band_bytes(__u32 format, enum moe_plane plane, __u64 cols)
{
	const struct moe_format_spec *f = &moe_formats[format];

	switch (plane) {
	case MOE_PLANE_CODES:
		return f->panel ? cols * f->bits * MOE_PANEL_ROWS / 8 : cols * f->bits / 8;
	case MOE_PLANE_SCALES:
		return f->block ? (cols + f->block - 1) / f->block * f->block_bytes : 0;
	default:
		return 4;
	}
}

/* Whether the format has the plane; a bias is the part's own matter. */
static inline int moe_format_has(__u32 format, enum moe_plane plane)
{
	const struct moe_format_spec *f = &moe_formats[format];

	switch (plane) {
	case MOE_PLANE_CODES:
		return 1;
	case MOE_PLANE_SCALES:
		return f->block != 0;
	case MOE_PLANE_ROW_SCALES:
		return f->scale == MOE_SCALE_F32_ROW;
	default:
		return 0;
	}
}

#endif
