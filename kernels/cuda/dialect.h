/* SPDX-License-Identifier: MIT */
/*
 * dialect - the words in which a kernel is written once and compiled three times: by nvcc for devices, and for the host
 * as plain loops (its twin) or as coroutines (tests).
 *
 * Law of a kernel's text: it is C and C++ alike. Outside of EACH_THREAD control flow is the same for all threads of a
 * block. EACH_THREAD (tid) { } is what one thread does; `continue` leaves it. What lives from one EACH_THREAD to the
 * next is PER_THREAD, for one thread, or SHARED, for the block. Between writing SHARED memory and reading it as another
 * thread, or the other way round, stands a BARRIER.
 *
 * As plain loops each EACH_THREAD runs to its end for all threads, so that a missing BARRIER is not felt; as coroutines
 * (CUDA_COROUTINES) a thread runs until the next BARRIER, as on a device it might.
 */
#ifndef KERNELS_CUDA_DIALECT_H
#define KERNELS_CUDA_DIALECT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/cuda-kernels.h"

#ifdef __CUDACC__

#define FUNC static __device__ __forceinline__
#define CONSTANT static __device__ const
/* blocks: so many are to find room in a multiprocessor, which bounds a thread's registers */
#define KERNEL_BLOCKS(name, type, threads, blocks)                                                                     \
	extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ struct type p)
#define KERNEL(name, type, threads) KERNEL_BLOCKS(name, type, threads, 2)
#define SHARED(type, name) __shared__ type name
#define PER_THREAD(type, name) type name[1]
#define OWN(name) name[0]
#define EACH_THREAD(tid) for (unsigned tid = threadIdx.x, once_ = 1; once_; once_ = 0)
#define BARRIER() __syncthreads()
#define BLOCK_INDEX blockIdx.x
#define BLOCK_COUNT gridDim.x
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

#else

#include <immintrin.h>

/* Where the host is in a grid. */
struct twin_self {
	unsigned block, blocks, thread, threads;
	int backwards;
};

#define FUNC static inline __attribute__((always_inline))
#define CONSTANT static const
#define TWIN_THREADS 1024
#define BLOCK_INDEX twin.block
#define BLOCK_COUNT twin.blocks
#define UNROLL
#define ROLLED

#ifdef CUDA_COROUTINES

extern struct twin_self twin;
void coroutine_barrier(const char *file, int line);
/* In a section of their own, so that a block can begin with rubbish in all of them. */
#define SHARED(type, name) static __attribute__((section("cuda_shared"))) type name
#define PER_THREAD(type, name) type name[1]
#define OWN(name) name[0]
#define EACH_THREAD(tid) for (unsigned tid = twin.thread, once_ = 1; once_; once_ = 0)
#define BARRIER() coroutine_barrier(__FILE__, __LINE__)
#define KERNEL(name, type, most)                                                                                       \
	static void name##_body(struct type p);                                                                        \
	void coroutine_##name(const void *params);                                                                     \
	void coroutine_##name(const void *params)                                                                      \
	{                                                                                                              \
		name##_body(*(const struct type *)params);                                                             \
	}                                                                                                              \
	static void name##_body(struct type p)

#else

static __thread struct twin_self twin;
#define SHARED(type, name) static __thread type name
#define PER_THREAD(type, name) type name[TWIN_THREADS]
#define OWN(name) name[tid]
#define EACH_THREAD(tid)                                                                                               \
	for (unsigned step_ = 0, tid = twin.backwards ? twin.threads - 1 : 0; step_ < twin.threads;                    \
	     step_++, tid += twin.backwards ? -1u : 1u)
#define BARRIER() ((void)0)
#define KERNEL(name, type, most)                                                                                       \
	static void name##_body(struct type p);                                                                        \
	void twin_##name(const void *params, const unsigned grid[3], const unsigned block[3],                          \
			 enum cuda_twin_order order);                                                                  \
	void twin_##name(const void *params, const unsigned grid[3], const unsigned block[3],                          \
			 enum cuda_twin_order order)                                                                   \
	{                                                                                                              \
		struct type p;                                                                                         \
		unsigned i;                                                                                            \
		memcpy(&p, params, sizeof p);                                                                          \
		twin.threads = block[0];                                                                               \
		twin.blocks = grid[0];                                                                                 \
		twin.backwards = order == CUDA_TWIN_BACKWARDS;                                                         \
		for (i = 0; i < grid[0]; i++) {                                                                        \
			twin.block = twin.backwards ? grid[0] - 1 - i : i;                                             \
			name##_body(p);                                                                                \
		}                                                                                                      \
	}                                                                                                              \
	static void name##_body(struct type p)

#endif

#define KERNEL_BLOCKS(name, type, most, blocks) KERNEL(name, type, most)

#endif

/* -- numbers ------------------------------------------------------------------------------------------------------ */

FUNC uint32_t bits_of(float x)
{
#ifdef __CUDACC__
	return __float_as_uint(x);
#else
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
#endif
}

FUNC float float_of(uint32_t bits)
{
#ifdef __CUDACC__
	return __uint_as_float(bits);
#else
	float x;

	memcpy(&x, &bits, sizeof x);
	return x;
#endif
}

FUNC float float_of_bf16(uint32_t bits)
{
	return float_of(bits << 16);
}

FUNC float float_of_f16(uint32_t bits)
{
#ifdef __CUDACC__
	float x;

	asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
	return x;
#else
	return _cvtsh_ss((unsigned short)bits);
#endif
}

/* Nearest even, as the CPU's packing has it: a NaN stays one. */
FUNC uint32_t bf16_of(float x)
{
	const uint32_t bits = bits_of(x);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return bits >> 16 | 0x40;
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

FUNC uint32_t f16_of(float x)
{
#ifdef __CUDACC__
	unsigned short bits;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
	return bits;
#else
	return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#endif
}

/* PTX prmt: byte i of the result is the byte of b:a that bits 4i .. 4i + 2 of `how` name. */
FUNC uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t how)
{
#ifdef __CUDACC__
	return __byte_perm(a, b, how);
#else
	const uint64_t from = (uint64_t)b << 32 | a;
	uint32_t ret = 0;
	int i;

	for (i = 0; i < 4; i++)
		ret |= (uint32_t)(from >> (how >> 4 * i & 7) * 8 & 255) << 8 * i;
	return ret;
#endif
}

/* Byte i of the result: eight times the sign bit of the byte of b:a that bits 4i .. 4i + 2 of `how` name. */
FUNC uint32_t signs_of(uint32_t a, uint32_t b, uint32_t how)
{
#ifdef __CUDACC__
	uint32_t ret;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(ret) : "r"(a), "r"(b), "r"(how | 0x8888));
	return ret;
#else
	return (bytes_of(a, b, how) >> 7 & 0x01010101) * 0xff;
#endif
}

/* 1 sign, 4 exponent, 3 fraction bits: shifted into a binary32 they are 2^-120 of the value. */
FUNC float float_of_e4m3(uint32_t code)
{
	const float x = float_of((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;

	return (code & 0x7f) == 0x7f ? float_of(0x7fc00000) : x;
}

/* Four codes, each as a part of E4M3_UNIT of its value: moved into binary16, whose fraction and exponent are longer,
 * they are 2^-8 of it, the denormal ones too. */
#define E4M3_UNIT 256
FUNC void floats_of_e4m3(float *ret, uint32_t codes)
{
	unsigned i;

	UNROLL
	for (i = 0; i < 2; i++) {
		const uint32_t two = bytes_of(codes, 0, i ? 0x3424 : 0x1404);
		const uint32_t halves = (two & 0x80008000) | (two & 0x7f007f00) >> 1;

		ret[2 * i] = float_of_f16(halves & 0xffff);
		ret[2 * i + 1] = float_of_f16(halves >> 16);
	}
	if (((codes & 0x7f7f7f7f) + 0x01010101) & 0x80808080) {
		UNROLL
		for (i = 0; i < 4; i++)
			if ((codes >> 8 * i & 0x7f) == 0x7f)
				ret[i] = float_of(0x7fc00000);
	}
}

/* Codes 2i and 2i + 1 of a word of four as a pair of bfloat16, which is exact. */
FUNC uint32_t bf16_of_e4m3(uint32_t codes, unsigned i)
{
#ifdef __CUDACC__
	const uint32_t two = __byte_perm(codes, 0, i ? 0x3424 : 0x1404), there = (two & 0x7f007f00) + 0x01000100;
	const uint32_t small = (two & 0x80008000) | (two >> 4 & 0x07f007f0); /* 2^-120 of them */
	uint32_t ret;

	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(ret) : "r"(small), "r"(0x7b807b80), "r"(0x80008000));
	return ret | (there & 0x80008000) / 0x8000 * 0x7fff;
#else
	return bf16_of(float_of_e4m3(codes >> 16 * i & 0xff)) | bf16_of(float_of_e4m3(codes >> (16 * i + 8) & 0xff))
									<< 16;
#endif
}

/* Nearest even; |x| < 2^31. */
FUNC int32_t int_of(float x)
{
#ifdef __CUDACC__
	return __float2int_rn(x);
#else
	return _mm_cvtss_si32(_mm_set_ss(x));
#endif
}

/* sum + the products of four signed bytes. */
FUNC int32_t dot4(uint32_t a, uint32_t b, int32_t sum)
{
#ifdef __CUDACC__
	return __dp4a((int)a, (int)b, sum);
#else
	uint32_t ret = (uint32_t)sum;
	int i;

	for (i = 0; i < 32; i += 8)
		ret += (uint32_t)((int8_t)(a >> i) * (int8_t)(b >> i));
	return (int32_t)ret;
#endif
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

struct words4 {
	uint32_t w[4];
};

/* Four words that are read once, from a 16-byte boundary. */
FUNC struct words4 load_words4(uint64_t address)
{
	struct words4 ret;
#ifdef __CUDACC__
	const uint4 v = __ldcs((const uint4 *)address);

	ret.w[0] = v.x, ret.w[1] = v.y, ret.w[2] = v.z, ret.w[3] = v.w;
#else
	memcpy(&ret, (const void *)(uintptr_t)address, sizeof ret);
#endif
	return ret;
}

/* The same of what all blocks read. */
FUNC struct words4 load_shared_words4(uint64_t address)
{
	struct words4 ret;
#ifdef __CUDACC__
	const uint4 v = *(const uint4 *)address;

	ret.w[0] = v.x, ret.w[1] = v.y, ret.w[2] = v.z, ret.w[3] = v.w;
#else
	memcpy(&ret, (const void *)(uintptr_t)address, sizeof ret);
#endif
	return ret;
}

/* Two words that are read once, from an 8-byte boundary. */
FUNC void load_once2(uint64_t address, uint32_t *ret)
{
#ifdef __CUDACC__
	const uint2 v = __ldcs((const uint2 *)address);

	ret[0] = v.x;
	ret[1] = v.y;
#else
	memcpy(ret, (const void *)(uintptr_t)address, 8);
#endif
}

/* To a 16-byte boundary. */
FUNC void store_words4(uint32_t *to, struct words4 w)
{
#ifdef __CUDACC__
	*(uint4 *)to = make_uint4(w.w[0], w.w[1], w.w[2], w.w[3]);
#else
	memcpy(to, &w, sizeof w);
#endif
}

/* To an 8-byte boundary. */
FUNC void store_words2(uint32_t *to, uint32_t low, uint32_t high)
{
#ifdef __CUDACC__
	*(uint2 *)to = make_uint2(low, high);
#else
	to[0] = low;
	to[1] = high;
#endif
}

FUNC uint32_t load_u8(uint64_t address)
{
	return *(const uint8_t *)(uintptr_t)address;
}

FUNC uint32_t load_u16(uint64_t address)
{
	return *(const uint16_t *)(uintptr_t)address;
}

FUNC uint32_t load_u32(uint64_t address)
{
	return *(const uint32_t *)(uintptr_t)address;
}

FUNC float load_float(uint64_t address)
{
	return *(const float *)(uintptr_t)address;
}

/* Four numbers, of which n exist; the others are zero. */
FUNC void load_floats4(float *ret, uint64_t address, unsigned n)
{
	unsigned i;

	if (n >= 4 && address % 16 == 0) {
		const struct words4 w = load_shared_words4(address);

		UNROLL
		for (i = 0; i < 4; i++)
			ret[i] = float_of(w.w[i]);
		return;
	}
	UNROLL
	for (i = 0; i < 4; i++)
		ret[i] = i < n ? load_float(address + 4 * i) : 0;
}

/* Sixteen bytes on their way from a 16-byte boundary to shared memory; only the first n exist, the others become zero.
 * They are there when COPIES_AWAIT (later) says so, where `later` calls of copies_end() may have come after theirs; for
 * other threads after a BARRIER. */
FUNC void copy_async16(void *to, uint64_t from, unsigned n)
{
#ifdef __CUDACC__
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(n)
		     : "memory");
#else
	memset(to, 0, 16);
	memcpy(to, (const void *)(uintptr_t)from, n);
#endif
}

/* The same of eight bytes that exist. */
FUNC void copy_async8(void *to, uint64_t from)
{
#ifdef __CUDACC__
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
		     :
		     : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
		     : "memory");
#else
	memcpy(to, (const void *)(uintptr_t)from, 8);
#endif
}

FUNC void copies_end(void)
{
#ifdef __CUDACC__
	asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

#ifdef __CUDACC__
#define COPIES_AWAIT(later) asm volatile("cp.async.wait_group %0;" : : "n"(later) : "memory")
#else
#define COPIES_AWAIT(later) ((void)0)
#endif

/* Sixteen bytes from anywhere, of which only the first n exist; the others are zero. */
FUNC struct words4 load_bytes16(uint64_t address, unsigned n)
{
	struct words4 ret;
	unsigned i;

	if (n >= 16 && address % 16 == 0)
		return load_words4(address);
	for (i = 0; i < 4; i++)
		ret.w[i] = 0;
	for (i = 0; i < 16; i++)
		if (i < n)
			ret.w[i / 4] |= load_u8(address + i) << i % 4 * 8;
	return ret;
}

/* Returns what was there before. Only ever of integers. */
FUNC uint32_t count_up(uint32_t *at, uint32_t by)
{
#ifdef __CUDACC__
	return atomicAdd(at, by);
#else
	const uint32_t before = *at;

	*at += by;
	return before;
#endif
}

#endif
