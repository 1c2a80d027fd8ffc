/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>

#include "kernels/detect.h"
#include "kernels/levels.h"

/* The variants of all levels, each level's best one last. */
static const struct variant {
	enum isa isa;
	uint32_t features; /* that it needs */
	const struct kernels *table;
	const char *why;
} variants[] = {
	{ISA_REF, 0, &kernels_ref,
	 "the CPU lacks one of AVX2, FMA, F16C, or the operating system does not save the AVX registers"},
	{ISA_AVX2, CPU_AVX2, &kernels_avx2,
	 "AVX2, FMA and F16C; the CPU lacks one of AVX-512 F, DQ, BW, VL, or the operating system does not save its "
	 "registers"},
	{ISA_AVX2, CPU_AVX2 | CPU_UNASKED, &kernels_avx2_unasked,
	 "AVX2, FMA and F16C; AMD's family 25, whose caches read ahead by themselves: streams side by side, no "
	 "prefetches; the CPU lacks one of AVX-512 F, DQ, BW, VL, or the operating system does not save its registers"},
	{ISA_AVX2, CPU_AVX2 | CPU_AVX_VNNI, &kernels_avx2_vnni,
	 "AVX2, FMA, F16C and AVX-VNNI; the CPU lacks one of AVX-512 F, DQ, BW, VL, or the operating system does not "
	 "save its registers"},
	{ISA_AVX512, CPU_AVX2 | CPU_AVX512, &kernels_avx512, "AVX-512 F, DQ, BW and VL; without VNNI"},
	{ISA_AVX512, CPU_AVX2 | CPU_AVX512 | CPU_VNNI, &kernels_avx512_novbmi, "AVX-512 with VNNI; without VBMI"},
	{ISA_AVX512, CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI, &kernels_avx512_vnni, "AVX-512 with VNNI and VBMI"},
	{ISA_AVX512, CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI | CPU_BF16_FAST, &kernels_avx512_bf16,
	 "AVX-512 with VNNI, VBMI and a BF16 dot product that outruns FMA"},
	{ISA_AVX512, CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI | CPU_BF16_FAST | CPU_UNASKED, &kernels_avx512_unasked,
	 "AVX-512 with VNNI, VBMI and a BF16 dot product that outruns FMA; AMD's family 25 (Zen 4), whose caches read "
	 "ahead by themselves: few prefetches"},
	{ISA_AMX, CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI | CPU_AMX, &kernels_amx,
	 "AMX with BF16 and INT8, AVX-512 with VNNI and VBMI, GFNI"},
};

static const char amx_refused[] =
	"AVX-512 with VNNI and VBMI; the CPU has AMX, but the kernel refused this process its tiles (arch_prctl, "
	"ARCH_REQ_XCOMP_PERM)";

#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static const char *const names[ISA_COUNT] = {"ref", "avx2", "avx512", "amx"};

/* The last variant of a level up to `isa` whose features are there. */
static const struct variant *choose(uint32_t features, enum isa isa)
{
	const struct variant *best = &variants[0];

	for (size_t i = 0; i < VARIANTS; i++)
		if (variants[i].isa <= isa && (variants[i].features & ~features) == 0)
			best = &variants[i];
	return best;
}

enum isa isa_decide(const struct cpu_words *words, const char **ret_why)
{
	const struct variant *v = choose(cpu_features(words), ISA_COUNT);

	if (ret_why)
		*ret_why = v->why;
	return v->isa;
}

enum isa isa_detect(const char **ret_why)
{
	struct cpu_words words;
	const uint32_t features = cpu_features_here();
	const struct variant *v = choose(features, ISA_COUNT);

	cpu_words_read(&words);
	if (ret_why)
		*ret_why = (cpu_features(&words) & ~features & CPU_AMX) ? amx_refused : v->why;
	return v->isa;
}

const char *isa_name(enum isa isa)
{
	return names[isa];
}

int isa_from_name(const char *name, enum isa *ret)
{
	const enum isa best = isa_detect(NULL);

	if (strcmp(name, "auto") == 0) {
		*ret = best;
		return 0;
	}
	for (enum isa isa = 0; isa < ISA_COUNT; isa++) {
		if (strcmp(name, names[isa]) != 0)
			continue;
		if (isa > best)
			return -ENOTSUP;
		*ret = isa;
		return 0;
	}
	return -EINVAL;
}

const char *isa_why_not(const char *name)
{
	const char *why;

	if (strcmp(name, names[ISA_AVX2]) == 0)
		return "this machine does not offer AVX2, FMA and F16C: auto takes ref";
	if (strcmp(name, names[ISA_AVX512]) == 0)
		return "this machine does not offer AVX-512 F, DQ, BW and VL: auto takes the best there is";
	if (strcmp(name, names[ISA_AMX]) != 0)
		return "auto, ref, avx2, avx512 or amx expected";
	isa_detect(&why);
	return why == amx_refused ? why
				  : "this machine does not offer AMX with BF16 and INT8: auto takes the best there is";
}

const struct kernels *kernels_get(enum isa isa)
{
	return choose(cpu_features_here(), isa)->table;
}

const struct kernels *kernels_runnable(uint32_t features, unsigned i)
{
	for (size_t v = 0; v < VARIANTS; v++)
		if ((variants[v].features & ~features) == 0 && i-- == 0)
			return variants[v].table;
	return NULL;
}
