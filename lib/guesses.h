/* SPDX-License-Identifier: MIT */
/*
 * guesses - a session that guesses what its next layer will ask for, and announces it to the daemon (HINT).
 *
 * Law: no result depends on a guess, and no step waits for one: an announcement is left out while the one before is on
 * its way. Each submitted step of tokens, but for dummy ones, first tells how good the guess for its layer was, then is
 * learned from, and then the next MoE layer's experts are guessed; behind the last one comes the first one, of the next
 * step. A plan that was not submitted is nothing. Of a group only rank 0 guesses: all see the same routing.
 */
#ifndef LIB_GUESSES_H
#define LIB_GUESSES_H

#include <stdint.h>

#include "moe-error.h"

struct engine;
struct guesses;
struct moe_plan;

/* Of the session's data arena. */
uint64_t guesses_data_bytes(const struct engine *engine);

/* Nothing is made, and *ret is NULL, where the session does not guess. `data`: guesses_data_bytes of the arena. */
int guesses_new(struct guesses **ret, struct engine *engine, void *data, struct moe_error *err);
struct guesses *guesses_free(struct guesses *guesses); /* takes NULL, returns NULL */

/* The plan has been submitted; it is still the caller's. Takes NULL guesses. */
void guesses_step(struct guesses *guesses, uint32_t row, const struct moe_plan *plan);

#endif
