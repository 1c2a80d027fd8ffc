/* SPDX-License-Identifier: MIT */
/*
 * packing - how one part of an expert is published: which tensors make it up, how they are packed, and which format of
 * moe_format.h that is.
 *
 * Tensors say it, not config.json alone: a folder that is quantized otherwise may hold some layers' experts plain.
 */
#ifndef MODEL_PACKING_H
#define MODEL_PACKING_H

#include "model/model.h"

enum packing {
	PACKING_PLAIN, /* .weight, one number per code, row by row */
	PACKING_ROWS,  /* compressed-tensors: eight codes of a row in an int32 */
	PACKING_GPTQ,  /* eight codes of a column */
	PACKING_AWQ,   /* eight codes of a column of the transposed matrix, in an order of their own */
	PACKING_FUSED  /* gpt-oss: all experts in one tensor, gate's and up's rows in turn */
};

struct packed_part {
	uint32_t format; /* enum moe_format */
	enum packing packing;
	const struct tensor *codes, *scales, *zeros, *bias; /* NULL: none, or not needed */
};

/* Rows and columns of a part's matrix. */
uint32_t packing_rows(const struct model_config *config, enum expert_part part);
uint32_t packing_cols(const struct model_config *config, enum expert_part part);

/*
 * Finds and checks the tensors of one part of one expert: type and shape of each, and that the format can hold the
 * matrix. Errors name shard, tensor, found and expected. `layer` carries experts.
 */
int packing_find(const struct model *model, uint32_t layer, uint32_t expert, enum expert_part part,
		 struct packed_part *ret, struct moe_error *err);

/* All experts: each part, gate like up, and each expert like the first of its layer. */
int packing_check(const struct model *model, struct moe_error *err);

#endif
