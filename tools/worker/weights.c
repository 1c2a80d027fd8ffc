/* SPDX-License-Identifier: MIT */
#include "tools/worker/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"

/* Dense matrices are widened to FP32 when that takes no more than this. */
#define WIDEN_BYTES_MAX (1ull << 30)

/* The first failure sticks: whatever is asked for after it does nothing. */
struct loader {
	struct weights *weights;
	const struct arch *arch;
	char prefix[64]; /* of tensor names */
	int result;
	struct moe_error *err;
};

int weights_map_shard(struct weights_map *ret, const struct shard *shard, struct moe_error *err)
{
	_cleanup_close_ int fd = open(shard->path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *data;

	if (fd < 0 || fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "cannot open %s", shard->path);
	if ((uint64_t)st.st_size != shard->bytes)
		return moe_error_set(err, -EINVAL,
				     "%s: found %lld bytes, expected %llu; it has changed since it was read",
				     shard->path, (long long)st.st_size, (unsigned long long)shard->bytes);
	data = mmap(NULL, shard->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED)
		return moe_error_sys(err, -errno, "cannot map %s", shard->path);
	*ret = (struct weights_map){.data = data, .bytes = shard->bytes};
	return 0;
}

void weights_unmap_shard(struct weights_map *map)
{
	if (map->data)
		munmap((void *)(uintptr_t)map->data, map->bytes);
	map->data = NULL;
}

int weights_matrix(const struct weights *weights, const struct tensor *tensor, struct matrix *ret,
		   struct moe_error *err)
{
	const struct weights_map *map = &weights->maps[tensor->shard];
	const char *path = weights->model->shards[tensor->shard].path;
	struct matrix w = {0};
	uint64_t bytes;

	if (tensor->type == TENSOR_F32)
		w.type = MATRIX_F32;
	else if (tensor->type == TENSOR_BF16)
		w.type = MATRIX_BF16;
	else if (tensor->type == TENSOR_F16)
		w.type = MATRIX_F16;
	else
		return moe_error_set(err, -EINVAL, "%s: %s: found %s, expected BF16, F16 or F32", path, tensor->name,
				     tensor_type_name(tensor->type));
	if (tensor->n_dims != 2 || tensor->dims[0] > UINT32_MAX || tensor->dims[1] > UINT32_MAX)
		return moe_error_set(err, -EINVAL, "%s: %s: found %u dimensions, expected a matrix", path, tensor->name,
				     tensor->n_dims);
	w.rows = (uint32_t)tensor->dims[0];
	w.cols = (uint32_t)tensor->dims[1];
	if (!checked_mul(&w.pitch, w.cols, matrix_type_bytes(w.type)) || !checked_mul(&bytes, w.pitch, w.rows) ||
	    !checked_range(tensor->offset, bytes, map->bytes))
		return moe_error_set(err, -EINVAL, "%s: %s: found a range beyond the file's end", path, tensor->name);
	w.data = map->data + tensor->offset;
	if (w.type == MATRIX_F32 && (uintptr_t)w.data % sizeof(float) != 0)
		return moe_error_set(err, -EINVAL, "%s: %s: found F32 at offset %llu, expected a multiple of 4", path,
				     tensor->name, (unsigned long long)tensor->offset);
	*ret = w;
	return 0;
}

/* Memory that the weights own and free; NULL when there is none. */
static float *new_vector(struct weights *weights, uint64_t n)
{
	float **grown = realloc(weights->vectors, (weights->n_vectors + 1) * sizeof(*grown));
	float *vector;

	if (!grown)
		return NULL;
	weights->vectors = grown;
	vector = aligned_alloc(64, (n * sizeof(float) + 63) & ~63ull);
	if (vector)
		weights->vectors[weights->n_vectors++] = vector;
	return vector;
}

static const struct tensor *find(struct loader *l, const char *name, char *full, size_t size)
{
	const struct tensor *tensor;

	if (l->result < 0)
		return NULL;
	snprintf(full, size, "%s%s", l->prefix, name);
	tensor = model_tensor(l->weights->model, full);
	if (!tensor)
		l->result = moe_error_set(l->err, -EINVAL, "%s: no tensor %s, which the config asks for",
					  l->weights->model->path, full);
	return tensor;
}

static void want_matrix(struct loader *l, const char *name, uint64_t rows, uint64_t cols, struct matrix *ret)
{
	struct matrix **grown;
	const struct tensor *tensor;
	struct matrix w;
	char full[160];

	tensor = find(l, name, full, sizeof(full));
	if (!tensor)
		return;
	l->result = weights_matrix(l->weights, tensor, &w, l->err);
	if (l->result < 0)
		return;
	if (w.rows != rows || w.cols != cols) {
		l->result = moe_error_set(l->err, -EINVAL, "%s: %s: found [%u, %u], expected [%llu, %llu]",
					  l->weights->model->shards[tensor->shard].path, full, w.rows, w.cols,
					  (unsigned long long)rows, (unsigned long long)cols);
		return;
	}
	grown = realloc(l->weights->matrices, (l->weights->n_matrices + 1) * sizeof(*grown));
	if (!grown) {
		l->result = moe_error_set(l->err, -ENOMEM, "no memory for the table of matrices");
		return;
	}
	*ret = w;
	l->weights->matrices = grown;
	l->weights->matrices[l->weights->n_matrices++] = ret;
}

/* A one-dimensional tensor, widened. */
static void want_vector(struct loader *l, const char *name, uint64_t n, const float **ret)
{
	const struct tensor *tensor;
	struct tensor row;
	struct matrix w;
	char full[160];
	float *vector;

	tensor = find(l, name, full, sizeof(full));
	if (!tensor)
		return;
	if (tensor->n_dims != 1 || tensor->dims[0] != n) {
		l->result = moe_error_set(
			l->err, -EINVAL, "%s: %s: found %u dimensions, the first %llu; expected [%llu]",
			l->weights->model->shards[tensor->shard].path, full, tensor->n_dims,
			(unsigned long long)(tensor->n_dims ? tensor->dims[0] : 0), (unsigned long long)n);
		return;
	}
	row = *tensor;
	row.n_dims = 2;
	row.dims[0] = 1;
	row.dims[1] = n;
	l->result = weights_matrix(l->weights, &row, &w, l->err);
	if (l->result < 0)
		return;
	vector = new_vector(l->weights, n);
	if (!vector) {
		l->result = moe_error_set(l->err, -ENOMEM, "no memory for %s", full);
		return;
	}
	matrix_widen(vector, &w, 0, 0, (uint32_t)n);
	*ret = vector;
}

static void want_gqa(struct loader *l, struct layer_weights *w)
{
	const struct arch *a = l->arch;
	const struct arch_gqa *g = &a->gqa;
	const uint64_t q = (uint64_t)g->heads * g->head_dim, kv = (uint64_t)g->kv_heads * g->head_dim;
	const bool full = g->norm == ARCH_NORM_FULL;

	want_matrix(l, "self_attn.q_proj.weight", q, a->hidden, &w->q);
	want_matrix(l, "self_attn.k_proj.weight", kv, a->hidden, &w->k);
	want_matrix(l, "self_attn.v_proj.weight", kv, a->hidden, &w->v);
	want_matrix(l, "self_attn.o_proj.weight", a->hidden, q, &w->o);
	if (g->bias) {
		want_vector(l, "self_attn.q_proj.bias", q, &w->q_bias);
		want_vector(l, "self_attn.k_proj.bias", kv, &w->k_bias);
		want_vector(l, "self_attn.v_proj.bias", kv, &w->v_bias);
	}
	if (g->output_bias)
		want_vector(l, "self_attn.o_proj.bias", a->hidden, &w->o_bias);
	if (g->norm != ARCH_NORM_NONE) {
		want_vector(l, "self_attn.q_norm.weight", full ? q : g->head_dim, &w->q_norm);
		want_vector(l, "self_attn.k_norm.weight", full ? kv : g->head_dim, &w->k_norm);
	}
}

static void want_mla(struct loader *l, struct layer_weights *w)
{
	const struct arch *a = l->arch;
	const struct arch_mla *m = &a->mla;
	const uint64_t q = (uint64_t)m->heads * (m->plain_dim + m->rope_dim);

	if (m->q_rank) {
		want_matrix(l, "self_attn.q_a_proj.weight", m->q_rank, a->hidden, &w->q_a);
		want_vector(l, "self_attn.q_a_layernorm.weight", m->q_rank, &w->q_a_norm);
		want_matrix(l, "self_attn.q_b_proj.weight", q, m->q_rank, &w->q_b);
	} else {
		want_matrix(l, "self_attn.q_proj.weight", q, a->hidden, &w->q);
	}
	want_matrix(l, "self_attn.kv_a_proj_with_mqa.weight", (uint64_t)m->kv_rank + m->rope_dim, a->hidden, &w->kv_a);
	want_vector(l, "self_attn.kv_a_layernorm.weight", m->kv_rank, &w->kv_a_norm);
	want_matrix(l, "self_attn.kv_b_proj.weight", (uint64_t)m->heads * (m->plain_dim + m->value_dim), m->kv_rank,
		    &w->kv_b);
	want_matrix(l, "self_attn.o_proj.weight", a->hidden, (uint64_t)m->heads * m->value_dim, &w->o);
	if (m->bias) {
		if (m->q_rank)
			want_vector(l, "self_attn.q_a_proj.bias", m->q_rank, &w->q_a_bias);
		want_vector(l, "self_attn.kv_a_proj_with_mqa.bias", (uint64_t)m->kv_rank + m->rope_dim, &w->kv_a_bias);
		want_vector(l, "self_attn.o_proj.bias", a->hidden, &w->o_bias);
	}
}

static void want_mlp(struct loader *l, const char *prefix, uint32_t inter, struct gated_mlp *mlp)
{
	const uint32_t hidden = l->arch->hidden;
	char name[64];

	snprintf(name, sizeof(name), "%s.gate_proj.weight", prefix);
	want_matrix(l, name, inter, hidden, &mlp->gate);
	snprintf(name, sizeof(name), "%s.up_proj.weight", prefix);
	want_matrix(l, name, inter, hidden, &mlp->up);
	snprintf(name, sizeof(name), "%s.down_proj.weight", prefix);
	want_matrix(l, name, hidden, inter, &mlp->down);
}

static void want_feed_forward(struct loader *l, uint32_t layer, struct layer_weights *w)
{
	const struct arch *a = l->arch;
	const bool mixtral = a->family == FAMILY_MIXTRAL;

	if (!a->is_moe[layer]) {
		want_mlp(l, "mlp", a->dense_inter, &w->mlp);
		return;
	}
	want_matrix(l, mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight", a->router.n_experts, a->hidden,
		    &w->router);
	if (a->router.bias)
		want_vector(l, "mlp.gate.e_score_correction_bias", a->router.n_experts, &w->router_bias);
	if (a->shared_inter)
		want_mlp(l, a->shared_gate ? "mlp.shared_expert" : "mlp.shared_experts", a->shared_inter, &w->mlp);
	if (a->shared_gate)
		want_matrix(l, "mlp.shared_expert_gate.weight", 1, a->hidden, &w->shared_gate);
}

static void want_all(struct loader *l)
{
	const struct arch *a = l->arch;
	struct weights *weights = l->weights;

	want_matrix(l, "model.embed_tokens.weight", a->vocab, a->hidden, &weights->embedding);
	want_vector(l, "model.norm.weight", a->hidden, &weights->norm);
	if (!a->tied)
		want_matrix(l, "lm_head.weight", a->vocab, a->hidden, &weights->output);
	for (uint32_t i = 0; i < a->n_layers; i++) {
		struct layer_weights *w = &weights->layers[i];

		snprintf(l->prefix, sizeof(l->prefix), "model.layers.%u.", i);
		want_vector(l, "input_layernorm.weight", a->hidden, &w->attention_norm);
		want_vector(l, "post_attention_layernorm.weight", a->hidden, &w->mlp_norm);
		if (a->latent)
			want_mla(l, w);
		else
			want_gqa(l, w);
		want_feed_forward(l, i, w);
	}
}

static int widen_all(struct weights *weights, struct moe_error *err)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < weights->n_matrices; i++)
		bytes += (uint64_t)weights->matrices[i]->rows * weights->matrices[i]->cols * sizeof(float);
	if (bytes > WIDEN_BYTES_MAX)
		return 0;
	for (size_t i = 0; i < weights->n_matrices; i++) {
		struct matrix *w = weights->matrices[i];
		const uint64_t n = (uint64_t)w->rows * w->cols;
		float *wide;

		if (w->type == MATRIX_F32)
			continue;
		wide = new_vector(weights, n);
		if (!wide)
			return moe_error_set(err, -ENOMEM, "no memory to widen the dense weights (%llu bytes)",
					     (unsigned long long)bytes);
		for (uint32_t r = 0; r < w->rows; r++)
			matrix_widen(wide + (uint64_t)r * w->cols, w, r, 0, w->cols);
		*w = (struct matrix){.data = (const uint8_t *)wide,
				     .type = MATRIX_F32,
				     .rows = w->rows,
				     .cols = w->cols,
				     .pitch = w->cols * sizeof(float)};
	}
	return 0;
}

static void cleanup_weights(struct weights **weights)
{
	weights_free(*weights);
}

int weights_load(struct weights **ret, const struct model *model, const struct arch *arch, struct moe_error *err)
{
	_cleanup_(cleanup_weights) struct weights *weights = calloc(1, sizeof(*weights));
	struct loader l = {.weights = weights, .arch = arch, .err = err};
	int r;

	if (weights) {
		weights->model = model;
		weights->n_layers = arch->n_layers;
		weights->layers = calloc(arch->n_layers, sizeof(*weights->layers));
		weights->maps = calloc(model->n_shards, sizeof(*weights->maps));
	}
	if (!weights || !weights->layers || !weights->maps)
		return moe_error_set(err, -ENOMEM, "no memory for the tables of %s", model->path);
	for (uint32_t i = 0; i < model->n_shards; i++) {
		r = weights_map_shard(&weights->maps[i], &model->shards[i], err);
		if (r < 0)
			return r;
	}
	want_all(&l);
	if (l.result < 0)
		return l.result;
	r = widen_all(weights, err);
	if (r < 0)
		return r;
	if (arch->tied)
		weights->output = weights->embedding;
	*ret = steal_ptr(weights);
	return 0;
}

struct weights *weights_free(struct weights *weights)
{
	if (!weights)
		return NULL;
	for (size_t i = 0; i < weights->n_vectors; i++)
		free(weights->vectors[i]);
	for (uint32_t i = 0; weights->maps && i < weights->model->n_shards; i++)
		weights_unmap_shard(&weights->maps[i]);
	free(weights->vectors);
	free(weights->matrices);
	free(weights->maps);
	free(weights->layers);
	free(weights);
	return NULL;
}
