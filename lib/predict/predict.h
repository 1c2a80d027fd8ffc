/* SPDX-License-Identifier: MIT */
/*
 * predict - which experts a layer will ask for, guessed from the layer below it and from the token before.
 *
 * Two tables a layer are counted while steps go by: how often expert e was chosen by a token whose layer below had
 * chosen a (below the first layer is the last layer of the step before), and how often by the token after one for
 * which this layer had chosen b. A guess is naive Bayes over both, of
 *
 *     score(e) = sum over a of log(below[a][e]) + 1/2 sum over b of log(before[b][e]) - prior(e)
 *
 * where all counts begin at 1, and prior(e) takes back what e's own frequency has put into each term: 7/8 of it, as
 * the terms are not independent. Of several tokens the chances are added up. The token at place i of a step is taken
 * for the follower of that at place i of the step before, if the steps have as many tokens; where they are not, the
 * guess is worse and nothing else.
 *
 * Counts are halved, a row of a table at a time, when one of them is full: what was long ago, in steps, fades. A step
 * of more than PREDICT_TOKENS_MAX tokens (prefill: it wants nearly all experts) is not looked at. Nothing allocates
 * after predict_new; 8 * experts^2 bytes a layer. Integers only: the same calls give the same guesses everywhere.
 * Not thread-safe.
 */
#ifndef LIB_PREDICT_H
#define LIB_PREDICT_H

#include <stdint.h>

#include "moe-error.h"

#define PREDICT_TOKENS_MAX 16
#define PREDICT_COUNT_MAX 4095 /* a count that gets there halves its row */

struct predict;

/* -EINVAL: rows, experts (at most 4096) or topk (at most 64, and experts) is out of range; -ENOMEM. */
int predict_new(struct predict **ret, uint32_t rows, uint32_t experts, uint32_t topk, struct moe_error *err);
struct predict *predict_free(struct predict *predict); /* takes NULL, returns NULL */

/* What the router chose for this row, one call a row and step: [tokens][topk] ids, -1 for none, none twice for a token;
 * topk at most that of predict_new. Learning counts it behind what is remembered, so it comes first; without it the
 * tables stay as they are. */
void predict_learn(struct predict *predict, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids);
void predict_remember(struct predict *predict, uint32_t row, uint32_t tokens, uint32_t topk, const int32_t *ids);

/* The n experts (at most all) that the row's next step will most probably ask for, the most probable first. Returns how
 * many it wrote: n, or 0 if nothing is known of the row yet, or its last step and that below it were too large. */
uint32_t predict_next(struct predict *predict, uint32_t row, uint32_t n, int32_t *ret);

#endif
