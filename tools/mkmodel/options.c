/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/options.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "model/family.h"

enum kind { KIND_COUNT, KIND_SEED, KIND_SWITCH, KIND_REAL, KIND_TYPE };

/* One option: where its value goes, its bounds, and the families that know it. */
struct row {
	const char *name, *value, *help;
	enum kind kind;
	size_t offset;
	uint32_t min, max;
	uint32_t families;
};

#define COUNT(name_, field, min_, max_, families_, help_)                                                              \
	{                                                                                                              \
		name_, "N", help_, KIND_COUNT, offsetof(struct spec, field), min_, max_, families_                     \
	}
#define SWITCH(name_, field, families_, help_)                                                                         \
	{                                                                                                              \
		name_, "yes|no", help_, KIND_SWITCH, offsetof(struct spec, field), 0, 0, families_                     \
	}
#define REAL(name_, field, families_, help_)                                                                           \
	{                                                                                                              \
		name_, "X", help_, KIND_REAL, offsetof(struct spec, field), 0, 0, families_                            \
	}

static const struct row rows[] = {
	{"dtype", "bf16|f16", "type of the weights", KIND_TYPE, offsetof(struct spec, type), 0, 0, FAMILIES_ALL},
	{"seed", "N", "start of the random numbers; equal seeds give equal weights, whatever --shards", KIND_SEED,
	 offsetof(struct spec, seed), 0, 0, FAMILIES_ALL},
	COUNT("shards", shards, 0, 65536, FAMILIES_ALL, "files; 1: model.safetensors without an index; 0: 5 GB each"),
	COUNT("vocab", vocab, 1, 1u << 20, FAMILIES_ALL, "tokens (256: bytes)"),
	COUNT("max-position", max_position, 1, 1u << 24, FAMILIES_ALL, "max_position_embeddings"),
	COUNT("layers", layers, 1, MODEL_LAYERS_MAX, FAMILIES_ALL, "layers"),
	COUNT("dense-layers", dense_layers, 0, MODEL_LAYERS_MAX, FAMILIES_DENSE, "first layers without experts"),
	COUNT("sparse-step", sparse_step, 1, MODEL_LAYERS_MAX, FAMILIES_QWEN, "experts in each Nth layer only"),
	COUNT("nextn-layers", nextn_layers, 0, 8, FAMILIES_NEXTN, "next-token predictors after the last layer"),
	COUNT("hidden", hidden, 1, MODEL_DIM_MAX, FAMILIES_ALL, "hidden size"),
	COUNT("inter", inter, 1, MODEL_DIM_MAX, FAMILIES_ALL, "intermediate size of one routed expert"),
	COUNT("dense-inter", dense_inter, 1, MODEL_DIM_MAX, FAMILIES_DENSE, "intermediate size of a dense layer"),
	COUNT("experts", experts, 1, MODEL_EXPERTS_MAX, FAMILIES_ALL, "routed experts a layer"),
	COUNT("topk", topk, 1, MODEL_TOPK_MAX, FAMILIES_ALL, "experts a token"),
	COUNT("shared-experts", shared_experts, 1, 64, FAMILIES_GROUPED, "shared experts a layer, --inter each"),
	COUNT("shared-inter", shared_inter, 1, MODEL_DIM_MAX, 1u << FAMILY_QWEN2_MOE, "size of the shared expert"),
	COUNT("n-group", n_group, 1, MODEL_EXPERTS_MAX, FAMILIES_GROUPED, "groups of experts"),
	COUNT("topk-group", topk_group, 1, MODEL_EXPERTS_MAX, FAMILIES_GROUPED, "groups that a token may use"),
	SWITCH("norm-topk-prob", norm_topk_prob, FAMILIES_NORM_TOPK, "weights of a token sum to 1"),
	REAL("routed-scaling-factor", routed_scaling, FAMILIES_GROUPED, "factor on the experts' sum"),
	COUNT("heads", heads, 1, 4096, FAMILIES_ALL, "attention heads"),
	COUNT("kv-heads", kv_heads, 1, 4096, FAMILIES_ALL & ~FAMILIES_MLA, "key and value heads"),
	COUNT("head-dim", head_dim, 2, 4096, FAMILIES_HEAD_DIM, "size of a head"),
	SWITCH("qk-norm", qk_norm, FAMILIES_GLM, "norms on queries and keys (GLM-4.5 has them, its Air has not)"),
	COUNT("q-lora-rank", q_lora_rank, 0, MODEL_DIM_MAX, FAMILIES_MLA,
	      "rank of the queries; 0: q_proj in one piece"),
	COUNT("kv-lora-rank", kv_lora_rank, 1, MODEL_DIM_MAX, FAMILIES_MLA, "rank of keys and values"),
	COUNT("qk-nope-head-dim", qk_nope_head_dim, 1, 4096, FAMILIES_MLA, "part of a head without rotation"),
	COUNT("qk-rope-head-dim", qk_rope_head_dim, 2, 4096, FAMILIES_MLA, "part of a head with rotation"),
	COUNT("v-head-dim", v_head_dim, 1, 4096, FAMILIES_MLA, "size of a value head"),
	REAL("rope-theta", rope_theta, FAMILIES_ALL, "base of the rotation"),
	REAL("yarn", yarn, FAMILIES_YARN, "rope_scaling of type yarn by this factor"),
	SWITCH("tie-word-embeddings", tie_embeddings, FAMILIES_ALL, "no lm_head of its own"),
};

enum { OPTION_OUT = 1000, OPTION_FAMILY, OPTION_HELP };

static int bad_value(const struct row *row, const char *text, struct moe_error *err)
{
	if (row->kind == KIND_COUNT)
		return moe_error_set(err, -EINVAL, "--%s: found \"%s\"; expected an integer from %u to %u", row->name,
				     text, row->min, row->max);
	return moe_error_set(err, -EINVAL, "--%s: found \"%s\"; expected %s", row->name, text,
			     row->kind == KIND_REAL   ? "a number greater than 0"
			     : row->kind == KIND_SEED ? "an integer"
						      : row->value);
}

/* Decimal digits only: strtoul alone would take blanks and signs. */
static bool read_integer(const char *text, uint64_t *ret)
{
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	*ret = strtoull(text, &end, 10);
	return errno == 0 && *end == '\0';
}

static int set_value(struct spec *spec, const struct row *row, const char *text, struct moe_error *err)
{
	void *to = (char *)spec + row->offset;
	uint64_t number;
	char *end;

	switch (row->kind) {
	case KIND_COUNT:
		if (!read_integer(text, &number) || number < row->min || number > row->max)
			return bad_value(row, text, err);
		*(uint32_t *)to = (uint32_t)number;
		break;
	case KIND_SEED:
		if (!read_integer(text, &number))
			return bad_value(row, text, err);
		*(uint64_t *)to = number;
		break;
	case KIND_SWITCH:
		if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
			return bad_value(row, text, err);
		*(bool *)to = text[0] == 'y';
		break;
	case KIND_REAL:
		*(double *)to = strtod(text, &end);
		if (end == text || *end || !(*(double *)to > 0) || *(double *)to > 1e12)
			return bad_value(row, text, err);
		break;
	case KIND_TYPE:
		if (strcmp(text, "bf16") != 0 && strcmp(text, "f16") != 0)
			return bad_value(row, text, err);
		*(enum tensor_type *)to = text[0] == 'b' ? TENSOR_BF16 : TENSOR_F16;
		break;
	}
	return 0;
}

static bool given(const char *const *values, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i].name, name) == 0)
			return values[i] != NULL;
	return false;
}

/* What was not asked for gives way to what was: `--experts 2` alone is no contradiction. */
static void adapt_defaults(struct spec *s, const char *const *values)
{
	const struct traits *t = spec_traits(s->family);

	if (!given(values, "kv-heads") && (t->qk_norm == QK_NORM_FULL || s->heads % s->kv_heads))
		s->kv_heads = s->heads;
	if (!t->head_dim_free && !t->mla)
		s->head_dim = s->hidden / s->heads;
	if (!given(values, "topk"))
		s->topk = MIN(s->topk, s->experts);
	if (!given(values, "dense-layers"))
		s->dense_layers = MIN(s->dense_layers, s->layers - 1);
	if (!given(values, "n-group") && s->n_group > 1 &&
	    (s->experts % s->n_group || s->topk > s->experts / s->n_group * s->topk_group))
		s->n_group = 1;
	if (!given(values, "topk-group"))
		s->topk_group = s->n_group > 1 && s->topk_group < 2 ? DIV_UP(s->n_group, 2)
								    : MIN(s->topk_group, s->n_group);
}

static int find_family(const char *text, enum model_family *ret, struct moe_error *err)
{
	char names[160];

	if (family_from_model_type(ret, text) == 0)
		return 0;
	family_list(names, sizeof names);
	return moe_error_set(err, -EINVAL, "--family: found \"%s\"; expected one of: %s", text, names);
}

static int build_spec(const char *family, const char *const *values, struct spec *ret, struct moe_error *err)
{
	enum model_family which;
	struct spec spec;
	int r;

	r = find_family(family, &which, err);
	if (r < 0)
		return r;
	spec = spec_defaults(which);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (!values[i])
			continue;
		if (!(rows[i].families >> which & 1))
			return moe_error_set(err, -EINVAL, "--%s: models of family %s have no such number",
					     rows[i].name, family);
		r = set_value(&spec, &rows[i], values[i], err);
		if (r < 0)
			return r;
	}
	adapt_defaults(&spec, values);
	r = spec_check(&spec, err);
	if (r < 0)
		return r;
	*ret = spec;
	return 0;
}

int options_parse(int argc, char **argv, struct spec *ret, const char **ret_out, enum options_verdict *ret_verdict,
		  struct moe_error *err)
{
	struct option options[ARRAY_LEN(rows) + 4] = {{"out", required_argument, NULL, OPTION_OUT},
						      {"family", required_argument, NULL, OPTION_FAMILY},
						      {"help", no_argument, NULL, OPTION_HELP}};
	const char *values[ARRAY_LEN(rows)] = {NULL}, *out = NULL, *family = NULL;
	int c;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		options[i + 3] = (struct option){rows[i].name, required_argument, NULL, (int)i};
	opterr = 0;
	optind = 0; /* start afresh, also when called again */
	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (c == 'h' || c == OPTION_HELP) {
			*ret_verdict = OPTIONS_HELP;
			return 0;
		}
		if (c == '?' || c == ':')
			return moe_error_set(err, -EINVAL, c == ':' ? "%s: a value is missing" : "%s: no such option",
					     argv[optind - 1]);
		if (c == OPTION_OUT)
			out = optarg;
		else if (c == OPTION_FAMILY)
			family = optarg;
		else
			values[c] = optarg;
	}
	if (optind < argc)
		return moe_error_set(err, -EINVAL, "\"%s\": found an argument; expected options only", argv[optind]);
	if (!out || !family)
		return moe_error_set(err, -EINVAL, "--%s is missing", out ? "family" : "out");
	*ret_verdict = OPTIONS_RUN;
	*ret_out = out;
	return build_spec(family, values, ret, err);
}

static void print_row(FILE *to, const struct row *row)
{
	char left[64];

	snprintf(left, sizeof left, "--%s %s", row->name, row->value);
	fprintf(to, "  %-29s %s", left, row->help);
	if (row->families != FAMILIES_ALL) {
		bool first = true;

		fputs("\n                                [", to);
		for (unsigned i = 0; i < FAMILY_COUNT; i++) {
			if (!(row->families >> i & 1))
				continue;
			fprintf(to, "%s%s", first ? "" : " ", model_family_name((enum model_family)i));
			first = false;
		}
		fputc(']', to);
	}
	fputc('\n', to);
}

void options_help(FILE *to)
{
	fputs("usage: moe-mkmodel --out DIR --family NAME [OPTION]...\n"
	      "       moe-mkmodel quantize FOLDER OUT --format F [OPTION]...\n"
	      "       moe-mkmodel widen FOLDER OUT [OPTION]...\n"
	      "Write a model with random weights, in the format in which models of the family are published:\n"
	      "config.json, safetensors shards and their index, all tensors. For tests and measurements.\n"
	      "The two verbs change models that are there: see moe-mkmodel quantize --help.\n\n"
	      "  --out DIR                     folder to write; new or empty\n"
	      "  --family NAME                 ",
	      to);
	for (unsigned i = 0; i < FAMILY_COUNT; i++)
		fprintf(to, "%s%s",
			i == 0   ? ""
			: i == 5 ? ",\n                                "
				 : ", ",
			model_family_name((enum model_family)i));
	fputs("\n  -h, --help                    this text\n\n"
	      "Options; in brackets the families that know them, if not all. Defaults are a small model.\n",
	      to);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		print_row(to, &rows[i]);
	fputs("\nExit codes: 0 done, 1 failed, 2 usage.\n\n"
	      "Example: the shape of Qwen3-30B-A3B with 4 of its 48 layers\n"
	      "  moe-mkmodel --out /tmp/m --family qwen3_moe --layers 4 --hidden 2048 --inter 768 --experts 128 \\\n"
	      "    --topk 8 --heads 32 --kv-heads 4 --head-dim 128 --vocab 151936 --shards 0\n",
	      to);
}
