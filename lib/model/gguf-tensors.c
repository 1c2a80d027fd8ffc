/* SPDX-License-Identifier: MIT */
/*
 * The tensor table of a GGUF header: names, sizes, types and places. Afterwards each tensor is known to be of a
 * published type, to lie in the file where the alignment allows it, and to overlap no other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "model/gguf-cursor.h"

#define DIMS_MAX 4u
#define ALIGNMENT_KEY "general.alignment"
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX (1u << 20)
#define TENSOR_BYTES_MIN 24u /* a name's length, the number of dimensions, type and offset */

/* dims and bytes; the file counts sizes from the fastest. */
static int read_shape(struct cursor *c, struct tensor *t)
{
	uint64_t dims[DIMS_MAX];
	int r;

	r = cursor_u32(c, &t->n_dims);
	if (r < 0)
		return r;
	if (t->n_dims == 0 || t->n_dims > DIMS_MAX)
		return moe_error_set(c->err, -EINVAL, "%s: tensor %s: found %u dimensions; expected 1 to %u", c->file,
				     t->name, t->n_dims, DIMS_MAX);
	for (uint32_t i = 0; i < t->n_dims; i++) {
		r = cursor_u64(c, &dims[i]);
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

	r = cursor_u32(c, &number);
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

	r = cursor_name(c, "tensor name", &name);
	if (r < 0)
		return r;
	*t = (struct tensor){.name = name, .shard = c->shard};
	c->found.n_tensors++; /* from here on cursor_clear has the name */
	r = read_shape(c, t);
	if (r < 0)
		return r;
	r = read_type(c, t);
	return r < 0 ? r : cursor_u64(c, &t->offset);
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

int cursor_tensors(struct cursor *c, uint64_t count)
{
	int r;

	r = cursor_count(c, "tensors", count, GGUF_TENSORS_MAX, TENSOR_BYTES_MIN);
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
