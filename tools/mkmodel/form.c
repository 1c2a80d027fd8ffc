/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/form.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

static const struct form forms[] = {
	{"fp8-block", FORM_FP8_BLOCK, 0, false},
	{"fp8-channel", FORM_FP8_CHANNEL, 0, false},
	{"int8", FORM_INT8, 0, false},
	{"int4-ct-g32", FORM_INT4, 32, false},
	{"int4-ct-g64", FORM_INT4, 64, false},
	{"int4-ct-g128", FORM_INT4, 128, false},
	{"int4-ct-g32-zp", FORM_INT4, 32, true},
	{"int4-ct-g64-zp", FORM_INT4, 64, true},
	{"int4-ct-g128-zp", FORM_INT4, 128, true},
	{"gptq-g32", FORM_GPTQ, 32, false},
	{"gptq-g64", FORM_GPTQ, 64, false},
	{"gptq-g128", FORM_GPTQ, 128, false},
	{"gptq-g128-zp", FORM_GPTQ, 128, true},
	{"awq-g32", FORM_AWQ, 32, true},
	{"awq-g64", FORM_AWQ, 64, true},
	{"awq-g128", FORM_AWQ, 128, true},
};

const struct form *form_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(forms); i++)
		if (strcmp(forms[i].name, name) == 0)
			return &forms[i];
	return NULL;
}

void form_list(char *ret, size_t size)
{
	size_t used = 0;

	ret[0] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(forms) && used < size; i++)
		used += (size_t)snprintf(ret + used, size - used, "%s%s", i ? ", " : "", forms[i].name);
}

static struct form_tensor tensor(const char *suffix, enum tensor_type type, uint64_t first, uint64_t second)
{
	return (struct form_tensor){
		.suffix = suffix, .type = type, .n_dims = second ? 2 : 1, .dims = {first, second ? second : 1}};
}

static int int4_tensors(const struct form *form, uint64_t rows, uint64_t cols, enum tensor_type type,
			struct form_tensor *ret)
{
	const uint64_t groups = cols / form->group;

	if (form->kind == FORM_INT4) {
		ret[0] = tensor(".weight_packed", TENSOR_I32, rows, cols / 8);
		ret[1] = tensor(".weight_scale", type, rows, groups);
		ret[2] = tensor(".weight_shape", TENSOR_I64, 2, 0);
		ret[3] = tensor(".weight_zero_point", TENSOR_I32, rows / 8, groups);
		return form->zeros ? 4 : 3;
	}
	ret[0] = form->kind == FORM_GPTQ ? tensor(".qweight", TENSOR_I32, cols / 8, rows)
					 : tensor(".qweight", TENSOR_I32, cols, rows / 8);
	ret[1] = tensor(".qzeros", TENSOR_I32, groups, rows / 8);
	ret[2] = tensor(".scales", TENSOR_F16, groups, rows);
	ret[3] = tensor(".g_idx", TENSOR_I32, cols, 0);
	return form->kind == FORM_GPTQ ? 4 : 3;
}

static int check_shape(const struct form *form, uint32_t rows, uint32_t cols, struct moe_error *err)
{
	const bool words = form->kind == FORM_GPTQ || form->kind == FORM_AWQ || form->zeros;

	if (form->group && cols % form->group)
		return moe_error_set(err, -EINVAL,
				     "%s: found a matrix of %u columns; expected a multiple of its group of %u",
				     form->name, cols, form->group);
	if (words && rows % 8)
		return moe_error_set(err, -EINVAL, "%s: found a matrix of %u rows; expected a multiple of 8",
				     form->name, rows);
	return 0;
}

int form_tensors(const struct form *form, uint32_t rows, uint32_t cols, enum tensor_type type,
		 struct form_tensor ret[FORM_TENSORS_MAX], struct moe_error *err)
{
	int n = check_shape(form, rows, cols, err);

	if (n < 0)
		return n;
	n = 2;
	switch (form->kind) {
	case FORM_FP8_BLOCK:
		ret[0] = tensor(".weight", TENSOR_F8_E4M3, rows, cols);
		ret[1] = tensor(".weight_scale_inv", TENSOR_F32, DIV_UP(rows, 128), DIV_UP(cols, 128));
		break;
	case FORM_FP8_CHANNEL:
	case FORM_INT8:
		ret[0] = tensor(".weight", form->kind == FORM_INT8 ? TENSOR_I8 : TENSOR_F8_E4M3, rows, cols);
		ret[1] = tensor(".weight_scale", type, rows, 1);
		break;
	case FORM_INT4:
	case FORM_GPTQ:
	case FORM_AWQ:
		n = int4_tensors(form, rows, cols, type, ret);
		break;
	}
	for (int i = 0; i < n; i++) /* no overflow: the matrix itself lies in a file, four bytes for a weight do not */
		ret[i].bytes = ret[i].dims[0] * ret[i].dims[1] * tensor_type_bytes(ret[i].type);
	return n;
}

void form_quantize(const struct form *form, const float *w, uint32_t rows, uint32_t cols, enum tensor_type type,
		   uint8_t *ret)
{
	const uint64_t n = (uint64_t)rows * cols;

	switch (form->kind) {
	case FORM_FP8_BLOCK:
		form_fp8_block(w, rows, cols, ret, ret + n);
		break;
	case FORM_FP8_CHANNEL:
	case FORM_INT8:
		form_channel(form->kind, w, rows, cols, type, ret, ret + n);
		break;
	case FORM_INT4:
	case FORM_GPTQ:
	case FORM_AWQ:
		form_int4(form, w, rows, cols, type, ret);
		break;
	}
}
