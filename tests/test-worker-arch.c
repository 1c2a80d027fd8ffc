/* SPDX-License-Identifier: MIT */
/*
 * worker-arch - the worker's dense part and its own experts compute what the families' publications say: against a
 * second, naive implementation in double, for random models of each family; in one step and token by token; as one rank
 * and as the sum of two. And what a config asks for that the worker does not compute is refused by name.
 */
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>

#include "base/util.h"
#include "tests/naive-model.h"
#include "tests/tap.h"
#include "tools/mkmodel/folder.h"
#include "tools/worker/forward.h"

#define TOKENS 24
#define VOCAB 48

static char folder[64];
static uint64_t seed;

/* A config.json entry that the generator does not write. */
struct edit {
	const char *key, *json; /* json NULL: none */
};

struct variant {
	const char *what;
	struct spec spec;
	struct edit edits[2];
};

static struct spec base_spec(enum model_family family)
{
	struct spec s = spec_defaults(family);

	s.seed = seed;
	s.vocab = VOCAB;
	s.max_position = 64;
	s.layers = 3;
	s.hidden = 48;
	s.inter = 20;
	s.shards = 1;
	return s;
}

static struct spec gqa_spec(enum model_family family, uint32_t heads, uint32_t kv_heads, uint32_t experts,
			    uint32_t topk)
{
	struct spec s = base_spec(family);

	s.heads = heads;
	s.kv_heads = kv_heads;
	s.head_dim = s.head_dim && family != FAMILY_QWEN2_MOE && family != FAMILY_OLMOE ? 16 : s.hidden / heads;
	s.experts = experts;
	s.topk = topk;
	return s;
}

static struct spec mla_spec(enum model_family family, uint32_t q_rank, uint32_t n_group, uint32_t topk_group)
{
	struct spec s = base_spec(family);

	s.heads = s.kv_heads = 3;
	s.q_lora_rank = q_rank;
	s.kv_lora_rank = 20;
	s.qk_nope_head_dim = 12;
	s.qk_rope_head_dim = 8;
	s.v_head_dim = 10;
	s.experts = 16;
	s.topk = 4;
	s.n_group = n_group;
	s.topk_group = topk_group;
	s.dense_layers = 1;
	s.routed_scaling = 1.7;
	return s;
}

/* A config.json object, read and written back with its edits. */
static void edit_config(const char *path, const struct edit *edits, size_t n)
{
	char file[128];
	json_t *config;

	snprintf(file, sizeof file, "%s/config.json", path);
	config = json_load_file(file, 0, NULL);
	for (size_t i = 0; i < n && edits[i].json; i++)
		json_object_set_new(config, edits[i].key, json_loads(edits[i].json, JSON_DECODE_ANY, NULL));
	if (!config || json_dump_file(config, file, 0) < 0)
		abort();
	json_decref(config);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
	return remove(path);
}

static struct model *make_model(const struct variant *v, char *path, size_t size)
{
	struct folder_result result;
	struct moe_error err = {0};
	struct model *model = NULL;

	snprintf(path, size, "%s/model", folder);
	nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	if (spec_check(&v->spec, &err) < 0 || folder_write(path, &v->spec, false, &result, &err) < 0) {
		diag("%s: %s", v->what, err.text);
		return NULL;
	}
	edit_config(path, v->edits, ARRAY_LEN(v->edits));
	if (model_open(&model, path, &err) < 0)
		diag("%s: %s", v->what, err.text);
	return model;
}

/* The sum of two ranks, computed one after the other. */
struct halves {
	struct experts base;
	struct experts *part[2];
	float *y;
	uint64_t floats;
};

static int halves_phase(struct experts *base, enum moe_step_phase phase, uint64_t number, struct moe_error *err)
{
	return 0;
}

static int halves_begin(struct experts *base, const struct experts_step *step, struct moe_error *err)
{
	struct halves *h = (struct halves *)base;

	for (int i = 0; i < 2; i++)
		if (h->part[i]->begin(h->part[i], step, err) < 0)
			return -EINVAL;
	h->floats = step->tokens * 48u;
	return 0;
}

static int halves_end(struct experts *base, float *y, struct moe_error *err)
{
	struct halves *h = (struct halves *)base;

	if (h->part[0]->end(h->part[0], y, err) < 0 || h->part[1]->end(h->part[1], h->y, err) < 0)
		return -EINVAL;
	for (uint64_t i = 0; i < h->floats; i++)
		y[i] += h->y[i];
	return 0;
}

/* The worker's logits, in steps of `step` tokens. */
static int run_steps(struct forward *f, const int32_t *ids, uint32_t step, float *logits, struct moe_error *err)
{
	for (uint32_t at = 0; at < TOKENS; at += step) {
		const uint32_t n = MIN(step, TOKENS - at);

		if (forward_step(f, ids + at, n, MOE_STEP_PREFILL, err) < 0 ||
		    forward_logits(f, 0, n, logits + at * VOCAB, err) < 0)
			return -EINVAL;
	}
	return 0;
}

/* By one rank, or `split` over two. */
static int run_worker(const struct model *model, const int32_t *ids, uint32_t step, bool split, float *logits,
		      struct moe_error *err)
{
	struct group alone = {.size = 1}, pair[2] = {{.rank = 0, .size = 2}, {.rank = 1, .size = 2}};
	struct halves halves = {.base = {.phase = halves_phase, .begin = halves_begin, .end = halves_end}};
	float y[TOKENS * 48];
	struct weights *weights = NULL;
	struct forward *f = NULL;
	struct arch arch;
	int r = -EINVAL;

	halves.y = y;
	if (arch_read(&arch, model, err) == 0 && weights_load(&weights, model, &arch, err) == 0 &&
	    experts_local_new(&halves.part[0], model, &arch, split ? &pair[0] : &alone, TOKENS, err) == 0 &&
	    experts_local_new(&halves.part[1], model, &arch, &pair[1], TOKENS, err) == 0 &&
	    forward_host_new(&f, &arch, weights, split ? &halves.base : halves.part[0], &alone, TOKENS, TOKENS, err) ==
		    0)
		r = run_steps(f, ids, step, logits, err);
	forward_free(f);
	experts_free(halves.part[0]);
	experts_free(halves.part[1]);
	weights_free(weights);
	return r;
}

/* Greatest difference, in units of the logits' root mean square. */
static double distance(const float *found, const double *expected)
{
	double worst = 0, squares = 0;

	for (int i = 0; i < TOKENS * VOCAB; i++) {
		squares += expected[i] * expected[i];
		worst = fmax(worst, fabs(found[i] - expected[i]));
		if (isnan(found[i]))
			return INFINITY;
	}
	return worst / sqrt(squares / (TOKENS * VOCAB));
}

static void test_variant(const struct variant *v)
{
	static const struct {
		const char *how;
		uint32_t step;
		bool split;
	} ways[] = {{"one step", TOKENS, false}, {"token by token", 1, false}, {"steps of 7, two ranks", 7, true}};
	const char *family = model_family_name(v->spec.family);
	static double expected[TOKENS * VOCAB];
	static float found[TOKENS * VOCAB];
	int32_t ids[TOKENS];
	char path[96];
	struct model *model = make_model(v, path, sizeof path);
	unsigned long long state = seed;

	if (!ok(model != NULL, "%s, %s: the model opens", family, v->what))
		return;
	for (int i = 0; i < TOKENS; i++)
		ids[i] = (int32_t)(tap_random(&state) % VOCAB);
	naive_run(model, ids, TOKENS, expected);
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		struct moe_error err = {0};
		const int r = run_worker(model, ids, ways[i].step, ways[i].split, found, &err);

		/* FP32 against double over three layers: errors lie near 1e-6, a wrong rule near 1. */
		if (!ok(r == 0 && distance(found, expected) < 1e-4, "%s, %s: %s is what the naive model says", family,
			v->what, ways[i].how))
			diag("seed %llu, distance %g %s", (unsigned long long)seed, distance(found, expected),
			     err.text);
	}
	model_free(model);
}

static void test_gqa_families(void)
{
	struct variant v[] = {
		{"plain", gqa_spec(FAMILY_MIXTRAL, 4, 2, 8, 2), {{0}}},
		{"window, linear positions, F16",
		 gqa_spec(FAMILY_MIXTRAL, 6, 3, 8, 3),
		 {{"sliding_window", "5"}, {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}"}}},
		{"tied, one key head", gqa_spec(FAMILY_MIXTRAL, 4, 1, 8, 2), {{0}}},
		{"plain", gqa_spec(FAMILY_QWEN2_MOE, 4, 2, 12, 4), {{0}}},
		{"renormalised, some layers dense", gqa_spec(FAMILY_QWEN2_MOE, 4, 4, 12, 4), {{0}}},
		{"renormalised", gqa_spec(FAMILY_QWEN3_MOE, 4, 2, 16, 4), {{0}}},
		{"yarn, a dense layer", gqa_spec(FAMILY_QWEN3_MOE, 4, 2, 16, 4), {{0}}},
		{"plain", gqa_spec(FAMILY_OLMOE, 4, 4, 16, 4), {{0}}},
		{"clipped, renormalised", gqa_spec(FAMILY_OLMOE, 4, 2, 16, 4), {{"clip_qkv", "0.8"}}},
		{"groups, norms", gqa_spec(FAMILY_GLM4_MOE, 4, 2, 16, 4), {{0}}},
		{"one group, no norms, two shared experts", gqa_spec(FAMILY_GLM4_MOE, 4, 2, 16, 4), {{0}}},
	};

	v[1].spec.type = TENSOR_F16;
	v[2].spec.tie_embeddings = true;
	v[3].spec.norm_topk_prob = false;
	v[4].spec.norm_topk_prob = true;
	v[4].spec.sparse_step = 2;
	v[5].spec.norm_topk_prob = true;
	v[6].spec.norm_topk_prob = false;
	v[6].spec.dense_layers = 1;
	v[6].spec.yarn = 4;
	v[7].spec.norm_topk_prob = false;
	v[8].spec.norm_topk_prob = true;
	v[9].spec.qk_norm = true;
	v[9].spec.n_group = 4;
	v[9].spec.topk_group = 2;
	v[9].spec.routed_scaling = 1.5;
	v[9].spec.dense_layers = 1;
	v[10].spec.qk_norm = v[10].spec.norm_topk_prob = false;
	v[10].spec.n_group = v[10].spec.topk_group = 1;
	v[10].spec.shared_experts = 2;
	v[10].spec.dense_layers = 1;
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		test_variant(&v[i]);
}

static void test_mla_families(void)
{
	static const char limited[] = "\"group_limited_greedy\"";
	struct variant v[] = {
		{"greedy, queries whole", mla_spec(FAMILY_DEEPSEEK_V2, 0, 1, 1), {{"topk_method", "\"greedy\""}}},
		{"groups by their best, yarn", mla_spec(FAMILY_DEEPSEEK_V2, 16, 4, 2), {{"topk_method", limited}}},
		{"groups, renormalised", mla_spec(FAMILY_DEEPSEEK_V2, 16, 4, 2), {{"topk_method", limited}}},
		{"groups by their best two", mla_spec(FAMILY_DEEPSEEK_V3, 16, 4, 2), {{0}}},
		{"yarn of three scales",
		 mla_spec(FAMILY_DEEPSEEK_V3, 0, 8, 3),
		 {{"rope_scaling", "{\"type\": \"yarn\", \"factor\": 8, \"mscale\": 0.7, \"mscale_all_dim\": 1.3, "
				   "\"beta_fast\": 8, \"beta_slow\": 1, \"original_max_position_embeddings\": 16}"}}},
		{"one group", mla_spec(FAMILY_KIMI_K2, 16, 1, 1), {{0}}},
	};

	v[0].spec.norm_topk_prob = v[1].spec.norm_topk_prob = false;
	v[1].spec.yarn = 4;
	v[2].spec.norm_topk_prob = true;
	v[3].spec.nextn_layers = 1;
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		test_variant(&v[i]);
}

static void test_refusals(void)
{
	static const struct {
		enum model_family family;
		struct edit edit;
		const char *words; /* that the error must have */
	} rows[] = {
		{FAMILY_MIXTRAL, {"rope_scaling", "{\"rope_type\": \"longrope\", \"factor\": 2}"}, "longrope"},
		{FAMILY_MIXTRAL, {"rope_scaling", "{\"type\": \"yarn\"}"}, "factor: missing"},
		{FAMILY_MIXTRAL, {"rope_scaling", "7"}, "rope_scaling"},
		{FAMILY_MIXTRAL, {"rms_norm_eps", "\"small\""}, "rms_norm_eps: found \"small\""},
		{FAMILY_MIXTRAL, {"rms_norm_eps", "null"}, "rms_norm_eps: missing"},
		{FAMILY_MIXTRAL, {"vocab_size", "-1"}, "vocab_size: found -1"},
		{FAMILY_MIXTRAL, {"vocab_size", "49"}, "embed_tokens"},
		{FAMILY_MIXTRAL, {"num_key_value_heads", "3"}, "num_key_value_heads: found 3"},
		{FAMILY_MIXTRAL, {"num_attention_heads", "8"}, "q_proj"},
		{FAMILY_MIXTRAL, {"tie_word_embeddings", "1"}, "tie_word_embeddings: found 1"},
		{FAMILY_QWEN2_MOE, {"use_sliding_window", "true"}, "use_sliding_window"},
		{FAMILY_QWEN3_MOE, {"attention_bias", "true"}, "q_proj.bias"},
		{FAMILY_GLM4_MOE, {"n_group", "3"}, "n_group"},
		{FAMILY_GLM4_MOE, {"partial_rotary_factor", "0.01"}, "partial_rotary_factor"},
		{FAMILY_DEEPSEEK_V2, {"topk_method", "\"noaux_tc\""}, "topk_method: found 'noaux_tc'"},
		{FAMILY_DEEPSEEK_V3, {"scoring_func", "\"softmax\""}, "scoring_func: found 'softmax'"},
		{FAMILY_DEEPSEEK_V3, {"kv_lora_rank", "21"}, "kv_a_proj_with_mqa"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const bool latent = spec_traits(rows[i].family)->mla;
		struct variant v = {rows[i].words,
				    latent ? mla_spec(rows[i].family, 16, 4, 2) : gqa_spec(rows[i].family, 4, 2, 8, 2),
				    {rows[i].edit}};
		struct weights *weights = NULL;
		struct moe_error err = {0};
		struct model *model;
		struct arch arch;
		char path[96];
		int r = -EINVAL;

		v.spec.topk = 2;
		if (rows[i].family == FAMILY_GLM4_MOE)
			v.spec.topk_group = v.spec.n_group = 2;
		model = make_model(&v, path, sizeof path);
		if (!ok(model != NULL, "%s: the model opens", rows[i].words))
			continue;
		r = arch_read(&arch, model, &err);
		if (r == 0)
			r = weights_load(&weights, model, &arch, &err);
		if (!ok(r == -EINVAL && strstr(err.text, rows[i].words), "%s = %s is refused in words",
			rows[i].edit.key, rows[i].edit.json))
			diag("%s", err.text);
		weights_free(weights);
		model_free(model);
	}
}

int main(void)
{
	seed = tap_seed();
	tap_tmp(folder, "moe-test-XXXXXX");
	require(mkdtemp(folder) != NULL, "a folder for models");
	test_gqa_families();
	test_mla_families();
	test_refusals();
	nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	return tap_done();
}
