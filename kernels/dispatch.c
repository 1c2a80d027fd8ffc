/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>

#include "kernels/detect.h"
#include "kernels/levels.h"

static const struct kernels *const tables[ISA_COUNT] = {
	[ISA_REF] = &kernels_ref,
	[ISA_AVX2] = &kernels_avx2,
	[ISA_AVX512] = &kernels_avx512,
};

enum isa isa_detect(const char **ret_why)
{
	struct cpu_words words;

	cpu_words_read(&words);
	return isa_decide(&words, ret_why);
}

const char *isa_name(enum isa isa)
{
	return tables[isa]->name;
}

int isa_from_name(const char *name, enum isa *ret)
{
	const enum isa best = isa_detect(NULL);

	if (strcmp(name, "auto") == 0) {
		*ret = best;
		return 0;
	}
	for (enum isa isa = 0; isa < ISA_COUNT; isa++) {
		if (strcmp(name, tables[isa]->name) != 0)
			continue;
		if (isa > best)
			return -ENOTSUP;
		*ret = isa;
		return 0;
	}
	return -EINVAL;
}

const struct kernels *kernels_get(enum isa isa)
{
	return tables[isa];
}
