/* SPDX-License-Identifier: MIT */
#include "simulate/trace-build.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "simulate/moetrc.h"

#define ROOM_FIRST 256

void sim_build_begin(struct sim_build *ret, uint32_t layers, uint32_t experts, uint32_t topk)
{
	*ret = (struct sim_build){.trace = {.layers = layers, .experts = experts, .topk = topk}};
}

/* The array with room for n, at least doubled. */
static bool grow(void *array, size_t n, size_t size)
{
	void **p = array, *grown = reallocarray(*p, n, size);

	if (grown)
		*p = grown;
	return grown != NULL;
}

int sim_build_sequence(struct sim_build *b, struct moe_error *err)
{
	const size_t room = b->sequences_room ? 2 * b->sequences_room : ROOM_FIRST;

	assert(b->places % b->trace.layers == 0);
	if (b->trace.sequences == b->sequences_room) {
		if (!grow(&b->trace.begins, room, sizeof *b->trace.begins))
			return moe_error_set(err, -ENOMEM, "trace: no memory for %zu sequences", room);
		b->sequences_room = room;
	}
	b->trace.begins[b->trace.sequences++] = (uint32_t)(b->places / b->trace.layers);
	return 0;
}

int sim_build_place(struct sim_build *b, struct moe_error *err)
{
	const size_t room = b->places_room ? 2 * b->places_room : ROOM_FIRST;

	if (b->places == SIM_PLACES_MAX)
		return moe_error_set(err, -E2BIG, "trace: more than %zu steps times layers: cut it into parts",
				     SIM_PLACES_MAX);
	if (b->places == b->places_room) {
		if (!grow(&b->trace.tokens, room, sizeof *b->trace.tokens) ||
		    !grow(&b->trace.first, room, sizeof *b->trace.first))
			return moe_error_set(err, -ENOMEM, "trace: no memory for %zu steps of layers", room);
		b->places_room = room;
	}
	/* What points to a place's ids points to memory, also where it has none. */
	if (!b->trace.ids && !grow(&b->trace.ids, ROOM_FIRST, sizeof *b->trace.ids))
		return moe_error_set(err, -ENOMEM, "trace: no memory for %d ids", ROOM_FIRST);
	b->trace.tokens[b->places] = 0;
	b->trace.first[b->places++] = b->n_ids;
	return 0;
}

int sim_build_token(struct sim_build *b, const int32_t *ids, const float *weights, uint32_t n, struct moe_error *err)
{
	const size_t need = b->n_ids + b->trace.topk;
	size_t room = b->ids_room ? b->ids_room : ROOM_FIRST;

	assert(b->places > 0 && n <= b->trace.topk && (b->n_ids == 0 || !weights == !b->trace.weights));
	while (room < need)
		room *= 2;
	if (room > b->ids_room) {
		if (!grow(&b->trace.ids, room, sizeof *b->trace.ids) ||
		    (weights && !grow(&b->trace.weights, room, sizeof *b->trace.weights)))
			return moe_error_set(err, -ENOMEM, "trace: no memory for %zu ids", room);
		b->ids_room = room;
	}
	for (uint32_t k = 0; k < b->trace.topk; k++) {
		b->trace.ids[b->n_ids + k] = k < n ? ids[k] : -1;
		if (weights)
			b->trace.weights[b->n_ids + k] = k < n ? weights[k] : 0;
	}
	b->n_ids = need;
	b->trace.tokens[b->places - 1]++;
	return 0;
}

void sim_build_finish(struct sim_build *b, struct sim_trace *ret)
{
	assert(b->places % b->trace.layers == 0);
	b->trace.steps = (uint32_t)(b->places / b->trace.layers);
	*ret = b->trace;
	*b = (struct sim_build){0};
}

void sim_build_drop(struct sim_build *b)
{
	sim_trace_fini(&b->trace);
	*b = (struct sim_build){0};
}
