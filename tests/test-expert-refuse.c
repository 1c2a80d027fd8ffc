/* SPDX-License-Identifier: MIT */
/* Folders whose expert tensors are not what config.json says: each is refused with a line that names the tensor. */
#include <errno.h>

#include "base/util.h"
#include "model/expert.h"
#include "tests/published-experts.h"

#define HIDDEN 256u
#define INTER 384u
#define MUTATIONS 600

/* One change to a folder that is sound otherwise. */
static const struct defect {
	const char *what, *publication, *suffix; /* of the tensor that is changed: expert 1's up in layer 1 */
	const char *dtype, *name;                /* what becomes of it; NULL: stays */
	uint64_t dims[4];                        /* all 0: stay */
	int code;
	const char *word;
} defects[] = {
	{"no scales of blocks", "FP8 blocks", "up_proj.weight_scale_inv", .name = "x", .code = -ENOENT,
	 .word = "weight_scale_inv is missing; expected experts 0 to 2 in layer 1"},
	{"too few blocks", "FP8 blocks", "up_proj.weight_scale_inv", .dims = {3, 1}, .code = -EINVAL,
	 .word = "found shape [3, 1]; expected [3, 2]"},
	{"integers for scales", "FP8 blocks", "up_proj.weight_scale_inv", .dtype = "I32", .code = -ENOTSUP,
	 .word = "found dtype I32; expected F32 or F16 or BF16"},
	{"the other FP8", "FP8 blocks", "up_proj.weight", .dtype = "F8_E5M2", .code = -ENOTSUP,
	 .word = "found dtype F8_E5M2; expected F8_E4M3"},
	{"codes turned round", "FP8 blocks", "up_proj.weight", .dims = {HIDDEN, INTER}, .code = -EINVAL,
	 .word = "found shape [256, 384]; expected [384, 256]"},
	{"a part that is plain", "FP8 blocks", "up_proj.weight", .dtype = "BF16", .code = -ENOTSUP,
	 .word = "found format bf16; expected fp8-block as of its gate"},
	{"an expert that is plain", "FP8 blocks", "down_proj.weight", .dtype = "BF16", .code = -ENOTSUP,
	 .word = "found format bf16; expected fp8-block as of expert 0"},
	{"a scale too many", "FP8 rows, BF16 scales", "up_proj.weight_scale", .dims = {INTER + 1, 1}, .code = -EINVAL,
	 .word = "found shape [385, 1]; expected [384, 1]"},
	{"scales in two columns", "FP8 rows, BF16 scales", "up_proj.weight_scale", .dims = {INTER, 2}, .code = -EINVAL,
	 .word = "found shape [384, 2]"},
	{"no scales of rows", "INT8", "up_proj.weight_scale", .name = "x", .code = -ENOENT,
	 .word = "up_proj.weight_scale is missing"},
	{"unsigned codes", "INT8", "up_proj.weight", .dtype = "U8", .code = -ENOTSUP,
	 .word = "found dtype U8; expected F8_E4M3 or I8"},
	{"codes of 8 bits as words", "INT4 in 32", "up_proj.weight_packed", .dims = {INTER, HIDDEN / 4},
	 .code = -EINVAL, .word = "found shape [384, 64]; expected [384, 32]"},
	{"codes as bytes", "INT4 in 32", "up_proj.weight_packed", .dtype = "U8", .dims = {INTER, HIDDEN / 2},
	 .code = -ENOTSUP, .word = "found dtype U8; expected I32"},
	{"no packed codes", "INT4 in 32", "up_proj.weight_packed", .name = "x", .code = -ENOENT,
	 .word = "up_proj.weight_packed is missing"},
	{"groups of another size", "INT4 in 32", "up_proj.weight_scale", .dims = {INTER, HIDDEN / 64}, .code = -EINVAL,
	 .word = "found shape [384, 4]; expected [384, 8]"},
	{"floats for scales of groups", "INT4 in 32", "up_proj.weight_scale", .dtype = "F32", .code = -ENOTSUP,
	 .word = "found dtype F32; expected F16 or BF16"},
	{"other scales in one expert", "INT4 in 32", "up_proj.weight_scale", .dtype = "F16", .code = -ENOTSUP,
	 .word = "found format int4-g32-f16; expected int4-g32-bf16"},
	{"columns in another order", "INT4 in 32", "up_proj.weight_shape", .name = "up_proj.weight_g_idx",
	 .code = -ENOTSUP, .word = "weight_g_idx: found columns in the order of their activations"},
	{"no zero points", "INT4 in 32 with zero points", "up_proj.weight_zero_point", .name = "x", .code = -ENOENT,
	 .word = "weight_zero_point is missing"},
	{"zero points one by one", "INT4 in 32 with zero points", "up_proj.weight_zero_point", .dtype = "I8",
	 .dims = {INTER, HIDDEN / 32}, .code = -ENOTSUP, .word = "found dtype I8; expected I32"},
	{"zero points that are not needed", "INT4 in 32", "up_proj.weight_shape", .name = "up_proj.weight_zero_point",
	 .code = 0, .word = ""},
	{"no codes", "GPTQ in 32", "up_proj.qweight", .name = "x", .code = -ENOENT, .word = "qweight is missing"},
	{"AWQ's codes in GPTQ's folder", "GPTQ in 32", "up_proj.qweight", .dims = {HIDDEN, INTER / 8}, .code = -EINVAL,
	 .word = "found shape [256, 48]; expected [32, 384]"},
	{"GPTQ's scales turned round", "GPTQ in 32", "up_proj.scales", .dims = {INTER, HIDDEN / 32}, .code = -EINVAL,
	 .word = "and groups of 32"},
	{"GPTQ's zero points of bytes", "GPTQ in 32", "up_proj.qzeros", .dtype = "U8", .code = -ENOTSUP,
	 .word = "qzeros: found dtype U8; expected I32"},
	{"GPTQ's zero points, not needed", "GPTQ in 128, symmetric", "up_proj.qzeros", .name = "x", .code = 0,
	 .word = ""},
	{"no group index", "GPTQ in 32", "up_proj.g_idx", .name = "x", .code = 0, .word = ""},
	{"GPTQ's codes in AWQ's folder", "AWQ in 32", "up_proj.qweight", .dims = {HIDDEN / 8, INTER}, .code = -EINVAL,
	 .word = "found shape [32, 384]; expected [256, 48]"},
	{"AWQ without zero points", "AWQ in 32", "up_proj.qzeros", .name = "x", .code = -ENOENT,
	 .word = "qzeros is missing"},
	{"blocks of three sizes", "MXFP4", "experts.gate_up_proj_blocks", .dims = {EXPERTS, 2 * INTER, HIDDEN / 2},
	 .code = -EINVAL, .word = "found shape [3, 768, 128]; expected [3, 768, 8, 16]"},
	{"an expert too many", "MXFP4", "experts.gate_up_proj_scales", .dims = {EXPERTS + 1, 2 * INTER, HIDDEN / 32},
	 .code = -EINVAL, .word = "found shape [4, 768, 8]"},
	{"no bias", "MXFP4", "experts.down_proj_bias", .name = "x", .code = -ENOENT,
	 .word = "down_proj_bias is missing"},
	{"gpt_oss in BF16", "MXFP4", "experts.gate_up_proj_blocks", .dtype = "BF16",
	 .name = "model.layers.1.mlp.experts.gate_up_proj", .dims = {EXPERTS, HIDDEN, 2 * INTER}, .code = -ENOTSUP,
	 .word = "gate_up_proj: found BF16 experts of gpt_oss in one transposed tensor"},
};

static const struct publication *publication_of(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(publications); i++)
		if (strcmp(publications[i].name, name) == 0)
			return &publications[i];
	abort();
}

static struct folder_tensor *find_changed(struct folder *f, const char *suffix)
{
	if (strncmp(suffix, "experts.", 8) == 0)
		return folder_find(f, "model.layers.1.mlp.%s", suffix);
	return folder_find(f, "model.layers.1.mlp.experts.1.%s", suffix);
}

static void change(struct folder *f, const struct defect *d)
{
	struct folder_tensor *t = find_changed(f, d->suffix);

	if (d->dtype)
		snprintf(t->dtype, sizeof t->dtype, "%s", d->dtype);
	if (d->name && strchr(d->name, '.') && strncmp(d->name, "model.", 6) != 0)
		snprintf(t->name, sizeof t->name, "model.layers.1.mlp.experts.1.%s", d->name);
	else if (d->name)
		snprintf(t->name, sizeof t->name, "%s", d->name);
	if (d->dims[0]) {
		memcpy(t->dims, d->dims, sizeof t->dims);
		for (t->n_dims = 0; t->n_dims < 4 && t->dims[t->n_dims];)
			t->n_dims++;
	}
	folder_fill(f, t);
	folder_write_all(f);
}

static void test_defects(void)
{
	static struct folder folder;

	for (size_t i = 0; i < ARRAY_LEN(defects); i++) {
		const struct defect *d = &defects[i];
		struct moe_error err = {0};
		struct model *m = NULL;
		int r;

		folder.seed = i + 1;
		publish(&folder, publication_of(d->publication), HIDDEN, INTER);
		change(&folder, d);
		r = model_open(&m, folder.path, &err);
		ok(r == d->code &&
			   (r == 0 || (!m && strstr(err.text, d->word) &&
				       strstr(err.text, "model.layers.1.mlp.experts.") && !strchr(err.text, '\n'))),
		   "%s: %s: %d, %s", d->publication, d->what, r, r ? err.text : "opens");
		model_free(m);
		folder_remove(&folder);
	}
}

/* Columns that no group fits into, rows that AWQ cannot pack. */
static void test_sizes(void)
{
	static const struct {
		const char *publication, *word;
		uint32_t hidden, inter;
	} sizes[] = {
		{"INT4 in 128", "expected a multiple of 128", 320, 128},
		{"GPTQ in 32", "expected a multiple of 32", 128, 48},
		{"AWQ in 32", "expected a multiple of 32", 48, 128},
		{"MXFP4", "expected a multiple of 32", 64, 40},
	};
	static struct folder folder;

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct moe_error err = {0};
		struct model *m = NULL;
		int r;

		folder.seed = i + 1;
		publish(&folder, publication_of(sizes[i].publication), sizes[i].hidden, sizes[i].inter);
		r = model_open(&m, folder.path, &err);
		ok(r == -ENOTSUP && strstr(err.text, sizes[i].word) && strstr(err.text, "model.layers.0.mlp.experts."),
		   "%s of %u x %u: %d, %s", sizes[i].publication, sizes[i].inter, sizes[i].hidden, r, err.text);
		model_free(m);
		folder_remove(&folder);
	}
}

static void mutate(struct folder *f, unsigned long long *seed)
{
	static const char *const dtypes[] = {"BF16", "F16", "F32", "U8", "I8", "I32", "F8_E4M3"};
	struct folder_tensor *t = &f->tensors[tap_random(seed) % (f->n - 1)];
	const uint32_t d = (uint32_t)(tap_random(seed) % 4);

	switch (tap_random(seed) % 4) {
	case 0:
		snprintf(t->dtype, sizeof t->dtype, "%s", dtypes[tap_random(seed) % ARRAY_LEN(dtypes)]);
		break;
	case 1:
		if (d < t->n_dims)
			t->dims[d] = 1 + tap_random(seed) % 48;
		break;
	case 2:
		t->n_dims = (uint32_t)(tap_random(seed) % (t->n_dims + 1));
		break;
	default:
		t->name[strlen(t->name) - 1] ^= (char)(tap_random(seed) % 2); /* another name, or the same */
	}
	folder_fill(f, t);
	folder_write_all(f);
}

/* What opens after all has sources that lie in their shard and fill the record from its first to its last byte. */
static bool sound(const struct model *m)
{
	struct expert_source sources[EXPERT_SOURCES_MAX];
	struct moe_layout layout;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		expert_layout(m, layer, &layout);
		for (uint32_t expert = 0; expert < EXPERTS; expert++) {
			const uint32_t n = expert_sources(m, layer, expert, sources);

			for (uint32_t i = 0; i < n; i++) {
				const struct repack *r = &sources[i].repack;

				if (r->bytes == 0 || r->granule_bytes == 0 || r->bytes % r->granule_bytes != 0 ||
				    sources[i].offset > m->shards[0].bytes ||
				    r->bytes > m->shards[0].bytes - sources[i].offset)
					return false;
			}
		}
	}
	return true;
}

static void test_mutations(unsigned long long seed)
{
	static struct folder folder;
	unsigned long long opened = 0, wrong = 0;

	for (int i = 0; i < MUTATIONS; i++) {
		const struct publication *p = &publications[tap_random(&seed) % ARRAY_LEN(publications)];
		struct moe_error err = {0};
		struct model *m = NULL;
		int r;

		folder.seed = tap_random(&seed);
		publish(&folder, p, p->group == 128 ? 128 : 64, p->group == 128 ? 128 : 64);
		mutate(&folder, &seed);
		r = model_open(&m, folder.path, &err);
		opened += r == 0;
		wrong += r == 0 ? !sound(m)
				: err.code != r || !strstr(err.text, "tensor model.") || strchr(err.text, '\n') || m;
		model_free(m);
		folder_remove(&folder);
	}
	ok(wrong == 0, "%d mutated folders: %llu open and are sound, the others name a tensor", MUTATIONS, opened);
	ok(opened > 0 && opened < MUTATIONS, "and both happen");
}

int main(void)
{
	const unsigned long long seed = tap_seed();

	test_defects();
	test_sizes();
	test_mutations(seed);
	return tap_done();
}
