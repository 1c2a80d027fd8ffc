/* SPDX-License-Identifier: MIT */
#include "kernels/detect.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

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
	LEAF7_ECX_VBMI = 1 << 1,
	LEAF7_ECX_GFNI = 1 << 8,
	LEAF7_ECX_VNNI = 1 << 11,
	LEAF7_EDX_AMX_BF16 = 1 << 22,
	LEAF7_EDX_AMX_TILE = 1 << 24,
	LEAF7_EDX_AMX_INT8 = 1 << 25,
	LEAF7_1_EAX_AVX_VNNI = 1 << 4,
	LEAF7_1_EAX_BF16 = 1 << 5,
};
#define LEAF7_EBX_AVX512VL (1u << 31)
#define XCR0_YMM 0x06u         /* SSE and AVX state */
#define XCR0_ZMM 0xe6u         /* and opmask, ZMM 0-15, ZMM 16-31 */
#define XCR0_TILES 0x60000u    /* tile configuration and data */
#define VENDOR_AMD 0x68747541u /* "Auth" */

/* arch_prctl(2): permission for a register state component by its number in XCR0. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XCOMP_TILE_DATA 18

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
	if (__get_cpuid(0, &eax, &ebx, &ecx, &edx))
		ret->vendor_ebx = ebx;
	if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
		ret->leaf1_eax = eax;
		ret->leaf1_ecx = ecx;
	}
	if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
		ret->leaf7_ebx = ebx;
		ret->leaf7_ecx = ecx;
		ret->leaf7_edx = edx;
		if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
			ret->leaf7_1_eax = eax;
	}
	if (ret->leaf1_ecx & LEAF1_ECX_OSXSAVE)
		ret->xcr0 = xcr0_read();
}

static bool has(uint64_t word, uint64_t bits)
{
	return (word & bits) == bits;
}

/* On Intel's Sapphire and Emerald Rapids the bfloat16 dot product takes two cycles: half the arithmetic of FP32 FMA
 * with widened weights (docs/decisions). On AMD's Zen 4 and 5 it runs at the rate of FMA, with twice the work. */
static bool bf16_wins(const struct cpu_words *w)
{
	return has(w->leaf7_1_eax, LEAF7_1_EAX_BF16) && w->vendor_ebx == VENDOR_AMD;
}

/* The family, as the manual puts it together. */
static uint32_t family(const struct cpu_words *w)
{
	const uint32_t base = w->leaf1_eax >> 8 & 15;

	return base == 15 ? base + (w->leaf1_eax >> 20 & 255) : base;
}

/* AMD's family 25, of which Zen 4 has AVX-512, is faster without prefetches in all formats; family 26, Zen 5, slower
 * (docs/decisions/0018 and 0030). Of later ones nothing is known. */
static bool reads_ahead(const struct cpu_words *w)
{
	return w->vendor_ebx == VENDOR_AMD && family(w) == 25;
}

uint32_t cpu_features(const struct cpu_words *w)
{
	uint32_t features = 0;

	if (!has(w->leaf1_ecx, LEAF1_ECX_AVX | LEAF1_ECX_FMA | LEAF1_ECX_F16C | LEAF1_ECX_OSXSAVE) ||
	    !has(w->leaf7_ebx, LEAF7_EBX_AVX2) || !has(w->xcr0, XCR0_YMM))
		return 0;
	features |= CPU_AVX2;
	if (reads_ahead(w))
		features |= CPU_UNASKED;
	if (has(w->leaf7_1_eax, LEAF7_1_EAX_AVX_VNNI))
		features |= CPU_AVX_VNNI;
	if (!has(w->leaf7_ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL) ||
	    !has(w->xcr0, XCR0_ZMM))
		return features;
	features |= CPU_AVX512;
	if (!has(w->leaf7_ecx, LEAF7_ECX_VNNI))
		return features;
	features |= CPU_VNNI;
	if (!has(w->leaf7_ecx, LEAF7_ECX_VBMI))
		return features;
	features |= CPU_VBMI;
	if (bf16_wins(w))
		features |= CPU_BF16_FAST;
	if (has(w->leaf7_edx, LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8) &&
	    has(w->leaf7_1_eax, LEAF7_1_EAX_BF16) && has(w->leaf7_ecx, LEAF7_ECX_GFNI) && has(w->xcr0, XCR0_TILES))
		features |= CPU_AMX;
	return features;
}

/* Once per process: the answer holds for all its threads. */
static bool tiles_allowed(void)
{
	static atomic_int answer; /* 0: not asked, 1: yes, -1: no */
	int now = atomic_load(&answer);

	if (now == 0) {
		now = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XCOMP_TILE_DATA) == 0 ? 1 : -1;
		atomic_store(&answer, now);
	}
	return now > 0;
}

#define FEATURES_KNOWN (1u << 31)

uint32_t cpu_features_here(void)
{
	static _Atomic uint32_t known; /* CPUID traps in a virtual machine, and the system is asked once */
	uint32_t features = atomic_load_explicit(&known, memory_order_relaxed);
	struct cpu_words words;

	if (features)
		return features & ~FEATURES_KNOWN;
	cpu_words_read(&words);
	features = cpu_features(&words);
	if ((features & CPU_AMX) && !tiles_allowed())
		features &= ~(uint32_t)CPU_AMX;
	atomic_store_explicit(&known, features | FEATURES_KNOWN, memory_order_relaxed);
	return features;
}
