/* SPDX-License-Identifier: MIT */
#include "daemon/routing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "daemon/ringsrv-internal.h"
#include "daemon/session.h"

#define PIECE_PAIRS (ROUTING_PIECE / PAIR_BYTES)

void routing_drop(struct routing *r)
{
	free(r->ids);
	*r = (struct routing){0};
}

static void begin(struct routing *r, const struct moe_sqe *e, uint64_t pairs, uint32_t n_experts)
{
	const uint64_t counts = pairs > n_experts ? n_experts * sizeof(uint32_t) : 0;

	routing_drop(r);
	r->sqe = *e;
	r->pairs = pairs;
	r->begun = true;
	r->ids = malloc(pairs * PAIR_BYTES + counts);
	r->status = r->ids ? 0 : -ENOMEM;
	if (r->ids)
		memset(r->ids + 2 * pairs, 0, counts);
}

static int check_ids(struct session *s, struct routing *r, const int32_t *ids, uint64_t n)
{
	const uint32_t n_experts = s->entry->model->manifest->n_experts;
	uint32_t *counts = (uint32_t *)routing_counts(r->ids, r->pairs, n_experts);

	for (uint64_t i = 0; i < n; i++) {
		if (ids[i] < -1 || ids[i] >= (int32_t)n_experts)
			return -EINVAL;
		if (ids[i] < 0)
			continue;
		r->asked++;
		if (counts)
			counts[ids[i]]++;
		ringsrv_use_hint(s, r->sqe.layer, (uint32_t)ids[i]);
	}
	return 0;
}

static void read_piece(struct session *s, struct routing *r)
{
	const uint64_t n = MIN(r->pairs - r->done, PIECE_PAIRS), from = r->done * sizeof(int32_t);
	int32_t *ids = r->ids + r->done, *weights = ids + r->pairs;

	if (!ringsrv_read_data(s, ids, n * sizeof *ids, r->sqe.compute.ids + from) ||
	    !ringsrv_read_data(s, weights, n * sizeof *weights, r->sqe.compute.weights + from))
		r->status = -EFAULT;
	else
		r->status = check_ids(s, r, ids, n);
	r->done += n;
}

static bool is_read(const struct routing *r)
{
	return r->status < 0 || r->done == r->pairs;
}

bool routing_read(struct session *s, const struct moe_sqe *e, uint64_t pairs)
{
	struct routing *r = &s->routing;

	if (!r->begun || r->pairs != pairs || memcmp(&r->sqe, e, sizeof *e) != 0)
		begin(r, e, pairs, s->entry->model->manifest->n_experts);
	if (!is_read(r))
		read_piece(s, r);
	return is_read(r);
}

int routing_take(struct session *s, const struct moe_sqe *e, uint64_t pairs, int32_t **ret_ids, uint64_t *ret_asked)
{
	struct routing *r = &s->routing;
	int status;

	while (!routing_read(s, e, pairs))
		;
	status = r->status;
	if (status == 0) {
		*ret_ids = steal_ptr(r->ids);
		*ret_asked = r->asked;
	}
	routing_drop(r);
	return status;
}
