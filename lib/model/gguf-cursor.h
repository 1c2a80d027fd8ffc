/* SPDX-License-Identifier: MIT */
/*
 * gguf-cursor - how the header of one GGUF file is read: front to back, once, and nothing is believed. Each step shows
 * that its bytes are there, and numbers of things are bounded by the bytes that the things must have.
 *
 * Every function returns 0, -ENODATA where the header goes on beyond what was read and the file does too, or a code
 * whose line says what is wrong.
 */
#ifndef MODEL_GGUF_CURSOR_H
#define MODEL_GGUF_CURSOR_H

#include "model/gguf.h"

#define GGUF_KEPT_MAX 255u /* bytes of a key or string that is kept, and of a tensor's name */

struct cursor {
	const char *file;
	const uint8_t *base;
	uint64_t at, bytes, file_bytes; /* `bytes` of them are at `base` */
	uint32_t shard;
	struct moe_error *err;
	struct gguf found;
};

/* The next `n` bytes, a number, a string that stays where it is. */
int cursor_take(struct cursor *c, uint64_t n, const uint8_t **ret);
int cursor_u32(struct cursor *c, uint32_t *ret);
int cursor_u64(struct cursor *c, uint64_t *ret);
int cursor_string(struct cursor *c, const uint8_t **ret, uint64_t *ret_bytes);

/* A name as a string of its own: text, not too long, not empty. */
int cursor_name(struct cursor *c, const char *what, char **ret);

/* `count` things of at least `least` bytes each must fit in what is left of the file, and in memory. */
int cursor_count(struct cursor *c, const char *what, uint64_t count, uint64_t most, uint64_t least);

/* gguf-values.c and gguf-tensors.c: the two tables of the header, in this order, into `found`. */
int cursor_values(struct cursor *c, uint64_t count);
void gguf_value_clear(struct gguf_value *value);
int cursor_tensors(struct cursor *c, uint64_t count);

#endif
