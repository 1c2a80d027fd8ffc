/* SPDX-License-Identifier: MIT */
#include "tap.h"

#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"

#define IDS_AT_ONCE 256

int tap_init(struct tap *ret, void *client_region, uint64_t client_bytes, const struct moe_daemon_page *daemon,
	     struct moe_error *err)
{
	const uint32_t bytes = daemon->tap_bytes;
	const uint64_t offset = daemon->tap_offset;

	*ret = (struct tap){.client = client_region};
	if (bytes == 0)
		return 0;
	if (bytes & (bytes - 1) || bytes < MOE_RING_PAGE || !checked_range(offset, bytes, client_bytes))
		return moe_error_set(err, -EPROTO, "daemon region: a tap of %u bytes at %llu of %llu is none", bytes,
				     (unsigned long long)offset, (unsigned long long)client_bytes);
	ret->daemon = daemon;
	ret->ring = (uint8_t *)client_region + offset;
	ret->bytes = bytes;
	ret->tail = ret->client->tap_tail;
	__atomic_store_n(&ret->client->tap_able, 1, __ATOMIC_RELEASE);
	return 0;
}

static void put(struct tap *tap, uint32_t *at, const void *from, size_t n)
{
	const uint32_t place = *at & (tap->bytes - 1);
	const size_t first = MIN(n, (size_t)(tap->bytes - place));

	memcpy(tap->ring + place, from, first);
	memcpy(tap->ring, (const uint8_t *)from + first, n - first);
	*at += (uint32_t)n;
}

static void put_ids(struct tap *tap, uint32_t *at, const int32_t *ids, size_t n)
{
	__u16 narrow[IDS_AT_ONCE];

	for (size_t i = 0; i < n; i += IDS_AT_ONCE) {
		const size_t some = MIN(n - i, (size_t)IDS_AT_ONCE);

		for (size_t j = 0; j < some; j++)
			narrow[j] = (__u16)ids[i + j]; /* -1 becomes MOE_TRACE_NOBODY */
		put(tap, at, narrow, some * sizeof *narrow);
	}
}

void tap_write(struct tap *tap, const struct tap_route *r)
{
	static const uint8_t zeroes[8];
	const size_t pairs = (size_t)r->tokens * r->topk;
	const uint64_t bytes = moe_route_bytes(r->tokens, r->topk), weights = moe_route_weights(r->tokens, r->topk);
	const struct moe_route route = {
		.bytes = (__u32)bytes,
		.kind = MOE_TRACE_ROUTE,
		.topk = (__u8)r->topk,
		.layer = (__u16)r->layer,
		.step = r->step,
		.tokens = r->tokens,
		.phase = r->phase,
		.mode = r->mode,
	};
	uint32_t at = tap->tail;

	/* Partner: the daemon's store of tap_head, behind its copies. */
	if (bytes > tap->bytes - (at - __atomic_load_n(&tap->daemon->tap_head, __ATOMIC_ACQUIRE))) {
		__atomic_store_n(&tap->client->tap_lost, tap->client->tap_lost + 1, __ATOMIC_RELAXED);
		return;
	}
	put(tap, &at, &route, sizeof route);
	put_ids(tap, &at, r->ids, pairs);
	put(tap, &at, zeroes, (size_t)(weights - sizeof route - 2 * pairs));
	put(tap, &at, r->weights, 4 * pairs);
	put(tap, &at, zeroes, (size_t)(bytes - weights - 4 * pairs));
	tap->tail = at;
	/* Partner: the daemon's load of tap_tail, before its copies. */
	__atomic_store_n(&tap->client->tap_tail, at, __ATOMIC_RELEASE);
}
