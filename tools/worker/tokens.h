/* SPDX-License-Identifier: MIT */
/*
 * tokens - text to token ids and back. There is no tokenizer: a byte is its own id; a file of ids is decimal numbers
 * with anything but digits between them. Every id is below the vocabulary's size.
 */
#ifndef WORKER_TOKENS_H
#define WORKER_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"
#include "tools/worker/options.h"

struct tokens {
	int32_t *ids;
	size_t n;
};

/* What the options name as input, cut at --limit. */
int tokens_read(struct tokens *ret, const struct options *options, uint32_t vocab, struct moe_error *err);
void tokens_free(struct tokens *tokens);

/* The id's byte, or "<id>" from 256 on; returns how many bytes of `text` (room for 16) it is. */
size_t token_text(char *text, int32_t id);

#endif
