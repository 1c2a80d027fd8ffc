/* SPDX-License-Identifier: MIT */
/*
 * tiered - a model that has fewer frames than records: its plan, and the one time that all of it is read.
 *
 * Law: a model is tiered only when that was allowed, and everything that tells of the model says so. A frame has room
 * for the largest record. All records are read once while the model is loaded, because their digests are what the model
 * is: the first of them, in the order of the layers, are read last and stay; the others are hashed and dropped. So a
 * tiered model has the digest that it has when it is all there.
 */
#ifndef DAEMON_TIERED_H
#define DAEMON_TIERED_H

#include <stdint.h>

#include "daemon/store.h"
#include "model/model.h"

/* Decides by the limits of `params`. *ret_frames: 0, and nothing has changed; or how many, and the manifest says so.
 * -ENOMEM: fewer than a model needs, or all of it is more than may be taken (model/pool-size.h). */
int tiered_plan(struct moe_manifest *manifest, const struct store_params *params, uint32_t *ret_frames,
		struct moe_error *err);

/* Bytes of all sources of all records. */
uint64_t tiered_bytes(const struct model *model);

/* Gives the resident, whose pools are there, its reader and a table of offsets, all RESIDENT_NOWHERE. `model` as in
 * struct reader_params. */
int tiered_open(struct resident *resident, const struct moe_manifest *manifest, const char *path, struct model *model,
		bool buffered, struct moe_error *err);

/* Reads all records; their digests go into the manifest. Record i is then in frame i. */
int tiered_read(struct resident *resident, struct moe_manifest *manifest, const struct store_params *params,
		uint64_t start_ns, uint64_t total, uint64_t *ret_bytes, struct moe_error *err);

/* In the log: that it is tiered; nothing of one that is not. */
void tiered_say(const struct resident *resident);

#endif
