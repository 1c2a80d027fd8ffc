/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/gguf-write.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/mkmodel/place.h"

#define VERSION 3
#define ALIGN 32

enum value_type { VALUE_U32 = 4, VALUE_F32 = 6, VALUE_BOOL = 7, VALUE_STRING = 8 };

/* One part of the file's head, growing in memory. */
struct text {
	FILE *to;
	char *bytes;
	size_t size;
	uint64_t count;
};

struct gguf_writer {
	const char *path;
	struct text metadata, tensors;
	uint64_t *sizes; /* of the tensors' data */
	uint64_t room, offset;
	bool failed; /* memory was short */
	int fd;
	uint64_t current, done; /* tensor and its bytes so far */
	struct progress progress;
};

static void put_u32(FILE *to, uint32_t value)
{
	value = htole32(value);
	fwrite(&value, sizeof value, 1, to);
}

static void put_u64(FILE *to, uint64_t value)
{
	value = htole64(value);
	fwrite(&value, sizeof value, 1, to);
}

static void put_string(FILE *to, const char *text)
{
	put_u64(to, strlen(text));
	fputs(text, to);
}

static void put_key(struct gguf_writer *w, const char *key, enum value_type type)
{
	put_string(w->metadata.to, key);
	put_u32(w->metadata.to, type);
	w->metadata.count++;
}

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
	put_key(writer, key, VALUE_U32);
	put_u32(writer->metadata.to, value);
}

void gguf_writer_f32(struct gguf_writer *writer, const char *key, double value)
{
	const float single = (float)value;
	uint32_t bits;

	memcpy(&bits, &single, sizeof bits);
	put_key(writer, key, VALUE_F32);
	put_u32(writer->metadata.to, bits);
}

void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value)
{
	put_key(writer, key, VALUE_BOOL);
	fputc(value, writer->metadata.to);
}

void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value)
{
	put_key(writer, key, VALUE_STRING);
	put_string(writer->metadata.to, value);
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, const uint64_t *dims, uint32_t n_dims, uint32_t type,
			uint64_t bytes)
{
	if (w->tensors.count == w->room) {
		const uint64_t room = w->room ? 2 * w->room : 256;
		uint64_t *grown = realloc(w->sizes, room * sizeof *grown);

		if (!grown) {
			w->failed = true;
			return;
		}
		w->sizes = grown;
		w->room = room;
	}
	w->sizes[w->tensors.count++] = bytes;
	put_string(w->tensors.to, name);
	put_u32(w->tensors.to, n_dims);
	for (uint32_t i = 0; i < n_dims; i++)
		put_u64(w->tensors.to, dims[i]);
	put_u32(w->tensors.to, type);
	put_u64(w->tensors.to, w->offset);
	w->offset += ALIGN_UP(bytes, ALIGN);
}

int gguf_writer_new(struct gguf_writer **ret, const char *path, struct moe_error *err)
{
	struct gguf_writer *w = calloc(1, sizeof *w);

	if (w) {
		w->path = path;
		w->fd = -1;
		w->metadata.to = open_memstream(&w->metadata.bytes, &w->metadata.size);
		w->tensors.to = open_memstream(&w->tensors.bytes, &w->tensors.size);
	}
	if (!w || !w->metadata.to || !w->tensors.to) {
		gguf_writer_free(w);
		return moe_error_sys(err, -ENOMEM, "%s", path);
	}
	*ret = w;
	return 0;
}

static void text_free(struct text *text)
{
	if (text->to)
		fclose(text->to);
	free(text->bytes);
}

struct gguf_writer *gguf_writer_free(struct gguf_writer *writer)
{
	if (!writer)
		return NULL;
	text_free(&writer->metadata);
	text_free(&writer->tensors);
	free(writer->sizes);
	close_fd(writer->fd);
	free(writer);
	return NULL;
}

static int pad(struct gguf_writer *w, uint64_t at, struct moe_error *err)
{
	static const uint8_t zeros[ALIGN];
	struct progress none = {0};

	return progress_write(&none, w->fd, w->path, zeros, ALIGN_UP(at, ALIGN) - at, err);
}

static int write_head(struct gguf_writer *w, struct moe_error *err)
{
	const uint32_t version = htole32(VERSION);
	const uint64_t tensors = htole64(w->tensors.count), entries = htole64(w->metadata.count);
	struct progress none = {0};
	uint8_t head[24];
	int r;

	memcpy(head, "GGUF", 4);
	memcpy(head + 4, &version, 4);
	memcpy(head + 8, &tensors, 8);
	memcpy(head + 16, &entries, 8);
	r = progress_write(&none, w->fd, w->path, head, sizeof head, err);
	if (r == 0)
		r = progress_write(&none, w->fd, w->path, w->metadata.bytes, w->metadata.size, err);
	if (r == 0)
		r = progress_write(&none, w->fd, w->path, w->tensors.bytes, w->tensors.size, err);
	return r < 0 ? r : pad(w, sizeof head + w->metadata.size + w->tensors.size, err);
}

int gguf_writer_begin(struct gguf_writer *w, bool progress, struct moe_error *err)
{
	int r;

	if (fflush(w->metadata.to) != 0 || fflush(w->tensors.to) != 0 || w->failed)
		return moe_error_sys(err, -ENOMEM, "%s", w->path);
	w->fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (w->fd < 0)
		return moe_error_sys(err, -errno, "%s", w->path);
	w->progress = progress_start(progress, w->offset);
	r = place_check_room(w->path, w->offset, err);
	return r < 0 ? r : write_head(w, err);
}

int gguf_writer_data(struct gguf_writer *w, const void *data, uint64_t bytes, struct moe_error *err)
{
	int r;

	assert(w->current < w->tensors.count && w->done + bytes <= w->sizes[w->current]);
	r = progress_write(&w->progress, w->fd, w->path, data, bytes, err);
	if (r < 0)
		return r;
	w->done += bytes;
	if (w->done < w->sizes[w->current])
		return 0;
	r = pad(w, w->done, err);
	w->current++;
	w->done = 0;
	return r;
}

int gguf_writer_end(struct gguf_writer *writer, int code, struct moe_error *err)
{
	const int fd = steal_fd(&writer->fd);

	if (fd < 0)
		return code;
	assert(code < 0 || writer->current == writer->tensors.count);
	if (close(fd) < 0 && code == 0)
		code = moe_error_sys(err, -errno, "%s", writer->path);
	if (code < 0)
		unlink(writer->path);
	return code;
}
