/* SPDX-License-Identifier: MIT */
#include "kernels/detect.h"

#include <cpuid.h>
#include <stdbool.h>

/* Bits as in Intel's Software Developer's Manual, volume 2A (CPUID) and volume 1, section 13.3 (XCR0). */
enum {
	LEAF1_ECX_FMA = 1 << 12,
	LEAF1_ECX_OSXSAVE = 1 << 27,
	LEAF1_ECX_AVX = 1 << 28,
	LEAF1_ECX_F16C = 1 << 29,
	LEAF7_EBX_AVX2 = 1 << 5,
	LEAF7_EBX_AVX512F = 1 << 16,
	LEAF7_EBX_AVX512DQ = 1 << 17,
	LEAF7_EBX_AVX512BW = 1 << 30,
};
#define LEAF7_EBX_AVX512VL (1u << 31)
#define XCR0_YMM 0x06u /* SSE and AVX state */
#define XCR0_ZMM 0xe6u /* and opmask, ZMM 0-15, ZMM 16-31 */

static uint64_t xcr0_read(void)
{
	uint32_t low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

void cpu_words_read(struct cpu_words *ret)
{
	uint32_t eax, ebx, ecx, edx;

	*ret = (struct cpu_words){0};
	if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
		ret->leaf1_ecx = ecx;
	if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
		ret->leaf7_ebx = ebx;
	if (ret->leaf1_ecx & LEAF1_ECX_OSXSAVE)
		ret->xcr0 = xcr0_read();
}

static bool has(uint64_t word, uint64_t bits)
{
	return (word & bits) == bits;
}

static enum isa say(const char **ret_why, enum isa isa, const char *why)
{
	if (ret_why)
		*ret_why = why;
	return isa;
}

enum isa isa_decide(const struct cpu_words *words, const char **ret_why)
{
	if (!has(words->leaf1_ecx, LEAF1_ECX_AVX | LEAF1_ECX_FMA | LEAF1_ECX_F16C) ||
	    !has(words->leaf7_ebx, LEAF7_EBX_AVX2))
		return say(ret_why, ISA_REF, "the CPU lacks one of AVX2, FMA, F16C");
	if (!has(words->leaf1_ecx, LEAF1_ECX_OSXSAVE) || !has(words->xcr0, XCR0_YMM))
		return say(ret_why, ISA_REF, "the operating system does not save the AVX registers");
	if (!has(words->leaf7_ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL))
		return say(ret_why, ISA_AVX2, "the CPU has AVX2, FMA and F16C but not AVX-512 F, DQ, BW and VL");
	if (!has(words->xcr0, XCR0_ZMM))
		return say(ret_why, ISA_AVX2, "the operating system does not save the AVX-512 registers");
	return say(ret_why, ISA_AVX512, "the CPU has AVX-512 F, DQ, BW and VL");
}
