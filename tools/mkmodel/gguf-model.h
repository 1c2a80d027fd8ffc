/* SPDX-License-Identifier: MIT */
/*
 * gguf-model - a model as llama.cpp's converter writes it: its architecture's metadata, its names, its order of rows.
 *
 * Vectors, norms and routers are F32, other dense matrices keep BF16 or F16. All experts of a layer lie in one tensor
 * for each of gate, up and down. There is no tokenizer in the file (tokenizer.ggml.model "none").
 */
#ifndef MKMODEL_GGUF_MODEL_H
#define MKMODEL_GGUF_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/mkmodel/ggml.h"
#include "tools/mkmodel/gguf-write.h"
#include "tools/mkmodel/reader.h"

struct gguf_choice {
	const struct ggml_type *type; /* of the experts */
	const struct ggml_type
		*down; /* of the down matrices in each `down_every`th layer, from the first on, or NULL */
	uint32_t down_every;
};

/* `path` does not exist yet. */
int gguf_model_write(const struct reader *reader, const char *path, const struct gguf_choice *choice, bool progress,
		     uint64_t *ret_tensors, uint64_t *ret_bytes, struct moe_error *err);

/* -- the parts of it ---------------------------------------------------------------------------------------------- */

/* The architecture's name, or NULL when this family is not written. */
const char *gguf_model_architecture(enum model_family family);

/* All metadata of the model. */
void gguf_model_metadata(struct gguf_writer *writer, const struct model_config *config, const char *name,
			 uint32_t file_type);

/* The name of a tensor beside the experts, malloc'ed; NULL: it has none in such a file. */
char *gguf_model_name(enum model_family family, const char *name);

#endif
