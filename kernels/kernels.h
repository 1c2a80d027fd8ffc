/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the arithmetic of expert feed-forward networks, and nothing else: no threads, no allocation, no I/O.
 *
 * One table of functions per instruction-set level. `ref` is complete and obviously right: plain loops over the exact
 * value of each weight that accumulate in double. The others compute the same sums from *packed* activations:
 *
 *   PACK_F32      the activations themselves; FP32 accumulation
 *   PACK_F32_UP   times 2^120, or a lower power of two that keeps the largest finite one below 2^127: exact, but that
 *                 the smallest numbers may be off by 2^-149, and products, before scales, by 2^-156 of the largest one;
 *                 FP32 accumulation
 *   PACK_BF16     rounded to bfloat16 (nearest even), zeros behind the row's end: relative error 2^-8 of each; FP32
 *                 accumulation
 *   PACK_F16      times a power of two that brings the largest finite one to 2^14 .. 2^15, rounded to binary16 (nearest
 *                 even): error of each at most 2^-11 of it, or 2^-39 of the row's largest (and 2^-150); FP32
 *                 accumulation
 *   PACK_I8_ROW   8-bit integers with one scale for the row: error of each at most max|x| / 254 (and 2^-22 of it more)
 *   PACK_I8_BLOCK the same with a scale for each `block` columns; integer dot products, FP32 over the groups
 *   PACK_I8_PAIRS the same with codes of at most `most` instead of 127: error of each at most max|x| / (2 * most)
 *
 * Against the exact product of the weights with what the packed activations stand for, the error of a dot product of n
 * terms is at most (n + 8) * 2^-23 * sum |w_i x_i| (a bound over any order of summation, Higham 2002, section 4.2) plus
 * n * 2^-125 * (1 + max|w| + max|scale| + max|x|) where numbers become denormal; minima count as terms w_i = m (two for
 * a column), a bias as one more. Integer packing turns a row (PACK_I8_ROW) or block with an infinity or a NaN into NaN,
 * and adds 2^-126 where a scale is denormal. Activations of a add 2^-21 of the result (SiLU) or of |a| (the others), or
 * 2^-140. A result depends on its own row and token only: not on which other rows and tokens are in the call. Groups
 * (kernel_group_ops) of PACK_I8_BLOCK add (2^-7 + 2^-16) * sum |w_i x_i|.
 *
 * Rows begin where a band of each plane begins (moe_format.h: a multiple of 16, but for row-major formats without a
 * scales plane); columns at a multiple of the format's block. A function reads exactly what the rows and columns
 * asked for occupy (of panels: all 16 rows of the last one) and writes exactly `rows` results per token. Codes of
 * panels and their scales lie on 64-byte and 16-byte boundaries; no other alignment is required. Denormals, infinities
 * and NaNs go the way IEEE 754 says, but that PACK_BF16 may take denormal weights, activations and products for zero,
 * and that I8_ROW, I8_BLOCK and I8_PAIRS multiply weight scale * activation scale with the integer dot product of a row
 * or group: where the former is infinite (a scale or minimum that is, or an overflow) the result is an infinity or NaN,
 * which of them need not be what the single products would add up to. Nor need it be where a weight is beyond the
 * largest binary32, to which kernel_group_ops of PACK_I8_BLOCK round it. All of that with the caller's MXCSR as a
 * process begins with it, and a megabyte left of its stack (base/thread.h).
 * Thread-safe: no state.
 */
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "uapi/moe_format.h"

/* The same numbers as enum moe_activation. */
enum kernel_activation { KERNEL_SILU, KERNEL_GELU, KERNEL_GELU_TANH, KERNEL_SWIGLU_CLAMPED };

struct kernel_act {
	enum kernel_activation kind;
	float limit; /* of KERNEL_SWIGLU_CLAMPED */
};

/* A matrix, or some rows and columns of it: where its first row's band begins in each plane (moe_format.h), and the
 * bytes from band to band. Planes that the format does not have are NULL, bias (of the rows) may be. */
struct kernel_matrix {
	uint32_t format; /* enum moe_format */
	const void *codes, *scales;
	size_t pitch, scale_pitch;
	const float *row_scales, *bias;

	/* What the caller has read next, whose beginning is asked for at this call's end; NULL: not known. Of gate_up,
	 * that of `gate` counts. Only a hint: nothing of it is read. */
	const struct kernel_matrix *next;
};

/* The same matrix from row `first` on, a multiple of MOE_PANEL_ROWS. */
static inline struct kernel_matrix kernel_rows(const struct kernel_matrix *m, size_t first)
{
	struct kernel_matrix rest = *m;

	rest.codes = (const char *)m->codes + first / moe_band_rows(m->format, MOE_PLANE_CODES) * m->pitch;
	if (m->scales)
		rest.scales = (const char *)m->scales + first / MOE_PANEL_ROWS * m->scale_pitch;
	if (m->row_scales)
		rest.row_scales += first;
	if (m->bias)
		rest.bias += first;
	return rest;
}

/* Kernels for GPUs know them by their numbers (kernels/cuda/weights.h). */
enum kernel_pack { PACK_F32, PACK_BF16, PACK_F16, PACK_I8_ROW, PACK_I8_BLOCK, PACK_I8_PAIRS, PACK_F32_UP };

#define KERNEL_HEAD 64 /* bytes of a packed row that begins with a struct; the codes follow */

/* Packed rows begin on 64-byte boundaries. I8_ROW: the scale and the sum of the codes, which follow. */
struct kernel_i8_row {
	float scale;
	int32_t sum;
};

/* F32_UP: what sums of 2^-120 of the weights times these numbers are to be multiplied with. They follow, filled up with
 * zeros to whole KERNEL_FOURS columns, of which those come first that are first of four, then the second ones, and so
 * on: where the codes are that one shift brings into place in a vector of them. F16: what the codes are to be
 * multiplied with. The codes follow as binary16, filled up with zeros to a 64-byte boundary, then once more as
 * binary32. */
struct kernel_float_row {
	float scale;
};

#define KERNEL_UP 120 /* the exponent of that power of two */
#define KERNEL_FOURS ((size_t)32)

/* Where column c is among them. */
static inline size_t kernel_fours(size_t c)
{
	return c / KERNEL_FOURS * KERNEL_FOURS + c % 4 * (KERNEL_FOURS / 4) + c % KERNEL_FOURS / 4;
}

#define KERNEL_F16_FLOATS(cols) (KERNEL_HEAD + KERNEL_LINE((cols) * sizeof(uint16_t)))

/* I8_BLOCK: the codes, then the blocks' scales, then the sums of the blocks' codes (int32_t), each on a 64-byte
 * boundary. Codes behind the last column are zero, up to the boundary. */
#define KERNEL_LINE(bytes) (((bytes) + 63) & ~(size_t)63)
#define KERNEL_I8_SCALES(cols) KERNEL_LINE(cols)
#define KERNEL_I8_NUMBERS(cols, block) KERNEL_LINE(((cols) + (block)-1) / (block) * sizeof(float))
#define KERNEL_I8_SUMS(cols, block) (KERNEL_I8_SCALES(cols) + KERNEL_I8_NUMBERS(cols, block))

/* I8_PAIRS: the same, then the blocks' shares (int32_t) of products of sums (kernels/vec/panel_pairs.h). */
#define KERNEL_I8_SHARES(cols, block) (KERNEL_I8_SUMS(cols, block) + KERNEL_I8_NUMBERS(cols, block))

/* How a level computes with matrices of one format. */
struct kernel_ops {
	enum kernel_pack pack;
	uint32_t block; /* of PACK_I8_BLOCK and _PAIRS: columns, a multiple or divisor of the format's group */
	int most;       /* of PACK_I8_PAIRS: the largest code */

	/* Packs a row of activations; NULL with PACK_F32. `packed` has kernel_packed_bytes() bytes. */
	void (*pack_row)(size_t cols, uint32_t block, const float *x, void *packed);

	/* For each token t < tokens, row r < rows: h[t][r] = act(gate_r . x[t] + bias, up_r . x[t] + bias). x: packed
	 * rows of cols activations; gate and up have one format. */
	void (*gate_up)(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			const struct kernel_act *act, size_t tokens, const void *const *x, float *const *h);

	/* For each token t, row r: y[t][r] = w_r . x[t] + bias. */
	void (*matmul)(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const void *const *x,
		       float *const *y);

	/* The same for many tokens, whose packed rows were put together by KERNEL_GROUP in the order that the level
	 * multiplies in: once for all rows of an expert. NULL: the level has none. Worth it from `least` tokens on, for
	 * at most KERNEL_GROUP_COLS columns. Results have the same bits, but of PACK_I8_BLOCK: there weights, and what
	 * packed activations stand for, are rounded to bfloat16 first, each with an error of at most 2^-8 of it. */
	const struct kernel_group_ops *groups;
};

#define KERNEL_GROUP 16
#define KERNEL_GROUP_COLS ((size_t)1 << 17) /* no sum of products of 8-bit integers is beyond 32 bits */

struct kernel_group_ops {
	size_t least; /* tokens */

	/* 1 .. KERNEL_GROUP packed rows become a group of kernel_group_bytes(), on a 64-byte boundary. */
	void (*pack)(size_t cols, size_t tokens, const void *const *packed, void *group);

	/* x: groups one after the other, kernel_group_bytes() apart; only the last one may have fewer tokens. */
	void (*gate_up)(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			const struct kernel_act *act, size_t tokens, const void *x, float *const *h);
	void (*matmul)(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const void *x,
		       float *const *y);
};

/* Bytes of a packed row: an odd number of lines of 64, so that rows one after the other do not meet in one set of the
 * first-level cache. */
static inline size_t kernel_packed_bytes(const struct kernel_ops *ops, size_t cols)
{
	size_t bytes = KERNEL_LINE(cols * sizeof(float));

	if (ops->pack == PACK_F32_UP)
		bytes = KERNEL_HEAD + (cols + KERNEL_FOURS - 1) / KERNEL_FOURS * KERNEL_FOURS * sizeof(float);
	else if (ops->pack == PACK_BF16)
		bytes = KERNEL_LINE(cols * sizeof(uint16_t));
	else if (ops->pack == PACK_F16)
		bytes = KERNEL_F16_FLOATS(cols) + KERNEL_LINE(cols * sizeof(float));
	else if (ops->pack == PACK_I8_ROW)
		bytes = KERNEL_HEAD + KERNEL_LINE(cols);
	else if (ops->pack == PACK_I8_BLOCK)
		bytes = KERNEL_I8_SUMS(cols, ops->block) + KERNEL_I8_NUMBERS(cols, ops->block);
	else if (ops->pack == PACK_I8_PAIRS)
		bytes = KERNEL_I8_SHARES(cols, ops->block) + KERNEL_I8_NUMBERS(cols, ops->block);
	return bytes | 64;
}

/* Bytes of a group: KERNEL_HEAD, then the codes of KERNEL_GROUP rows, of I8_BLOCK as bfloat16. Only PACK_BF16,
 * PACK_I8_ROW and PACK_I8_BLOCK have groups. */
static inline size_t kernel_group_bytes(const struct kernel_ops *ops, size_t cols)
{
	return KERNEL_HEAD + KERNEL_GROUP * KERNEL_LINE(cols * (ops->pack == PACK_I8_ROW ? 1 : sizeof(uint16_t)));
}

struct kernels {
	const char *name;    /* of the level */
	const char *variant; /* of the table: the level and what it uses beyond the level's minimum */
	const struct kernel_ops *of[MOE_FORMAT_COUNT]; /* NULL for MOE_FORMAT_NONE only */

	/* y[i] += a * x[i] */
	void (*axpy)(size_t n, float a, const float *x, float *y);

	/* BF16 is the upper half of binary32: exact one way, round to nearest even (NaN stays NaN) the other. */
	void (*bf16_to_f32)(size_t n, const uint16_t *from, float *to);
	void (*f32_to_bf16)(size_t n, const float *from, uint16_t *to);

	/* Rows of `width` bytes, `pitch` apart, become one run at `to`, which is not to be read soon: where the level
	 * can, by stores that go past the caches. All is written, for other processors too, when this returns. */
	void (*copy_rows)(size_t rows, size_t width, size_t pitch, const void *from, void *to);

	/* What the level's dot products of floats, of BF16 and of 8-bit weights are made of, as fast as the processor
	 * can: for benchmarks. Each returns how many multiplications and additions `rounds` were; NULL: not known. */
	uint64_t (*peak_f32)(uint64_t rounds), (*peak_bf16)(uint64_t rounds), (*peak_int8)(uint64_t rounds);
};

/* The exact value of a weight, scales included, bias not; row counts from the matrix's first. */
double kernel_weight(const struct kernel_matrix *m, size_t row, size_t col);

/* What gate_up makes of the two products, as exact as double is. */
double kernel_gated(const struct kernel_act *act, double g, double u);

enum isa { ISA_REF, ISA_AVX2, ISA_AVX512, ISA_AMX, ISA_COUNT };

/* The best level that this CPU and its operating system offer; *ret_why (may be NULL) says what decided, a static
 * string. The first call of this or of one of the functions below asks Linux for the tiles of AMX where the CPU has
 * them: for all threads of the process and for good. Where Linux refuses, the level below is the best. */
enum isa isa_detect(const char **ret_why);
const char *isa_name(enum isa isa);

/* "auto", "ref", "avx2", "avx512", "amx" -> level. -EINVAL: no such name; -ENOTSUP: this CPU does not have it. */
int isa_from_name(const char *name, enum isa *ret);

/* For a person: what is wrong with a name that isa_from_name refused, and the way out. A static string. */
const char *isa_why_not(const char *name);

/* The table of a level that isa_detect allows. */
const struct kernels *kernels_get(enum isa isa);

#endif
