/* SPDX-License-Identifier: MIT */
/*
 * safetensors - one shard's header becomes checked tensors.
 *
 * File: 8 bytes little-endian header length n | n bytes of JSON | data. The JSON maps each tensor's name to its dtype,
 * shape and data_offsets [begin, end) in the data; "__metadata__" is an object of strings that we ignore. Nothing here
 * trusts a number: products and ends are checked, and the tensors must tile the data from its first to its last byte.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "model/gguf.h"
#include "model/model.h"

#define NAME_MAX_BYTES 255
#define LENGTH_BYTES 8

static const struct {
	const char *name;
	uint32_t bytes;
} types[] = {
	[TENSOR_F64] = {"F64", 8},   [TENSOR_F32] = {"F32", 4},         [TENSOR_F16] = {"F16", 2},
	[TENSOR_BF16] = {"BF16", 2}, [TENSOR_F8_E4M3] = {"F8_E4M3", 1}, [TENSOR_F8_E5M2] = {"F8_E5M2", 1},
	[TENSOR_I64] = {"I64", 8},   [TENSOR_I32] = {"I32", 4},         [TENSOR_I16] = {"I16", 2},
	[TENSOR_I8] = {"I8", 1},     [TENSOR_U8] = {"U8", 1},           [TENSOR_U16] = {"U16", 2},
	[TENSOR_U32] = {"U32", 4},   [TENSOR_U64] = {"U64", 8},         [TENSOR_BOOL] = {"BOOL", 1},
};

const char *tensor_type_name(enum tensor_type type)
{
	return type < TENSOR_GGML ? types[type].name : gguf_tensor_type(type)->name;
}

uint32_t tensor_type_bytes(enum tensor_type type)
{
	return type < TENSOR_GGML ? types[type].bytes : gguf_tensor_type(type)->bytes;
}

struct tensor *tensors_free(struct tensor *tensors, uint64_t n_tensors)
{
	for (uint64_t i = 0; tensors && i < n_tensors; i++)
		free((char *)tensors[i].name);
	free(tensors);
	return NULL;
}

struct parser {
	const char *file;
	uint64_t data_offset, data_bytes; /* of the data section in the file */
	uint32_t shard;
	struct moe_error *err;
	struct tensor *tensors; /* owned */
	uint64_t n_tensors;
};

static void parser_free(struct parser *p)
{
	tensors_free(p->tensors, p->n_tensors);
}

static int check_name(const struct parser *p, const char *name)
{
	size_t length = strlen(name);
	char words[64];

	if (length == 0 || length > NAME_MAX_BYTES)
		return moe_error_set(p->err, length ? -E2BIG : -EINVAL,
				     "%s: header: found a tensor name of %zu bytes (\"%s\"); expected 1 to %d", p->file,
				     length, file_clean(words, sizeof words, name), NAME_MAX_BYTES);
	for (const char *c = name; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return moe_error_set(
				p->err, -EINVAL,
				"%s: header: tensor name \"%s\" contains a control character; expected text", p->file,
				file_clean(words, sizeof words, name));
	return 0;
}

static int read_type(const struct parser *p, const char *name, const json_t *value, enum tensor_type *ret)
{
	char found[80];

	if (!json_is_string(value))
		return moe_error_set(p->err, -EINVAL, "%s: tensor %s: field \"dtype\": found %s; expected a string",
				     p->file, name, value ? file_describe(found, sizeof found, value) : "none");
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		if (strcmp(json_string_value(value), types[i].name) == 0) {
			*ret = (enum tensor_type)i;
			return 0;
		}
	}
	return moe_error_set(p->err, -ENOTSUP,
			     "%s: tensor %s: unknown dtype: found %s; expected BF16, F16 or another plain type of "
			     "safetensors",
			     p->file, name, file_describe(found, sizeof found, value));
}

/* Fills n_dims, dims and bytes. */
static int read_shape(const struct parser *p, const json_t *value, struct tensor *t)
{
	char found[80];
	size_t n = json_array_size(value);
	uint64_t bytes = tensor_type_bytes(t->type);

	if (!json_is_array(value) || n > TENSOR_DIMS_MAX)
		return moe_error_set(p->err, -EINVAL,
				     "%s: tensor %s: field \"shape\": found %s; expected an array of at most %d sizes",
				     p->file, t->name, value ? file_describe(found, sizeof found, value) : "none",
				     TENSOR_DIMS_MAX);
	for (size_t i = 0; i < n; i++) {
		const json_t *dim = json_array_get(value, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return moe_error_set(p->err, -EINVAL,
					     "%s: tensor %s: field \"shape\": found %s; expected sizes of 0 or more",
					     p->file, t->name, file_describe(found, sizeof found, dim));
		t->dims[i] = (uint64_t)json_integer_value(dim);
		if (!checked_mul(&bytes, bytes, t->dims[i]))
			return moe_error_set(p->err, -EINVAL,
					     "%s: tensor %s: field \"shape\": the size overflows 64 bits; expected at "
					     "most the file's %llu bytes of data",
					     p->file, t->name, (unsigned long long)p->data_bytes);
	}
	t->n_dims = (uint32_t)n;
	t->bytes = bytes;
	return 0;
}

/* Fills offset; begin and end must lie in the data and span exactly t->bytes. */
static int read_offsets(const struct parser *p, const json_t *value, struct tensor *t)
{
	const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
	uint64_t begin, end;
	char found[80];

	if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return moe_error_set(p->err, -EINVAL,
				     "%s: tensor %s: field \"data_offsets\": found %s; expected two integers", p->file,
				     t->name,
				     !value                        ? "none"
				     : json_array_size(value) == 2 ? "other types"
								   : file_describe(found, sizeof found, value));
	if (json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first) ||
	    (uint64_t)json_integer_value(last) > p->data_bytes)
		return moe_error_set(
			p->err, -EINVAL,
			"%s: tensor %s: field \"data_offsets\": found [%lld, %lld], out of range; expected "
			"0 <= begin <= end <= %llu, the bytes that the file holds (is it truncated?)",
			p->file, t->name, (long long)json_integer_value(first), (long long)json_integer_value(last),
			(unsigned long long)p->data_bytes);
	begin = (uint64_t)json_integer_value(first);
	end = (uint64_t)json_integer_value(last);
	if (end - begin != t->bytes)
		return moe_error_set(
			p->err, -EINVAL,
			"%s: tensor %s: field \"data_offsets\": found %llu bytes; expected %llu, as dtype %s "
			"and shape say",
			p->file, t->name, (unsigned long long)(end - begin), (unsigned long long)t->bytes,
			tensor_type_name(t->type));
	if (!checked_add(&t->offset, p->data_offset, begin))
		return moe_error_set(p->err, -EINVAL, "%s: tensor %s: field \"data_offsets\": beyond 64 bits", p->file,
				     t->name);
	return 0;
}

static int read_tensor(struct parser *p, const char *name, const json_t *value)
{
	struct tensor *t = &p->tensors[p->n_tensors];
	char found[80];
	int ret;

	ret = check_name(p, name);
	if (ret < 0)
		return ret;
	if (!json_is_object(value))
		return moe_error_set(p->err, -EINVAL, "%s: tensor %s: found %s; expected an object", p->file, name,
				     file_describe(found, sizeof found, value));
	t->name = strdup(name);
	if (!t->name)
		return moe_error_sys(p->err, -ENOMEM, "%s", p->file);
	p->n_tensors++;
	t->shard = p->shard;
	ret = read_type(p, name, json_object_get(value, "dtype"), &t->type);
	if (ret < 0)
		return ret;
	ret = read_shape(p, json_object_get(value, "shape"), t);
	if (ret < 0)
		return ret;
	ret = read_offsets(p, json_object_get(value, "data_offsets"), t);
	if (ret < 0)
		return ret;
	if (json_object_size(value) != 3)
		return moe_error_set(p->err, -EINVAL,
				     "%s: tensor %s: found %zu fields; expected dtype, shape and data_offsets only",
				     p->file, name, json_object_size(value));
	return 0;
}

static int check_metadata(const struct parser *p, json_t *metadata)
{
	const char *key;
	json_t *value;
	char found[80], words[64];

	if (!json_is_object(metadata))
		return moe_error_set(p->err, -EINVAL,
				     "%s: header: field \"__metadata__\": found %s; expected an object of strings",
				     p->file, file_describe(found, sizeof found, metadata));
	json_object_foreach (metadata, key, value)
		if (!json_is_string(value))
			return moe_error_set(
				p->err, -EINVAL,
				"%s: header: field \"__metadata__\", key \"%s\": found %s; expected a string", p->file,
				file_clean(words, sizeof words, key), file_describe(found, sizeof found, value));
	return 0;
}

static int compare_offsets(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Sorts by offset. Each tensor begins where the one before ends; the last one ends with the data. The sums cannot wrap:
 * read_offsets has shown each tensor to lie in the file. */
static int check_cover(const struct parser *p)
{
	uint64_t at = p->data_offset, end = p->data_offset + p->data_bytes;

	if (p->n_tensors)
		qsort(p->tensors, p->n_tensors, sizeof *p->tensors, compare_offsets);
	for (uint64_t i = 0; i < p->n_tensors; i++) {
		const struct tensor *t = &p->tensors[i];

		if (t->offset != at)
			return moe_error_set(
				p->err, -EINVAL,
				"%s: tensor %s %s: it begins at byte %llu of the file; expected %llu, where "
				"%s ends",
				p->file, t->name,
				t->offset < at ? "overlaps the one before it" : "leaves a hole before it",
				(unsigned long long)t->offset, (unsigned long long)at,
				i ? p->tensors[i - 1].name : "the header");
		at += t->bytes;
	}
	if (at != end)
		return moe_error_set(p->err, -EINVAL,
				     "%s: the tensors end at byte %llu; expected %llu, the end of the file: %llu bytes "
				     "belong to no tensor",
				     p->file, (unsigned long long)at, (unsigned long long)end,
				     (unsigned long long)(end - at));
	return 0;
}

static int parse_tensors(struct parser *p, json_t *json)
{
	size_t n = json_object_size(json) - (json_object_get(json, "__metadata__") != NULL);
	const char *key;
	json_t *value;
	int ret;

	if (n > SAFETENSORS_TENSORS_MAX)
		return moe_error_set(p->err, -E2BIG, "%s: header: found %zu tensors; expected at most %u", p->file, n,
				     SAFETENSORS_TENSORS_MAX);
	p->tensors = calloc(n ? n : 1, sizeof *p->tensors);
	if (!p->tensors)
		return moe_error_sys(p->err, -ENOMEM, "%s", p->file);
	json_object_foreach (json, key, value) {
		ret = strcmp(key, "__metadata__") == 0 ? check_metadata(p, value) : read_tensor(p, key, value);
		if (ret < 0)
			return ret;
	}
	return check_cover(p);
}

static int check_length(const char *file, uint64_t header_bytes, uint64_t file_bytes, struct moe_error *err)
{
	/* What a clone without git-lfs leaves begins "version https://git-lfs". */
	if (memcmp(&header_bytes, "version ", sizeof header_bytes) == 0)
		return moe_error_set(err, -EINVAL,
				     "%s: a pointer of git-lfs, not the file; in its folder type: git lfs pull", file);
	if (header_bytes > SAFETENSORS_HEADER_MAX)
		return moe_error_set(err, -E2BIG,
				     "%s: header length: found %llu; expected at most %u (is this a safetensors file?)",
				     file, (unsigned long long)header_bytes, SAFETENSORS_HEADER_MAX);
	if (header_bytes < 2 || !checked_range(LENGTH_BYTES, header_bytes, file_bytes))
		return moe_error_set(
			err, -EINVAL,
			"%s: header length: found %llu in a file of %llu bytes; expected at least 2 and the "
			"whole header in the file (is it truncated?)",
			file, (unsigned long long)header_bytes, (unsigned long long)file_bytes);
	return 0;
}

int safetensors_parse(const char *file, const char *header, uint64_t header_bytes, uint64_t file_bytes, uint32_t shard,
		      struct tensor **tensors, uint64_t *n_tensors, struct moe_error *err)
{
	_cleanup_(parser_free) struct parser p = {.file = file, .shard = shard, .err = err};
	_cleanup_json_ json_t *json = NULL;
	struct tensor *grown;
	uint64_t n;
	int ret;

	ret = check_length(file, header_bytes, file_bytes, err);
	if (ret < 0)
		return ret;
	if (header[0] != '{')
		return moe_error_set(err, -EINVAL,
				     "%s: header: found byte 0x%02x first; expected '{' (is this a safetensors file?)",
				     file, (unsigned char)header[0]);
	ret = file_parse_object(&json, file, header, header_bytes, err);
	if (ret < 0)
		return ret;
	p.data_offset = LENGTH_BYTES + header_bytes;
	p.data_bytes = file_bytes - p.data_offset;
	ret = parse_tensors(&p, json);
	if (ret < 0)
		return ret;
	if (!checked_add(&n, *n_tensors, p.n_tensors) || !checked_mul(&n, n, sizeof *grown))
		return moe_error_sys(err, -ENOMEM, "%s", file);
	grown = realloc(*tensors, n ? n : 1);
	if (!grown)
		return moe_error_sys(err, -ENOMEM, "%s", file);
	memcpy(grown + *n_tensors, p.tensors, p.n_tensors * sizeof *grown); /* the names move with them */
	*tensors = grown;
	*n_tensors += p.n_tensors;
	p.n_tensors = 0;
	return 0;
}

int safetensors_read(const char *path, uint32_t shard, uint64_t *ret_file_bytes, struct tensor **tensors,
		     uint64_t *n_tensors, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	_cleanup_free_ char *header = NULL;
	uint64_t file_bytes, length;
	int ret;

	fd = file_open(path, &file_bytes, err);
	if (fd < 0)
		return fd;
	if (file_bytes < LENGTH_BYTES)
		return moe_error_set(
			err, -EINVAL,
			"%s: found %llu bytes; expected at least the 8 of a header length (is it truncated?)", path,
			(unsigned long long)file_bytes);
	ret = file_read_at(fd, path, &length, LENGTH_BYTES, 0, err);
	if (ret < 0)
		return ret;
	length = le64toh(length);
	ret = check_length(path, length, file_bytes, err);
	if (ret < 0)
		return ret;
	header = malloc(length);
	if (!header)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	ret = file_read_at(fd, path, header, length, LENGTH_BYTES, err);
	if (ret < 0)
		return ret;
	ret = safetensors_parse(path, header, length, file_bytes, shard, tensors, n_tensors, err);
	if (ret < 0)
		return ret;
	*ret_file_bytes = file_bytes;
	return 0;
}
