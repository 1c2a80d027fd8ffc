/* SPDX-License-Identifier: MIT */
/*
 * widen - the same function in a larger shape: a model whose hidden and intermediate sizes are multiplied by powers of
 * two, and whose every output is what it was.
 *
 * Every hidden channel is there k times, with the same value each time: the embedding's columns and the rows of
 * whatever adds to the hidden state (attention output, down) are repeated; so are the norms' weights. The mean of
 * squares over k copies is that over one, so the norms and their epsilon need no change. Whatever reads the hidden
 * state (queries, keys, values, router, gate, up, the head) has its columns repeated and divided by k: the sum over k
 * copies of a k-th is the number that it was. In the same way every intermediate channel is there j times: rows of
 * gate and up are repeated, columns of down repeated and divided by j. Powers of two divide exactly; sums differ by
 * their order alone.
 *
 * Heads and experts stay as they are. Formats with blocks of 256 columns can thus hold a model that is narrower, and
 * see the same numbers as ever: no block has zeros that the model did not have.
 */
#ifndef MKMODEL_WIDEN_H
#define MKMODEL_WIDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "tools/mkmodel/folder.h"

/* `hidden`, `inter`: the new sizes, or 0: as they are. `out` is new or empty. */
int widen(const char *folder, const char *out, uint32_t hidden, uint32_t inter, bool progress,
	  struct folder_result *ret, struct moe_error *err);

#endif
