/* SPDX-License-Identifier: MIT */
/*
 * Models that moe-mkmodel converts: what the daemon's readers make of them is what the model was, within the format's
 * error; all but the experts is as it was; what cannot be done is refused by name.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "kernels/record.h"
#include "model/expert.h"
#include "model/gguf.h"
#include "tap.h"
#include "tools/mkmodel/folder.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/quantize.h"
#include "tools/mkmodel/widen.h"

static char work[] = "/tmp/test-convert.XXXXXX";

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	return remove(path);
}

static void remove_all(const char *path)
{
	nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static char *in_work(const char *name)
{
	static char paths[8][128];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof paths[0], "%s/%s", work, name);
	return path;
}

static struct model *open_model(const char *path)
{
	struct moe_error err = {0};
	struct model *m = NULL;

	if (model_open(&m, path, &err) < 0)
		diag("%s", err.text);
	return m;
}

static void make_model(const char *path, enum model_family family, uint32_t size)
{
	struct spec spec = spec_defaults(family);
	struct folder_result result;
	struct moe_error err = {0};

	spec.hidden = spec.inter = size;
	spec.experts = 4;
	spec.topk = 2;
	spec.head_dim = 32;
	spec.vocab = 64;
	require(folder_write(path, &spec, false, &result, &err) == 0, "a model of family %s %s",
		model_family_name(family), err.text);
}

static bool convert(const char *from, const char *to, const char *format, const char *down, uint32_t every)
{
	const struct quantize_request q = {
		.folder = from, .out = to, .format = format, .down_format = down, .down_every = every};
	struct quantize_result result;
	struct moe_error err = {0};

	if (quantize(&q, &result, &err) == 0)
		return true;
	diag("%s", err.text);
	return false;
}

static void read_at(const struct model *m, uint32_t shard, uint64_t offset, uint64_t bytes, void *to)
{
	const int fd = open(m->shards[shard].path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || pread(fd, to, bytes, (off_t)offset) != (ssize_t)bytes)
		require(false, "%s is read", m->shards[shard].path);
	close(fd);
}

/* An expert's record as the daemon would lay it out; malloc'ed. */
static uint8_t *read_record(const struct model *m, uint32_t layer, uint32_t expert, struct moe_layout *layout)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(m, layer, expert, sources);
	uint8_t *record;

	expert_layout(m, layer, layout);
	record = aligned_alloc(4096, layout->record_bytes);
	memset(record, 0, layout->record_bytes);
	for (uint32_t i = 0; i < n; i++) {
		const struct repack *r = &sources[i].repack;
		uint8_t *bytes = malloc(r->bytes + 1);

		read_at(m, sources[i].shard, sources[i].offset, r->bytes, bytes);
		repack(r, layout, record, 0, r->bytes / r->granule_bytes, bytes);
		free(bytes);
	}
	return record;
}

/* Root of the mean square of the differences of all weights of some experts, relative to those of `a`. */
static double difference(const struct model *a, const struct model *b)
{
	double error = 0, all = 0;

	for (uint32_t layer = 0; layer < a->config.n_layers; layer++) {
		const uint32_t expert = layer * 3 % a->config.n_experts;
		struct moe_layout layouts[2];
		uint8_t *records[2] = {read_record(a, layer, expert, &layouts[0]),
				       read_record(b, layer, expert, &layouts[1])};
		struct moe_slice slices[2];

		for (int i = 0; i < 2; i++)
			moe_slice_of(&slices[i], &layouts[i], 0, 1);
		for (int part = 0; part < MOE_PARTS; part++) {
			const struct kernel_matrix x = record_matrix(records[0], &layouts[0], &slices[0],
								     (enum moe_part_name)part, RECORD_IN_POOL);
			const struct kernel_matrix y = record_matrix(records[1], &layouts[1], &slices[1],
								     (enum moe_part_name)part, RECORD_IN_POOL);

			for (uint32_t r = 0; r < layouts[0].part[part].rows; r++)
				for (uint32_t c = 0; c < layouts[0].part[part].cols; c++) {
					const double w = kernel_weight(&x, r, c), d = kernel_weight(&y, r, c) - w;

					error += d * d;
					all += w * w;
				}
		}
		free(records[0]);
		free(records[1]);
	}
	return sqrt(error / all);
}

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

static float element(const struct model *m, const char *name, uint64_t row, uint64_t col)
{
	const struct tensor *t = model_tensor(m, name);
	const uint64_t cols = t && t->n_dims == 2 ? t->dims[1] : 1;
	uint16_t bits;

	if (!t)
		require(false, "%s is there", name);
	read_at(m, t->shard, t->offset + 2 * (row * cols + col), 2, &bits);
	return number_from_bf16(bits);
}

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

/* -- GGUF files ---------------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	double most;
	uint32_t format;
} types[] = {
	{"q8_0", 0.0055, MOE_FORMAT_Q8_0},   {"q4_0", 0.085, MOE_FORMAT_Q4_0},  {"q4_1", 0.075, MOE_FORMAT_Q4_1},
	{"q4_k", 0.075, MOE_FORMAT_Q4_K},    {"q5_k", 0.037, MOE_FORMAT_Q5_K},  {"q6_k", 0.019, MOE_FORMAT_Q6_K},
	{"iq4_xs", 0.08, MOE_FORMAT_IQ4_XS}, {"mxfp4", 0.12, MOE_FORMAT_MXFP4}, {"bf16", 1e-9, MOE_FORMAT_BF16},
	{"f16", 0.0001, MOE_FORMAT_F16},
};

static void test_types(const char *from)
{
	struct model *a = open_model(from);
	char name[32];

	for (size_t i = 0; a && i < ARRAY_LEN(types); i++) {
		struct moe_layout layout;
		struct model *b;
		const char *out;
		double d;

		snprintf(name, sizeof name, "%s.gguf", types[i].name);
		out = in_work(name);
		b = convert(from, out, types[i].name, NULL, 0) ? open_model(out) : NULL;
		if (!ok(b, "%s: it is written and opens", name))
			continue;
		expert_layout(b, 1, &layout);
		d = difference(a, b);
		ok(layout.part[0].format == types[i].format && layout.part[2].format == types[i].format,
		   "%s: it is read as %s", name, moe_formats[layout.part[0].format].name);
		ok(d <= types[i].most, "%s: the weights differ by %.5f, at most %.5f", name, d, types[i].most);
		model_free(b);
		unlink(out);
	}
	model_free(a);
}

static void test_mixed(const char *from)
{
	const char *out = in_work("mixed.gguf");
	struct moe_layout layouts[2];
	struct model *a = open_model(from), *b;
	uint32_t kind = 0, length = 0;

	require(convert(from, out, "q4_k", "q6_k", 2), "a mixed file");
	b = open_model(out);
	require(a && b, "it opens");
	expert_layout(b, 0, &layouts[0]);
	expert_layout(b, 1, &layouts[1]);
	ok(layouts[0].part[PART_DOWN].format == MOE_FORMAT_Q6_K &&
		   layouts[1].part[PART_DOWN].format == MOE_FORMAT_Q4_K &&
		   layouts[0].part[PART_UP].format == MOE_FORMAT_Q4_K,
	   "down is finer in each second layer");
	ok(difference(a, b) < 0.075, "and the weights are near");
	ok(gguf_u32(b, ".embedding_length", &length) && length == 256 && gguf_u32(b, ".expert_used_count", &kind) &&
		   kind == 2,
	   "the metadata has the model's numbers");
	ok(!convert(from, out, "q4_k", NULL, 0), "a file that is there is not overwritten");
	model_free(a);
	model_free(b);
}

static void test_dense(const char *from)
{
	const char *out = in_work("dense.gguf");
	struct model *a = open_model(from), *b;
	const struct tensor *q, *v, *norm, *router;
	unsigned wrong = 0, rotated = 0;

	require(convert(from, out, "q8_0", NULL, 0), "a file");
	b = open_model(out);
	require(a && b, "it opens");
	for (uint64_t i = 0; i < b->n_tensors; i++)
		wrong += b->tensors[i].offset % 32 != 0;
	ok(wrong == 0 && model_tensor(b, "token_embd.weight") && model_tensor(b, "output.weight"),
	   "tensors begin on multiples of 32, under llama.cpp's names");
	q = model_tensor(b, "blk.1.attn_q.weight");
	v = model_tensor(b, "blk.1.attn_v.weight");
	norm = model_tensor(b, "blk.0.ffn_norm.weight");
	router = model_tensor(b, "blk.0.ffn_gate_inp.weight");
	require(q && v && norm && router, "projections, norm, router");
	wrong = 0;
	for (uint64_t row = 0; row < 64; row++) { /* heads of 32 rows */
		const uint64_t in = row % 32, was = row - in + in / 2 + in % 2 * 16;
		uint16_t bits;

		read_at(b, q->shard, q->offset + 2 * (row * 256 + 3), 2, &bits);
		rotated += was != row;
		wrong += number_from_bf16(bits) != element(a, "model.layers.1.self_attn.q_proj.weight", was, 3);
		read_at(b, v->shard, v->offset + 2 * (row * 256 + 3), 2, &bits);
		wrong += number_from_bf16(bits) != element(a, "model.layers.1.self_attn.v_proj.weight", row, 3);
	}
	ok(wrong == 0 && rotated > 30, "queries have llama.cpp's order of rows, values their own (%u wrong)", wrong);
	require(norm->bytes == 256 * 4 && router->bytes == 4 * 256 * 4, "norm and router are F32");
	for (uint64_t i = 0; i < 8; i++) {
		float x[2];

		read_at(b, norm->shard, norm->offset + 4 * i, 4, &x[0]);
		read_at(b, router->shard, router->offset + 4 * (256 + i), 4, &x[1]);
		wrong += x[0] != element(a, "model.layers.0.post_attention_layernorm.weight", i, 0);
		wrong += x[1] != element(a, "model.layers.0.block_sparse_moe.gate.weight", 1, i);
	}
	ok(wrong == 0, "norms and routers keep their numbers");
	model_free(a);
	model_free(b);
}

/* gpt-oss: the file has the folder's very numbers. */
static void test_merged(void)
{
	const char *folder = in_work("gptoss"), *out = in_work("gptoss.gguf");
	struct moe_layout layouts[2];
	struct model *a, *b;
	unsigned wrong = 0;

	make_model(folder, FAMILY_GPT_OSS, 96);
	require(convert(folder, out, "mxfp4", NULL, 0), "a file of it");
	a = open_model(folder);
	b = open_model(out);
	require(a && b, "both open");
	for (uint32_t i = 0; i < 2 * a->config.n_experts; i++) {
		uint8_t *x = read_record(a, i % 2, i / 2, &layouts[0]), *y = read_record(b, i % 2, i / 2, &layouts[1]);

		wrong += memcmp(&layouts[0], &layouts[1], sizeof layouts[0]) != 0 ||
			 memcmp(x, y, layouts[0].record_bytes) != 0;
		free(x);
		free(y);
	}
	ok(wrong == 0 && layouts[0].part[0].format == MOE_FORMAT_MXFP4 && layouts[0].part[2].plane[MOE_PLANE_BIAS],
	   "folder and file have the same records, biases included (%u differ)", wrong);
	ok(!convert(folder, in_work("no"), "int8", NULL, 0) && !convert(folder, in_work("no.gguf"), "q8_0", NULL, 0),
	   "its experts are not quantized anew");
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

	require(mkdtemp(work), "a working folder");
	snprintf(narrow, sizeof narrow, "%s/narrow", work);
	snprintf(wide, sizeof wide, "%s/wide", work);
	make_model(narrow, FAMILY_MIXTRAL, 128);
	test_forms(narrow);
	test_other_files(narrow);
	test_widen(narrow, wide);
	test_types(wide);
	test_mixed(wide);
	test_dense(wide);
	test_merged();
	test_refused(narrow);
	test_not_a_number(narrow);
	remove_all(work);
	return tap_done();
}
