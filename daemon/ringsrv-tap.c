/* SPDX-License-Identifier: MIT */
/*
 * ringsrv-tap - the daemon's end of the taps: the part of the ring server that reads what clients say of their routing.
 *
 * A record is copied out once, header first, and only the copy is looked at. One that cannot be a client's is a break
 * of the ring's law.
 */
#include "daemon/ringsrv-internal.h"

#include <errno.h>
#include <string.h>

#include "base/memfd.h"
#include "base/util.h"

int ringsrv_tap_open(struct session *s, bool knows)
{
	const struct moe_client_page *client = client_at(&s->client, 0);
	int r = 0;

	if (!s->tap_offset || (!knows && !__atomic_load_n(&client->tap_able, __ATOMIC_ACQUIRE)))
		return -EOPNOTSUPP;
	if (!s->tap_made)
		r = session_make_tap(s);
	if (r < 0)
		return r;
	s->tap_head = __atomic_load_n(&client->tap_tail, __ATOMIC_ACQUIRE);
	s->tap_lost = __atomic_load_n(&client->tap_lost, __ATOMIC_RELAXED);
	__atomic_store_n(&s->page->tap_head, s->tap_head, __ATOMIC_RELAXED);
	/* Partner: the client's load of tap_on, before it looks at tap_head and touches the pages. */
	__atomic_store_n(&s->page->tap_on, 1, __ATOMIC_RELEASE);
	s->tapped = true;
	return 0;
}

void ringsrv_tap_close(struct session *s)
{
	__atomic_store_n(&s->page->tap_on, 0, __ATOMIC_RELEASE);
	s->tapped = false;
}

static void copy_out(const struct session *s, uint32_t at, void *to, size_t n)
{
	const uint32_t place = at & (SESSION_TAP_BYTES - 1);
	const size_t first = MIN(n, (size_t)(SESSION_TAP_BYTES - place));

	memcpy(to, client_at(&s->client, s->tap_offset + place), first);
	memcpy((uint8_t *)to + first, client_at(&s->client, s->tap_offset), n - first);
	__asm__ volatile("" ::: "memory"); /* the compiler must not read the ring again in place of the copy */
}

/* NULL, or how the record cannot be one. */
static const char *check_head(const struct session *s, const struct moe_route *route, uint32_t there)
{
	const struct resident *model = s->entry->model;

	if (route->kind != MOE_TRACE_ROUTE || route->source || route->phase > MOE_PHASE_DECODE ||
	    route->mode > MOE_STATS_FULL)
		return "its tap has something that is no route";
	if (route->topk == 0 || route->topk > MOE_TOPK_MAX || route->tokens == 0 || route->tokens > MOE_TOKENS_MAX)
		return "a route in its tap has no tokens, or too many";
	if (route->bytes != moe_route_bytes(route->tokens, route->topk) || route->bytes > there)
		return "a route in its tap has a wrong length";
	if (route->layer >= model->manifest->n_layers || model->layer_index[route->layer] < 0)
		return "a route in its tap is of a layer without experts";
	return NULL;
}

static bool ids_are_good(const struct session *s, const struct moe_route *route)
{
	const uint16_t *ids = (const uint16_t *)(route + 1);
	const uint32_t n = s->entry->model->manifest->n_experts;
	bool good = true;

	for (size_t i = 0; i < (size_t)route->tokens * route->topk; i++)
		good &= ids[i] < n || ids[i] == MOE_TRACE_NOBODY;
	return good;
}

bool ringsrv_tap_take(struct session *s, struct moe_route *to)
{
	const struct moe_client_page *client = client_at(&s->client, 0);
	const uint32_t tail = __atomic_load_n(&client->tap_tail, __ATOMIC_ACQUIRE), there = tail - s->tap_head;

	if (there == 0 || s->broken)
		return false;
	if (there > SESSION_TAP_BYTES || there % 8 || there < sizeof *to) {
		s->broken = "tap_tail ran more than the tap's length ahead of tap_head, or is no record's end";
		return false;
	}
	copy_out(s, s->tap_head, to, sizeof *to);
	s->broken = check_head(s, to, there);
	if (s->broken)
		return false;
	copy_out(s, s->tap_head + (uint32_t)sizeof *to, to + 1, to->bytes - sizeof *to);
	if (!ids_are_good(s, to)) {
		s->broken = "a route in its tap names an expert that the model does not have";
		return false;
	}
	s->tap_head += to->bytes;
	/* Partner: the client's load of it, before it writes where this was. */
	__atomic_store_n(&s->page->tap_head, s->tap_head, __ATOMIC_RELEASE);
	return true;
}

uint64_t ringsrv_tap_lost(struct session *s)
{
	const struct moe_client_page *client = client_at(&s->client, 0);
	const uint64_t now = __atomic_load_n(&client->tap_lost, __ATOMIC_RELAXED), more = now - s->tap_lost;

	s->tap_lost = now;
	return more;
}
