/* SPDX-License-Identifier: MIT */
#include "tools/worker/cuda/placed.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/util.h"

/* Goes over all tensors twice: the first time without memory, to learn how much it takes. */
struct placer {
	struct gpu *gpu; /* NULL: nothing is copied yet */
	uint64_t base, used;
	int result;
	struct moe_error *err;
};

static uint64_t place(struct placer *p, const void *from, uint64_t from_pitch, uint64_t pitch, uint64_t width,
		      uint64_t rows)
{
	const uint64_t at = p->base + p->used;

	p->used += ALIGN_UP(pitch * rows, 256);
	if (p->gpu && p->result == 0)
		p->result = gpu_upload(p->gpu, at, pitch, from, from_pitch, width, rows, p->err);
	return at;
}

static uint64_t place_vector(struct placer *p, const float *from, uint64_t n)
{
	return from ? place(p, from, n * sizeof(float), n * sizeof(float), n * sizeof(float), 1) : 0;
}

static struct dense_matrix place_matrix(struct placer *p, const struct matrix *from)
{
	static const uint32_t types[] = {
		[MATRIX_F32] = DENSE_F32, [MATRIX_BF16] = DENSE_BF16, [MATRIX_F16] = DENSE_F16};
	const uint64_t width = (uint64_t)from->cols * matrix_type_bytes(from->type);
	struct dense_matrix ret = {
		.pitch = ALIGN_UP(width, 16), .type = types[from->type], .rows = from->rows, .cols = from->cols};

	if (from->data)
		ret.data = place(p, from->data, from->pitch, ret.pitch, width, from->rows);
	return ret;
}

static struct placed_mlp place_mlp(struct placer *p, const struct gated_mlp *from)
{
	return (struct placed_mlp){place_matrix(p, &from->gate), place_matrix(p, &from->up),
				   place_matrix(p, &from->down)};
}

static void place_layer(struct placer *p, const struct arch *a, const struct layer_weights *w, struct placed_layer *ret)
{
	const bool full = a->gqa.norm == ARCH_NORM_FULL;

	*ret = (struct placed_layer){
		.attention_norm = place_vector(p, w->attention_norm, a->hidden),
		.mlp_norm = place_vector(p, w->mlp_norm, a->hidden),
		.q = place_matrix(p, &w->q),
		.k = place_matrix(p, &w->k),
		.v = place_matrix(p, &w->v),
		.o = place_matrix(p, &w->o),
		.q_bias = place_vector(p, w->q_bias, w->q.rows),
		.k_bias = place_vector(p, w->k_bias, w->k.rows),
		.v_bias = place_vector(p, w->v_bias, w->v.rows),
		.o_bias = place_vector(p, w->o_bias, w->o.rows),
		.q_norm = place_vector(p, w->q_norm, full ? w->q.rows : a->gqa.head_dim),
		.k_norm = place_vector(p, w->k_norm, full ? w->k.rows : a->gqa.head_dim),
		.q_a = place_matrix(p, &w->q_a),
		.q_b = place_matrix(p, &w->q_b),
		.kv_a = place_matrix(p, &w->kv_a),
		.kv_b = place_matrix(p, &w->kv_b),
		.q_a_bias = place_vector(p, w->q_a_bias, w->q_a.rows),
		.kv_a_bias = place_vector(p, w->kv_a_bias, w->kv_a.rows),
		.q_a_norm = place_vector(p, w->q_a_norm, w->q_a.rows),
		.kv_a_norm = place_vector(p, w->kv_a_norm, a->mla.kv_rank),
		.router = place_matrix(p, &w->router),
		.shared_gate = place_matrix(p, &w->shared_gate),
		.router_bias = place_vector(p, w->router_bias, a->router.n_experts),
		.mlp = place_mlp(p, &w->mlp),
	};
}

static void place_all(struct placer *p, const struct arch *a, const struct weights *w, const struct rope *rope,
		      struct placed *ret)
{
	const uint64_t angles = (uint64_t)rope->positions * (rope->dim / 2);

	ret->embedding = place_matrix(p, &w->embedding);
	ret->output = a->tied ? ret->embedding : place_matrix(p, &w->output);
	ret->norm = place_vector(p, w->norm, a->hidden);
	ret->cos = place_vector(p, rope->cos, angles);
	ret->sin = place_vector(p, rope->sin, angles);
	for (uint32_t i = 0; i < a->n_layers; i++)
		place_layer(p, a, &w->layers[i], &ret->layers[i]);
}

int placed_new(struct placed **ret, struct gpu *gpu, const struct arch *arch, const struct weights *weights,
	       uint32_t positions, struct moe_error *err)
{
	struct placed *placed = calloc(1, sizeof(*placed));
	struct placer p = {.err = err};
	struct rope *rope = NULL;
	int r;

	if (placed)
		placed->layers = calloc(arch->n_layers, sizeof(*placed->layers));
	if (!placed || !placed->layers) {
		placed_free(placed);
		return moe_error_set(err, -ENOMEM, "no memory for the tables of %u layers", arch->n_layers);
	}
	r = rope_new(&rope, &arch->rope, positions, err);
	if (r == 0) {
		place_all(&p, arch, weights, rope, placed);
		placed->bytes = p.used;
		r = gpu_alloc(gpu, placed->bytes, &p.base, err);
	}
	if (r == 0) {
		p.gpu = gpu;
		p.used = 0;
		place_all(&p, arch, weights, rope, placed);
		r = p.result;
	}
	rope_free(rope);
	if (r < 0) {
		placed_free(placed);
		return r;
	}
	*ret = placed;
	return 0;
}

struct placed *placed_free(struct placed *placed)
{
	if (placed) {
		free(placed->layers);
		free(placed);
	}
	return NULL;
}
