/* SPDX-License-Identifier: MIT */
/*
 * detect - what a CPU and its operating system offer, decided from the words that CPUID and XGETBV return.
 *
 * A feature needs both: the instructions, and an operating system that saves the registers they use at a context switch
 * (XCR0). Without the second the first would compute with other processes' registers. The tiles of AMX need a third
 * thing: Linux gives them to a process that has asked for them, because they make its signal frames and its threads'
 * saved registers larger by 8 KiB.
 */
#ifndef KERNELS_DETECT_H
#define KERNELS_DETECT_H

#include "kernels/kernels.h"

enum cpu_feature {
	CPU_AVX2 = 1 << 0,      /* AVX2, FMA, F16C: the minimum */
	CPU_AVX_VNNI = 1 << 1,  /* 8-bit dot products on 256 bits */
	CPU_AVX512 = 1 << 2,    /* F, DQ, BW, VL */
	CPU_VNNI = 1 << 3,      /* 8-bit dot products on 512 bits */
	CPU_BF16_FAST = 1 << 4, /* the bfloat16 dot product, where it does more than FP32 FMA with widened weights */
	CPU_AMX = 1 << 5,       /* tiles of BF16 and INT8, and GFNI, which decodes FP8 for them */
	CPU_UNASKED =
		1 << 6,    /* the caches read ahead by themselves, and what software asks for ahead is in their way */
	CPU_VBMI = 1 << 7, /* permutations of bytes on 512 bits; Cascade Lake and Cooper Lake have VNNI without them */
};

/* Zero where the CPU does not have the leaf, or (xcr0) where the system has not enabled XGETBV. */
struct cpu_words {
	uint32_t leaf1_eax, leaf1_ecx;            /* CPUID leaf 1 */
	uint32_t leaf7_ebx, leaf7_ecx, leaf7_edx; /* CPUID leaf 7, subleaf 0 */
	uint32_t leaf7_1_eax;                     /* subleaf 1 */
	uint32_t vendor_ebx;                      /* leaf 0: the first four letters of the vendor's name */
	uint64_t xcr0;
};

void cpu_words_read(struct cpu_words *ret);

/* Pure: a set of enum cpu_feature. */
uint32_t cpu_features(const struct cpu_words *words);

/* The same of this CPU, without AMX where the kernel refuses this process the tiles, for which the first call asks. */
uint32_t cpu_features_here(void);

/* Pure. *ret_why as in isa_detect. */
enum isa isa_decide(const struct cpu_words *words, const char **ret_why);

/* The tables that a CPU with these features can run, one call per table from 0 on, then NULL: for tests. */
const struct kernels *kernels_runnable(uint32_t features, unsigned i);

#endif
