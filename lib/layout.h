/* SPDX-License-Identifier: MIT */
/*
 * layout - a manifest's layouts as a session uses them: its slice of each.
 *
 * After layout_check() each layout of a sound manifest can be cut for the session's tp_size; nothing that is computed
 * from them needs another check.
 */
#ifndef LIB_LAYOUT_H
#define LIB_LAYOUT_H

#include <stdint.h>

#include "moe-error.h"
#include "moe-expert.h"
#include "uapi/moe_manifest.h"

/* `layouts` are those of the manifest, which is sound (manifest/manifest-check.h). -EPROTO. */
int layout_check(const struct moe_manifest *m, const struct moe_layout *layouts, uint32_t tp_size,
		 struct moe_error *err);

/* A malloc'ed table: the slice of each layout, for tp_rank of tp_size. */
int layout_slices(struct moe_slice **ret, const struct moe_layout *layouts, uint32_t n_layouts, uint32_t tp_rank,
		  uint32_t tp_size, struct moe_error *err);

/* The public description of a slot that holds `slice` of a record of `layout`. */
void layout_describe(struct moe_slot_layout *ret, const struct moe_layout *layout, const struct moe_slice *slice);

#endif
