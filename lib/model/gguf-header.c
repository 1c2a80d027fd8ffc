/* SPDX-License-Identifier: MIT */
/*
 * The header of one GGUF file. It is read front to back with one cursor, and nothing is believed: each step shows that
 * its bytes are there, numbers of things are bounded by the bytes that the things must have, and what is not kept is
 * stepped over without being stored. An array of arrays is refused: no published file has one.
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

#define MAGIC "GGUF"
#define KEPT_MAX 255u /* bytes of a key or string that is kept, and of a tensor's name */
#define DIMS_MAX 4u
#define ALIGNMENT_KEY "general.alignment"
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX (1u << 20)
#define TENSOR_BYTES_MIN 24u /* a name's length, the number of dimensions, type and offset */
#define VALUE_BYTES_MIN 13u  /* a key's length, type and one byte */
#define FIRST_READ (1u << 20)

/* The file's names of value types. */
enum type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

static const uint8_t type_bytes[TYPES] = {
	[U8] = 1,  [I8] = 1,   [U16] = 2, [I16] = 2, [U32] = 4, [I32] = 4,
	[F32] = 4, [BOOL] = 1, [U64] = 8, [I64] = 8, [F64] = 8,
};

struct cursor {
	const char *file;
	const uint8_t *base;
	uint64_t at, bytes, file_bytes;
	uint32_t shard;
	struct moe_error *err;
	struct gguf found;
};

static void cursor_free(struct cursor *c)
{
	gguf_clear(&c->found);
}

/* The next `n` bytes, or why they are not there. */
static int take(struct cursor *c, uint64_t n, const uint8_t **ret)
{
	if (!checked_range(c->at, n, c->file_bytes))
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found %llu bytes at byte %llu of a file of %llu; expected them to "
				     "lie in the file (is it truncated?)",
				     c->file, (unsigned long long)n, (unsigned long long)c->at,
				     (unsigned long long)c->file_bytes);
	if (!checked_range(c->at, n, c->bytes))
		return -ENODATA;
	*ret = c->base + c->at;
	c->at += n;
	return 0;
}

static int take_u32(struct cursor *c, uint32_t *ret)
{
	const uint8_t *p = NULL;
	int r = take(c, sizeof *ret, &p);

	if (r < 0)
		return r;
	memcpy(ret, p, sizeof *ret);
	*ret = le32toh(*ret);
	return 0;
}

static int take_u64(struct cursor *c, uint64_t *ret)
{
	const uint8_t *p = NULL;
	int r = take(c, sizeof *ret, &p);

	if (r < 0)
		return r;
	memcpy(ret, p, sizeof *ret);
	*ret = le64toh(*ret);
	return 0;
}

static int take_string(struct cursor *c, const uint8_t **ret, uint64_t *ret_bytes)
{
	int r = take_u64(c, ret_bytes);

	return r < 0 ? r : take(c, *ret_bytes, ret);
}

/* A name as a string of its own: text, not too long, not empty. */
static int take_name(struct cursor *c, const char *what, char **ret)
{
	const uint8_t *p = NULL;
	uint64_t bytes = 0;
	char *name;
	int r;

	r = take_string(c, &p, &bytes);
	if (r < 0)
		return r;
	if (bytes == 0 || bytes > KEPT_MAX)
		return moe_error_set(c->err, bytes ? -E2BIG : -EINVAL,
				     "%s: header: found a %s of %llu bytes; expected 1 to %u", c->file, what,
				     (unsigned long long)bytes, KEPT_MAX);
	for (uint64_t i = 0; i < bytes; i++)
		if (p[i] < 0x20 || p[i] == 0x7f)
			return moe_error_set(
				c->err, -EINVAL,
				"%s: header: a %s contains byte 0x%02x, a control character; expected text", c->file,
				what, p[i]);
	name = strndup((const char *)p, bytes);
	if (!name)
		return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	*ret = name;
	return 0;
}

static void value_free(struct gguf_value *value)
{
	free(value->key);
	free(value->string);
}

/* Steps over an array: of numbers at once, of strings one by one; each has at least the 8 bytes of its length. */
static int skip_array(struct cursor *c, const char *key)
{
	const uint8_t *p;
	uint32_t type;
	uint64_t n, bytes;
	int r;

	r = take_u32(c, &type);
	if (r < 0)
		return r;
	r = take_u64(c, &n);
	if (r < 0)
		return r;
	if (type >= TYPES || type == ARRAY)
		return moe_error_set(c->err, -ENOTSUP,
				     "%s: metadata \"%s\": found an array of type %u; expected numbers or strings",
				     c->file, key, type);
	if (!checked_mul(&bytes, n, type == STRING ? 8 : type_bytes[type]) ||
	    !checked_range(c->at, bytes, c->file_bytes))
		return moe_error_set(c->err, -EINVAL,
				     "%s: metadata \"%s\": found an array of %llu in a file of %llu bytes; expected it "
				     "to lie in the file (is it truncated?)",
				     c->file, key, (unsigned long long)n, (unsigned long long)c->file_bytes);
	if (type != STRING)
		return take(c, bytes, &p);
	for (uint64_t i = 0; i < n; i++) {
		r = take_string(c, &p, &bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The number at p, `bytes` wide, sign-extended where `sign` says so. */
static uint64_t number(const uint8_t *p, unsigned bytes, bool sign)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)p[i] << 8 * i;
	if (sign && bytes < 8 && value >> (8 * bytes - 1))
		value |= ~(uint64_t)0 << 8 * bytes;
	return value;
}

static int read_scalar(struct cursor *c, uint32_t type, struct gguf_value *value)
{
	const uint8_t *p = NULL;
	float narrow;
	int r;

	r = take(c, type_bytes[type], &p);
	if (r < 0)
		return r;
	switch (type) {
	case F32:
		memcpy(&narrow, p, sizeof narrow);
		value->kind = GGUF_FLOAT;
		value->f = (double)narrow;
		break;
	case F64:
		memcpy(&value->f, p, sizeof value->f);
		value->kind = GGUF_FLOAT;
		break;
	case BOOL:
		value->kind = GGUF_BOOL;
		value->u = *p != 0;
		break;
	case I8:
	case I16:
	case I32:
	case I64:
		value->kind = GGUF_SIGNED;
		value->u = number(p, type_bytes[type], true);
		break;
	default:
		value->kind = GGUF_UNSIGNED;
		value->u = number(p, type_bytes[type], false);
	}
	return 0;
}

/* *keep tells whether the value is one to be kept. */
static int read_content(struct cursor *c, uint32_t type, struct gguf_value *value, bool *keep)
{
	const uint8_t *p = NULL;
	uint64_t bytes = 0;
	int r;

	*keep = false;
	if (type >= TYPES)
		return moe_error_set(c->err, -EINVAL, "%s: metadata \"%s\": found type %u; expected 0 to %u", c->file,
				     value->key, type, TYPES - 1);
	if (type == ARRAY)
		return skip_array(c, value->key);
	*keep = true;
	if (type != STRING)
		return read_scalar(c, type, value);
	r = take_string(c, &p, &bytes);
	if (r < 0)
		return r;
	*keep = bytes <= KEPT_MAX && !memchr(p, 0, bytes);
	value->kind = GGUF_STRING;
	if (*keep) {
		value->string = strndup((const char *)p, bytes);
		if (!value->string)
			return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	}
	return 0;
}

static int read_value(struct cursor *c)
{
	_cleanup_(value_free) struct gguf_value value = {0};
	bool keep;
	uint32_t type;
	int r;

	r = take_name(c, "metadata key", &value.key);
	if (r < 0)
		return r;
	r = take_u32(c, &type);
	if (r < 0)
		return r;
	r = read_content(c, type, &value, &keep);
	if (r < 0 || !keep)
		return r;
	c->found.values[c->found.n_values++] = value;
	value = (struct gguf_value){0};
	return 0;
}

static int compare_values(const void *a, const void *b)
{
	return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

/* `count` things of at least `least` bytes each must fit in what is left of the file, and in memory. */
static int check_count(struct cursor *c, const char *what, uint64_t count, uint64_t most, uint64_t least)
{
	if (count > most)
		return moe_error_set(c->err, -E2BIG, "%s: header: found %llu %s; expected at most %llu", c->file,
				     (unsigned long long)count, what, (unsigned long long)most);
	if (count > (c->file_bytes - c->at) / least)
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found %llu %s in a file of %llu bytes; expected room for them (is it "
				     "truncated?)",
				     c->file, (unsigned long long)count, what, (unsigned long long)c->file_bytes);
	return 0;
}

static int read_values(struct cursor *c, uint64_t count)
{
	int r;

	r = check_count(c, "metadata values", count, GGUF_VALUES_MAX, VALUE_BYTES_MIN);
	if (r < 0)
		return r;
	c->found.values = calloc(count ? count : 1, sizeof *c->found.values);
	if (!c->found.values)
		return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	for (uint64_t i = 0; i < count; i++) {
		r = read_value(c);
		if (r < 0)
			return r;
	}
	qsort(c->found.values, c->found.n_values, sizeof *c->found.values, compare_values);
	for (uint64_t i = 1; i < c->found.n_values; i++)
		if (compare_values(&c->found.values[i - 1], &c->found.values[i]) == 0)
			return moe_error_set(c->err, -EINVAL,
					     "%s: metadata \"%s\": found it twice; expected each key once", c->file,
					     c->found.values[i].key);
	return 0;
}

/* dims and bytes; the file counts sizes from the fastest. */
static int read_shape(struct cursor *c, struct tensor *t)
{
	uint64_t dims[DIMS_MAX];
	int r;

	r = take_u32(c, &t->n_dims);
	if (r < 0)
		return r;
	if (t->n_dims == 0 || t->n_dims > DIMS_MAX)
		return moe_error_set(c->err, -EINVAL, "%s: tensor %s: found %u dimensions; expected 1 to %u", c->file,
				     t->name, t->n_dims, DIMS_MAX);
	for (uint32_t i = 0; i < t->n_dims; i++) {
		r = take_u64(c, &dims[i]);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < t->n_dims; i++)
		t->dims[i] = dims[t->n_dims - 1 - i];
	return 0;
}

static int read_type(struct cursor *c, struct tensor *t)
{
	const struct gguf_type *type;
	uint32_t number;
	uint64_t elements = 1;
	int r;

	r = take_u32(c, &number);
	if (r < 0)
		return r;
	type = gguf_type(number);
	if (!type)
		return moe_error_set(
			c->err, -ENOTSUP,
			"%s: tensor %s: found type number %u, which is unknown; expected a published type of "
			"ggml, for example Q8_0 or Q4_K: convert the model anew",
			c->file, t->name, number);
	t->type = type->plain ? (enum tensor_type)(type->plain - 1) : (enum tensor_type)(TENSOR_GGML + number);
	if (t->dims[t->n_dims - 1] % type->elements)
		return moe_error_set(
			c->err, -EINVAL,
			"%s: tensor %s: found rows of %llu elements; expected a multiple of %u, the block of "
			"%s",
			c->file, t->name, (unsigned long long)t->dims[t->n_dims - 1], type->elements, type->name);
	for (uint32_t i = 0; i < t->n_dims; i++)
		if (t->dims[i] == 0 || !checked_mul(&elements, elements, t->dims[i]))
			return moe_error_set(
				c->err, -EINVAL,
				"%s: tensor %s: found size %llu in dimension %u; expected 1 or more, and a "
				"product that 64 bits hold",
				c->file, t->name, (unsigned long long)t->dims[i], t->n_dims - 1 - i);
	if (!checked_mul(&t->bytes, elements / type->elements, type->bytes))
		return moe_error_set(c->err, -EINVAL, "%s: tensor %s: found %llu elements; expected fewer", c->file,
				     t->name, (unsigned long long)elements);
	return 0;
}

static int read_tensor(struct cursor *c)
{
	struct tensor *t = &c->found.tensors[c->found.n_tensors];
	char *name;
	int r;

	r = take_name(c, "tensor name", &name);
	if (r < 0)
		return r;
	*t = (struct tensor){.name = name, .shard = c->shard};
	c->found.n_tensors++; /* from here on cursor_free has the name */
	r = read_shape(c, t);
	if (r < 0)
		return r;
	r = read_type(c, t);
	return r < 0 ? r : take_u64(c, &t->offset);
}

static int read_alignment(struct cursor *c, uint64_t *ret)
{
	const struct gguf_value *value = gguf_find(&c->found, ALIGNMENT_KEY);

	*ret = ALIGNMENT_DEFAULT;
	if (!value)
		return 0;
	if (value->kind != GGUF_UNSIGNED || value->u == 0 || value->u > ALIGNMENT_MAX || (value->u & (value->u - 1)))
		return moe_error_set(c->err, -EINVAL,
				     "%s: metadata \"" ALIGNMENT_KEY
				     "\": found %llu; expected a power of two of at most %u",
				     c->file, (unsigned long long)value->u, ALIGNMENT_MAX);
	*ret = value->u;
	return 0;
}

/* Offsets in the data become offsets in the file. */
static int place(struct cursor *c)
{
	uint64_t alignment, data;
	int r;

	r = read_alignment(c, &alignment);
	if (r < 0)
		return r;
	if (!checked_align(&data, c->at, alignment))
		data = UINT64_MAX;
	for (uint64_t i = 0; i < c->found.n_tensors; i++) {
		struct tensor *t = &c->found.tensors[i];
		uint64_t relative = t->offset;

		if (relative % alignment)
			return moe_error_set(c->err, -EINVAL,
					     "%s: tensor %s: found offset %llu; expected a multiple of %llu", c->file,
					     t->name, (unsigned long long)relative, (unsigned long long)alignment);
		if (!checked_add(&t->offset, data, relative) || !checked_range(t->offset, t->bytes, c->file_bytes))
			return moe_error_set(
				c->err, -EINVAL,
				"%s: tensor %s: found %llu bytes at byte %llu of the data, in a file of %llu "
				"bytes; expected them to lie in the file (is the download complete?)",
				c->file, t->name, (unsigned long long)t->bytes, (unsigned long long)relative,
				(unsigned long long)c->file_bytes);
	}
	return 0;
}

static int compare_offsets(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The sums cannot wrap: place() has shown each tensor to lie in the file. */
static int check_overlap(struct cursor *c)
{
	struct tensor *t = c->found.tensors;

	qsort(t, c->found.n_tensors, sizeof *t, compare_offsets);
	for (uint64_t i = 1; i < c->found.n_tensors; i++)
		if (t[i].offset < t[i - 1].offset + t[i - 1].bytes)
			return moe_error_set(c->err, -EINVAL,
					     "%s: tensor %s overlaps %s: it begins at byte %llu of the file; expected "
					     "%llu or more",
					     c->file, t[i].name, t[i - 1].name, (unsigned long long)t[i].offset,
					     (unsigned long long)(t[i - 1].offset + t[i - 1].bytes));
	return 0;
}

static int read_tensors(struct cursor *c, uint64_t count)
{
	int r;

	r = check_count(c, "tensors", count, GGUF_TENSORS_MAX, TENSOR_BYTES_MIN);
	if (r < 0)
		return r;
	c->found.tensors = calloc(count ? count : 1, sizeof *c->found.tensors);
	if (!c->found.tensors)
		return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	for (uint64_t i = 0; i < count; i++) {
		r = read_tensor(c);
		if (r < 0)
			return r;
	}
	r = place(c);
	return r < 0 ? r : check_overlap(c);
}

static int read_start(struct cursor *c, uint64_t *ret_tensors, uint64_t *ret_values)
{
	const uint8_t *magic = NULL;
	uint32_t version;
	int r;

	r = take(c, strlen(MAGIC), &magic);
	if (r < 0)
		return r;
	if (memcmp(magic, MAGIC, strlen(MAGIC)) != 0)
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found bytes %02x %02x %02x %02x first; expected \"" MAGIC
				     "\" (is this a GGUF file?)",
				     c->file, magic[0], magic[1], magic[2], magic[3]);
	r = take_u32(c, &version);
	if (r < 0)
		return r;
	if (version != 2 && version != 3)
		return moe_error_set(c->err, -ENOTSUP,
				     "%s: header: found version %u%s; expected 2 or 3: convert the model anew", c->file,
				     version, version & 0xffff ? "" : " (a big-endian file)");
	r = take_u64(c, ret_tensors);
	return r < 0 ? r : take_u64(c, ret_values);
}

int gguf_parse(const char *file, const void *header, uint64_t bytes, uint64_t file_bytes, uint32_t shard,
	       struct gguf *ret, struct moe_error *err)
{
	_cleanup_(cursor_free) struct cursor c = {.file = file,
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
	r = read_values(&c, values);
	if (r < 0)
		return r;
	r = read_tensors(&c, tensors);
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

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key)
{
	const struct gguf_value wanted = {.key = (char *)key};

	if (gguf->n_values == 0)
		return NULL;
	return bsearch(&wanted, gguf->values, gguf->n_values, sizeof wanted, compare_values);
}

void gguf_clear(struct gguf *gguf)
{
	for (uint64_t i = 0; i < gguf->n_values; i++)
		value_free(&gguf->values[i]);
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
