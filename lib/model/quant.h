/* SPDX-License-Identifier: MIT */
/*
 * quant - config.json's quantization_config: how a folder's quantized tensors are to be read.
 *
 * What is read here concerns the experts; modules that are left out or treated apart (modules_to_not_convert, ignore)
 * show in their tensors. Whatever would change the meaning of an expert's bytes in a way that is not served is refused
 * with the field's name.
 */
#ifndef MODEL_QUANT_H
#define MODEL_QUANT_H

#include "model/model.h"

/* `json`: the whole config; without quantization_config the result is QUANT_NONE. */
int quant_parse(const char *file, const json_t *json, struct model_quant *ret, struct moe_error *err);

#endif
