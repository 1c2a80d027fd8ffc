/* SPDX-License-Identifier: MIT */
#include "daemon/frames-internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

/* -- the order ---------------------------------------------------------------------------------------------------- */

static struct row *row_of(const struct frames *f, uint32_t record)
{
	return &f->row[record / f->p.experts];
}

static int32_t expert_of(const struct frames *f, uint32_t record)
{
	return (int32_t)(record % f->p.experts);
}

void order_admit(struct frames *f, uint32_t record)
{
	f->p.policy->admit(row_of(f, record)->policy, expert_of(f, record));
}

void order_idle(struct frames *f, uint32_t record)
{
	const int32_t expert = expert_of(f, record);

	f->p.policy->release(row_of(f, record)->policy, &expert, 1);
	f->n_idle++;
}

void order_hold(struct frames *f, uint32_t record)
{
	const int32_t expert = expert_of(f, record);

	f->p.policy->hold(row_of(f, record)->policy, &expert, 1);
	f->n_idle--;
}

void order_evict(struct frames *f, uint32_t record)
{
	f->p.policy->evict(row_of(f, record)->policy, expert_of(f, record));
	f->n_idle--;
}

void order_request(struct frames *f, const struct frames_ask *ask)
{
	void *state = f->row[ask->row].policy;

	if (f->p.policy->route && ask->tokens.ids)
		f->p.policy->route(state, &ask->tokens);
	f->p.policy->request(state, (const int32_t *)ask->experts, NULL, ask->n);
	f->p.policy->settle(state);
}

/* How far away the row's turn is. */
static uint32_t distance(const struct frames *f, uint32_t row)
{
	return (row + f->p.rows - f->now) % f->p.rows;
}

/* The record that goes first, of those that were not used in pass `before` or later; FRAMES_NONE. */
uint32_t order_first(struct frames *f, uint64_t before)
{
	uint32_t best = FRAMES_NONE;

	for (uint32_t i = 0; i < f->p.rows; i++) {
		const int32_t first = f->p.policy->coldest(f->row[i].policy);
		uint32_t record;

		if (first < 0)
			continue;
		record = i * f->p.experts + (uint32_t)first;
		if (f->record[record].used >= before)
			continue;
		if (best == FRAMES_NONE || f->record[record].used < f->record[best].used ||
		    (f->record[record].used == f->record[best].used &&
		     distance(f, i) > distance(f, best / f->p.experts)))
			best = record;
	}
	return best;
}

/* -- another policy ----------------------------------------------------------------------------------------------- */

size_t order_state_bytes(const struct frames_params *p, const struct policy_ops *policy)
{
	return ALIGN_UP(policy->bytes(p->experts, p->experts), sizeof(uint64_t));
}

/* calloc() alone would promise what is not there, and the machine would find out while it serves. */
int order_states(uint8_t **ret, const struct frames_params *p, const struct policy_ops *policy)
{
	const size_t bytes = order_state_bytes(p, policy);
	uint8_t *states;

	if (bytes > FRAMES_POLICY_BYTES_MAX / p->rows || (policy->by_pairs && p->experts > FRAMES_BY_PAIRS_MAX))
		return -E2BIG;
	states = calloc(p->rows, bytes);
	if (!states)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->rows; i++)
		policy->init(states + i * bytes, p->experts, p->experts);
	*ret = states;
	return 0;
}

/* What is idle in the order that it had, what is held is held again. */
static void carry_over(struct frames *f, uint32_t row, const struct policy_ops *policy, void *to)
{
	void *from = f->row[row].policy;
	int32_t expert;

	while ((expert = f->p.policy->coldest(from)) >= 0) {
		f->p.policy->evict(from, expert);
		policy->admit(to, expert);
		policy->release(to, &expert, 1);
	}
	for (uint32_t e = 0; e < f->p.experts; e++) {
		const uint32_t number = f->record[row * f->p.experts + e].frame;
		const struct frame *frame = number == FRAMES_NONE ? NULL : &f->frame[number];

		if (frame && frame->state == FRAME_READY && frame->pins + frame->leases > 0)
			policy->admit(to, (int32_t)e);
	}
	policy->settle(to);
}

int frames_set_policy(struct frames *f, const struct policy_ops *policy)
{
	uint8_t *states;
	int r = order_states(&states, &f->p, policy);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < f->p.rows; i++) {
		carry_over(f, i, policy, states + i * order_state_bytes(&f->p, policy));
		f->row[i].policy = states + i * order_state_bytes(&f->p, policy);
	}
	free(f->policies);
	f->policies = states;
	f->p.policy = policy;
	return 0;
}

const struct policy_ops *frames_policy(const struct frames *f)
{
	return f->p.policy;
}

/* -- hints ------------------------------------------------------------------------------------------------------- */

static void set_hinted(struct row *row, struct record *record, bool hinted)
{
	row->hints = row->hints - record->hinted + hinted;
	record->hinted = hinted;
}

void frames_hint(struct frames *f, uint64_t *mine, uint32_t row, const uint64_t *bits, const uint16_t *chances)
{
	const uint32_t words = frames_hint_words(f->p.experts);

	mine += (size_t)row * words;
	for (uint32_t e = 0; e < f->p.experts; e++) {
		struct record *record = &f->record[row * f->p.experts + e];

		if (mine[e / 64] >> e % 64 & 1 && --record->hinters == 0) {
			set_hinted(&f->row[row], record, false);
			record->chance = 0;
		}
		if (bits && bits[e / 64] >> e % 64 & 1) {
			record->hinters++;
			record->chance = MAX(record->chance, chances ? chances[e] : FRAMES_HINT_SURE);
			set_hinted(&f->row[row], record, record->frame == FRAMES_NONE);
		}
	}
	for (uint32_t i = 0; i < words; i++)
		mine[i] = bits ? bits[i] : 0;
}

/* Of a row: the most probable one, of several the lowest; what has come into a frame meanwhile needs none. */
static uint32_t likeliest(struct frames *f, uint32_t row, uint32_t least)
{
	uint32_t best = FRAMES_NONE;

	for (uint32_t e = 0; e < f->p.experts; e++) {
		const uint32_t at = row * f->p.experts + e;
		struct record *record = &f->record[at];

		if (record->hinted && record->frame != FRAMES_NONE)
			set_hinted(&f->row[row], record, false);
		else if (record->hinted && record->chance >= least &&
			 (best == FRAMES_NONE || record->chance > f->record[best].chance))
			best = at;
	}
	return best;
}

uint32_t order_next_hint(struct frames *f, uint32_t least)
{
	for (uint32_t i = 0; i < f->p.rows; i++) {
		const uint32_t row = (f->now + i) % f->p.rows;
		const uint32_t record = f->row[row].hints ? likeliest(f, row, least) : FRAMES_NONE;

		if (record == FRAMES_NONE)
			continue;
		set_hinted(&f->row[row], &f->record[record], false);
		return record;
	}
	return FRAMES_NONE;
}
