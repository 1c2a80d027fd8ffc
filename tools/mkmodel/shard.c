/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/shard.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

#define CHUNK_BYTES (1u << 20)

static int compare_items(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	uint32_t wide_x = tensor_type_bytes(x->type), wide_y = tensor_type_bytes(y->type);

	if (wide_x != wide_y)
		return wide_x > wide_y ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int format_header(char **ret, size_t *ret_bytes, const struct item *items, uint64_t n)
{
	char *text = NULL;
	size_t bytes = 0;
	uint64_t offset = 0, length;
	FILE *f = open_memstream(&text, &bytes);

	if (!f)
		return -errno;
	fprintf(f, "%8s{\"__metadata__\":{\"format\":\"pt\"}", "");
	for (uint64_t i = 0; i < n; i++) {
		const struct item *t = &items[i];

		fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, tensor_type_name(t->type));
		for (uint32_t d = 0; d < t->n_dims; d++)
			fprintf(f, "%s%" PRIu64, d ? "," : "", t->dims[d]);
		fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + t->bytes);
		offset += t->bytes;
	}
	fputc('}', f);
	while (ftell(f) % 16 != 8)
		fputc(' ', f);
	if (fclose(f) != 0) {
		free(text);
		return -ENOMEM;
	}
	length = htole64(bytes - sizeof length);
	memcpy(text, &length, sizeof length);
	*ret = text;
	*ret_bytes = bytes;
	return 0;
}

static int write_item(int fd, const char *path, const struct item *item, uint64_t seed, struct normal *normal,
		      void *chunk, struct progress *progress, struct moe_error *err)
{
	uint32_t element = tensor_type_bytes(item->type);
	uint64_t state = normal_state(seed, item->name);
	int ret;

	if (item->draw == DRAW_NORMAL)
		normal_select(normal, item->type, item->mean, item->deviation);
	for (uint64_t done = 0; done < item->bytes;) {
		size_t bytes = MIN(item->bytes - done, CHUNK_BYTES);

		if (item->draw == DRAW_NORMAL)
			normal_fill(normal, &state, chunk, bytes / element);
		else
			normal_bytes(&state, chunk, bytes, item->first, item->mask);
		ret = progress_write(progress, fd, path, chunk, bytes, err);
		if (ret < 0)
			return ret;
		done += bytes;
	}
	return 0;
}

static int check_limits(const char *path, size_t header, uint64_t n, struct moe_error *err)
{
	if (header - 8 > SAFETENSORS_HEADER_MAX || n > SAFETENSORS_TENSORS_MAX)
		return moe_error_set(err, -E2BIG,
				     "%s: %" PRIu64
				     " tensors and a header of %zu bytes; readers expect at most %u and %u: "
				     "use more --shards",
				     path, n, header - 8, SAFETENSORS_TENSORS_MAX, SAFETENSORS_HEADER_MAX);
	return 0;
}

int shard_header(char **ret, size_t *ret_bytes, const char *path, const struct item *items, uint64_t n,
		 struct moe_error *err)
{
	_cleanup_free_ char *header = NULL;
	size_t bytes = 0;
	int r = format_header(&header, &bytes, items, n);

	if (r < 0)
		return moe_error_sys(err, r, "%s", path);
	r = check_limits(path, bytes, n, err);
	if (r < 0)
		return r;
	*ret = steal_ptr(header);
	*ret_bytes = bytes;
	return 0;
}

static int write_content(int fd, const char *path, const struct item *items, uint64_t n, uint64_t seed,
			 struct normal *normal, struct progress *progress, struct moe_error *err)
{
	_cleanup_free_ char *header = NULL;
	_cleanup_free_ void *chunk = malloc(CHUNK_BYTES);
	struct progress none = {0};
	size_t header_bytes;
	int ret;

	if (!chunk)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	ret = shard_header(&header, &header_bytes, path, items, n, err);
	if (ret < 0)
		return ret;
	ret = progress_write(&none, fd, path, header, header_bytes, err);
	for (uint64_t i = 0; ret == 0 && i < n; i++)
		ret = write_item(fd, path, &items[i], seed, normal, chunk, progress, err);
	return ret;
}

int shard_write(const char *path, struct item *items, uint64_t n, uint64_t seed, struct normal *normal,
		struct progress *progress, struct moe_error *err)
{
	int fd, ret;

	qsort(items, n, sizeof *items, compare_items);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", path);
	ret = write_content(fd, path, items, n, seed, normal, progress, err);
	if (close(fd) < 0 && ret == 0) /* some file systems report a full disk only now */
		ret = moe_error_sys(err, -errno, "%s", path);
	if (ret < 0)
		unlink(path);
	return ret;
}
