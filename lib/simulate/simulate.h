/* SPDX-License-Identifier: MIT */
/*
 * simulate - what a cache of so many experts a layer would have found, had it been asked for what a trace has.
 *
 * An event is one step at one layer that has tokens: U its distinct experts, R what is cached before it. Layers know
 * nothing of each other; a cache starts empty, but for `static`, which starts with the experts of most calibration
 * counts. Each missing expert is moved once an event, kept or not.
 *
 *   pinned         the library's cache (cache.h) with no limit of fills: misses in ascending id, a free slot or the
 *                  policy's coldest of those that U does not have; else it is not kept
 *   atomic         after the event the C greatest of R and U stay. For lru, lfu (events, then last), lfu-decay, lfru
 *                  and ebco-hard
 *   belady         of R and U those stay whose next event is nearest: the fewest copies of any policy
 *   belady-pinned  the same, but U is held during its event: the fewest copies of any pinned policy
 *
 * Of equal ones the lowest id leaves. Pure: no clock, no files.
 */
#ifndef LIB_SIMULATE_H
#define LIB_SIMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

enum sim_mode { SIM_PINNED, SIM_ATOMIC, SIM_BELADY, SIM_BELADY_PINNED };

/* Owned by the caller. Tokens of step s at layer l: tokens[s * layers + l], their ids from first[s * layers + l] on.
 * A cache is not told where a sequence begins: it serves them one after the other. */
struct sim_trace {
	uint32_t layers, experts, topk, steps;
	uint32_t sequences; /* that the steps are of, one after the other; 0: nobody says */
	uint32_t *begins;   /* [sequences] the first step of each, ascending; NULL with 0 */
	uint32_t *tokens;   /* [steps * layers] */
	size_t *first;      /* [steps * layers], in units of ids */
	int32_t *ids;       /* -1: none */
	float *weights;     /* NULL: not known */
};

/* How many steps the i-th of the sequences has, and which is its first. Of a trace that names none there is one, all of
 * it. */
static inline uint32_t sim_sequences(const struct sim_trace *t)
{
	return t->sequences ? t->sequences : 1;
}

static inline uint32_t sim_sequence(const struct sim_trace *t, uint32_t i, uint32_t *ret_first)
{
	const uint32_t first = t->sequences ? t->begins[i] : 0;

	*ret_first = first;
	return (i + 1 < t->sequences ? t->begins[i + 1] : t->steps) - first;
}

struct sim_counts {
	uint64_t hits_unique, misses_unique, hits_pairs, misses_pairs, copies, cold, insertions, evictions, bypasses;
};

/* "pinned", "belady-pinned": its number, or -1; and all of them, for texts. */
int sim_mode_find(const char *name);
const char *sim_mode_name(enum sim_mode mode);
const char *sim_mode_names(void);

/* Whether a policy has an atomic form: its order is that of a key. Takes NULL. */
bool sim_has_atomic(const char *policy);
#define SIM_ATOMIC_NAMES "lru, lfu, lfu-decay, lfru, ebco-hard" /* all that have one, for texts */

/* What a rule has other numbers than its own in. Of zeroes: in nothing. */
struct sim_tuning {
	bool tuned;
	double value;        /* the policy's number, in its limits */
	uint32_t cache_topk; /* of original: its K; 0, or more than the trace has: all that a token asks for */
	bool limited;
	uint32_t update_expert_num; /* of original, if limited: its U */
};

struct sim_params {
	enum sim_mode mode;
	const char *policy; /* of pinned and atomic */
	struct sim_tuning tuning;
	uint32_t capacity;           /* more than the trace's experts is as many */
	const uint64_t *calibration; /* [layers][experts] of static; NULL: it starts empty */
	bool *missed;                /* NULL, or in units of the trace's ids: was not there when it was asked for */
	/* Each eviction, in order. May be NULL. `event` counts the layer's events. */
	void (*evicted)(void *userdata, uint32_t event, int32_t victim, int32_t incoming);
	void *userdata;
};

/* -EINVAL: an unknown policy, or one that the mode does not have; -ENOMEM. ret_final [experts]:
 * what is cached at the end. */
int sim_layer(const struct sim_trace *trace, uint32_t layer, const struct sim_params *params,
	      struct sim_counts *ret_counts, bool *ret_final, struct moe_error *err);

void sim_add(struct sim_counts *to, const struct sim_counts *counts);

#endif
