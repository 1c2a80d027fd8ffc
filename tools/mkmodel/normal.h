/* SPDX-License-Identifier: MIT */
/*
 * normal - normally distributed numbers in a tensor's type, at memory speed, the same for the same seed.
 *
 * A value is one of 65,536 equally likely quantiles of the distribution (up to 4.2 deviations from the mean), picked by
 * 16 random bits: finer than BF16 can tell apart. Four values cost one step of the generator and four look-ups.
 */
#ifndef MKMODEL_NORMAL_H
#define MKMODEL_NORMAL_H

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "moe-error.h"

struct normal;

int normal_new(struct normal **ret, struct moe_error *err);
struct normal *normal_free(struct normal *normal); /* takes NULL, returns NULL */

/* The start of a tensor's own sequence: its values depend on seed and name, not on where the tensor is written. */
uint64_t normal_state(uint64_t seed, const char *name);

/* Chooses what normal_fill draws. `type`: TENSOR_BF16, TENSOR_F16 or TENSOR_F32. */
void normal_select(struct normal *normal, enum tensor_type type, float mean, float deviation);

/* Fills `count` elements and advances *state. Only the last call for a tensor may have count % 4 != 0. */
void normal_fill(struct normal *normal, uint64_t *state, void *to, size_t count);

/* The same for bytes of `first` + (random & `mask`). Only the last call for a tensor may have count % 8 != 0. */
void normal_bytes(uint64_t *state, void *to, size_t count, uint8_t first, uint8_t mask);

#endif
