/* SPDX-License-Identifier: MIT */
/*
 * quantize - a folder of BF16 or F16 experts in a form in which models are published: another folder (form.h), or one
 * GGUF file (gguf-model.h). Only the experts change; all other weights keep their values.
 */
#ifndef MKMODEL_QUANTIZE_H
#define MKMODEL_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

struct quantize_request {
	const char *folder, *out; /* `out` ends in .gguf or is a folder, new or empty */
	const char *format;
	const char *down_format; /* GGUF: of the down matrices, or NULL */
	uint32_t down_every;     /* GGUF: in each Nth layer, from the first on; 0: in all */
	bool progress;           /* lines on stderr when it takes long */
};

struct quantize_result {
	uint64_t n_tensors, bytes;
};

/* Is there such a format for such an output? 0 or -EINVAL; it needs no model. */
int quantize_check(const struct quantize_request *request, struct moe_error *err);
int quantize(const struct quantize_request *request, struct quantize_result *ret, struct moe_error *err);

#endif
