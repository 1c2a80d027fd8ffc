/* SPDX-License-Identifier: MIT */
/*
 * peak - an instruction as often as the processor can: 12 independent chains in registers, no memory.
 *
 * PEAK_FUNCTION(name, type, zero, operations, step) defines name(rounds): 12 steps a round, `a` is the chain's register
 * in `step`, and each step counts as `operations` multiplications and additions.
 */
#ifndef KERNELS_VEC_PEAK_H
#define KERNELS_VEC_PEAK_H

#include <immintrin.h>
#include <stdint.h>

#define PEAK_CHAINS 12

#define PEAK_FUNCTION(name, type, zero, constraint, operations, step)                                                  \
	uint64_t name(uint64_t rounds)                                                                                 \
	{                                                                                                              \
		type chains[PEAK_CHAINS], a;                                                                           \
		_Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++) chains[i] = zero;                       \
		for (uint64_t r = 0; r < rounds; r++)                                                                  \
			_Pragma("GCC unroll 12") for (int i = 0; i < PEAK_CHAINS; i++)                                 \
			{                                                                                              \
				a = chains[i];                                                                         \
				a = step;                                                                              \
				__asm__ volatile("" : "+" constraint(a));                                              \
				chains[i] = a;                                                                         \
			}                                                                                              \
		return rounds * PEAK_CHAINS * (operations);                                                            \
	}

#endif
