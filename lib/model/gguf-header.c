/* SPDX-License-Identifier: MIT */
/*
 * The header of one GGUF file: its start, its two tables, and how much of the file has to be read for them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "model/gguf-cursor.h"

#define MAGIC "GGUF"
#define FIRST_READ (1u << 20)

static void cursor_clear(struct cursor *c)
{
	gguf_clear(&c->found);
}

static int read_start(struct cursor *c, uint64_t *ret_tensors, uint64_t *ret_values)
{
	const uint8_t *magic = NULL;
	uint32_t version;
	int r;

	r = cursor_take(c, strlen(MAGIC), &magic);
	if (r < 0)
		return r;
	if (memcmp(magic, MAGIC, strlen(MAGIC)) != 0)
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found bytes %02x %02x %02x %02x first; expected \"" MAGIC
				     "\" (is this a GGUF file?)",
				     c->file, magic[0], magic[1], magic[2], magic[3]);
	r = cursor_u32(c, &version);
	if (r < 0)
		return r;
	if (version != 2 && version != 3)
		return moe_error_set(c->err, -ENOTSUP,
				     "%s: header: found version %u%s; expected 2 or 3: convert the model anew", c->file,
				     version, version & 0xffff ? "" : " (a big-endian file)");
	r = cursor_u64(c, ret_tensors);
	return r < 0 ? r : cursor_u64(c, ret_values);
}

int gguf_parse(const char *file, const void *header, uint64_t bytes, uint64_t file_bytes, uint32_t shard,
	       struct gguf *ret, struct moe_error *err)
{
	_cleanup_(cursor_clear) struct cursor c = {.file = file,
						   .base = header,
						   .bytes = MIN(bytes, file_bytes),
						   .file_bytes = file_bytes,
						   .shard = shard,
						   .err = err};
	uint64_t tensors = 0, values = 0;
	int r;

	r = read_start(&c, &tensors, &values);
	if (r < 0)
		return r;
	r = cursor_values(&c, values);
	if (r < 0)
		return r;
	r = cursor_tensors(&c, tensors);
	if (r < 0)
		return r;
	*ret = c.found;
	c.found = (struct gguf){0};
	return 0;
}

/* A header's length is known only when it has been read: what is read grows until it is enough. */
int gguf_read(const char *path, uint32_t shard, uint64_t *ret_file_bytes, struct gguf *ret, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	uint64_t file_bytes;
	int r;

	fd = file_open(path, &file_bytes, err);
	if (fd < 0)
		return fd;
	for (uint64_t bytes = FIRST_READ; bytes <= GGUF_HEADER_MAX; bytes *= 4) {
		const uint64_t n = MIN(bytes, file_bytes);
		_cleanup_free_ uint8_t *header = malloc(n ? n : 1);

		if (!header)
			return moe_error_sys(err, -ENOMEM, "%s", path);
		r = file_read_at(fd, path, header, n, 0, err);
		if (r < 0)
			return r;
		r = gguf_parse(path, header, n, file_bytes, shard, ret, err);
		if (r == 0)
			*ret_file_bytes = file_bytes;
		if (r != -ENODATA)
			return r;
	}
	return moe_error_set(err, -E2BIG, "%s: header: found more than %u bytes; expected less", path, GGUF_HEADER_MAX);
}

void gguf_clear(struct gguf *gguf)
{
	for (uint64_t i = 0; i < gguf->n_values; i++)
		gguf_value_clear(&gguf->values[i]);
	free(gguf->values);
	tensors_free(gguf->tensors, gguf->n_tensors);
	*gguf = (struct gguf){0};
}

struct gguf *gguf_free(struct gguf *gguf)
{
	if (gguf)
		gguf_clear(gguf);
	free(gguf);
	return NULL;
}
