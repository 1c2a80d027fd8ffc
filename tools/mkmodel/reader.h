/* SPDX-License-Identifier: MIT */
/*
 * reader - the tensors of a model that is to be changed: their bytes, and as floats.
 */
#ifndef MKMODEL_READER_H
#define MKMODEL_READER_H

#include <stdbool.h>

#include "model/model.h"

struct reader {
	const struct model *model;
	int *fds;     /* of the shards; -1: not opened yet */
	bool *expert; /* [n_tensors]: one routed expert's matrix */
};

/* `model` must outlive it; a folder of BF16 or F16 experts, each in its own tensor, or one of the merged ones. */
int reader_open(struct reader *ret, const struct model *model, struct moe_error *err);
void reader_close(struct reader *reader); /* takes a zeroed one */

bool reader_is_expert(const struct reader *reader, const struct tensor *tensor);

/* All bytes of a tensor. */
int reader_bytes(const struct reader *reader, const struct tensor *tensor, void *to, struct moe_error *err);

/* A number tensor (BF16, F16 or F32) as floats; NaN and infinity are refused. */
int reader_floats(const struct reader *reader, const struct tensor *tensor, float *to, struct moe_error *err);

/* The elements of a tensor. */
uint64_t reader_elements(const struct tensor *tensor);

/* The type of the model's weights: BF16 or F16. */
enum tensor_type reader_type(const struct reader *reader);

#endif
