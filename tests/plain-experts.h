/* SPDX-License-Identifier: MIT */
/*
 * plain-experts - a random model's expert records, and what they compute, in double precision and without any trick:
 * what the device's and the engine's results are held against.
 */
#ifndef TESTS_PLAIN_EXPERTS_H
#define TESTS_PLAIN_EXPERTS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/tap.h"
#include "uapi/moe_manifest.h"
#include "uapi/moe_ring.h"

/* The numbers of a manifest that say how records lie; records_offset and pools are the caller's. */
static inline void plain_manifest(struct moe_manifest *ret, uint32_t rows, uint32_t experts, uint32_t hidden,
				  uint32_t inter, uint32_t type, uint32_t activation)
{
	const uint64_t part = ALIGN_UP((uint64_t)hidden * inter * 2, MOE_PART_ALIGN);

	*ret = (struct moe_manifest){
		.magic = MOE_MANIFEST_MAGIC,
		.layout = MOE_LAYOUT_VERSION,
		.n_moe_layers = rows,
		.n_experts = experts,
		.hidden = hidden,
		.inter = inter,
		.type = type,
		.activation = activation,
		.up_offset = part,
		.down_offset = 2 * part,
		.record_bytes = ALIGN_UP(3 * part, MOE_RECORD_ALIGN),
	};
}

static inline double plain_random(unsigned long long *seed, double scale)
{
	return ((double)(tap_random(seed) >> 11) / 4503599627370496.0 - 1) * scale;
}

/* The range is such that outputs are of the order of 1. */
static inline void plain_fill_record(const struct moe_manifest *m, uint8_t *record, unsigned long long *seed)
{
	uint16_t *weights = (uint16_t *)record;
	uint64_t i;

	for (i = 0; i < m->record_bytes / 2; i++) {
		const float value = (float)plain_random(seed, 0.3);

		if (m->type == MOE_TYPE_F16) {
			const _Float16 half = (_Float16)value;

			memcpy(&weights[i], &half, 2);
		} else {
			uint32_t bits;

			memcpy(&bits, &value, 4);
			weights[i] = (uint16_t)(bits >> 16);
		}
	}
}

static inline double plain_weight(const struct moe_manifest *m, const uint8_t *record, uint64_t offset, uint64_t index)
{
	uint16_t bits;

	memcpy(&bits, record + offset + index * 2, 2);
	if (m->type == MOE_TYPE_F16) {
		_Float16 half;

		memcpy(&half, &bits, 2);
		return (double)half;
	} else {
		const uint32_t wide = (uint32_t)bits << 16;
		float value;

		memcpy(&value, &wide, 4);
		return (double)value;
	}
}

static inline double plain_activate(uint32_t activation, double v)
{
	switch (activation) {
	case MOE_ACTIVATION_GELU:
		return 0.5 * v * (1 + erf(v / sqrt(2)));
	case MOE_ACTIVATION_GELU_TANH:
		return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
	default:
		return v / (1 + exp(-v));
	}
}

/* y[hidden] += weight * (rows first .. first+count of the intermediate dimension of the expert)(x). */
static inline void plain_expert(const struct moe_manifest *m, const uint8_t *record, uint32_t first, uint32_t count,
				double weight, const float *x, double *y)
{
	uint32_t i, j;

	for (i = first; i < first + count; i++) {
		double gate = 0, up = 0, h;

		for (j = 0; j < m->hidden; j++) {
			gate += plain_weight(m, record, 0, (uint64_t)i * m->hidden + j) * x[j];
			up += plain_weight(m, record, m->up_offset, (uint64_t)i * m->hidden + j) * x[j];
		}
		h = plain_activate(m->activation, gate) * up;
		for (j = 0; j < m->hidden; j++)
			y[j] += weight * h * plain_weight(m, record, m->down_offset, (uint64_t)j * m->inter + i);
	}
}

/* One rank's slice of a record, packed as in a slot. */
static inline void plain_pack(const struct moe_slice *slice, const uint8_t *record, uint8_t *slot)
{
	uint64_t row;
	int part;

	for (part = 0; part < 3; part++) {
		const struct moe_slice_part *p = &slice->part[part];

		for (row = 0; row < p->rows; row++)
			memcpy(slot + p->slot_offset + row * p->width, record + p->offset + row * p->pitch, p->width);
	}
}

#endif
