/* SPDX-License-Identifier: MIT */
/* The sample worker's kernels, as their twins compute them, and what each of them touches: dense-kernels.h says so. */
#include <string.h>

#include "tests/cuda-sim/kernels.h"
#include "tests/cuda-sim/sim.h"
#include "tools/worker/cuda/dense-kernels.h"

typedef void touch_fn(void *arg, uint64_t begin, uint64_t bytes, bool write);

struct toucher {
	touch_fn *touch;
	void *arg;
};

static void touch_bytes(const struct toucher *t, uint64_t begin, uint64_t bytes, bool write)
{
	if (begin && bytes)
		t->touch(t->arg, begin, bytes, write);
}

/* `rows` rows of `width` floats, `pitch` floats from one to the next. */
static void touch_rows(const struct toucher *t, uint64_t begin, uint64_t rows, uint64_t pitch, uint64_t width,
		       bool write)
{
	if (rows)
		touch_bytes(t, begin, ((rows - 1) * pitch + width) * sizeof(float), write);
}

static void touch_matrix(const struct toucher *t, const struct dense_matrix *w)
{
	touch_bytes(t, w->data, (w->rows - 1) * w->pitch + (uint64_t)w->cols * (w->type == DENSE_F32 ? 4 : 2), false);
}

static uint32_t word_at(const struct toucher *t, uint64_t address)
{
	touch_bytes(t, address, sizeof(uint32_t), false);
	return address ? *(const uint32_t *)(uintptr_t)address : 0;
}

/* -- kernels ------------------------------------------------------------------------------------------------------ */

static void touch_embed(const struct toucher *t, const struct dense_embed *p, unsigned blocks)
{
	touch_bytes(t, p->ids, blocks * sizeof(int32_t), false);
	touch_matrix(t, &p->matrix);
	touch_rows(t, p->x, blocks, p->matrix.cols, p->matrix.cols, true);
}

static void touch_norm(const struct toucher *t, const struct dense_norm *p, unsigned blocks)
{
	const uint64_t moved = word_at(t, p->position);

	touch_rows(t, p->x, blocks, p->x_pitch, p->cols, false);
	touch_rows(t, p->weight, 1, 0, p->cols, false);
	touch_rows(t, p->y + moved * p->y_pitch * sizeof(float), blocks, p->y_pitch, p->cols, true);
}

static void touch_product(const struct toucher *t, const struct dense_product *p, unsigned blocks)
{
	const uint64_t batches = blocks / p->tiles / p->groups;

	for (uint64_t i = 0; i < batches; i++) {
		struct dense_matrix w = p->w;

		w.data += i * p->w_batch;
		touch_matrix(t, &w);
		touch_rows(t, p->x + i * p->x_batch * sizeof(float), p->tokens, p->x_pitch, w.cols, false);
		touch_rows(t, p->y + i * p->y_batch * sizeof(float), p->tokens, p->y_pitch, w.rows, true);
	}
	touch_rows(t, p->bias, 1, 0, p->w.rows, false);
}

static void touch_carry(const struct toucher *t, const struct dense_carry *p, unsigned blocks)
{
	const uint64_t batches = blocks / p->tiles / p->tokens;

	for (uint64_t i = 0; i < batches; i++) {
		struct dense_matrix w = p->w;

		w.data += i * p->w_batch;
		touch_matrix(t, &w);
		touch_rows(t, p->x + i * p->x_batch * sizeof(float), p->tokens, p->x_pitch, w.rows, false);
		touch_rows(t, p->y + i * p->y_batch * sizeof(float), p->tokens, p->y_pitch, w.cols, true);
	}
}

static void touch_rotate(const struct toucher *t, const struct dense_rotate *p, unsigned blocks)
{
	const uint64_t position = word_at(t, p->position), half = p->rope / 2, width = (uint64_t)p->heads * p->dim;

	touch_rows(t, p->cos + position * half * sizeof(float), half ? blocks : 0, half, half, false);
	touch_rows(t, p->sin + position * half * sizeof(float), half ? blocks : 0, half, half, false);
	touch_rows(t, p->x, blocks, p->x_pitch, width, false);
	touch_rows(t, p->y + (p->moves ? position : 0) * p->y_pitch * sizeof(float), blocks, p->y_pitch, width, true);
}

static void touch_attend(const struct toucher *t, const struct dense_attend *p, unsigned blocks)
{
	const uint64_t tokens = blocks / p->heads, position = word_at(t, p->position), shared = p->heads / p->group;
	const uint64_t from = p->window && position >= p->window ? position + 1 - p->window : 0;
	const uint64_t rows = position + tokens - from, heads = p->heads - 1;

	touch_rows(t, p->query, tokens, p->query_pitch, heads * p->query_step + p->key_dim, false);
	touch_rows(t, p->keys + from * p->key_pitch * sizeof(float), rows, p->key_pitch,
		   (shared - 1) * p->key_step + p->key_dim, false);
	touch_rows(t, p->values + from * p->value_pitch * sizeof(float), rows, p->value_pitch,
		   (shared - 1) * p->value_step + p->value_dim, false);
	if (p->extra_dim) {
		touch_rows(t, p->turned, tokens, p->turned_pitch, heads * p->turned_step + p->extra_dim, false);
		touch_rows(t, p->extra + from * p->extra_pitch * sizeof(float), rows, p->extra_pitch, p->extra_dim,
			   false);
	}
	touch_rows(t, p->out, tokens, p->out_pitch, heads * p->out_step + p->value_dim, true);
}

static void touch_route(const struct toucher *t, const struct dense_route *p, unsigned blocks)
{
	touch_rows(t, p->logits, blocks, p->n_experts, p->n_experts, false);
	touch_rows(t, p->bias, 1, 0, p->n_experts, false);
	touch_rows(t, p->ids, blocks, p->pitch, p->topk, true);
	touch_rows(t, p->shares, blocks, p->pitch, p->topk, true);
	touch_bytes(t, p->failed, sizeof(uint32_t), true);
}

static void touch_gate(const struct toucher *t, const struct dense_gate *p)
{
	touch_rows(t, p->up, 1, 0, p->n, false);
	touch_rows(t, p->gate, 1, 0, p->n, true);
}

static void touch_join(const struct toucher *t, const struct dense_join *p, unsigned blocks)
{
	touch_rows(t, p->y, blocks, p->cols, p->cols, false);
	touch_rows(t, p->share, 1, 0, blocks, false);
	touch_rows(t, p->x, blocks, p->cols, p->cols, true);
}

/* -- table -------------------------------------------------------------------------------------------------------- */

static void touch_all(enum dense_kernel_id id, const struct toucher *t, const void *params, unsigned blocks)
{
	switch (id) {
	case DENSE_KERNEL_worker_embed:
		touch_embed(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_norm:
		touch_norm(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_product:
		touch_product(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_carry:
		touch_carry(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_rotate:
		touch_rotate(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_attend:
		touch_attend(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_route:
		touch_route(t, params, blocks);
		break;
	case DENSE_KERNEL_worker_gate:
		touch_gate(t, params);
		break;
	case DENSE_KERNEL_worker_join:
		touch_join(t, params, blocks);
		break;
	case DENSE_KERNEL_COUNT:
		break;
	}
}

#define X(name, params)                                                                                                \
	static void run_##name(const void *p, const struct sim_launch *l)                                              \
	{                                                                                                              \
		dense_twins[DENSE_KERNEL_##name](p, l->grid, l->block,                                                 \
						 sim_toss() ? CUDA_TWIN_BACKWARDS : CUDA_TWIN_FORWARDS);               \
	}                                                                                                              \
	static void touch_##name(const void *p, const struct sim_launch *l, touch_fn *touch, void *arg)                \
	{                                                                                                              \
		touch_all(DENSE_KERNEL_##name, &(struct toucher){touch, arg}, p, l->grid[0]);                          \
	}
DENSE_KERNELS(X)
#undef X

static const struct sim_kernel kernels[DENSE_KERNEL_COUNT] = {
#define X(name, params) {#name, sizeof(struct params), run_##name, touch_##name},
	DENSE_KERNELS(X)
#undef X
};

const struct sim_kernel *sim_kernel_find_worker(const char *name)
{
	for (size_t i = 0; i < DENSE_KERNEL_COUNT; i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}
