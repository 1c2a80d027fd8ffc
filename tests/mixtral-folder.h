/* SPDX-License-Identifier: MIT */
/*
 * mixtral-folder - a small model folder in Mixtral's published form, its bytes a function of (layer, expert, part).
 *
 * The same experts can be laid out in any number of shards and in any order, with data sections that begin at odd
 * offsets and other tensors in between, so that nothing in a file is aligned to anything.
 */
#ifndef TESTS_MIXTRAL_FOLDER_H
#define TESTS_MIXTRAL_FOLDER_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/remove.h"
#include "tests/tap.h"

struct mixtral {
	char path[64];
	uint32_t layers, experts, hidden, inter;
	uint32_t shards;
	unsigned long long order; /* seed of the order of tensors; the content does not depend on it */
	const char *dtype;        /* "BF16" or "F16" */
	int missing;              /* leave this expert tensor out, -1: none */
};

struct mixtral_tensor {
	char name[96], shape[32];
	uint64_t bytes;
	unsigned long long seed; /* of the content */
	const char *dtype;
	uint32_t shard;
};

static inline uint64_t mixtral_part_bytes(const struct mixtral *m)
{
	return (uint64_t)m->hidden * m->inter * 2;
}

/* Parts are gate, up, down: w1, w3, w2 in the published names. */
static inline void mixtral_content(uint8_t *ret, uint64_t bytes, unsigned long long seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		ret[i] = (uint8_t)(tap_random(&seed) >> 24);
}

static inline unsigned long long mixtral_seed(uint32_t layer, uint32_t expert, uint32_t part)
{
	return 1 + layer * 1000003ull + expert * 1009ull + part * 7ull;
}

static inline uint32_t mixtral_list(const struct mixtral *m, struct mixtral_tensor *list)
{
	static const char *const names[] = {"w1", "w3", "w2"};
	unsigned long long order = m->order;
	uint32_t n = 0;

	for (uint32_t i = 0; i < m->layers * m->experts * 3; i++) {
		const uint32_t layer = i / 3 / m->experts, expert = i / 3 % m->experts, part = i % 3;
		struct mixtral_tensor *t = &list[n];

		if ((int)i == m->missing)
			continue;
		snprintf(t->name, sizeof t->name, "model.layers.%u.block_sparse_moe.experts.%u.%s.weight", layer,
			 expert, names[part]);
		snprintf(t->shape, sizeof t->shape, "%u,%u", part == 2 ? m->hidden : m->inter,
			 part == 2 ? m->inter : m->hidden);
		t->bytes = mixtral_part_bytes(m);
		t->seed = mixtral_seed(layer, expert, part);
		t->dtype = m->dtype;
		n++;
	}
	for (uint32_t i = 0; i < m->layers * 2; i++) { /* tensors that no expert needs, of odd sizes */
		struct mixtral_tensor *t = &list[n++];

		t->bytes = i % 2 ? 33 + i : 9001 + i;
		snprintf(t->name, sizeof t->name, "model.layers.%u.other.%u", i / 2, i % 2);
		snprintf(t->shape, sizeof t->shape, "%" PRIu64, t->bytes);
		t->seed = i + 77;
		t->dtype = "U8";
	}
	for (uint32_t i = n - 1; i > 0; i--) {
		const uint32_t j = (uint32_t)(tap_random(&order) % (i + 1));
		const struct mixtral_tensor t = list[i];

		list[i] = list[j];
		list[j] = t;
	}
	for (uint32_t i = 0; i < n; i++)
		list[i].shard = (uint32_t)((uint64_t)i * m->shards / n);
	return n;
}

static inline void mixtral_shard_name(const struct mixtral *m, uint32_t shard, char *ret, size_t size)
{
	if (m->shards == 1)
		snprintf(ret, size, "model.safetensors");
	else
		snprintf(ret, size, "model-%05u-of-%05u.safetensors", shard + 1, m->shards);
}

static inline FILE *mixtral_open(const struct mixtral *m, const char *name, const char *mode)
{
	char path[160];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", m->path, name);
	f = fopen(path, mode);
	if (!f)
		abort();
	return f;
}

static inline void mixtral_write_shard(const struct mixtral *m, const struct mixtral_tensor *list, uint32_t n,
				       uint32_t shard)
{
	char *header = NULL, name[64];
	size_t bytes;
	FILE *memory = open_memstream(&header, &bytes), *f;
	uint64_t at = 0, length;

	fputs("{\"__metadata__\":{\"format\":\"pt\"}", memory);
	for (uint32_t i = 0; i < n; i++) {
		if (list[i].shard != shard)
			continue;
		fprintf(memory, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			list[i].name, list[i].dtype, list[i].shape, at, at + list[i].bytes);
		at += list[i].bytes;
	}
	fputc('}', memory);
	while (ftell(memory) % 8 != (long)(1 + shard % 7)) /* data begins at an odd place */
		fputc(' ', memory);
	fclose(memory);
	mixtral_shard_name(m, shard, name, sizeof name);
	f = mixtral_open(m, name, "w");
	length = bytes;
	fwrite(&length, sizeof length, 1, f);
	fwrite(header, bytes, 1, f);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t *content;

		if (list[i].shard != shard)
			continue;
		content = malloc(list[i].bytes);
		mixtral_content(content, list[i].bytes, list[i].seed);
		fwrite(content, list[i].bytes, 1, f);
		free(content);
	}
	if (fclose(f))
		abort();
	free(header);
}

/* Makes m->path. */
static inline void mixtral_write(struct mixtral *m)
{
	struct mixtral_tensor *list = calloc(m->layers * (m->experts * 3 + 2), sizeof *list);
	const uint32_t n = mixtral_list(m, list);
	char name[64];
	FILE *f;

	tap_tmp(m->path, "test-mixtral-XXXXXX");
	if (!mkdtemp(m->path))
		abort();
	f = mixtral_open(m, "config.json", "w");
	fprintf(f,
		"{\"model_type\":\"mixtral\",\"architectures\":[\"MixtralForCausalLM\"],\"num_hidden_layers\":%u,"
		"\"num_local_experts\":%u,\"num_experts_per_tok\":2,\"hidden_size\":%u,\"intermediate_size\":%u,"
		"\"hidden_act\":\"silu\"}",
		m->layers, m->experts, m->hidden, m->inter);
	fclose(f);
	for (uint32_t shard = 0; shard < m->shards; shard++)
		mixtral_write_shard(m, list, n, shard);
	if (m->shards > 1) {
		f = mixtral_open(m, "model.safetensors.index.json", "w");
		fputs("{\"weight_map\":{", f);
		for (uint32_t i = 0; i < n; i++) {
			mixtral_shard_name(m, list[i].shard, name, sizeof name);
			fprintf(f, "%s\"%s\":\"%s\"", i ? "," : "", list[i].name, name);
		}
		fputs("}}", f);
		fclose(f);
	}
	free(list);
}

static inline void mixtral_remove(const struct mixtral *m)
{
	remove_all(m->path);
}

#endif
