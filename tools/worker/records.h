/* SPDX-License-Identifier: MIT */
/*
 * records - the routed experts as the daemon holds them, made by this process from the published files: to prove that
 * both have the same weights, and to compute with them without the daemon.
 */
#ifndef WORKER_RECORDS_H
#define WORKER_RECORDS_H

#include "model/expert.h"
#include "tools/worker/weights.h"

struct records {
	const struct model *model;
	struct weights_map *maps; /* [model->n_shards] */
	uint8_t *record;          /* the one built last */
	uint64_t room;
};

/* The model must outlive the records. */
int records_open(struct records *ret, const struct model *model, struct moe_error *err);
void records_close(struct records *records); /* takes a zeroed one */

/* One expert's record and its layout; it is the records' own, until the next call. */
int records_build(struct records *records, uint32_t layer, uint32_t expert, struct moe_layout *ret_layout,
		  const uint8_t **ret, struct moe_error *err);

/* The bytes of a source in its shard. */
static inline const uint8_t *records_source(const struct records *records, const struct expert_source *source)
{
	return records->maps[source->shard].data + source->offset;
}

#endif
