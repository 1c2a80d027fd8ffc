/* SPDX-License-Identifier: MIT */
#include "placement/overlap.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "placement/placement.h"

/* Everything counts from 1; 0 is nobody. */
struct matching {
	uint32_t n;
	int32_t *cost;          /* [n][n]: minus the overlap of old rank and new list */
	int32_t *row, *column;  /* potentials: of ranks, of lists */
	int32_t *least;         /* of each list: what it would cost to reach it */
	uint32_t *owner, *from; /* of each list: its rank; the list before it on the way */
	bool *done;
};

static int32_t rest_of(const struct matching *m, uint32_t rank, uint32_t list)
{
	return m->cost[(size_t)(rank - 1) * m->n + list - 1] - m->row[rank] - m->column[list];
}

/* One more list is reached: the nearest one. */
static uint32_t reach(const struct matching *m, uint32_t at)
{
	int32_t delta = INT32_MAX;
	uint32_t next = 0;

	m->done[at] = true;
	for (uint32_t j = 1; j <= m->n; j++) {
		int32_t cost;

		if (m->done[j])
			continue;
		cost = rest_of(m, m->owner[at], j);
		if (cost < m->least[j]) {
			m->least[j] = cost;
			m->from[j] = at;
		}
		if (m->least[j] < delta) {
			delta = m->least[j];
			next = j;
		}
	}
	for (uint32_t j = 0; j <= m->n; j++) {
		if (m->done[j]) {
			m->row[m->owner[j]] += delta;
			m->column[j] -= delta;
		} else {
			m->least[j] -= delta;
		}
	}
	return next;
}

static void match(const struct matching *m)
{
	for (uint32_t rank = 1; rank <= m->n; rank++) {
		uint32_t at = 0;

		m->owner[0] = rank;
		memset(m->done, 0, (m->n + 1) * sizeof *m->done);
		for (uint32_t j = 0; j <= m->n; j++)
			m->least[j] = INT32_MAX;
		while (m->owner[at])
			at = reach(m, at);
		for (uint32_t before; at; at = before) {
			before = m->from[at];
			m->owner[at] = m->owner[before];
		}
	}
}

static uint32_t count_same(const int32_t *a, const int32_t *b, uint32_t slots)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < slots; i++)
		n += placement_holds(a, slots, b[i]);
	return n;
}

int overlap_permute(int32_t *to, const int32_t *from, const int32_t *lists, uint32_t ranks, uint32_t slots,
		    struct moe_error *err)
{
	const size_t n = (size_t)ranks + 1;
	_cleanup_free_ int32_t *cost = calloc((size_t)ranks * ranks, sizeof *cost);
	_cleanup_free_ int32_t *words = calloc(3 * n, sizeof *words);
	_cleanup_free_ uint32_t *links = calloc(2 * n, sizeof *links);
	_cleanup_free_ bool *done = calloc(n, sizeof *done);
	const struct matching m = {ranks, cost, words, words + n, words + 2 * n, links, links + n, done};

	if (!cost || !words || !links || !done)
		return moe_error_set(err, -ENOMEM, "no memory to match %u ranks", ranks);
	for (uint32_t i = 0; i < ranks; i++)
		for (uint32_t j = 0; j < ranks; j++)
			cost[(size_t)i * ranks + j] = -(int32_t)count_same(from + (size_t)i * slots,
									   lists + (size_t)j * slots, slots);
	match(&m);
	for (uint32_t j = 1; j <= ranks; j++)
		memcpy(to + (size_t)(m.owner[j] - 1) * slots, lists + (size_t)(j - 1) * slots, slots * sizeof *to);
	return 0;
}
