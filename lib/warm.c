/* SPDX-License-Identifier: MIT */
#include "warm.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "engine.h"
#include "policy/heat.h"

static int warm_layer(struct moe_session *s, uint32_t layer, uint64_t *keys, struct moe_error *err)
{
	const uint32_t *heat = s->hottest + (size_t)s->info.layer_index[layer] * s->info.n_experts;
	uint32_t n = 0;
	int r = 0;

	for (uint32_t i = 0; i < s->info.n_experts; i++)
		if (heat[i])
			keys[n++] = heat_key(heat[i], (int32_t)i);
	heat_sort(keys, n);
	for (uint32_t i = MIN(n, s->info.cache_slots); i-- > 0 && r == 0;)
		r = moe_fill(s, layer, (uint32_t)heat_expert(keys[i]), i, err);
	return r;
}

int warm_caches(struct moe_session *s, struct moe_error *err)
{
	_cleanup_free_ uint64_t *keys = NULL;
	int r = 0;

	if (!s->hottest || s->info.cache_slots == 0)
		return 0;
	keys = calloc(s->info.n_experts, sizeof *keys);
	if (!keys)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for the heat of %u experts",
				     s->info.n_experts);
	for (uint32_t layer = 0; layer < s->info.n_layers && r == 0; layer++)
		if (s->info.layer_index[layer] >= 0)
			r = warm_layer(s, layer, keys, err);
	return r;
}
