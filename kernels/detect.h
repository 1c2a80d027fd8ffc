/* SPDX-License-Identifier: MIT */
/*
 * detect - which level a CPU and its operating system offer, decided from the words that CPUID and XGETBV return.
 *
 * A level needs both: the instructions, and an operating system that saves the registers they use at a context switch
 * (XCR0). Without the second the first would compute with other processes' registers.
 */
#ifndef KERNELS_DETECT_H
#define KERNELS_DETECT_H

#include "kernels/kernels.h"

/* Zero where the CPU does not have the leaf, or (xcr0) where the system has not enabled XGETBV. */
struct cpu_words {
	uint32_t leaf1_ecx; /* CPUID leaf 1 */
	uint32_t leaf7_ebx; /* CPUID leaf 7, subleaf 0 */
	uint64_t xcr0;
};

void cpu_words_read(struct cpu_words *ret);

/* Pure. *ret_why as in isa_detect. */
enum isa isa_decide(const struct cpu_words *words, const char **ret_why);

#endif
