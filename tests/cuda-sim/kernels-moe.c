/* SPDX-License-Identifier: MIT */
/*
 * The library's kernels, as their twins compute them, and what each of them touches: cuda-kernels.h says so
 * of its parameters, and of what depends on ids this file reads the memory as it is when the kernel begins.
 *
 * A product does not know how large a slot is; the grouping whose items it takes does.
 */
#include <string.h>

#include "kernels/cuda/cuda-kernels.h"
#include "tests/cuda-sim/kernels.h"
#include "tests/cuda-sim/sim.h"
#include "uapi/moe_format.h"

#define GROUPS_MAX 64

typedef void touch_fn(void *arg, uint64_t begin, uint64_t bytes, bool write);

struct toucher {
	touch_fn *touch;
	void *arg;
};

static void reads(const struct toucher *t, uint64_t begin, uint64_t bytes)
{
	if (bytes)
		t->touch(t->arg, begin, bytes, false);
}

static void writes(const struct toucher *t, uint64_t begin, uint64_t bytes)
{
	if (bytes)
		t->touch(t->arg, begin, bytes, true);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* -- groups ------------------------------------------------------------------------------------------------------- */

static struct {
	uint64_t items, slot_bytes;
} groups[GROUPS_MAX];
static unsigned next_group;

static void note_group(const struct cuda_group *p)
{
	unsigned i;

	for (i = 0; i < GROUPS_MAX && groups[i].items != p->items; i++)
		;
	if (i == GROUPS_MAX)
		i = next_group++ % GROUPS_MAX;
	groups[i].items = p->items;
	groups[i].slot_bytes = p->slot_bytes;
}

static uint64_t slot_bytes_of(uint64_t items)
{
	unsigned i;

	for (i = 0; i < GROUPS_MAX && groups[i].items != items; i++)
		;
	if (i == GROUPS_MAX)
		sim_violation("moe product", "its items come from no moe_group");
	return groups[i].slot_bytes;
}

/* -- kernels ------------------------------------------------------------------------------------------------------ */

static void touch_group(const struct toucher *t, const struct cuda_group *p)
{
	const uint64_t items = least(p->pairs, p->pairs / p->item_pairs + least(p->pairs, p->n_experts)) *
			       (p->n_shares ? p->n_shares : 1);
	const int32_t *map = (const int32_t *)(uintptr_t)p->map;
	uint32_t i;

	reads(t, p->ids, (uint64_t)p->pairs * sizeof(int32_t));
	reads(t, p->map, (uint64_t)p->n_experts * sizeof(int32_t));
	writes(t, p->order, (uint64_t)p->pairs * sizeof(uint32_t));
	writes(t, p->items, items * sizeof(struct cuda_item));
	writes(t, p->counts, sizeof(struct cuda_counts));
	for (i = 0; p->n_shares && i < p->n_experts; i++)
		if (map[i] >= (int32_t)p->n_slots)
			reads(t, p->records + ((uint32_t)map[i] - p->n_slots) * (uint64_t)p->n_shares * 8,
			      (uint64_t)p->n_shares * 8);
	note_group(p);
}

static void touch_pack(const struct toucher *t, const struct cuda_pack *p)
{
	uint64_t rows = p->rows;

	if (p->counts) {
		reads(t, p->counts, sizeof(struct cuda_counts));
		rows = ((const struct cuda_counts *)(uintptr_t)p->counts)->n_pairs;
	}
	reads(t, p->x, rows * p->cols * sizeof(float));
	writes(t, p->packed, rows * p->pitch);
}

/* Rows that the places of order[] name, from the first to the last of them. */
static void named_rows(const struct cuda_product *p, uint32_t n_pairs, uint32_t each, uint64_t *ret_first,
		       uint64_t *ret_rows)
{
	const uint32_t *order = (const uint32_t *)(uintptr_t)p->order;
	uint32_t low = UINT32_MAX, high = 0, i;

	for (i = 0; i < n_pairs; i++) {
		low = order[i] / each < low ? order[i] / each : low;
		high = order[i] / each > high ? order[i] / each : high;
	}
	*ret_first = low;
	*ret_rows = (uint64_t)high - low + 1;
}

static void touch_plane(const struct toucher *t, uint64_t record, uint64_t offset, uint64_t pitch, uint64_t bands)
{
	if (offset != CUDA_ABSENT && bands > 0)
		reads(t, record + offset, pitch * (bands - 1) + 1);
}

static void touch_matrix(const struct toucher *t, uint64_t record, const struct cuda_matrix *m, uint64_t rows)
{
	const uint64_t bands = (rows + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;

	touch_plane(t, record, m->codes, m->pitch, moe_formats[m->format].panel ? bands : rows);
	touch_plane(t, record, m->scales, m->scale_pitch, bands);
	touch_plane(t, record, m->row_scales, sizeof(float), rows);
	touch_plane(t, record, m->bias, sizeof(float), rows);
}

/* What an item is computed from: a slot, or some rows of a record in the pool. */
static void touch_item(const struct toucher *t, const struct cuda_product *p, const struct cuda_item *item, bool down,
		       uint64_t slot_bytes)
{
	const struct cuda_share *shares = (const struct cuda_share *)(uintptr_t)p->shares, *share;

	if (item->share == 0) {
		reads(t, item->slot, slot_bytes);
		return;
	}
	share = &shares[item->share - 1];
	reads(t, (uintptr_t)share, sizeof *share);
	if (down) {
		touch_matrix(t, item->slot, &share->part[2], share->rows[1]);
	} else {
		touch_matrix(t, item->slot, &share->part[0], share->rows[0]);
		touch_matrix(t, item->slot, &share->part[1], share->rows[0]);
	}
}

static void touch_product(const struct toucher *t, const struct cuda_product *p, bool down)
{
	const struct cuda_counts *counts = (const struct cuda_counts *)(uintptr_t)p->counts;
	const struct cuda_item *items = (const struct cuda_item *)(uintptr_t)p->items;
	const uint64_t slot_bytes = slot_bytes_of(p->items), y_pitch = p->rows * sizeof(float);
	uint64_t first, rows;
	uint32_t i;

	reads(t, p->counts, sizeof *counts);
	reads(t, p->items, (uint64_t)counts->n_items * sizeof *items);
	reads(t, p->order, (uint64_t)counts->n_pairs * sizeof(uint32_t));
	for (i = 0; i < counts->n_items; i++)
		touch_item(t, p, &items[i], down, slot_bytes);
	if (counts->n_pairs == 0)
		return;
	named_rows(p, counts->n_pairs, down ? 1 : p->topk, &first, &rows);
	if (down) {
		reads(t, p->x, counts->n_pairs * p->x_pitch);
		writes(t, p->y + first * y_pitch, rows * y_pitch);
	} else {
		reads(t, p->x + first * p->x_pitch, rows * p->x_pitch);
		writes(t, p->y, counts->n_pairs * y_pitch);
	}
}

static void touch_combine(const struct toucher *t, const struct cuda_combine *p)
{
	const uint64_t pairs = (uint64_t)p->tokens * p->topk;

	reads(t, p->ids, pairs * sizeof(int32_t));
	reads(t, p->weights, pairs * sizeof(float));
	reads(t, p->map, p->n_experts * sizeof(int32_t));
	reads(t, p->out, pairs * p->hidden * sizeof(float));
	writes(t, p->y, (uint64_t)p->tokens * p->hidden * sizeof(float));
}

static void touch_add(const struct toucher *t, const struct cuda_add *p)
{
	reads(t, p->z, p->n * sizeof(float));
	writes(t, p->y, p->n * sizeof(float));
}

static void touch_policy(const struct toucher *t, const struct cuda_policy *p)
{
	const uint64_t experts = p->n_experts * sizeof(int32_t);

	reads(t, p->ids, (uint64_t)p->tokens * p->topk * sizeof(int32_t));
	writes(t, p->heads, sizeof(struct cuda_policy_heads));
	writes(t, p->cache_map, experts);
	writes(t, p->miss_map, experts);
	writes(t, p->miss_expert, experts);
	writes(t, p->free_slots, p->n_slots * sizeof(int32_t));
	writes(t, p->age, p->n_experts * sizeof(uint64_t));
	writes(t, p->fills, least(p->max_fills, p->n_slots) * sizeof(struct cuda_fill));
	writes(t, p->scratch, 2 * p->n_experts * sizeof(uint64_t));
}

static void touch_read(const struct toucher *t, const struct cuda_read *p, const struct sim_launch *l)
{
	reads(t, p->from, p->bytes);
	writes(t, p->sums, (uint64_t)l->grid[0] * l->block[0] * sizeof(uint32_t));
}

static void touch_peak(const struct toucher *t, const struct cuda_peak *p, const struct sim_launch *l)
{
	writes(t, p->sums, (uint64_t)l->grid[0] * l->block[0] * sizeof(float));
}

/* -- table -------------------------------------------------------------------------------------------------------- */

static void touch_all(enum cuda_kernel_id id, const struct toucher *t, const void *params, const struct sim_launch *l)
{
	switch (id) {
	case CUDA_KERNEL_moe_group:
		touch_group(t, params);
		break;
	case CUDA_KERNEL_moe_pack:
		touch_pack(t, params);
		break;
	case CUDA_KERNEL_moe_combine:
		touch_combine(t, params);
		break;
	case CUDA_KERNEL_moe_add:
		touch_add(t, params);
		break;
	case CUDA_KERNEL_moe_policy:
		touch_policy(t, params);
		break;
	case CUDA_KERNEL_moe_read:
		touch_read(t, params, l);
		break;
	case CUDA_KERNEL_moe_peak:
		touch_peak(t, params, l);
		break;
	default:
		touch_product(t, params, strstr(cuda_kernels[id].name, "_down_") != NULL);
	}
}

#define X(name, params)                                                                                                \
	static void run_##name(const void *p, const struct sim_launch *l)                                              \
	{                                                                                                              \
		cuda_twins[CUDA_KERNEL_##name](p, l->grid, l->block,                                                   \
					       sim_toss() ? CUDA_TWIN_BACKWARDS : CUDA_TWIN_FORWARDS);                 \
	}                                                                                                              \
	static void touch_##name(const void *p, const struct sim_launch *l, touch_fn *touch, void *arg)                \
	{                                                                                                              \
		touch_all(CUDA_KERNEL_##name, &(struct toucher){touch, arg}, p, l);                                    \
	}
CUDA_KERNELS(X)
#undef X

static const struct sim_kernel kernels[CUDA_KERNEL_COUNT] = {
#define X(name, params) {#name, sizeof(struct params), run_##name, touch_##name},
	CUDA_KERNELS(X)
#undef X
};

const struct sim_kernel *sim_kernel_find_moe(const char *name)
{
	for (size_t i = 0; i < CUDA_KERNEL_COUNT; i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}
