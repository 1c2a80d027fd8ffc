/* SPDX-License-Identifier: MIT */
/* A safetensors file: it is refused in one line, or its tensors cover the data exactly. The input is as fuzz-file.h. */
#include "base/checked.h"
#include "model/model.h"
#include "tests/fuzz/fuzz-file.h"

#define LENGTH_BYTES 8

static void check_tensors(const struct tensor *tensors, uint64_t n, uint64_t begin, uint64_t whole)
{
	uint64_t at = begin;

	for (uint64_t i = 0; i < n; i++) {
		const struct tensor *t = &tensors[i];
		uint64_t elements = 1;

		fuzz_check(t->name && *t->name && strlen(t->name) < 256 && t->n_dims <= TENSOR_DIMS_MAX);
		for (uint32_t d = 0; d < t->n_dims; d++)
			fuzz_check(checked_mul(&elements, elements, t->dims[d]));
		fuzz_check(checked_mul(&elements, elements, tensor_type_bytes(t->type)) && elements == t->bytes);
		fuzz_check(t->offset == at);
		at += t->bytes;
	}
	fuzz_check(at == whole);
}

/* A header of `n` bytes in a file of `whole`. */
static bool parse(const uint8_t *header, size_t n, uint64_t whole)
{
	char *alone = fuzz_alone(header, n);
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t count = 0;
	int r = safetensors_parse("file", alone, n, whole, 0, &tensors, &count, &err);

	if (r == 0)
		check_tensors(tensors, count, LENGTH_BYTES + n, whole);
	else
		fuzz_check_refused(r, &err);
	fuzz_check(r == 0 || (!tensors && count == 0));
	tensors_free(tensors, count);
	free(alone);
	return r == 0;
}

/* As a file, with the length that the file says. */
static void read_file(const struct fuzz_file *f)
{
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t n = 0, whole = 0, length = 0;
	int r = safetensors_read(fuzz_file_write(f), 0, &whole, &tensors, &n, &err);

	if (r == 0) {
		memcpy(&length, f->bytes, LENGTH_BYTES);
		fuzz_check(whole == f->whole);
		check_tensors(tensors, n, LENGTH_BYTES + length, whole);
	} else {
		fuzz_check_refused(r, &err);
	}
	tensors_free(tensors, n);
}

/* Most lengths that a mutation makes are wrong: all that follows is tried as a header, and a sound one as a file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct fuzz_file f = fuzz_file(data, size);

	if (f.n < LENGTH_BYTES) {
		read_file(&f);
		return 0;
	}
	if (parse(f.bytes + LENGTH_BYTES, f.n - LENGTH_BYTES, f.whole))
		read_file(&f);
	return 0;
}
