/* SPDX-License-Identifier: MIT */
/*
 * What a COMPUTE costs when it is claimed: by the experts that it reads, by its pairs, and by its tokens, also where
 * none of them has a pair, for their rows of y are written all the same. And one of many pairs is read in pieces before
 * it is claimed.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memfd.h"
#include "daemon/registry.h"
#include "daemon/ringsrv-internal.h"
#include "daemon/session.h"
#include "daemon/routing.h"
#include "tests/tap.h"

enum { EXPERTS = 4, HIDDEN = 1024, TOPK = 2, MANY_TOPK = 32, TOKENS = 4096, SLICE_KIB = 96 };

static struct moe_manifest manifest = {.n_layers = 1, .n_moe_layers = 1, .n_experts = EXPERTS, .hidden = HIDDEN};
static const int32_t rows[1];
static const struct moe_layout layouts[1];
static const struct moe_record records[EXPERTS];
static struct resident model = {.manifest = &manifest, .layer_index = rows, .layouts = layouts, .records = records};
static struct served_layer served[1];
static struct entry entry = {.model = &model, .served = served};
static struct moe_slice slices[2] = {{.bytes = SLICE_KIB * 1024}, {.bytes = SLICE_KIB * 1024}};
static uint64_t hinted[1];
static struct session session = {.entry = &entry, .slices = slices, .hinted = hinted};
static int32_t *ids;

/* The ids begin the arena, then weights, x and y. */
static void begin(void)
{
	const uint64_t routing = (uint64_t)TOKENS * MANY_TOPK * 4, values = (uint64_t)TOKENS * HIDDEN * 4;
	struct clientmem *arena = &session.arenas[MOE_ARENA_DATA];

	arena->bytes = 2 * routing + 2 * values;
	session.data_fd = memfd_open("arena", 0);
	require(session.data_fd >= 0 && ftruncate(session.data_fd, (off_t)arena->bytes) == 0, "an arena");
	ids = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, session.data_fd, 0);
	require(ids != MAP_FAILED, "and its mapping");
	arena->base = (uint8_t *)ids;
}

/* Of the first `pairs` tokens each has one. */
static uint64_t cost(uint32_t tokens, uint32_t pairs, uint8_t type)
{
	const uint64_t routing = (uint64_t)TOKENS * TOPK * 4, values = (uint64_t)TOKENS * HIDDEN * 4;
	struct request q = {.session = &session, .sqe = {.op = MOE_OP_COMPUTE, .count = tokens}};
	bool wait = false;

	q.sqe.compute.topk = TOPK;
	q.sqe.compute.x_type = q.sqe.compute.y_type = type;
	q.sqe.compute.weights = routing;
	q.sqe.compute.x = 2 * routing;
	q.sqe.compute.y = 2 * routing + values;
	for (uint32_t i = 0; i < TOKENS * TOPK; i++)
		ids[i] = i % TOPK == 0 && i / TOPK < pairs ? (int32_t)(i % EXPERTS) : -1;
	require(ringsrv_claim(&session, NULL, &q, &wait) == 0 && wait, "%u tokens with %u pairs are claimed", tokens,
		pairs);
	ringsrv_drop_routing(&session, &q);
	return q.cost;
}

/* With four pieces of ids and weights, all of expert 1. */
static struct request large(void)
{
	const uint64_t routing = (uint64_t)TOKENS * MANY_TOPK * 4, y = 2 * routing + (uint64_t)TOKENS * HIDDEN * 4;
	struct request q = {.session = &session, .sqe = {.op = MOE_OP_COMPUTE, .count = TOKENS}};

	q.sqe.compute.topk = MANY_TOPK;
	q.sqe.compute.x_type = q.sqe.compute.y_type = MOE_TYPE_F32;
	q.sqe.compute.weights = routing;
	q.sqe.compute.x = 2 * routing;
	q.sqe.compute.y = y;
	for (uint32_t i = 0; i < TOKENS * MANY_TOPK; i++)
		ids[i] = 1;
	return q;
}

/* So many pieces of it. */
static uint32_t read_ahead(const struct request *q)
{
	uint64_t read = 0;
	uint32_t n = 1;

	while (!ringsrv_read_ahead(&session, &q->sqe, &read))
		n++;
	return read == n * ROUTING_PIECE ? n : 0;
}

static void test_pieces(void)
{
	const uint32_t pieces = TOKENS * MANY_TOPK * 8 / ROUTING_PIECE;
	struct request q = large(), other;
	uint64_t read = 0;
	bool wait = false;

	ok(!ringsrv_read_ahead(&session, &q.sqe, &read) && !ringsrv_read_ahead(&session, &q.sqe, &read) &&
		   read == 2 * ROUTING_PIECE,
	   "two of %u pieces", pieces);
	ids[0] = ids[TOKENS * MANY_TOPK / pieces] = EXPERTS; /* too late for what is read */
	ok(read_ahead(&q) == pieces - 2, "and the others");
	ids[0] = ids[TOKENS * MANY_TOPK / pieces] = 0;
	ok(ringsrv_claim(&session, NULL, &q, &wait) == 0 && wait && q.compute.ids[0] == 1 &&
		   q.compute.ids[TOKENS * MANY_TOPK - 1] == 1 && !session.routing.begun,
	   "what was read is what counts");
	ok(routing_counts(q.compute.ids, TOKENS * MANY_TOPK, EXPERTS)[1] == TOKENS * MANY_TOPK &&
		   !routing_counts(q.compute.ids, EXPERTS, EXPERTS),
	   "its pairs are counted, since there are more than experts");
	ok(session.copied == (uint64_t)TOKENS * MANY_TOPK * 8, "and is paid for");
	ringsrv_drop_routing(&session, &q);

	q = other = large();
	other.sqe.user_data = 1;
	read = 0;
	ok(!ringsrv_read_ahead(&session, &q.sqe, &read) && read_ahead(&other) == pieces, "another entry begins anew");
	routing_drop(&session.routing);
	ids[TOKENS * MANY_TOPK / 2] = EXPERTS;
	ok(read_ahead(&q) == pieces / 2 + 1, "a wrong id ends it");
	ok(ringsrv_claim(&session, NULL, &q, &wait) == -EINVAL && !session.routing.begun && session.copied == 0,
	   "and refuses the entry");
	ids[TOKENS * MANY_TOPK / 2] = 1;
	ok(ringsrv_claim(&session, NULL, &q, &wait) == 0 && !session.routing.begun,
	   "without pieces it is read at once");
	ringsrv_drop_routing(&session, &q);
	q.sqe.layer = 1;
	ok(ringsrv_read_ahead(&session, &q.sqe, &read) && !session.routing.begun,
	   "of no layer that there is nothing is");
}

int main(void)
{
	const uint64_t y_kib = (uint64_t)TOKENS * HIDDEN * 4 / 1024;
	uint64_t none, half, narrow, one, many;

	begin();
	none = cost(TOKENS, 0, MOE_TYPE_F32);
	half = cost(TOKENS / 2, 0, MOE_TYPE_F32);
	narrow = cost(TOKENS, 0, MOE_TYPE_BF16);
	ok(none >= y_kib && none < 3 * y_kib, "without a pair it costs about what y has (%llu of %llu KiB)",
	   (unsigned long long)none, (unsigned long long)y_kib);
	ok(half == none / 2, "half as many tokens cost half as much");
	ok(narrow >= y_kib / 2 && narrow < none, "narrow activations cost less");
	one = cost(1, 1, MOE_TYPE_F32);
	ok(one >= SLICE_KIB && one < SLICE_KIB * 5 / 4, "one pair costs what is read of its expert, about");
	many = cost(TOKENS, TOKENS, MOE_TYPE_F32);
	ok(many - none == EXPERTS * SLICE_KIB + TOKENS * SLICE_KIB / POOL_PAIRS_PER_READ,
	   "with pairs it costs the experts once and their arithmetic beside that");
	ok(session.copied == 0, "nothing is left of ids and weights");
	test_pieces();
	munmap(ids, session.arenas[MOE_ARENA_DATA].bytes);
	close(session.data_fd);
	return tap_done();
}
