/* SPDX-License-Identifier: MIT */
/*
 * Models that moe-mkmodel converts: what the daemon's readers make of them is what the model was, within the format's
 * error; all but the experts is as it was; what cannot be done is refused by name.
 */
#include "tests/converted.h"
#include "tools/mkmodel/widen.h"

/* -- folders ------------------------------------------------------------------------------------------------------- */

/* Everything that is no expert's has the bytes that it had. */
static bool same_dense(const struct model *a, const struct model *b)
{
	unsigned wrong = 0, seen = 0;

	for (uint64_t i = 0; i < a->n_tensors; i++) {
		const struct tensor *x = &a->tensors[i], *y = model_tensor(b, x->name);
		uint8_t *bytes[2];

		if (strstr(x->name, ".experts."))
			continue;
		seen++;
		wrong += !y || y->type != x->type || y->bytes != x->bytes || y->n_dims != x->n_dims;
		if (!y || y->bytes != x->bytes)
			continue;
		bytes[0] = malloc(x->bytes);
		bytes[1] = malloc(x->bytes);
		read_at(a, x->shard, x->offset, x->bytes, bytes[0]);
		read_at(b, y->shard, y->offset, y->bytes, bytes[1]);
		wrong += memcmp(bytes[0], bytes[1], x->bytes) != 0;
		free(bytes[0]);
		free(bytes[1]);
	}
	return seen > 10 && wrong == 0;
}

static const struct {
	const char *name;
	double most;
	uint32_t format;
} forms[] = {
	{"fp8-block", 0.028, MOE_FORMAT_FP8_BLOCK},
	{"fp8-channel", 0.028, MOE_FORMAT_FP8_ROW},
	{"int8", 0.009, MOE_FORMAT_INT8},
	{"int4-ct-g32", 0.095, MOE_FORMAT_INT4_G32_BF16},
	{"int4-ct-g64", 0.105, MOE_FORMAT_INT4_G64_BF16},
	{"int4-ct-g128", 0.115, MOE_FORMAT_INT4_G128_BF16},
	{"int4-ct-g32-zp", 0.08, MOE_FORMAT_INT4_G32_BF16_ZP},
	{"int4-ct-g64-zp", 0.095, MOE_FORMAT_INT4_G64_BF16_ZP},
	{"int4-ct-g128-zp", 0.11, MOE_FORMAT_INT4_G128_BF16_ZP},
	{"gptq-g32", 0.095, MOE_FORMAT_INT4_G32_F16},
	{"gptq-g64", 0.105, MOE_FORMAT_INT4_G64_F16},
	{"gptq-g128", 0.115, MOE_FORMAT_INT4_G128_F16},
	{"gptq-g128-zp", 0.11, MOE_FORMAT_INT4_G128_F16_ZP},
	{"awq-g32", 0.08, MOE_FORMAT_INT4_G32_F16_ZP},
	{"awq-g64", 0.095, MOE_FORMAT_INT4_G64_F16_ZP},
	{"awq-g128", 0.11, MOE_FORMAT_INT4_G128_F16_ZP},
};

static void test_forms(const char *from)
{
	struct model *a = open_model(from);

	require(a, "the model opens");
	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		const char *out = in_work(forms[i].name);
		struct moe_layout layout;
		struct model *b = convert(from, out, forms[i].name, NULL, 0) ? open_model(out) : NULL;
		double d;

		if (!ok(b, "%s: it is written and opens", forms[i].name))
			continue;
		expert_layout(b, 0, &layout);
		d = difference(a, b);
		ok(layout.part[0].format == forms[i].format && layout.part[2].format == forms[i].format,
		   "%s: it is read as %s", forms[i].name, moe_formats[layout.part[0].format].name);
		ok(d > 0 && d <= forms[i].most, "%s: the weights differ by %.5f, at most %.5f", forms[i].name, d,
		   forms[i].most);
		ok(same_dense(a, b) && b->n_shards == a->n_shards, "%s: all else is as it was", forms[i].name);
		model_free(b);
		remove_all(out);
	}
	model_free(a);
}

static void test_other_files(const char *from)
{
	const char *out = in_work("others");
	char path[160], text[16] = "";
	FILE *f;

	snprintf(path, sizeof path, "%s/tokenizer.json", from);
	f = fopen(path, "w");
	require(f && fputs("words", f) >= 0 && fclose(f) == 0, "a file beside the shards");
	snprintf(path, sizeof path, "%s/tokenizer.json", out);
	require(convert(from, out, "int8", NULL, 0), "converted");
	f = fopen(path, "r");
	ok(f && fgets(text, sizeof text, f) && strcmp(text, "words") == 0, "other files come along");
	if (f)
		fclose(f);
	ok(!convert(out, in_work("twice"), "int8", NULL, 0), "what is quantized is not quantized again");
	ok(access(in_work("twice"), F_OK) < 0, "and nothing is left of the attempt");
	ok(!convert(from, out, "int8", NULL, 0), "a folder that is not empty is refused");
	remove_all(out);
}

/* -- wider models -------------------------------------------------------------------------------------------------- */

static void test_widen(const char *from, const char *wide)
{
	static const struct {
		const char *name;
		uint64_t row, col; /* of the wide model */
		uint64_t row0, col0;
		float by;
	} samples[] = {
		{"model.embed_tokens.weight", 5, 128 + 7, 5, 7, 1},
		{"lm_head.weight", 5, 128 + 7, 5, 7, 0.5f},
		{"model.norm.weight", 128 + 9, 0, 9, 0, 1},
		{"model.layers.1.input_layernorm.weight", 128 + 9, 0, 9, 0, 1},
		{"model.layers.1.self_attn.q_proj.weight", 3, 128 + 1, 3, 1, 0.5f},
		{"model.layers.1.self_attn.o_proj.weight", 128 + 3, 1, 3, 1, 1},
		{"model.layers.1.block_sparse_moe.gate.weight", 3, 128, 3, 0, 0.5f},
		{"model.layers.1.block_sparse_moe.experts.2.w1.weight", 3 * 128 + 2, 128 + 1, 2, 1, 0.5f},
		{"model.layers.1.block_sparse_moe.experts.2.w2.weight", 128 + 2, 3 * 128 + 1, 2, 1, 0.25f},
	};
	struct folder_result result;
	struct moe_error err = {0};
	struct model *a = open_model(from), *b;
	unsigned wrong = 0;

	ok(widen(from, wide, 200, 512, false, &result, &err) == -EINVAL && strstr(err.text, "power of two"), "%s",
	   err.text);
	ok(widen(from, wide, 256, 64, false, &result, &err) == -EINVAL && strstr(err.text, "--inter"), "%s", err.text);
	require(widen(from, wide, 256, 512, false, &result, &err) == 0, "a wider model %s", err.text);
	b = open_model(wide);
	require(a && b && b->config.hidden == 256 && b->config.inter == 512, "it opens");
	ok(json_integer_value(json_object_get(b->config.json, "head_dim")) == 32, "the heads stay as they are");
	for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
		const float x = element(a, samples[i].name, samples[i].row0, samples[i].col0);

		wrong += x * samples[i].by != element(b, samples[i].name, samples[i].row, samples[i].col);
	}
	ok(wrong == 0, "what reads a repeated channel is divided, what writes it is repeated (%u wrong)", wrong);
	model_free(a);
	model_free(b);
}

/* -- refusals ------------------------------------------------------------------------------------------------------ */

static void test_refused(const char *narrow)
{
	static const struct {
		const char *out, *format, *down;
		int code;
		const char *word;
	} lines[] = {
		{"x", "q4_k", NULL, -EINVAL, ".gguf"},
		{"x", "int7", NULL, -EINVAL, "fp8-block"},
		{"x.gguf", "int8", NULL, -EINVAL, "iq4_xs"},
		{"x.gguf", "q8_0", "q6", -EINVAL, "--down-format"},
		{"x", "int8", "q6_k", -EINVAL, "only GGUF"},
		{"x.gguf", "q4_k", NULL, -EINVAL, "widen"},
		{"none/x.gguf", "q8_0", NULL, -ENOENT, "none/x.gguf"},
		{"none/x", "int8", NULL, -ENOENT, "none/x"},
	};
	struct quantize_result result;

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		const struct quantize_request q = {.folder = narrow,
						   .out = in_work(lines[i].out),
						   .format = lines[i].format,
						   .down_format = lines[i].down};
		struct moe_error err = {0};

		ok(quantize(&q, &result, &err) == lines[i].code && strstr(err.text, lines[i].word) &&
			   access(q.out, F_OK) < 0,
		   "%s", err.text);
	}
}

static void test_not_a_number(const char *from)
{
	const char *out = in_work("nan"), *copy = in_work("nan.gguf");
	struct model *m = open_model(from);
	const struct tensor *t = m ? model_tensor(m, "model.layers.0.block_sparse_moe.experts.1.w1.weight") : NULL;
	const uint16_t bits = 0x7fc0;
	int fd;

	require(t, "a tensor");
	fd = open(m->shards[t->shard].path, O_WRONLY | O_CLOEXEC);
	require(fd >= 0 && pwrite(fd, &bits, 2, (off_t)t->offset + 10) == 2, "a weight becomes NaN");
	close(fd);
	ok(!convert(from, out, "int8", NULL, 0) && !convert(from, copy, "q8_0", NULL, 0) && access(out, F_OK) < 0 &&
		   access(copy, F_OK) < 0,
	   "what is no number is refused, and nothing is left behind");
	model_free(m);
}

int main(void)
{
	char narrow[128], wide[128];

	require(mkdtemp(tap_tmp(work, "test-convert.XXXXXX")), "a working folder");
	snprintf(narrow, sizeof narrow, "%s/narrow", work);
	snprintf(wide, sizeof wide, "%s/wide", work);
	make_model(narrow, FAMILY_MIXTRAL, 128);
	test_forms(narrow);
	test_other_files(narrow);
	test_widen(narrow, wide);
	test_refused(narrow);
	test_not_a_number(narrow);
	remove_all(work);
	return tap_done();
}
