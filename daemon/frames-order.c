/* SPDX-License-Identifier: MIT */
#include "daemon/frames-internal.h"

/* -- the order ---------------------------------------------------------------------------------------------------- */

static struct row *row_of(const struct frames *f, uint32_t record)
{
	return &f->row[record / f->p.experts];
}

/* A record without pins joins the order of its row; order_settle() follows. */
void order_admit(struct frames *f, uint32_t record)
{
	f->p.policy->admit(row_of(f, record)->policy, (int32_t)(record % f->p.experts));
	f->n_idle++;
}

void order_settle(struct frames *f, uint32_t row)
{
	f->p.policy->settle(f->row[row].policy);
}

void order_leave(struct frames *f, uint32_t record)
{
	const int32_t expert = (int32_t)(record % f->p.experts);
	struct row *row = row_of(f, record);

	if (row->first == expert)
		row->first = -1;
	else
		f->p.policy->remove(row->policy, expert);
	f->n_idle--;
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
		struct row *row = &f->row[i];
		uint32_t record;

		if (row->first < 0)
			row->first = f->p.policy->victim(row->policy);
		if (row->first < 0)
			continue;
		record = i * f->p.experts + (uint32_t)row->first;
		if (f->record[record].used >= before)
			continue;
		if (best == FRAMES_NONE || f->record[record].used < f->record[best].used ||
		    (f->record[record].used == f->record[best].used &&
		     distance(f, i) > distance(f, best / f->p.experts)))
			best = record;
	}
	return best;
}

/* -- hints ------------------------------------------------------------------------------------------------------- */

static void set_hinted(struct row *row, struct record *record, bool hinted)
{
	row->hints = row->hints - record->hinted + hinted;
	record->hinted = hinted;
}

void frames_hint(struct frames *f, uint64_t *mine, uint32_t row, const uint64_t *bits)
{
	const uint32_t words = frames_hint_words(f->p.experts);

	mine += (size_t)row * words;
	for (uint32_t e = 0; e < f->p.experts; e++) {
		struct record *record = &f->record[row * f->p.experts + e];

		if (mine[e / 64] >> e % 64 & 1 && --record->hinters == 0)
			set_hinted(&f->row[row], record, false);
		if (bits && bits[e / 64] >> e % 64 & 1) {
			record->hinters++;
			set_hinted(&f->row[row], record, record->frame == FRAMES_NONE);
		}
	}
	for (uint32_t i = 0; i < words; i++)
		mine[i] = bits ? bits[i] : 0;
}

/* The hinted record that is needed first and is in no frame. */
uint32_t order_next_hint(struct frames *f)
{
	for (uint32_t i = 0; i < f->p.rows; i++) {
		const uint32_t row = (f->now + i) % f->p.rows;

		for (uint32_t e = 0; f->row[row].hints && e < f->p.experts; e++) {
			struct record *record = &f->record[row * f->p.experts + e];

			if (!record->hinted)
				continue;
			record->hinted = false;
			f->row[row].hints--;
			if (record->frame == FRAMES_NONE)
				return row * f->p.experts + e;
		}
		f->row[row].hints = 0;
	}
	return FRAMES_NONE;
}
