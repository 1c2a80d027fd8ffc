/* SPDX-License-Identifier: MIT */
/* A model's config.json, and model.safetensors.index.json: refused in one line, or within all limits. */
#include "model/index.h"
#include "model/model.h"
#include "tests/fuzz/fuzz.h"

static void check_config(const struct model_config *c)
{
	uint32_t moe_layers = 0;
	char name[256];

	fuzz_check(c->family < FAMILY_COUNT && c->json && c->is_moe);
	fuzz_check(c->n_layers > 0 && c->n_layers <= MODEL_LAYERS_MAX);
	fuzz_check(c->n_experts > 0 && c->n_experts <= MODEL_EXPERTS_MAX);
	fuzz_check(c->topk > 0 && c->topk <= MODEL_TOPK_MAX && c->topk <= c->n_experts);
	fuzz_check(c->hidden > 0 && c->hidden <= MODEL_DIM_MAX && c->inter > 0 && c->inter <= MODEL_DIM_MAX);
	for (uint32_t layer = 0; layer < c->n_layers; layer++)
		moe_layers += c->is_moe[layer];
	fuzz_check(moe_layers > 0 && moe_layers == c->n_moe_layers);
	model_expert_name(name, sizeof name, c->family, c->n_layers - 1, c->n_experts - 1, PART_DOWN);
	fuzz_check(*name && strlen(name) < sizeof name - 1);
}

static void parse_config(const char *text, size_t n)
{
	struct model_config config;
	struct moe_error err = {0};
	int r = model_config_parse("config.json", text, n, &config, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	check_config(&config);
	model_config_free(&config);
}

static void parse_index(const char *text, size_t n)
{
	struct moe_error err = {0};
	struct index index = {0};
	int r = index_parse(&index, INDEX_FILE, text, n, &err);

	if (r < 0)
		fuzz_check_refused(r, &err);
	for (uint32_t i = 0; r == 0 && i < index.n_shards; i++)
		fuzz_check(*index.shards[i] && !strchr(index.shards[i], '/') && index.shards[i][0] != '.');
	index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *alone = fuzz_alone(data, size);

	parse_config(alone, size);
	parse_index(alone, size);
	free(alone);
	return 0;
}
