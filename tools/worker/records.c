/* SPDX-License-Identifier: MIT */
#include "tools/worker/records.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

int records_open(struct records *ret, const struct model *model, struct moe_error *err)
{
	*ret = (struct records){.model = model, .maps = calloc(model->n_shards, sizeof *ret->maps)};
	if (!ret->maps)
		return moe_error_set(err, -ENOMEM, "no memory for the tables of %s", model->path);
	for (uint32_t i = 0; i < model->n_shards; i++) {
		int r = weights_map_shard(&ret->maps[i], &model->shards[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

void records_close(struct records *records)
{
	for (uint32_t i = 0; records->maps && i < records->model->n_shards; i++)
		weights_unmap_shard(&records->maps[i]);
	free(records->maps);
	free(records->record);
	*records = (struct records){0};
}

int records_build(struct records *r, uint32_t layer, uint32_t expert, struct moe_layout *ret_layout,
		  const uint8_t **ret, struct moe_error *err)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	uint32_t n;

	expert_layout(r->model, layer, ret_layout);
	if (ret_layout->record_bytes > r->room) {
		free(r->record);
		r->room = ret_layout->record_bytes;
		r->record = aligned_alloc(MOE_PART_ALIGN, r->room);
	}
	if (!r->record) {
		r->room = 0;
		return moe_error_set(err, -ENOMEM, "no memory for an expert of %llu bytes",
				     (unsigned long long)ret_layout->record_bytes);
	}
	memset(r->record, 0, ret_layout->record_bytes);
	n = expert_sources(r->model, layer, expert, sources);
	for (uint32_t i = 0; i < n; i++) {
		const struct repack *how = &sources[i].repack;

		repack(how, &(struct record_share){.layout = ret_layout, .memory = r->record}, 0,
		       how->bytes / how->granule_bytes, records_source(r, &sources[i]));
	}
	*ret = r->record;
	return 0;
}
