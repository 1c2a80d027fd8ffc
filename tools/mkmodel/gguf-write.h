/* SPDX-License-Identifier: MIT */
/*
 * gguf-write - a GGUF file, version 3: "GGUF", version, number of tensors, number of metadata entries; the metadata;
 * for each tensor its name, dimensions (columns first), type and offset; then, from the next multiple of 32 on, the
 * tensors' data, each of them padded to a multiple of 32. All of it little-endian.
 *
 * Metadata and tensors are named first, then the file is begun, then the data follow in the order of the tensors.
 */
#ifndef MKMODEL_GGUF_WRITE_H
#define MKMODEL_GGUF_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "moe-error.h"
#include "tools/mkmodel/progress.h"

struct gguf_writer;

int gguf_writer_new(struct gguf_writer **ret, const char *path, struct moe_error *err);
struct gguf_writer *gguf_writer_free(struct gguf_writer *writer); /* takes NULL, returns NULL */

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_f32(struct gguf_writer *writer, const char *key, double value);
void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value);

/* dims[0] is the number of columns. */
void gguf_writer_tensor(struct gguf_writer *writer, const char *name, const uint64_t *dims, uint32_t n_dims,
			uint32_t type, uint64_t bytes);

/* Creates the file, which must not be there yet, and writes all that precedes the data. */
int gguf_writer_begin(struct gguf_writer *writer, bool progress, struct moe_error *err);

/* The next bytes of the current tensor; after its last one the next tensor is the current one. */
int gguf_writer_data(struct gguf_writer *writer, const void *data, uint64_t bytes, struct moe_error *err);

/* Closes the file. `code` < 0, or a failure now: the file is removed. Returns the code. */
int gguf_writer_end(struct gguf_writer *writer, int code, struct moe_error *err);

#endif
