/* SPDX-License-Identifier: MIT */
/*
 * expert-map - the JSON file in which vLLM Ascend keeps a placement, read strictly and written as it writes it.
 *
 * Law: pure; texts, not files. What is read is sound: counts are the lengths of lists, ids are indices, all layers have
 * the same devices, slots and experts, no expert is twice on a device, each is somewhere. An error names the place in
 * the file, what was found and what was expected. Nothing is ever written to what was read.
 */
#ifndef EXPERT_MAP_H
#define EXPERT_MAP_H

#include <jansson.h>

#include "placement/placement.h"

/* `experts` 0: as many as the highest id says. `file` begins the line of an error. -EINVAL, -ENOMEM. */
int expert_map_parse(struct placement *ret, const char *file, const char *text, size_t bytes, uint32_t experts,
		     struct moe_error *err);
int expert_map_read(struct placement *ret, const char *file, const json_t *map, uint32_t experts,
		    struct moe_error *err);

/* NULL: no memory. */
json_t *expert_map_json(const struct placement *p);

/* [ranks][experts]: the slot on that rank, or -1. */
void expert_map_slots(const struct placement *p, uint32_t layer, int32_t *ret);
/* [ranks][experts]: which slot of all a rank uses. With n copies by rank and slot it is the one of number rank mod n,
 * and with tensor parallelism of `tp` > 1 that of (rank mod tp + rank / tp + expert) mod n. */
void expert_map_choices(const struct placement *p, uint32_t layer, uint32_t tp, int32_t *ret);

#endif
