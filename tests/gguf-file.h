/* SPDX-License-Identifier: MIT */
/*
 * gguf-file - a small GGUF file, put together value by value and tensor by tensor; what a tensor holds is random.
 *
 *     struct gguf_file f = gf_new(seed);
 *     gf_string(&f, "general.architecture", "qwen3moe");
 *     gf_tensor(&f, "blk.0.ffn_up_exps.weight", GF_Q8_0, 3, (uint64_t[]){64, 32, 4}); (fastest size first)
 *     gf_write(&f, path); gf_free(&f);
 */
#ifndef TESTS_GGUF_FILE_H
#define TESTS_GGUF_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"

/* ggml's numbers. */
enum gf_type {
	GF_F32 = 0,
	GF_F16 = 1,
	GF_Q4_0 = 2,
	GF_Q4_1 = 3,
	GF_Q5_0 = 6,
	GF_Q8_0 = 8,
	GF_Q4_K = 12,
	GF_Q5_K = 13,
	GF_Q6_K = 14,
	GF_IQ4_XS = 23,
	GF_BF16 = 30,
	GF_MXFP4 = 39
};

struct gf_bytes {
	uint8_t *at;
	size_t n, room;
};

struct gguf_file {
	struct gf_bytes values, tensors, data;
	uint64_t n_values, n_tensors;
	uint32_t version;
	uint64_t alignment;
	unsigned long long random;
};

__attribute__((unused)) static void gf_append(struct gf_bytes *b, const void *bytes, size_t n)
{
	if (b->n + n > b->room) {
		b->room = (b->n + n) * 2;
		b->at = realloc(b->at, b->room);
	}
	if (n > 0 && !b->at)
		abort();
	if (n > 0)
		memcpy(b->at + b->n, bytes, n);
	b->n += n;
}

__attribute__((unused)) static void gf_u64_to(struct gf_bytes *b, uint64_t value)
{
	gf_append(b, &value, 8);
}

__attribute__((unused)) static void gf_u32_to(struct gf_bytes *b, uint32_t value)
{
	gf_append(b, &value, 4);
}

__attribute__((unused)) static void gf_string_to(struct gf_bytes *b, const char *text)
{
	gf_u64_to(b, strlen(text));
	gf_append(b, text, strlen(text));
}

__attribute__((unused)) static struct gguf_file gf_new(unsigned long long seed)
{
	return (struct gguf_file){.version = 3, .alignment = 32, .random = seed};
}

__attribute__((unused)) static void gf_free(struct gguf_file *f)
{
	free(f->values.at);
	free(f->tensors.at);
	free(f->data.at);
	*f = gf_new(0);
}

/* A value of the file's type `type` (0: u8, 4: u32, 5: i32, 6: f32, 7: bool, 9: array, 10: u64), as bytes. */
__attribute__((unused)) static void gf_value(struct gguf_file *f, const char *key, uint32_t type, const void *bytes,
					     size_t n)
{
	gf_string_to(&f->values, key);
	gf_u32_to(&f->values, type);
	gf_append(&f->values, bytes, n);
	f->n_values++;
}

__attribute__((unused)) static void gf_u32(struct gguf_file *f, const char *key, uint32_t value)
{
	gf_value(f, key, 4, &value, 4);
}

__attribute__((unused)) static void gf_u16(struct gguf_file *f, const char *key, uint16_t value)
{
	gf_value(f, key, 2, &value, 2);
}

__attribute__((unused)) static void gf_f32(struct gguf_file *f, const char *key, float value)
{
	gf_value(f, key, 6, &value, 4);
}

__attribute__((unused)) static void gf_bool(struct gguf_file *f, const char *key, bool value)
{
	gf_value(f, key, 7, &value, 1);
}

__attribute__((unused)) static void gf_string(struct gguf_file *f, const char *key, const char *text)
{
	gf_value(f, key, 8, NULL, 0);
	gf_string_to(&f->values, text);
}

/* As vocabularies are: an array of n strings. */
__attribute__((unused)) static void gf_strings(struct gguf_file *f, const char *key, uint64_t n)
{
	char text[32];

	gf_value(f, key, 9, NULL, 0);
	gf_u32_to(&f->values, 8);
	gf_u64_to(&f->values, n);
	for (uint64_t i = 0; i < n; i++) {
		snprintf(text, sizeof text, "token-%llu", (unsigned long long)i);
		gf_string_to(&f->values, text);
	}
}

__attribute__((unused)) static uint64_t gf_block(enum gf_type type, uint64_t *ret_bytes)
{
	switch (type) {
	case GF_F32:
		return *ret_bytes = 4, 1;
	case GF_F16:
	case GF_BF16:
		return *ret_bytes = 2, 1;
	case GF_Q4_0:
		return *ret_bytes = 18, 32;
	case GF_Q4_1:
		return *ret_bytes = 20, 32;
	case GF_Q5_0:
		return *ret_bytes = 22, 32;
	case GF_Q8_0:
		return *ret_bytes = 34, 32;
	case GF_MXFP4:
		return *ret_bytes = 17, 32;
	case GF_Q4_K:
		return *ret_bytes = 144, 256;
	case GF_Q5_K:
		return *ret_bytes = 176, 256;
	case GF_Q6_K:
		return *ret_bytes = 210, 256;
	case GF_IQ4_XS:
		return *ret_bytes = 136, 256;
	}
	abort();
}

/* The name, sizes and place of a tensor without its data. */
__attribute__((unused)) static void gf_describe(struct gguf_file *f, const char *name, uint32_t type, uint32_t n_dims,
						const uint64_t *dims, uint64_t offset)
{
	gf_string_to(&f->tensors, name);
	gf_u32_to(&f->tensors, n_dims);
	for (uint32_t i = 0; i < n_dims; i++)
		gf_u64_to(&f->tensors, dims[i]);
	gf_u32_to(&f->tensors, type);
	gf_u64_to(&f->tensors, offset);
	f->n_tensors++;
}

__attribute__((unused)) static void gf_tensor(struct gguf_file *f, const char *name, enum gf_type type, uint32_t n_dims,
					      const uint64_t *dims)
{
	uint64_t bytes, block = gf_block(type, &bytes), elements = 1;

	for (uint32_t i = 0; i < n_dims; i++)
		elements *= dims[i];
	while (f->data.n % f->alignment)
		gf_append(&f->data, "", 1);
	gf_describe(f, name, type, n_dims, dims, f->data.n);
	for (uint64_t i = 0, n = elements / block * bytes; i < n; i += 8) {
		const unsigned long long word = tap_random(&f->random);

		gf_append(&f->data, &word, n - i < 8 ? n - i : 8);
	}
}

/* Where a tensor's data begin in the file: the table of tensors, read once more. */
__attribute__((unused)) static uint64_t gf_offset(const struct gguf_file *f, const char *name)
{
	uint64_t data = 24 + f->values.n + f->tensors.n, length, offset;
	uint32_t n_dims;

	data = (data + f->alignment - 1) / f->alignment * f->alignment;
	for (const uint8_t *p = f->tensors.at; p < f->tensors.at + f->tensors.n;) {
		const char *found = (const char *)p + 8;

		memcpy(&length, p, 8);
		p += 8 + length;
		memcpy(&n_dims, p, 4);
		p += 4 + n_dims * 8 + 4;
		memcpy(&offset, p, 8);
		p += 8;
		if (length == strlen(name) && memcmp(found, name, length) == 0)
			return data + offset;
	}
	abort();
}

/* The whole file, malloc'ed. */
__attribute__((unused)) static uint8_t *gf_bytes(const struct gguf_file *f, size_t *ret)
{
	struct gf_bytes b = {0};

	gf_append(&b, "GGUF", 4);
	gf_u32_to(&b, f->version);
	gf_u64_to(&b, f->n_tensors);
	gf_u64_to(&b, f->n_values);
	gf_append(&b, f->values.at, f->values.n);
	gf_append(&b, f->tensors.at, f->tensors.n);
	while (b.n % f->alignment)
		gf_append(&b, "", 1);
	gf_append(&b, f->data.at, f->data.n);
	*ret = b.n;
	return b.at;
}

__attribute__((unused)) static void gf_write_bytes(const char *path, const void *bytes, size_t n)
{
	FILE *file = fopen(path, "wb");

	if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
		abort();
}

__attribute__((unused)) static void gf_write(const struct gguf_file *f, const char *path)
{
	size_t n;
	uint8_t *bytes = gf_bytes(f, &n);

	gf_write_bytes(path, bytes, n);
	free(bytes);
}

/* The three expert tensors of a layer. */
__attribute__((unused)) static void gf_experts(struct gguf_file *f, uint32_t layer, enum gf_type gate_up,
					       enum gf_type down, uint64_t hidden, uint64_t inter, uint64_t experts)
{
	char name[64];

	snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.weight", layer);
	gf_tensor(f, name, gate_up, 3, (uint64_t[]){hidden, inter, experts});
	snprintf(name, sizeof name, "blk.%u.ffn_up_exps.weight", layer);
	gf_tensor(f, name, gate_up, 3, (uint64_t[]){hidden, inter, experts});
	snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", layer);
	gf_tensor(f, name, down, 3, (uint64_t[]){inter, hidden, experts});
}

/* The metadata that every architecture has; `inter` by the name of its own. */
__attribute__((unused)) static void gf_config(struct gguf_file *f, const char *architecture, uint32_t layers,
					      uint32_t hidden, uint32_t experts, uint32_t topk, const char *inter_key,
					      uint32_t inter)
{
	const struct {
		const char *key;
		uint32_t value;
	} numbers[] = {{"block_count", layers},
		       {"embedding_length", hidden},
		       {"expert_count", experts},
		       {"expert_used_count", topk},
		       {inter_key, inter}};
	char key[96];

	gf_string(f, "general.architecture", architecture);
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		snprintf(key, sizeof key, "%s.%s", architecture, numbers[i].key);
		gf_u32(f, key, numbers[i].value);
	}
}

#endif
