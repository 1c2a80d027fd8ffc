/* SPDX-License-Identifier: MIT */
/*
 * kernels.h - the arithmetic of expert feed-forward networks, and nothing else: no threads, no allocation, no I/O.
 *
 * One table of functions per instruction-set level. `ref` is complete and obviously right: plain loops that accumulate
 * in double. Every other level computes the same sums in FP32 in another order; against ref the error of a dot product
 * of n terms is at most n * 2^-23 * sum |a_i b_i| (a bound over any order of summation, Higham 2002, section 4.2), and
 * n * 2^-149 more where numbers become denormal. Activations of a add 2^-21 of the result (SiLU) or of |a| (GELUs), or
 * 2^-140. A result depends on its own row and token only: not on which other rows and tokens are in the call.
 *
 * Matrices are row-major with `pitch` bytes between rows; inputs and outputs are FP32 rows given by pointers, so
 * that tokens grouped by expert need no gather. A function reads exactly `cols` elements of a row and writes
 * exactly `rows` results per token: nothing before, nothing after. No alignment beyond the element's is required.
 * Denormals, infinities and NaNs go the way IEEE 754 says. Thread-safe: no state.
 */
#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum kernel_type { KERNEL_BF16, KERNEL_F16, KERNEL_TYPES };
enum kernel_activation { KERNEL_SILU, KERNEL_GELU, KERNEL_GELU_TANH };

struct kernel_matrix {
	const void *data; /* first row */
	size_t pitch;     /* bytes from row to row */
};

struct kernels {
	const char *name;

	/* For each token t < tokens, row r < rows: h[t][r] = act(gate_r . x[t]) * (up_r . x[t]). */
	void (*gate_up[KERNEL_TYPES])(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows,
				      size_t cols, enum kernel_activation act, size_t tokens, const float *const *x,
				      float *const *h);

	/* For each token t, row r: y[t][r] = w_r . x[t]. */
	void (*matmul[KERNEL_TYPES])(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,
				     const float *const *x, float *const *y);

	/* y[i] += a * x[i] */
	void (*axpy)(size_t n, float a, const float *x, float *y);

	/* BF16 is the upper half of binary32: exact one way, round to nearest even (NaN stays NaN) the other. */
	void (*bf16_to_f32)(size_t n, const uint16_t *from, float *to);
	void (*f32_to_bf16)(size_t n, const float *from, uint16_t *to);
};

enum isa { ISA_REF, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* The best level that this CPU and its operating system offer; *ret_why (may be NULL) says what decided, a static
 * string. */
enum isa isa_detect(const char **ret_why);
const char *isa_name(enum isa isa);

/* "auto", "ref", "avx2", "avx512" -> level. -EINVAL: no such name; -ENOTSUP: this CPU does not have it. */
int isa_from_name(const char *name, enum isa *ret);

/* The table of a level that isa_detect allows. */
const struct kernels *kernels_get(enum isa isa);

#endif
