/* SPDX-License-Identifier: MIT */
/*
 * record - the matrices of an expert as the kernels take them, in a record or packed in a slot.
 */
#ifndef KERNELS_RECORD_H
#define KERNELS_RECORD_H

#include <string.h>

#include "kernels/kernels.h"
#include "uapi/moe_manifest.h"

_Static_assert((int)KERNEL_SILU == (int)MOE_ACTIVATION_SILU && (int)KERNEL_GELU == (int)MOE_ACTIVATION_GELU &&
		       (int)KERNEL_GELU_TANH == (int)MOE_ACTIVATION_GELU_TANH &&
		       (int)KERNEL_SWIGLU_CLAMPED == (int)MOE_ACTIVATION_SWIGLU_CLAMPED,
	       "activations");

enum record_place { RECORD_IN_POOL, RECORD_IN_SLOT };

/* A slice's share of one part; `base` is where the record or the slot begins. The pointers are into it. */
static inline struct kernel_matrix record_matrix(const uint8_t *base, const struct moe_layout *layout,
						 const struct moe_slice *slice, enum moe_part_name part,
						 enum record_place place)
{
	struct kernel_matrix m = {.format = layout->part[part].format};
	const void *at[MOE_PLANES];
	size_t pitch[MOE_PLANES];

	for (int i = 0; i < MOE_PLANES; i++) {
		const struct moe_slice_plane *p = &slice->plane[part][i];

		at[i] = p->rows ? base + (place == RECORD_IN_POOL ? p->offset : p->slot_offset) : NULL;
		pitch[i] = place == RECORD_IN_POOL ? p->pitch : p->width;
	}
	m.codes = at[MOE_PLANE_CODES];
	m.pitch = pitch[MOE_PLANE_CODES];
	m.scales = at[MOE_PLANE_SCALES];
	m.scale_pitch = pitch[MOE_PLANE_SCALES];
	m.row_scales = at[MOE_PLANE_ROW_SCALES];
	m.bias = at[MOE_PLANE_BIAS];
	return m;
}

static inline struct kernel_act record_act(uint32_t activation, uint32_t limit_bits)
{
	struct kernel_act act = {.kind = (enum kernel_activation)activation};

	memcpy(&act.limit, &limit_bits, sizeof(act.limit));
	return act;
}

#endif
