/* SPDX-License-Identifier: MIT */
#include "base/util.h"
#include "model/gguf.h"

/* By ggml's numbers; those left out were never published or have been withdrawn. */
static const struct gguf_type types[] = {
	[0] = {"F32", 1, 4, TENSOR_F32 + 1, 0},
	[1] = {"F16", 1, 2, TENSOR_F16 + 1, MOE_FORMAT_F16},
	[2] = {"Q4_0", 32, 18, 0, MOE_FORMAT_Q4_0},
	[3] = {"Q4_1", 32, 20, 0, MOE_FORMAT_Q4_1},
	[6] = {"Q5_0", 32, 22, 0, 0},
	[7] = {"Q5_1", 32, 24, 0, 0},
	[8] = {"Q8_0", 32, 34, 0, MOE_FORMAT_Q8_0},
	[9] = {"Q8_1", 32, 36, 0, 0},
	[10] = {"Q2_K", 256, 84, 0, 0},
	[11] = {"Q3_K", 256, 110, 0, 0},
	[12] = {"Q4_K", 256, 144, 0, MOE_FORMAT_Q4_K},
	[13] = {"Q5_K", 256, 176, 0, MOE_FORMAT_Q5_K},
	[14] = {"Q6_K", 256, 210, 0, MOE_FORMAT_Q6_K},
	[15] = {"Q8_K", 256, 292, 0, 0},
	[16] = {"IQ2_XXS", 256, 66, 0, 0},
	[17] = {"IQ2_XS", 256, 74, 0, 0},
	[18] = {"IQ3_XXS", 256, 98, 0, 0},
	[19] = {"IQ1_S", 256, 50, 0, 0},
	[20] = {"IQ4_NL", 32, 18, 0, 0},
	[21] = {"IQ3_S", 256, 110, 0, 0},
	[22] = {"IQ2_S", 256, 82, 0, 0},
	[23] = {"IQ4_XS", 256, 136, 0, MOE_FORMAT_IQ4_XS},
	[24] = {"I8", 1, 1, TENSOR_I8 + 1, 0},
	[25] = {"I16", 1, 2, TENSOR_I16 + 1, 0},
	[26] = {"I32", 1, 4, TENSOR_I32 + 1, 0},
	[27] = {"I64", 1, 8, TENSOR_I64 + 1, 0},
	[28] = {"F64", 1, 8, TENSOR_F64 + 1, 0},
	[29] = {"IQ1_M", 256, 56, 0, 0},
	[30] = {"BF16", 1, 2, TENSOR_BF16 + 1, MOE_FORMAT_BF16},
	[34] = {"TQ1_0", 256, 54, 0, 0},
	[35] = {"TQ2_0", 256, 66, 0, 0},
	[39] = {"MXFP4", 32, 17, 0, MOE_FORMAT_MXFP4},
	[40] = {"NVFP4", 64, 36, 0, 0},
};

const struct gguf_type *gguf_type(uint32_t number)
{
	return number < ARRAY_LEN(types) && types[number].name ? &types[number] : NULL;
}

const struct gguf_type *gguf_tensor_type(enum tensor_type type)
{
	if (type >= TENSOR_GGML)
		return gguf_type((uint32_t)type - TENSOR_GGML);
	for (uint32_t i = 0; i < ARRAY_LEN(types); i++)
		if (types[i].plain == type + 1)
			return &types[i];
	return NULL;
}
