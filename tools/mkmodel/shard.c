/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/shard.h"

#include <assert.h>
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
#define PRINT_NS 1000000000u     /* between lines that overwrite each other on a terminal */
#define PRINT_LOG_NS 5000000000u /* between lines of a log */

void progress_add(struct progress *p, uint64_t bytes)
{
	uint64_t now = now_ns();
	double seconds, rate;
	bool terminal;

	p->done += bytes;
	if (!p->shown)
		return;
	terminal = isatty(STDERR_FILENO);
	if (now - p->printed_ns < (terminal ? PRINT_NS : PRINT_LOG_NS) && p->done < p->total)
		return;
	seconds = (double)(now - p->started_ns) * 1e-9;
	rate = seconds > 0 ? (double)p->done / seconds : 0;
	fprintf(stderr, "%smoe-mkmodel: %3.0f %%  %.1f of %.1f GB  %.2f GB/s  ETA %.0f s%s", terminal ? "\r" : "",
		100.0 * (double)p->done / (double)p->total, (double)p->done * 1e-9, (double)p->total * 1e-9,
		rate * 1e-9, rate > 0 ? (double)(p->total - p->done) / rate : 0,
		terminal && p->done < p->total ? "  " : "\n");
	p->printed_ns = now;
}

static int compare_items(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	uint32_t wide_x = tensor_type_bytes(x->type), wide_y = tensor_type_bytes(y->type);

	if (wide_x != wide_y)
		return wide_x > wide_y ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* The 8 bytes of length and the header, padded so that the data begins at 8 modulo 16; malloc'ed. */
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

		fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu32, t->name, tensor_type_name(t->type),
			t->dims[0]);
		if (t->n_dims == 2)
			fprintf(f, ",%" PRIu32, t->dims[1]);
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

static int write_all(int fd, const char *path, const void *data, size_t bytes, struct moe_error *err)
{
	const char *at = data;

	while (bytes) {
		ssize_t n = write(fd, at, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return moe_error_sys(err, -errno, "%s", path);
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int write_item(int fd, const char *path, const struct item *item, uint64_t seed, struct normal *normal,
		      void *chunk, struct progress *progress, struct moe_error *err)
{
	uint32_t element = tensor_type_bytes(item->type);
	uint64_t state = normal_state(seed, item->name);
	int ret;

	normal_select(normal, item->type, item->mean, item->deviation);
	for (uint64_t done = 0; done < item->bytes;) {
		size_t bytes = MIN(item->bytes - done, CHUNK_BYTES);

		normal_fill(normal, &state, chunk, bytes / element);
		ret = write_all(fd, path, chunk, bytes, err);
		if (ret < 0)
			return ret;
		done += bytes;
		progress_add(progress, bytes);
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

static int write_content(int fd, const char *path, const struct item *items, uint64_t n, uint64_t seed,
			 struct normal *normal, struct progress *progress, struct moe_error *err)
{
	_cleanup_free_ char *header = NULL;
	_cleanup_free_ void *chunk = malloc(CHUNK_BYTES);
	size_t header_bytes = 0;
	int ret;

	ret = chunk ? format_header(&header, &header_bytes, items, n) : -ENOMEM;
	if (ret < 0)
		return moe_error_sys(err, ret, "%s", path);
	ret = check_limits(path, header_bytes, n, err);
	if (ret < 0)
		return ret;
	ret = write_all(fd, path, header, header_bytes, err);
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
