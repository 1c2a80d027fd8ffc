/* SPDX-License-Identifier: MIT */
/*
 * Whatever bytes a GGUF file is made of, reading it ends with a checked model or with an error. Run with sanitizers
 * this sees each byte read too far: what is parsed lies alone in memory of its own size.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/expert.h"
#include "model/gguf.h"
#include "tests/gguf-file.h"

#define HIDDEN 256u
#define INTER 64u
#define EXPERTS 3u
#define LAYERS 2u
#define MUTATIONS 4000

static char path[TAP_TMP];
static unsigned long long seed;

static struct gguf_file sound(void)
{
	struct gguf_file f = gf_new(5);

	gf_config(&f, "gpt-oss", LAYERS, HIDDEN, EXPERTS, 2, "expert_feed_forward_length", INTER);
	gf_strings(&f, "tokenizer.ggml.tokens", 9);
	gf_f32(&f, "gpt-oss.rope.freq_base", 150000);
	gf_bool(&f, "general.flag", true);
	gf_value(&f, "general.list", 9, (uint32_t[]){4, 2, 0, 7, 8}, 20);
	gf_experts(&f, 0, GF_MXFP4, GF_Q4_0, HIDDEN, INTER, EXPERTS);
	gf_experts(&f, 1, GF_Q6_K, GF_Q8_0, HIDDEN, INTER, EXPERTS);
	gf_tensor(&f, "blk.0.ffn_up_exps.bias", GF_F32, 2, (uint64_t[]){INTER, EXPERTS});
	return f;
}

/* gguf_parse of the first `bytes` of a file that is said to have `file_bytes`. */
static int parse(const uint8_t *file, size_t bytes, uint64_t file_bytes)
{
	uint8_t *alone = malloc(bytes ? bytes : 1);
	struct moe_error err = {0};
	struct gguf gguf;
	int r;

	memcpy(alone, file, bytes);
	r = gguf_parse("file", alone, bytes, file_bytes, 0, &gguf, &err);
	if (r == 0)
		gguf_clear(&gguf);
	free(alone);
	return r < 0 && r != -ENODATA && !strstr(err.text, "file") ? 1 : r;
}

static void test_truncated(const uint8_t *file, size_t bytes, size_t header)
{
	bool cut = true, short_of = true;

	for (size_t n = 0; n < bytes; n += n < header + 64 ? 1 : 997)
		cut &= parse(file, n, n) == -EINVAL;
	ok(cut, "a file cut anywhere is an error that names it");
	for (size_t n = 0; n < header; n++)
		short_of &= parse(file, n, bytes) == -ENODATA;
	ok(short_of, "too little of a header asks for more");
	ok(parse(file, header, bytes) == 0 && parse(file, bytes, bytes) == 0, "the whole header is enough");
}

/* Every source lies in its shard and every granule can be repacked. */
static bool usable(const struct model *m)
{
	for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
		struct expert_source sources[EXPERT_SOURCES_MAX];
		struct moe_layout layout;
		uint8_t *record, *bytes;

		if (!m->config.is_moe[layer])
			continue;
		expert_layout(m, layer, &layout);
		record = aligned_alloc(64, layout.record_bytes);
		memset(record, 0, layout.record_bytes);
		for (uint32_t i = expert_sources(m, layer, m->config.n_experts - 1, sources); i-- > 0;) {
			const struct expert_source *s = &sources[i];

			if (s->offset > m->shards[0].bytes || s->repack.bytes > m->shards[0].bytes - s->offset ||
			    s->repack.bytes % s->repack.granule_bytes)
				return false;
			bytes = calloc(1, s->repack.bytes);
			repack(&s->repack, &(struct record_share){.layout = &layout, .memory = record}, 0,
			       s->repack.bytes / s->repack.granule_bytes, bytes);
			free(bytes);
		}
		free(record);
	}
	return true;
}

/* A few bytes of the header become others: random ones, or numbers that hurt. */
static void mutate(uint8_t *file, size_t header)
{
	static const uint8_t hurtful[] = {0, 1, 0x7f, 0x80, 0xff, 9, 8, 32};

	for (unsigned i = 0, n = 1 + tap_random(&seed) % 4; i < n; i++) {
		const size_t at = tap_random(&seed) % header;
		const unsigned how = tap_random(&seed) % 3;

		if (how == 0)
			file[at] ^= (uint8_t)(1u << tap_random(&seed) % 8);
		else if (how == 1)
			file[at] = hurtful[tap_random(&seed) % sizeof hurtful];
		else
			memset(file + at, 0xff, header - at < 8 ? header - at : 8);
	}
}

static void test_mutated(const uint8_t *file, size_t bytes, size_t header)
{
	unsigned opened = 0, refused = 0, wrong = 0;

	for (unsigned i = 0; i < MUTATIONS; i++) {
		uint8_t *copy = malloc(bytes);
		struct moe_error err = {0};
		struct model *m = NULL;

		memcpy(copy, file, bytes);
		mutate(copy, header);
		gf_write_bytes(path, copy, tap_random(&seed) % 8 ? bytes : tap_random(&seed) % bytes);
		if (model_open(&m, path, &err) == 0) {
			opened++;
			wrong += !usable(m);
		} else {
			refused++;
			wrong += m != NULL || !err.text[0];
		}
		model_free(m);
		free(copy);
	}
	diag("%u opened, %u refused", opened, refused);
	ok(wrong == 0, "changed headers give usable models or errors");
	ok(refused > MUTATIONS / 4 && opened > MUTATIONS / 100, "both happen");
}

int main(void)
{
	struct gguf_file f = sound();
	size_t bytes, header;
	uint8_t *file = gf_bytes(&f, &bytes);

	seed = tap_seed();
	require(mkstemps(tap_tmp(path, "moe-test-XXXXXX.gguf"), 5) >= 0, "a file to write to");
	header = 24 + f.values.n + f.tensors.n;
	test_truncated(file, bytes, header);
	test_mutated(file, bytes, header);
	unlink(path);
	free(file);
	gf_free(&f);
	return tap_done();
}
