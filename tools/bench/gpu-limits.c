/* SPDX-License-Identifier: MIT */
/*
 * What a GPU can do at all. Reading: a kernel that adds up words. Dense bfloat16 products: mma.sync, the instruction
 * that the library's kernels are made of, on shared memory alone; and a large product by cuBLAS, which knows newer
 * instructions, where it can be loaded. The higher rate is the limit.
 */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/bench/gpu.h"

#define CUBLAS_SIDE_MAX 8192u
#define PEAK_ROUNDS 4096u

/* Of cublas_api.h: numbers that its ABI has had since version 11. */
#define CUBLAS_TRANSPOSED 1
#define CUBLAS_STRAIGHT 0
#define CUBLAS_BF16 14
#define CUBLAS_SUMS_F32 68
#define CUBLAS_DEFAULT (-1)

struct cublas {
	void *handle;
	int (*create)(void **ret);
	int (*destroy)(void *handle);
	int (*set_stream)(void *handle, CUstream stream);
	int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
		    int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
		    int compute, int algorithm);
};

struct gpu_dense {
	struct gpu *g;
	struct cublas blas;
	uint32_t side, rounds;
};

static int launch(struct gpu *g, struct cuda_launch *l)
{
	void *params = &l->params;

	return CUDA_GIVE(g->device, cuLaunchKernel, g->device->functions[l->kernel], l->grid[0], l->grid[1], l->grid[2],
			 l->block[0], l->block[1], l->block[2], l->shared_bytes, g->stream->stream, &params, NULL);
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

int gpu_give_read(struct gpu *g, CUdeviceptr from, uint64_t bytes)
{
	struct cuda_launch l;

	cuda_launch_read(from, bytes, g->sums.base, g->blocks, &l);
	return launch(g, &l);
}

/* The kernels' sums, to the end of host memory. */
static int bring_sums(struct gpu *g, void **ret, struct moe_error *err)
{
	const uint64_t bytes = g->blocks * 256ull * sizeof(uint32_t);
	int r;

	*ret = g->host + g->host_bytes - ALIGN_UP(bytes, (uint64_t)GPU_PAGE);
	r = device_cuda.copy_to_host(g->stream, *ret, g->sums.base, bytes);
	return r < 0 ? gpu_error(g, r, "sums cannot be copied", err) : gpu_settle(g, err);
}

int gpu_read_sum(struct gpu *g, uint32_t *ret, struct moe_error *err)
{
	void *sums;
	int r = bring_sums(g, &sums, err);

	*ret = 0;
	for (uint32_t i = 0; i < g->blocks * 256 && r == 0; i++)
		*ret += ((const uint32_t *)sums)[i];
	return r;
}

/* -- cuBLAS ------------------------------------------------------------------------------------------------------- */

static const char *load_cublas(struct gpu_dense *d)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
	static const char *const functions[] = {"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2",
						"cublasGemmEx"};
	struct cublas *b = &d->blas;
	void *library = NULL, *found[4];

	if (d->g->simulated)
		return "the driver is simulated";
	for (size_t i = 0; i < ARRAY_LEN(names) && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "no libcublas.so.13, .12 or .11 where libraries are looked for (LD_LIBRARY_PATH)";
	for (size_t i = 0; i < ARRAY_LEN(functions); i++) {
		found[i] = dlsym(library, functions[i]);
		if (!found[i])
			return "libcublas lacks a function that is needed";
	}
	memcpy(&b->create, found, sizeof found);
	if (b->create(&b->handle) != 0) {
		b->handle = NULL;
		return "cublasCreate failed";
	}
	return b->set_stream(b->handle, d->g->stream->stream) == 0 ? NULL : "cublasSetStream failed";
}

static int give_gemm(void *arg, uint32_t i)
{
	struct gpu_dense *d = arg;
	const float one = 1, zero = 0;
	const uint64_t bytes = 2ull * d->side * d->side, base = d->g->memory.base;
	const int n = (int)d->side;

	return d->blas.gemm(d->blas.handle, CUBLAS_TRANSPOSED, CUBLAS_STRAIGHT, n, n, n, &one, (const void *)base,
			    CUBLAS_BF16, n, (const void *)(base + bytes), CUBLAS_BF16, n, &zero,
			    (void *)(base + 2 * bytes), CUBLAS_BF16, n, CUBLAS_SUMS_F32, CUBLAS_DEFAULT)
		       ? -EIO
		       : 0;
}

int gpu_dense_cublas(struct gpu_dense *d, double *ret_ns, struct moe_error *err)
{
	return gpu_time(d->g, false, give_gemm, d, 1, ret_ns, err);
}

double gpu_dense_cublas_operations(const struct gpu_dense *d)
{
	return d->blas.handle ? 2.0 * d->side * d->side * d->side : 0;
}

/* Numbers of ordinary size: what a product's rate is depends on its operands' bits, by way of the power it takes. */
static int fill_operands(struct gpu_dense *d, struct moe_error *err)
{
	const uint64_t bytes = 2ull * d->side * d->side, piece = MIN(bytes, d->g->host_bytes / 2);
	uint16_t *codes = (uint16_t *)(d->g->host + d->g->host_bytes / 2);
	int r = 0;

	for (uint64_t i = 0; i < piece / 2; i++)
		codes[i] = (uint16_t)(0x3c00 + (i * 0x9e3779b97f4a7c15u >> 40 & 0x81ff));
	for (uint64_t at = 0; at < 2 * bytes && r == 0; at += piece) {
		const uint64_t n = MIN(piece, 2 * bytes - at);
		const struct device_copy copy = {d->g->memory.base + at, codes, n, n, 1};

		r = device_cuda.copy_to_device(d->g->stream, &copy, 1);
	}
	return r < 0 ? gpu_error(d->g, r, "cannot copy to the device", err) : gpu_settle(d->g, err);
}

/* -- mma.sync ----------------------------------------------------------------------------------------------------- */

static int give_peak(void *arg, uint32_t i)
{
	const struct gpu_dense *d = arg;
	struct cuda_launch l;

	cuda_launch_peak(d->rounds, d->g->sums.base, d->g->blocks, &l);
	return launch(d->g, &l);
}

int gpu_dense_mma(struct gpu_dense *d, double *ret_ns, struct moe_error *err)
{
	return gpu_time(d->g, true, give_peak, d, 1, ret_ns, err);
}

double gpu_dense_mma_operations(const struct gpu_dense *d)
{
	return (double)CUDA_PEAK_OPERATIONS * d->rounds * 8 * d->g->blocks; /* 8 warps a block */
}

int gpu_dense_open(struct gpu_dense **ret, struct gpu *g, struct moe_error *err)
{
	struct gpu_dense *d = *ret = calloc(1, sizeof *d);
	const char *why;

	if (!d)
		return moe_error_set(err, -ENOMEM, "no memory");
	d->g = g;
	d->rounds = g->simulated ? 2 : PEAK_ROUNDS;
	for (d->side = CUBLAS_SIDE_MAX; 6ull * d->side * d->side > g->memory.bytes; d->side /= 2)
		;
	why = load_cublas(d);
	if (!why)
		return fill_operands(d, err);
	gpu_note(g->absent, "cublas", why);
	return 0;
}

struct gpu_dense *gpu_dense_close(struct gpu_dense *d)
{
	if (d && d->blas.handle)
		d->blas.destroy(d->blas.handle);
	free(d);
	return NULL;
}

/* -- the check ---------------------------------------------------------------------------------------------------- */

/* What the lanes of a warp have in all: each result of its products is one lane's. */
static double warp_sum(uint32_t rounds)
{
	double sum = 0;

	for (unsigned row = 0; row < CUDA_PEAK_ROWS; row++)
		for (unsigned token = 0; token < CUDA_PEAK_TOKENS; token++)
			for (unsigned col = 0; col < CUDA_PEAK_COLS; col++)
				sum += cuda_peak_negative(0, row, col) == cuda_peak_negative(1, token, col) ? 1 : -1;
	return sum * rounds;
}

int gpu_dense_check(struct gpu_dense *d, struct moe_error *err)
{
	const double expected = warp_sum(d->rounds);
	double unused;
	void *sums;
	int r = gpu_dense_mma(d, &unused, err);

	if (r == 0)
		r = bring_sums(d->g, &sums, err);
	for (uint32_t warp = 0; warp < d->g->blocks * 8 && r == 0; warp++) {
		double sum = 0;

		for (uint32_t lane = 0; lane < 32; lane++)
			sum += ((const float *)sums)[warp * 32 + lane];
		if (sum != expected)
			r = moe_error_set(err, -EBADMSG, "mma.sync: warp %u has %g in all; expected %g", warp, sum,
					  expected);
	}
	return r;
}
