/* SPDX-License-Identifier: MIT */
/*
 * whole-record - a loaded model's record put together again from the shares that the pool files have.
 */
#ifndef TESTS_WHOLE_RECORD_H
#define TESTS_WHOLE_RECORD_H

#include <stdlib.h>

#include "daemon/store.h"
#include "model/expert.h"
#include "tests/plain-experts.h"

/* A malloc'ed record as one pool file would hold it, and its layout there. */
static inline uint8_t *whole_record(const struct resident *r, uint32_t row, uint32_t expert, struct moe_layout *ret)
{
	const struct moe_layout *layout = &r->layouts[resident_layout(r, row)];
	uint8_t *record;

	layout_spread(ret, layout, 1);
	record = calloc(1, ret->record_bytes);
	for (uint32_t s = 0; record && s < layout->shares; s++)
		plain_move_share(ret, record, layout, s, (uint8_t *)resident_share(r, row, expert, s), true);
	return record;
}

/* Records lie side by side in all pool files, in order, each at the same offset in all of them. */
static inline bool whole_places_right(const struct resident *r, uint32_t shares)
{
	const uint32_t n = r->manifest->n_moe_layers * r->manifest->n_experts;
	bool good = r->n_pools == shares && r->manifest->n_pools == shares;
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct moe_record *record = &r->records[i];

		good = good && record->layout < r->manifest->n_layouts && !record->reserved &&
		       record->layout == resident_layout(r, i / r->manifest->n_experts) && record->offset == at &&
		       r->layouts[record->layout].shares == shares;
		at += r->layouts[record->layout].record_bytes;
	}
	for (uint32_t i = 0; i < shares; i++)
		good = good && at <= r->pools[i].bytes && r->pools[i].bytes == r->pools[0].bytes;
	return good;
}

#endif
