/* SPDX-License-Identifier: MIT */
/*
 * published-folder - a model folder of one shard that a test puts together tensor by tensor, with random bytes that
 * the test keeps for its own reading.
 */
#ifndef TESTS_PUBLISHED_FOLDER_H
#define TESTS_PUBLISHED_FOLDER_H

#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tap.h"

#define FOLDER_TENSORS_MAX 512

struct folder_tensor {
	char name[96], dtype[12];
	uint64_t dims[4], bytes;
	uint32_t n_dims;
	uint8_t *data;
};

struct folder {
	char path[64], config[2048];
	struct folder_tensor tensors[FOLDER_TENSORS_MAX];
	uint32_t n;
	unsigned long long seed;
};

static inline uint64_t folder_dtype_bytes(const char *dtype)
{
	return strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : strstr(dtype, "64") ? 8 : 1;
}

static inline void folder_fill(struct folder *f, struct folder_tensor *t)
{
	free(t->data);
	t->bytes = folder_dtype_bytes(t->dtype);
	for (uint32_t i = 0; i < t->n_dims; i++)
		t->bytes *= t->dims[i];
	t->data = malloc(t->bytes + 1);
	for (uint64_t i = 0; i < t->bytes; i++)
		t->data[i] = (uint8_t)(tap_random(&f->seed) >> 32);
}

__attribute__((format(printf, 7, 8))) static inline struct folder_tensor *folder_add(struct folder *f,
										     const char *dtype, uint64_t d0,
										     uint64_t d1, uint64_t d2,
										     uint64_t d3, const char *name, ...)
{
	struct folder_tensor *t = &f->tensors[f->n++];
	const uint64_t dims[] = {d0, d1, d2, d3};
	va_list args;

	if (f->n > FOLDER_TENSORS_MAX)
		abort();
	memset(t, 0, sizeof *t);
	va_start(args, name);
	vsnprintf(t->name, sizeof t->name, name, args);
	va_end(args);
	snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
	while (t->n_dims < 4 && dims[t->n_dims]) {
		t->dims[t->n_dims] = dims[t->n_dims];
		t->n_dims++;
	}
	folder_fill(f, t);
	return t;
}

__attribute__((format(printf, 2, 3))) static inline struct folder_tensor *folder_find(struct folder *f,
										      const char *name, ...)
{
	char text[96];
	va_list args;

	va_start(args, name);
	vsnprintf(text, sizeof text, name, args);
	va_end(args);
	for (uint32_t i = 0; i < f->n; i++)
		if (strcmp(f->tensors[i].name, text) == 0)
			return &f->tensors[i];
	return NULL;
}

static inline FILE *folder_open(const struct folder *f, const char *name)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s", f->path, name);
	file = fopen(path, "w");
	if (!file)
		abort();
	return file;
}

/* Writes config.json and model.safetensors; a second call writes them again. */
static inline void folder_write_all(struct folder *f)
{
	char *header = NULL;
	size_t header_bytes;
	FILE *memory = open_memstream(&header, &header_bytes), *file;
	uint64_t at = 0, length;

	if (!f->path[0]) {
		tap_tmp(f->path, "test-folder-XXXXXX");
		if (!mkdtemp(f->path))
			abort();
	}
	for (uint32_t i = 0; i < f->n; i++) {
		const struct folder_tensor *t = &f->tensors[i];

		fprintf(memory, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name, t->dtype);
		for (uint32_t d = 0; d < t->n_dims; d++)
			fprintf(memory, "%s%" PRIu64, d ? "," : "", t->dims[d]);
		fprintf(memory, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
		at += t->bytes;
	}
	fputs("}", memory);
	fclose(memory);
	length = header_bytes;
	file = folder_open(f, "model.safetensors");
	fwrite(&length, sizeof length, 1, file);
	fwrite(header, header_bytes, 1, file);
	for (uint32_t i = 0; i < f->n; i++)
		fwrite(f->tensors[i].data, 1, f->tensors[i].bytes, file);
	if (fclose(file))
		abort();
	free(header);
	file = folder_open(f, "config.json");
	fputs(f->config, file);
	if (fclose(file))
		abort();
}

static inline void folder_remove(struct folder *f)
{
	static const char *const names[] = {"model.safetensors", "config.json"};
	char path[128];

	for (unsigned i = 0; i < 2 && f->path[0]; i++) {
		snprintf(path, sizeof path, "%s/%s", f->path, names[i]);
		unlink(path);
	}
	if (f->path[0])
		rmdir(f->path);
	for (uint32_t i = 0; i < f->n; i++)
		free(f->tensors[i].data);
	memset(f, 0, sizeof *f);
}

#endif
