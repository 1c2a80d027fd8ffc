/* SPDX-License-Identifier: MIT */
#include "daemon/ringsrv-internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/util.h"
#include "daemon/agreement.h"

/* A step of more tokens has prefill's priority whatever its PHASE says. */
#define DECODE_TOKENS_MAX 256

/* -- validation of the private copy ------------------------------------------------------------------------------- */

static bool arena_has(const struct session *s, enum moe_arena kind, uint64_t offset, uint64_t bytes)
{
	const struct clientmem *arena = &s->arenas[kind];

	return arena->base && offset % MOE_PART_ALIGN == 0 && checked_range(offset, bytes, arena->bytes);
}

static bool all_zero(const __u64 *words, size_t n)
{
	uint64_t any = 0;

	for (size_t i = 0; i < n; i++)
		any |= words[i];
	return any == 0;
}

/* Row of the entry's layer, or -ENOENT. */
static int row_of(const struct session *s, const struct moe_sqe *e)
{
	const struct resident *model = s->entry->model;

	if (e->layer >= model->manifest->n_layers || model->layer_index[e->layer] < 0)
		return -ENOENT;
	return model->layer_index[e->layer];
}

static enum pool_priority priority_of(const struct session *s, uint32_t tokens)
{
	return s->phase == MOE_PHASE_PREFILL || tokens > DECODE_TOKENS_MAX ? POOL_PREFILL : POOL_DECODE;
}

static uint64_t *hint_bits(const struct session *s, uint32_t layer)
{
	return s->hinted + (size_t)layer * DIV_UP(s->entry->model->manifest->n_experts, 64);
}

const uint64_t *ringsrv_hinted(const struct session *s, uint32_t layer)
{
	return hint_bits(s, layer);
}

void ringsrv_use_hint(struct session *s, uint32_t layer, uint32_t expert)
{
	uint64_t *bits = hint_bits(s, layer) + expert / 64;
	const uint64_t bit = (uint64_t)1 << expert % 64;

	if (*bits & bit) {
		*bits &= ~bit;
		s->entry->served[layer].hint_used++;
	}
}

/* The range that a FILL asks for, of a slice of so many bytes. */
static int fill_range(const struct moe_sqe *e, uint64_t slice_bytes, uint64_t *ret_from, uint64_t *ret_bytes)
{
	const bool all = e->fill.from == 0 && e->fill.bytes == 0;

	if (!all && (e->fill.bytes == 0 || !checked_range(e->fill.from, e->fill.bytes, slice_bytes)))
		return -EINVAL;
	*ret_from = e->fill.from;
	*ret_bytes = all ? slice_bytes : e->fill.bytes;
	return 0;
}

static enum pool_priority fill_priority(const struct session *s, const struct moe_sqe *e)
{
	if (e->flags & MOE_SQE_PREFETCH)
		return POOL_BACKGROUND;
	return s->phase == MOE_PHASE_PREFILL ? POOL_PREFILL : POOL_DECODE;
}

/* -- the operations: 0 and *ret_wait says whether the pool has to work, or the completion's -errno --------------- */

static uint64_t type_bytes(uint8_t type)
{
	return type == MOE_TYPE_F32 ? 4 : type == MOE_TYPE_BF16 ? 2 : 0;
}

/* What a request with so many pairs costs: the experts that are read, which of them is not looked at; the arithmetic;
 * and what is of every token, with pairs or without, for y is written all the same. */
static uint64_t compute_cost(const struct session *s, const struct pool_compute *c, uint64_t pairs)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint64_t slice_kib = DIV_UP(c->slice->bytes, 1024);
	const uint64_t token_bytes = m->hidden * (type_bytes((uint8_t)c->x_type) + type_bytes((uint8_t)c->y_type)) +
				     c->topk * PAIR_BYTES;

	return MIN(pairs, m->n_experts) * slice_kib + pairs * slice_kib / POOL_PAIRS_PER_READ +
	       DIV_UP(c->tokens * token_bytes, 1024);
}

bool ringsrv_read_data(const struct session *s, void *to, uint64_t bytes, uint64_t offset)
{
	return pread(s->data_fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* The pool works on copies of ids and weights. */
static int copy_routing(struct session *s, struct request *q, uint64_t pairs)
{
	uint64_t asked;
	int32_t *ids;
	const int r = routing_take(s, &q->sqe, pairs, &ids, &asked);

	if (r < 0)
		return r;
	q->copy = ids;
	s->copied += pairs * PAIR_BYTES;
	q->compute.ids = ids;
	q->compute.weights = (float *)(ids + pairs);
	q->cost = compute_cost(s, &q->compute, asked);
	return 0;
}

void ringsrv_drop_routing(struct session *s, struct request *q)
{
	if (q->copy)
		s->copied -= (uint64_t)q->sqe.count * q->sqe.compute.topk * PAIR_BYTES;
	free(q->copy);
	q->copy = NULL;
}

uint64_t ringsrv_read_bytes(const struct session *s, const struct moe_sqe *e)
{
	uint64_t bytes;

	if (e->op == MOE_OP_CANCEL) /* a look at each request takes as long as one at a pair */
		return s->requests_used * PAIR_BYTES;
	bytes = ringsrv_routing_bytes(e);
	return bytes > ROUTING_PIECE ? 0 : bytes;
}

bool ringsrv_read_ahead(struct session *s, const struct moe_sqe *e, uint64_t *read)
{
	const uint64_t pairs = (uint64_t)e->count * e->compute.topk;

	if (pairs > MOE_PAIRS_MAX || row_of(s, e) < 0)
		return true; /* it is refused */
	*read += ROUTING_PIECE;
	return routing_read(s, e, pairs);
}

uint64_t ringsrv_routing_bytes(const struct moe_sqe *e)
{
	if (e->op != MOE_OP_COMPUTE)
		return 0;
	return MIN((uint64_t)e->count * e->compute.topk, MOE_PAIRS_MAX) * PAIR_BYTES;
}

/* Not inlined, like the others: what one operation needs of stack and registers is not prepared for another, which may
 * need next to nothing. */
static NOINLINE int claim_compute(struct session *s, struct request *q, bool *ret_wait)
{
	const struct moe_sqe *e = &q->sqe;
	const uint64_t hidden = s->entry->model->manifest->hidden;
	const uint64_t pairs = (uint64_t)e->count * e->compute.topk;
	const uint64_t values = e->count * hidden;
	const int row = row_of(s, e);
	int r;

	if (row < 0)
		return row;
	if (e->flags & ~MOE_SQE_WHOLE || e->compute.reserved0 || e->compute.reserved1 || e->count == 0 ||
	    e->count > MOE_TOKENS_MAX || e->compute.topk == 0 || e->compute.topk > MOE_TOPK_MAX ||
	    !type_bytes(e->compute.x_type) || !type_bytes(e->compute.y_type))
		return -EINVAL;
	if (pairs > MOE_PAIRS_MAX)
		return -E2BIG;
	if (!arena_has(s, MOE_ARENA_DATA, e->compute.x, values * type_bytes(e->compute.x_type)) ||
	    !arena_has(s, MOE_ARENA_DATA, e->compute.y, values * type_bytes(e->compute.y_type)) ||
	    !arena_has(s, MOE_ARENA_DATA, e->compute.ids, pairs * 4) ||
	    !arena_has(s, MOE_ARENA_DATA, e->compute.weights, pairs * 4))
		return -EFAULT;
	q->compute = (struct pool_compute){
		.model = s->entry->model,
		.row = (uint32_t)row,
		.layout = &s->entry->model->layouts[resident_layout(s->entry->model, (uint32_t)row)],
		.slice = e->flags & MOE_SQE_WHOLE ? session_whole(s, (uint32_t)row) : session_slice(s, (uint32_t)row),
		.priority = q->priority = priority_of(s, e->count),
		.tokens = e->count,
		.topk = e->compute.topk,
		.x = client_at(&s->arenas[MOE_ARENA_DATA], e->compute.x),
		.y = client_at(&s->arenas[MOE_ARENA_DATA], e->compute.y),
		.x_type = e->compute.x_type,
		.y_type = e->compute.y_type,
	};
	r = copy_routing(s, q, pairs);
	*ret_wait = r == 0;
	return r;
}

int ringsrv_lend(struct session *s, struct request *q, int row)
{
	uint64_t lease;
	int r;

	lease = journal_free_lease(&s->journal);
	if (!lease)
		return -ENOSPC;
	r = session_room_for_lease(s, lease);
	if (r < 0)
		return r;
	q->cqe.lease = lease;
	journal_set_effect(&s->journal, slot_of(q), JOURNAL_LEND, lease);
	q->cqe.offset = resident_offset(s->entry->model, (uint32_t)row, q->sqe.fill.expert);
	q->cqe.bytes = session_slice(s, (uint32_t)row)->bytes;
	return 0;
}

static void push_fill(struct request *q)
{
	const struct moe_sqe *e = &q->sqe;

	push_copy(q->session->device, &q->fill, e->fill.dst, e->flags & MOE_SQE_SIGNAL ? &e->fill.signal : NULL);
}

/* At most one flag, with the fields that go with it. */
static bool fill_flags_good(const struct session *s, const struct moe_sqe *e)
{
	if (e->fill.signal && e->flags != MOE_SQE_SIGNAL)
		return false;
	switch (e->flags) {
	case 0:
	case MOE_SQE_PREFETCH:
		return true;
	case MOE_SQE_LEASE:
		return !e->fill.dst && !e->fill.from && !e->fill.bytes;
	case MOE_SQE_SIGNAL:
		return s->timeline;
	default:
		return false;
	}
}

static NOINLINE int claim_fill(struct session *s, struct request *q, bool *ret_wait)
{
	const struct moe_sqe *e = &q->sqe;
	const int row = row_of(s, e);
	const struct moe_slice *slice;
	uint64_t from, bytes;
	int r;

	if (row < 0 || e->fill.expert >= s->entry->model->manifest->n_experts)
		return -ENOENT;
	if (!fill_flags_good(s, e) || e->count || e->fill.reserved0 || e->fill.reserved1 || e->fill.reserved2)
		return -EINVAL;
	if (!(e->flags & MOE_SQE_PREFETCH)) /* that one guesses as well */
		ringsrv_use_hint(s, e->layer, e->fill.expert);
	if (e->flags & MOE_SQE_LEASE) /* of a tiered model it waits for the record first */
		return s->entry->tier ? 0 : ringsrv_lend(s, q, row);
	slice = session_slice(s, (uint32_t)row);
	r = fill_range(e, slice->bytes, &from, &bytes);
	if (r < 0)
		return r;
	if (s->device ? e->fill.dst % MOE_PART_ALIGN || !checked_range(e->fill.dst, slice->bytes, s->device_bytes)
		      : !arena_has(s, MOE_ARENA_SLOTS, e->fill.dst, slice->bytes))
		return -EFAULT;
	q->fill = (struct pool_copy){
		.model = s->entry->model,
		.row = (uint32_t)row,
		.expert = e->fill.expert,
		.slice = slice,
		.from = from,
		.bytes = bytes,
		.priority = q->priority = fill_priority(s, e),
		.dst = s->device ? NULL : client_at(&s->arenas[MOE_ARENA_SLOTS], e->fill.dst),
	};
	q->start = s->device ? push_fill : NULL;
	q->cost = 2 * DIV_UP(bytes, 1024); /* read and written */
	*ret_wait = true;
	return 0;
}

/* How probable an expert of a HINT is, of FRAMES_HINT_SURE: whatever the client has written there is a number. */
static uint16_t chance_of(float weight)
{
	if (!(weight > 0))
		return 0; /* also what is no number */
	return weight < 1 ? (uint16_t)(weight * FRAMES_HINT_SURE) : FRAMES_HINT_SURE;
}

/* In pieces: they are on the stack. */
static int read_hints(struct session *s, const struct moe_sqe *e, uint64_t *bits)
{
	enum { PIECE = 256 };
	uint32_t ids[PIECE];
	float weights[PIECE];

	for (uint32_t i = 0, n; i < e->count; i += n) {
		n = MIN(e->count - i, (uint32_t)PIECE);
		if (!ringsrv_read_data(s, ids, n * sizeof *ids, e->hint.ids + i * sizeof *ids) ||
		    (e->hint.weights && s->chances &&
		     !ringsrv_read_data(s, weights, n * sizeof *weights, e->hint.weights + i * sizeof *weights)))
			return -EFAULT;
		for (uint32_t k = 0; k < n; k++) {
			if (ids[k] >= s->entry->model->manifest->n_experts)
				return -EINVAL;
			bits[ids[k] / 64] |= (uint64_t)1 << ids[k] % 64;
			if (s->chances)
				s->chances[ids[k]] = e->hint.weights ? chance_of(weights[k]) : FRAMES_HINT_SURE;
		}
	}
	return 0;
}

static NOINLINE int claim_hint(struct session *s, struct request *q)
{
	const struct moe_sqe *e = &q->sqe;
	const uint32_t n_experts = s->entry->model->manifest->n_experts;
	uint64_t *bits;
	int r;

	if (row_of(s, e) < 0)
		return -ENOENT;
	if (e->flags || !all_zero(e->hint.reserved, 4) || e->count > n_experts)
		return -EINVAL;
	if (!arena_has(s, MOE_ARENA_DATA, e->hint.ids, (uint64_t)e->count * 4) ||
	    (e->hint.weights && !arena_has(s, MOE_ARENA_DATA, e->hint.weights, (uint64_t)e->count * 4)))
		return -EFAULT;
	bits = hint_bits(s, e->layer);
	memset(bits, 0, DIV_UP(n_experts, 64) * sizeof *bits);
	r = read_hints(s, e, bits);
	if (r < 0)
		return r;
	s->entry->served[e->layer].hinted += e->count;
	return 0;
}

static NOINLINE int claim_phase(struct session *s, const struct moe_sqe *e)
{
	if (e->flags || e->count || e->layer || e->phase.phase > MOE_PHASE_DECODE ||
	    e->phase.flags & ~MOE_PHASE_DUMMY || !all_zero(e->phase.reserved, 4))
		return -EINVAL;
	s->phase = (enum moe_phase)e->phase.phase;
	s->dummy = e->phase.flags & MOE_PHASE_DUMMY;
	s->step = e->phase.step;
	s->journal.page->phase = e->phase.phase;
	s->journal.page->dummy = s->dummy;
	s->journal.page->step = s->step;
	return 0;
}

static NOINLINE int give_back(struct session *s, struct request *q, uint64_t lease)
{
	if (!journal_holds(&s->journal, lease))
		return -ENOENT;
	journal_set_effect(&s->journal, slot_of(q), JOURNAL_RELEASE, lease);
	return 0;
}

/* Of the requests with this user_data, one that waits; else one that the pool has; else NULL. */
static struct request *find_request(const struct session *s, const struct request *cancel, uint64_t user_data)
{
	struct request *found = NULL;

	for (uint32_t i = 0; i < s->requests_used; i++) {
		struct request *q = &s->requests[i];
		const uint32_t state = atomic_load_explicit(&q->state, memory_order_acquire);

		if (q == cancel || q->sqe.user_data != user_data)
			continue;
		if (state == MOE_REQUEST_QUEUED || (state == MOE_REQUEST_CLAIMED && q->tier))
			return q;
		if (state == MOE_REQUEST_RUNNING || state == MOE_REQUEST_DONE)
			found = q;
	}
	return found;
}

static NOINLINE int claim_cancel(struct session *s, struct sched *sched, struct request *q)
{
	const struct moe_sqe *e = &q->sqe;
	struct request *found;

	if (e->flags || e->layer || e->count || !all_zero(e->cancel.reserved, ARRAY_LEN(e->cancel.reserved)))
		return -EINVAL;
	found = find_request(s, q, e->cancel.user_data);
	if (!found)
		return -ENOENT;
	switch (atomic_load_explicit(&found->state, memory_order_acquire)) {
	case MOE_REQUEST_CLAIMED:
		ringsrv_tier_cancel(s, found);
		break;
	case MOE_REQUEST_QUEUED:
		sched_cancel(sched, found);
		break;
	default:
		return -EALREADY;
	}
	ringsrv_complete(found);
	return 0;
}

int ringsrv_claim(struct session *s, struct sched *sched, struct request *q, bool *ret_wait)
{
	const struct moe_sqe *e = &q->sqe;

	switch (e->op) {
	case MOE_OP_NOP:
		return e->flags || e->layer || e->count || !all_zero(e->payload, 6) ? -EINVAL : 0;
	case MOE_OP_FILL:
		return claim_fill(s, q, ret_wait);
	case MOE_OP_COMPUTE:
		return claim_compute(s, q, ret_wait);
	case MOE_OP_RELEASE:
		if (e->flags || e->layer || e->count || !all_zero(e->release.reserved, 5))
			return -EINVAL;
		return give_back(s, q, e->release.lease);
	case MOE_OP_HINT:
		return claim_hint(s, q);
	case MOE_OP_PHASE:
		return claim_phase(s, e);
	case MOE_OP_CANCEL:
		return claim_cancel(s, sched, q);
	case MOE_OP_AGREE:
		return agreement_claim(s, q);
	default:
		return -EOPNOTSUPP;
	}
}
