/* SPDX-License-Identifier: MIT */
/*
 * manifest - the table of a model that is being loaded: made in private memory, filled, then published for ever.
 *
 * The numbers come from the model's config, each layer's layout from its experts' formats and the number of NUMA nodes,
 * the places of the records from the law in uapi/moe_manifest.h; digests are filled in while the records are read. A
 * published manifest is a sealed memory file and never changes again.
 */
#ifndef DAEMON_MANIFEST_H
#define DAEMON_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "moe-error.h"
#include "uapi/moe_manifest.h"

/* A malloc'ed manifest for `model`, its records cut into shares on `n_nodes` nodes: n_pools of them, fewer only where a
 * part has fewer units of rows. pools[].bytes say what the files must hold. Equal layouts are kept once. Digests, name
 * and epoch are zero. */
int manifest_new(struct moe_manifest **ret, const struct model *model, uint32_t n_nodes, struct moe_error *err);

static inline int32_t *manifest_layer_index(const struct moe_manifest *m)
{
	return (int32_t *)(m + 1);
}

static inline struct moe_layout *manifest_layouts(const struct moe_manifest *m)
{
	return (struct moe_layout *)((char *)m + m->layouts_offset);
}

static inline struct moe_record *manifest_records(const struct moe_manifest *m)
{
	return (struct moe_record *)((char *)m + m->records_offset);
}

/* Of all records of a row. */
static inline const struct moe_layout *manifest_layout(const struct moe_manifest *m, uint32_t row)
{
	return &manifest_layouts(m)[manifest_records(m)[(uint64_t)row * m->n_experts].layout];
}

/* The names of the formats that occur, e.g. "q4_k/q6_k". */
#define MANIFEST_FORMATS_TEXT 512
void manifest_formats(char ret[MANIFEST_FORMATS_TEXT], const struct moe_manifest *m);

/* By the law in uapi/moe_manifest.h; share[i]: where share i of the record begins. */
void manifest_record_digest(uint8_t ret[MOE_DIGEST_BYTES], const struct moe_layout *layout,
			    const uint8_t *const *share);

/* All record digests are in place: forms the model's digest, and makes the sealed file and a read-only mapping of it.
 * `m` stays the caller's. */
int manifest_publish(int *ret_fd, const struct moe_manifest **ret, struct moe_manifest *m, struct moe_error *err);

#endif
