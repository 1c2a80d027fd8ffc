/* SPDX-License-Identifier: MIT */
/*
 * naive-model - the published mathematics of all families, written a second time for tests: in double, one token and
 * one head at a time, keys and values unfolded, nothing cached, nothing shared with the worker but the reader of files.
 *
 * Every number comes from config.json or from the shape of a tensor. What a family does is decided by its model_type.
 */
#ifndef TESTS_NAIVE_MODEL_H
#define TESTS_NAIVE_MODEL_H

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/model.h"

#define NAIVE_WIDTH 512 /* no row of a test model is wider */
#define NAIVE_TOKENS 64

struct naive {
	const struct model *model;
	const json_t *config;
	const char *family;
	int layer, tokens;
	double x[NAIVE_TOKENS][NAIVE_WIDTH]; /* the residual stream */
};

static double naive_number(const struct naive *m, const char *key, double otherwise)
{
	const json_t *value = json_object_get(m->config, key);

	if (json_is_boolean(value))
		return json_is_true(value);
	return json_is_number(value) ? json_number_value(value) : otherwise;
}

static bool naive_is(const struct naive *m, const char *family)
{
	return strcmp(m->family, family) == 0;
}

static bool naive_latent(const struct naive *m)
{
	return naive_is(m, "deepseek_v2") || naive_is(m, "deepseek_v3") || naive_is(m, "kimi_k2");
}

/* -- tensors ------------------------------------------------------------------------------------------------------ */

static double naive_element(const unsigned char *p, enum tensor_type type)
{
	uint16_t half;
	uint32_t bits;
	float single;

	if (type == TENSOR_F32) {
		memcpy(&single, p, sizeof single);
		return single;
	}
	memcpy(&half, p, sizeof half);
	if (type == TENSOR_BF16) {
		bits = (uint32_t)half << 16;
		memcpy(&single, &bits, sizeof single);
		return single;
	}
	/* binary16: sign, 5 bits of exponent, 10 of fraction. */
	return (half >> 15 ? -1 : 1) *
	       ((half >> 10 & 31) ? ldexp(1024 + (half & 1023), (half >> 10 & 31) - 25) : ldexp(half & 1023, -24));
}

/* The layer's tensor of this name (or, with a leading '/', the model's), as doubles; NULL when there is none. */
static double *naive_tensor(const struct naive *m, uint64_t *ret_rows, const char *format, ...)
{
	char suffix[128], name[192];
	const struct tensor *t;
	unsigned char *raw;
	uint64_t count;
	double *values;
	va_list args;
	int fd;

	va_start(args, format);
	vsnprintf(suffix, sizeof suffix, format, args);
	va_end(args);
	if (suffix[0] == '/')
		snprintf(name, sizeof name, "%s", suffix + 1);
	else
		snprintf(name, sizeof name, "model.layers.%d.%s", m->layer, suffix);
	t = model_tensor(m->model, name);
	if (!t)
		return NULL;
	raw = malloc(t->bytes);
	count = t->bytes / tensor_type_bytes(t->type);
	values = malloc(count * sizeof *values);
	fd = open(m->model->shards[t->shard].path, O_RDONLY);
	if (!raw || !values || pread(fd, raw, t->bytes, (off_t)t->offset) != (ssize_t)t->bytes)
		abort();
	close(fd);
	for (uint64_t i = 0; i < count; i++)
		values[i] = naive_element(raw + i * tensor_type_bytes(t->type), t->type);
	free(raw);
	if (ret_rows)
		*ret_rows = t->dims[0];
	return values;
}

/* y = W x + b; returns y's width. W must be there, b need not. */
static int naive_linear(const struct naive *m, double *y, const double *x, int cols, const char *name)
{
	uint64_t rows = 0;
	double *w = naive_tensor(m, &rows, "%s.weight", name), *b = naive_tensor(m, NULL, "%s.bias", name);
	double out[NAIVE_WIDTH];

	if (!w || rows > NAIVE_WIDTH)
		abort();
	for (uint64_t r = 0; r < rows; r++) {
		out[r] = b ? b[r] : 0;
		for (int c = 0; c < cols; c++)
			out[r] += w[r * (uint64_t)cols + (uint64_t)c] * x[c];
	}
	memcpy(y, out, rows * sizeof *y);
	free(w);
	free(b);
	return (int)rows;
}

static void naive_norm(const struct naive *m, double *y, const double *x, int n, const char *name, double epsilon)
{
	double *w = naive_tensor(m, NULL, "%s.weight", name), squares = 0;

	if (!w)
		abort();
	for (int i = 0; i < n; i++)
		squares += x[i] * x[i];
	for (int i = 0; i < n; i++)
		y[i] = x[i] / sqrt(squares / n + epsilon) * w[i];
	free(w);
}

static void naive_softmax(double *x, int n)
{
	double sum = 0, max = x[0];

	for (int i = 1; i < n; i++)
		max = fmax(max, x[i]);
	for (int i = 0; i < n; i++)
		sum += x[i] = exp(x[i] - max);
	for (int i = 0; i < n; i++)
		x[i] /= sum;
}

/* -- rotary embedding --------------------------------------------------------------------------------------------- */

static double naive_stretch(double factor, double mscale)
{
	return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static double naive_key(const json_t *object, const char *key, double otherwise)
{
	const json_t *value = json_object_get(object, key);

	return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* Angle per position of pair i of `dim` dimensions; *ret_scale multiplies sine and cosine. */
static double naive_frequency(const struct naive *m, int i, int dim, double *ret_scale)
{
	const json_t *s = json_object_get(m->config, "rope_scaling");
	const char *type = json_string_value(json_object_get(s, json_object_get(s, "type") ? "type" : "rope_type"));
	const double theta = naive_number(m, "rope_theta", 10000), plain = 1 / pow(theta, 2.0 * i / dim);
	double low, high, ramp, factor, original;

	*ret_scale = 1;
	if (!type)
		return plain;
	factor = naive_key(s, "factor", 1);
	if (strcmp(type, "linear") == 0)
		return plain / factor;
	original = naive_key(s, "original_max_position_embeddings", 0);
	low = floor(dim * log(original / (naive_key(s, "beta_fast", 32) * 2 * M_PI)) / (2 * log(theta)));
	high = ceil(dim * log(original / (naive_key(s, "beta_slow", 1) * 2 * M_PI)) / (2 * log(theta)));
	low = fmax(low, 0);
	high = fmin(high, dim - 1);
	ramp = fmin(fmax((i - low) / (low == high ? 0.001 : high - low), 0), 1);
	*ret_scale = naive_stretch(factor, naive_key(s, "mscale", 1)) /
		     naive_stretch(factor, naive_key(s, "mscale_all_dim", 0));
	return ramp * plain / factor + (1 - ramp) * plain;
}

static void naive_rotate(const struct naive *m, double *x, int dim, int position)
{
	double out[NAIVE_WIDTH], scale;

	for (int i = 0; i < dim / 2; i++) {
		const double angle = position * naive_frequency(m, i, dim, &scale);
		/* The published code of latent attention brings the pairs' first elements to the front beforehand. */
		const double a = x[naive_latent(m) ? 2 * i : i], b = x[naive_latent(m) ? 2 * i + 1 : i + dim / 2];

		out[i] = (a * cos(angle) - b * sin(angle)) * scale;
		out[i + dim / 2] = (b * cos(angle) + a * sin(angle)) * scale;
	}
	memcpy(x, out, (size_t)dim * sizeof *x);
}

/* -- attention ---------------------------------------------------------------------------------------------------- */

struct naive_heads {
	int heads, dim, value_dim;
	double q[NAIVE_TOKENS][NAIVE_WIDTH], k[NAIVE_TOKENS][NAIVE_WIDTH],
		v[NAIVE_TOKENS][NAIVE_WIDTH]; /* [heads x dim] */
};

static void naive_head_norm(const struct naive *m, double *x, int heads, int dim, const char *name)
{
	const double epsilon = naive_number(m, "rms_norm_eps", 0);

	if (naive_is(m, "olmoe"))
		naive_norm(m, x, x, heads * dim, name, epsilon);
	else if (naive_is(m, "qwen3_moe") || naive_number(m, "use_qk_norm", 0) > 0)
		for (int h = 0; h < heads; h++)
			naive_norm(m, x + h * dim, x + h * dim, dim, name, epsilon);
}

static void naive_gqa(const struct naive *m, struct naive_heads *a, const double *x, int t)
{
	const int hidden = (int)naive_number(m, "hidden_size", 0), n = (int)naive_number(m, "num_attention_heads", 0);
	const int n_kv = (int)naive_number(m, "num_key_value_heads", n),
		  dim = (int)naive_number(m, "head_dim", hidden / n);
	const int turned = (int)(dim * naive_number(m, "partial_rotary_factor", naive_is(m, "glm4_moe") ? 0.5 : 1));
	const double clip = naive_number(m, "clip_qkv", INFINITY);
	double k[NAIVE_WIDTH], v[NAIVE_WIDTH];

	a->heads = n;
	a->dim = a->value_dim = dim;
	naive_linear(m, a->q[t], x, hidden, "self_attn.q_proj");
	naive_linear(m, k, x, hidden, "self_attn.k_proj");
	naive_linear(m, v, x, hidden, "self_attn.v_proj");
	naive_head_norm(m, a->q[t], n, dim, "self_attn.q_norm");
	naive_head_norm(m, k, n_kv, dim, "self_attn.k_norm");
	for (int i = 0; i < n_kv * dim; i++) {
		k[i] = fmin(fmax(k[i], -clip), clip);
		v[i] = fmin(fmax(v[i], -clip), clip);
	}
	for (int i = 0; i < n * dim; i++)
		a->q[t][i] = fmin(fmax(a->q[t][i], -clip), clip);
	for (int h = 0; h < n_kv; h++)
		naive_rotate(m, k + h * dim, turned, t);
	for (int h = 0; h < n; h++) {
		naive_rotate(m, a->q[t] + h * dim, turned, t);
		memcpy(a->k[t] + h * dim, k + h / (n / n_kv) * dim, (size_t)dim * sizeof *k);
		memcpy(a->v[t] + h * dim, v + h / (n / n_kv) * dim, (size_t)dim * sizeof *v);
	}
}

static void naive_mla(const struct naive *m, struct naive_heads *a, const double *x, int t)
{
	const int hidden = (int)naive_number(m, "hidden_size", 0), n = (int)naive_number(m, "num_attention_heads", 0);
	const int plain = (int)naive_number(m, "qk_nope_head_dim", 0),
		  turned = (int)naive_number(m, "qk_rope_head_dim", 0);
	const int value = (int)naive_number(m, "v_head_dim", 0), rank = (int)naive_number(m, "kv_lora_rank", 0);
	const int q_rank = (int)naive_number(m, "q_lora_rank", 0);
	double low[NAIVE_WIDTH], kv[NAIVE_WIDTH];

	a->heads = n;
	a->dim = plain + turned;
	a->value_dim = value;
	if (q_rank) {
		naive_linear(m, low, x, hidden, "self_attn.q_a_proj");
		naive_norm(m, low, low, q_rank, "self_attn.q_a_layernorm", 1e-6);
		naive_linear(m, a->q[t], low, q_rank, "self_attn.q_b_proj");
	} else {
		naive_linear(m, a->q[t], x, hidden, "self_attn.q_proj");
	}
	naive_linear(m, low, x, hidden, "self_attn.kv_a_proj_with_mqa");
	naive_rotate(m, low + rank, turned, t);
	naive_norm(m, low, low, rank, "self_attn.kv_a_layernorm", 1e-6);
	naive_linear(m, kv, low, rank, "self_attn.kv_b_proj");
	for (int h = 0; h < n; h++) {
		naive_rotate(m, a->q[t] + h * a->dim + plain, turned, t);
		memcpy(a->k[t] + h * a->dim, kv + h * (plain + value), (size_t)plain * sizeof *kv);
		memcpy(a->k[t] + h * a->dim + plain, low + rank, (size_t)turned * sizeof *kv);
		memcpy(a->v[t] + h * value, kv + h * (plain + value) + plain, (size_t)value * sizeof *kv);
	}
}

static double naive_attention_scale(const struct naive *m, int dim)
{
	const json_t *s = json_object_get(m->config, "rope_scaling");
	const double all = naive_latent(m) ? naive_key(s, "mscale_all_dim", 0) : 0;

	return (all > 0 ? pow(naive_stretch(naive_key(s, "factor", 1), all), 2) : 1) / sqrt(dim);
}

/* Adds the attention's output to the residual stream of all tokens. */
static void naive_attention(struct naive *m)
{
	const int hidden = (int)naive_number(m, "hidden_size", 0);
	const int window = naive_is(m, "mixtral") ? (int)naive_number(m, "sliding_window", 0) : 0;
	struct naive_heads *a = calloc(1, sizeof *a);
	double x[NAIVE_WIDTH], p[NAIVE_TOKENS], out[NAIVE_WIDTH];

	for (int t = 0; t < m->tokens; t++) {
		naive_norm(m, x, m->x[t], hidden, "input_layernorm", naive_number(m, "rms_norm_eps", 0));
		(naive_latent(m) ? naive_mla : naive_gqa)(m, a, x, t);
	}
	for (int t = 0; t < m->tokens; t++) {
		const int from = window && t >= window ? t - window + 1 : 0;

		memset(out, 0, sizeof out);
		for (int h = 0; h < a->heads; h++) {
			for (int s = from; s <= t; s++) {
				p[s - from] = 0;
				for (int i = 0; i < a->dim; i++)
					p[s - from] += a->q[t][h * a->dim + i] * a->k[s][h * a->dim + i];
				p[s - from] *= naive_attention_scale(m, a->dim);
			}
			naive_softmax(p, t - from + 1);
			for (int s = from; s <= t; s++)
				for (int i = 0; i < a->value_dim; i++)
					out[h * a->value_dim + i] += p[s - from] * a->v[s][h * a->value_dim + i];
		}
		naive_linear(m, out, out, a->heads * a->value_dim, "self_attn.o_proj");
		for (int i = 0; i < hidden; i++)
			m->x[t][i] += out[i];
	}
	free(a);
}

/* -- feed-forward ------------------------------------------------------------------------------------------------- */

/* y += share * down(silu(gate x) * (up x)); the names are the three matrices'. */
static void naive_mlp(const struct naive *m, double *y, const double *x, double share, const char *prefix,
		      const char *const names[3])
{
	const int hidden = (int)naive_number(m, "hidden_size", 0);
	double gate[NAIVE_WIDTH], up[NAIVE_WIDTH];
	char name[3][128];
	int inter;

	for (int i = 0; i < 3; i++)
		snprintf(name[i], sizeof name[i], "%s.%s", prefix, names[i]);
	inter = naive_linear(m, gate, x, hidden, name[0]);
	naive_linear(m, up, x, hidden, name[1]);
	for (int i = 0; i < inter; i++)
		gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
	naive_linear(m, up, gate, inter, name[2]);
	for (int i = 0; i < hidden; i++)
		y[i] += share * up[i];
}

/* rank[i] is the place of x[i] among all, 0 the greatest; equal ones in the order of their numbers. */
static void naive_rank(int *rank, const double *x, int n)
{
	for (int i = 0; i < n; i++) {
		rank[i] = 0;
		for (int j = 0; j < n; j++)
			rank[i] += x[j] > x[i] || (x[j] == x[i] && j < i);
	}
}

/* Experts of groups that are not among the chosen ones are out: -INFINITY. */
static void naive_groups(const struct naive *m, double *choice, int n)
{
	const int groups = (int)naive_number(m, "n_group", 1), kept = (int)naive_number(m, "topk_group", groups);
	const json_t *method = json_object_get(m->config, "topk_method");
	const bool best = method && strcmp(json_string_value(method), "group_limited_greedy") == 0;
	int rank[NAIVE_WIDTH], size = n / groups;
	double worth[NAIVE_WIDTH];

	if (naive_is(m, "deepseek_v2") && !best)
		return;
	for (int g = 0; g < groups; g++) {
		naive_rank(rank, choice + g * size, size);
		worth[g] = 0;
		for (int i = 0; i < size; i++)
			worth[g] += rank[i] < (best ? 1 : 2) ? choice[g * size + i] : 0;
	}
	naive_rank(rank, worth, groups);
	for (int i = 0; i < n; i++)
		if (rank[i / size] >= kept)
			choice[i] = -INFINITY;
}

/* weight[i]: the expert's share of this token, 0 when it is not chosen. Returns how many experts there are. */
static int naive_route(const struct naive *m, double *weight, const double *x, const char *gate)
{
	const bool grouped = naive_latent(m) || naive_is(m, "glm4_moe"), v2 = naive_is(m, "deepseek_v2");
	const int topk = (int)naive_number(m, "num_experts_per_tok", 0);
	const bool renormalise = naive_is(m, "mixtral") || naive_number(m, "norm_topk_prob", 0) > 0;
	double choice[NAIVE_WIDTH], sum = 0, scale = grouped ? naive_number(m, "routed_scaling_factor", 1) : 1;
	const int n = naive_linear(m, weight, x, (int)naive_number(m, "hidden_size", 0), gate);
	double *bias = grouped && !v2 ? naive_tensor(m, NULL, "%s.e_score_correction_bias", gate) : NULL;
	int rank[NAIVE_WIDTH];

	if (grouped && !v2)
		for (int i = 0; i < n; i++)
			weight[i] = 1 / (1 + exp(-weight[i]));
	else
		naive_softmax(weight, n);
	for (int i = 0; i < n; i++)
		choice[i] = weight[i] + (bias ? bias[i] : 0);
	if (grouped)
		naive_groups(m, choice, n);
	naive_rank(rank, choice, n);
	for (int i = 0; i < n; i++)
		sum += rank[i] < topk ? weight[i] : 0;
	if (v2 && renormalise)
		scale = 1;
	for (int i = 0; i < n; i++)
		weight[i] = rank[i] < topk ? scale * (renormalise ? weight[i] / sum : weight[i]) : 0;
	free(bias);
	return n;
}

static void naive_feed_forward(struct naive *m)
{
	static const char *const usual[3] = {"gate_proj", "up_proj", "down_proj"}, *const mixtral[3] = {"w1", "w3",
													"w2"};
	const char *block = naive_is(m, "mixtral") ? "block_sparse_moe" : "mlp";
	const int hidden = (int)naive_number(m, "hidden_size", 0);
	double x[NAIVE_WIDTH], weight[NAIVE_WIDTH], share;
	char name[128];

	for (int t = 0; t < m->tokens; t++) {
		double *gate;
		int n;

		naive_norm(m, x, m->x[t], hidden, "post_attention_layernorm", naive_number(m, "rms_norm_eps", 0));
		snprintf(name, sizeof name, "%s.gate", block);
		gate = naive_tensor(m, NULL, "%s.weight", name);
		free(gate);
		if (!gate) {
			naive_mlp(m, m->x[t], x, 1, "mlp", usual);
			continue;
		}
		n = naive_route(m, weight, x, name);
		for (int e = 0; e < n; e++) {
			snprintf(name, sizeof name, "%s.experts.%d", block, e);
			if (weight[e] != 0)
				naive_mlp(m, m->x[t], x, weight[e], name, naive_is(m, "mixtral") ? mixtral : usual);
		}
		if (naive_is(m, "qwen2_moe")) {
			naive_linear(m, &share, x, hidden, "mlp.shared_expert_gate");
			naive_mlp(m, m->x[t], x, 1 / (1 + exp(-share)), "mlp.shared_expert", usual);
		} else if (naive_latent(m) || naive_is(m, "glm4_moe")) {
			naive_mlp(m, m->x[t], x, 1, "mlp.shared_experts", usual);
		}
	}
}

/* Logits [tokens][vocab] of a text from an empty context. */
__attribute__((unused)) static void naive_run(const struct model *model, const int32_t *ids, int tokens, double *logits)
{
	struct naive *m = calloc(1, sizeof *m);
	double *embedding;
	int hidden, vocab;

	m->model = model;
	m->config = model->config.json;
	m->family = json_string_value(json_object_get(m->config, "model_type"));
	m->tokens = tokens;
	hidden = (int)naive_number(m, "hidden_size", 0);
	vocab = (int)naive_number(m, "vocab_size", 0);
	embedding = naive_tensor(m, NULL, "/model.embed_tokens.weight");
	for (int t = 0; t < tokens; t++)
		memcpy(m->x[t], embedding + ids[t] * hidden, (size_t)hidden * sizeof(double));
	for (m->layer = 0; m->layer < (int)naive_number(m, "num_hidden_layers", 0); m->layer++) {
		naive_attention(m);
		naive_feed_forward(m);
	}
	if (naive_number(m, "tie_word_embeddings", 0) == 0) {
		free(embedding);
		embedding = naive_tensor(m, NULL, "/lm_head.weight");
	}
	for (int t = 0; t < tokens; t++) {
		double *norm = naive_tensor(m, NULL, "/model.norm.weight"), squares = 0;

		for (int i = 0; i < hidden; i++)
			squares += m->x[t][i] * m->x[t][i];
		for (int v = 0; v < vocab; v++) {
			logits[t * vocab + v] = 0;
			for (int i = 0; i < hidden; i++)
				logits[t * vocab + v] += embedding[v * hidden + i] * norm[i] * m->x[t][i] /
							 sqrt(squares / hidden + naive_number(m, "rms_norm_eps", 0));
		}
		free(norm);
	}
	free(embedding);
	free(m);
}

#endif
