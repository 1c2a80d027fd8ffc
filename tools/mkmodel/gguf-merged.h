/* SPDX-License-Identifier: MIT */
/*
 * gguf-merged - gpt-oss's experts in a GGUF file: the same numbers, ordered anew. Rows of gate and up are told apart,
 * an exponent goes before its codes, and a byte holds weights that are 16 apart instead of neighbours.
 */
#ifndef MKMODEL_GGUF_MERGED_H
#define MKMODEL_GGUF_MERGED_H

#include "tools/mkmodel/gguf-write.h"
#include "tools/mkmodel/reader.h"

/* One of the tensors that hold all experts of a layer. */
bool gguf_merged_is(const struct tensor *tensor);

/* Names all of them to the writer, and adds to the counts. */
int gguf_merged_add(const struct reader *reader, struct gguf_writer *writer, uint64_t *n_tensors, uint64_t *bytes,
		    struct moe_error *err);

/* Writes their data, in the same order. */
int gguf_merged_write(const struct reader *reader, struct gguf_writer *writer, struct moe_error *err);

#endif
