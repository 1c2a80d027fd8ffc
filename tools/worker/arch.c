/* SPDX-License-Identifier: MIT */
#include "tools/worker/arch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

/* What distinguishes the families beyond the numbers in their configs. */
struct traits {
	bool latent;
	const char *bias_key; /* NULL: no biases */
	bool bias_default, output_bias;
	enum arch_norm norm;
	double theta, partial; /* defaults of rope_theta and partial_rotary_factor */
	enum router_score score;
	bool correction_bias;
	bool renormalise_default;
};

static const struct traits traits_of[FAMILY_COUNT] = {
	[FAMILY_MIXTRAL] = {.theta = 1e6, .partial = 1, .renormalise_default = true},
	[FAMILY_QWEN2_MOE] = {.bias_key = "qkv_bias", .bias_default = true, .theta = 1e4, .partial = 1},
	[FAMILY_QWEN3_MOE] =
		{.bias_key = "attention_bias", .output_bias = true, .norm = ARCH_NORM_HEAD, .theta = 1e4, .partial = 1},
	[FAMILY_OLMOE] =
		{.bias_key = "attention_bias", .output_bias = true, .norm = ARCH_NORM_FULL, .theta = 1e4, .partial = 1},
	[FAMILY_GLM4_MOE] = {.bias_key = "attention_bias",
			     .theta = 1e4,
			     .partial = 0.5,
			     .score = ROUTER_SIGMOID,
			     .correction_bias = true,
			     .renormalise_default = true},
	[FAMILY_DEEPSEEK_V2] = {.latent = true, .bias_key = "attention_bias", .theta = 1e4, .partial = 1},
	[FAMILY_DEEPSEEK_V3] = {.latent = true,
				.bias_key = "attention_bias",
				.theta = 1e4,
				.partial = 1,
				.score = ROUTER_SIGMOID,
				.correction_bias = true,
				.renormalise_default = true},
	[FAMILY_KIMI_K2] = {.latent = true,
			    .bias_key = "attention_bias",
			    .theta = 1e4,
			    .partial = 1,
			    .score = ROUTER_SIGMOID,
			    .correction_bias = true,
			    .renormalise_default = true},
};

/* A window for some layers only depends on rules that differ between releases; one for all layers is Mixtral's. */
static int read_window(struct arch *a, const struct fields *f, struct moe_error *err)
{
	const json_t *types = json_object_get(f->json, "layer_types"), *type;
	bool sliding = false;
	size_t i;
	int r;

	if (a->family == FAMILY_MIXTRAL)
		return fields_u32(f, "sliding_window", 1, 0, &a->gqa.window, err);
	r = fields_bool(f, "use_sliding_window", false, &sliding, err);
	if (r < 0)
		return r;
	json_array_foreach (types, i, type) {
		const char *word = json_string_value(type);

		sliding |= word && strcmp(word, "full_attention") != 0;
	}
	if (sliding)
		return moe_error_set(err, -EINVAL,
				     "%s: use_sliding_window, layer_types: only full attention is supported for %s",
				     f->file, model_family_name(a->family));
	return 0;
}

static int read_gqa(struct arch *a, const struct traits *traits, const struct fields *f, struct moe_error *err)
{
	struct arch_gqa *g = &a->gqa;
	bool norm = true;
	double clip;
	int r;

	if ((r = fields_u32(f, "num_attention_heads", 1, FIELD_REQUIRED, &g->heads, err)) < 0 ||
	    (r = fields_u32(f, "num_key_value_heads", 1, g->heads, &g->kv_heads, err)) < 0 ||
	    (r = fields_u32(f, "head_dim", 1, a->hidden / g->heads, &g->head_dim, err)) < 0)
		return r;
	if (g->heads % g->kv_heads != 0 || g->head_dim == 0)
		return moe_error_set(err, -EINVAL,
				     "%s: num_key_value_heads: found %u, expected a divisor of num_attention_heads "
				     "(%u); head_dim %u",
				     f->file, g->kv_heads, g->heads, g->head_dim);
	if (traits->bias_key && (r = fields_bool(f, traits->bias_key, traits->bias_default, &g->bias, err)) < 0)
		return r;
	g->output_bias = g->bias && traits->output_bias;
	g->norm = traits->norm;
	if (a->family == FAMILY_GLM4_MOE) {
		if ((r = fields_bool(f, "use_qk_norm", false, &norm, err)) < 0)
			return r;
		g->norm = norm ? ARCH_NORM_HEAD : ARCH_NORM_NONE;
	}
	if (a->family == FAMILY_OLMOE) {
		if ((r = fields_real(f, "clip_qkv", 0.0, 1e9, 0.0, &clip, err)) < 0)
			return r;
		g->clip = (float)clip;
	}
	a->attention_scale = 1.0f / sqrtf((float)g->head_dim);
	if ((r = read_window(a, f, err)) < 0)
		return r;
	return rope_read(&a->rope, f, g->head_dim, traits->theta, traits->partial, a->positions, err);
}

static int read_mla(struct arch *a, const struct traits *traits, const struct fields *f, struct moe_error *err)
{
	struct arch_mla *m = &a->mla;
	double mscale;
	int r;

	if ((r = fields_u32(f, "num_attention_heads", 1, FIELD_REQUIRED, &m->heads, err)) < 0 ||
	    (r = fields_u32(f, "q_lora_rank", 1, 0, &m->q_rank, err)) < 0 ||
	    (r = fields_u32(f, "kv_lora_rank", 1, FIELD_REQUIRED, &m->kv_rank, err)) < 0 ||
	    (r = fields_u32(f, "qk_nope_head_dim", 1, FIELD_REQUIRED, &m->plain_dim, err)) < 0 ||
	    (r = fields_u32(f, "qk_rope_head_dim", 2, FIELD_REQUIRED, &m->rope_dim, err)) < 0 ||
	    (r = fields_u32(f, "v_head_dim", 1, FIELD_REQUIRED, &m->value_dim, err)) < 0 ||
	    (r = fields_bool(f, traits->bias_key, traits->bias_default, &m->bias, err)) < 0 ||
	    (r = rope_read(&a->rope, f, m->rope_dim, traits->theta, 1.0, a->positions, err)) < 0 ||
	    (r = fields_bool(f, "rope_interleave", true, &a->rope.interleaved, err)) < 0)
		return r;
	mscale = a->rope.yarn && a->rope.mscale_all_dim > 0 ? rope_mscale(a->rope.factor, a->rope.mscale_all_dim) : 1.0;
	a->attention_scale = (float)(mscale * mscale / sqrt((double)m->plain_dim + m->rope_dim));
	return 0;
}

/* Which groups rule: DeepSeek-V2 names it; the sigmoid families have one. */
static int read_group_rule(struct arch *a, const struct fields *f, struct moe_error *err)
{
	const char *method = NULL, *score = NULL;
	const char *expected = a->router.score == ROUTER_SIGMOID ? "sigmoid" : "softmax";
	int r;

	if ((r = fields_word(f, "scoring_func", &score, err)) < 0 ||
	    (r = fields_word(f, "topk_method", &method, err)) < 0)
		return r;
	if (score && strcmp(score, expected) != 0)
		return moe_error_set(err, -EINVAL, "%s: scoring_func: found '%s', expected '%s' for %s", f->file, score,
				     expected, model_family_name(a->family));
	if (a->family == FAMILY_DEEPSEEK_V2) {
		if (!method || strcmp(method, "greedy") == 0)
			a->router.group = ROUTER_GROUP_NONE;
		else if (strcmp(method, "group_limited_greedy") == 0)
			a->router.group = ROUTER_GROUP_MAX;
		else
			return moe_error_set(err, -EINVAL,
					     "%s: topk_method: found '%s', expected 'greedy' or 'group_limited_greedy'",
					     f->file, method);
	} else if (method && strcmp(method, "noaux_tc") != 0) {
		return moe_error_set(err, -EINVAL, "%s: topk_method: found '%s', expected 'noaux_tc'", f->file, method);
	} else {
		a->router.group = ROUTER_GROUP_TOP2;
	}
	return 0;
}

static int read_groups(struct arch *a, const struct fields *f, struct moe_error *err)
{
	struct router_config *router = &a->router;
	uint32_t size;
	int r;

	if ((r = read_group_rule(a, f, err)) < 0 || (r = fields_u32(f, "n_group", 1, 1, &router->n_groups, err)) < 0 ||
	    (r = fields_u32(f, "topk_group", 1, router->n_groups, &router->topk_groups, err)) < 0)
		return r;
	if (router->group == ROUTER_GROUP_NONE || router->topk_groups == router->n_groups) {
		router->group = ROUTER_GROUP_NONE; /* nothing is left out */
		return 0;
	}
	size = router->n_experts / router->n_groups;
	if (router->n_experts % router->n_groups != 0 || router->topk_groups > router->n_groups ||
	    (router->group == ROUTER_GROUP_TOP2 && size < 2) || (uint64_t)size * router->topk_groups < router->topk)
		return moe_error_set(
			err, -EINVAL,
			"%s: n_group %u, topk_group %u: expected groups that divide the %u experts and hold "
			"at least %u of them",
			f->file, router->n_groups, router->topk_groups, router->n_experts, router->topk);
	return 0;
}

static int read_router(struct arch *a, const struct traits *traits, const struct fields *f, struct moe_error *err)
{
	struct router_config *router = &a->router;
	const bool grouped = traits->latent || a->family == FAMILY_GLM4_MOE;
	double scale = 1.0;
	int r;

	router->score = traits->score;
	router->bias = traits->correction_bias;
	router->renormalise = traits->renormalise_default;
	if (a->family != FAMILY_MIXTRAL &&
	    (r = fields_bool(f, "norm_topk_prob", traits->renormalise_default, &router->renormalise, err)) < 0)
		return r;
	if (grouped) {
		if ((r = read_groups(a, f, err)) < 0 ||
		    (r = fields_real(f, "routed_scaling_factor", 0.0, 1e6, 1.0, &scale, err)) < 0)
			return r;
		router->renormalise_epsilon = 1e-20f;
	}
	/* DeepSeek-V2 scales or renormalises, never both; and a single expert's weight is never renormalised there. */
	if (a->family == FAMILY_DEEPSEEK_V2) {
		router->renormalise = router->renormalise && router->topk > 1;
		scale = router->renormalise ? 1.0 : scale;
	}
	router->scale = (float)scale;
	return 0;
}

static int read_feed_forward(struct arch *a, const struct fields *f, struct moe_error *err)
{
	uint32_t shared = 0;
	int r;

	if (a->n_moe_layers < a->n_layers &&
	    (r = fields_u32(f, "intermediate_size", 1, FIELD_REQUIRED, &a->dense_inter, err)) < 0)
		return r;
	switch (a->family) {
	case FAMILY_QWEN2_MOE:
		a->shared_gate = true;
		return fields_u32(f, "shared_expert_intermediate_size", 1, FIELD_REQUIRED, &a->shared_inter, err);
	case FAMILY_GLM4_MOE:
	case FAMILY_DEEPSEEK_V2:
	case FAMILY_DEEPSEEK_V3:
	case FAMILY_KIMI_K2:
		r = fields_u32(f, "n_shared_experts", 0, 0, &shared, err);
		if (r < 0)
			return r;
		if ((uint64_t)shared * a->expert_inter > FIELD_MAX)
			return moe_error_set(err, -EINVAL, "%s: n_shared_experts: found %u, expected at most %u",
					     f->file, shared, FIELD_MAX / a->expert_inter);
		a->shared_inter = shared * a->expert_inter;
		return 0;
	default:
		return 0;
	}
}

static int read_ends(struct arch *a, const struct fields *f, struct moe_error *err)
{
	const json_t *ends = json_object_get(f->json, "eos_token_id");
	const size_t n = json_is_array(ends) ? json_array_size(ends) : 1;

	if (!ends || json_is_null(ends))
		return 0;
	for (size_t i = 0; i < n; i++) {
		const json_t *end = json_is_array(ends) ? json_array_get(ends, i) : ends;

		if (!json_is_integer(end) || n > ARCH_ENDS_MAX)
			return moe_error_set(err, -EINVAL,
					     "%s: eos_token_id: expected a token id or a list of at most %d of them",
					     f->file, ARCH_ENDS_MAX);
		if (json_integer_value(end) >= 0 && json_integer_value(end) < (json_int_t)a->vocab)
			a->ends[a->n_ends++] = (int32_t)json_integer_value(end);
	}
	return 0;
}

int arch_read(struct arch *ret, const struct model *model, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	const struct traits *traits = &traits_of[c->family];
	_cleanup_free_ char *file = NULL;
	struct arch a = {
		.family = c->family,
		.n_layers = c->n_layers,
		.hidden = c->hidden,
		.is_moe = c->is_moe,
		.n_moe_layers = c->n_moe_layers,
		.latent = traits->latent,
		.router = {.n_experts = c->n_experts, .topk = c->topk, .n_groups = 1, .topk_groups = 1},
		.activation = (enum moe_activation)c->activation,
		.expert_inter = c->inter,
	};
	struct fields f = {.json = c->json};
	double epsilon;
	int r;

	if (asprintf(&file, "%s/config.json", model->path) < 0)
		return moe_error_set(err, -ENOMEM, "no memory to read %s", model->path);
	f.file = file;
	if (c->family == FAMILY_GPT_OSS || !c->json)
		return moe_error_set(
			err, -ENOTSUP,
			"%s: this worker does not compute the attention of %s%s; the daemon serves its experts",
			model->path, model_family_name(c->family),
			c->json ? ""
				: " from a GGUF file: give --model the published folder, --experts-from the GGUF file");
	if (c->topk > MOE_TOPK_MAX || c->topk > c->n_experts)
		return moe_error_set(err, -EINVAL, "%s: num_experts_per_tok: found %u, expected at most %u", file,
				     c->topk, MIN(c->n_experts, (uint32_t)MOE_TOPK_MAX));
	if ((r = fields_u32(&f, "vocab_size", 1, FIELD_REQUIRED, &a.vocab, err)) < 0 ||
	    (r = fields_u32(&f, "max_position_embeddings", 1, FIELD_REQUIRED, &a.positions, err)) < 0 ||
	    (r = fields_real(&f, "rms_norm_eps", 0.0, 1.0, NAN, &epsilon, err)) < 0 ||
	    (r = fields_bool(&f, "tie_word_embeddings", false, &a.tied, err)) < 0 ||
	    (r = (traits->latent ? read_mla : read_gqa)(&a, traits, &f, err)) < 0 ||
	    (r = read_router(&a, traits, &f, err)) < 0 || (r = read_feed_forward(&a, &f, err)) < 0 ||
	    (r = read_ends(&a, &f, err)) < 0)
		return r;
	a.epsilon = (float)epsilon;
	*ret = a;
	return 0;
}
