/* SPDX-License-Identifier: MIT */
#include "tools/bench/gpu-session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
	return (uint32_t)(*state >> 33);
}

static int make_room(struct gpu_session *s, struct moe_error *err)
{
	const size_t tokens = s->tokens;

	s->x = calloc(tokens * s->info.hidden, sizeof *s->x);
	s->y = calloc(tokens * s->info.hidden, sizeof *s->y);
	s->weights = calloc(tokens * s->info.topk, sizeof *s->weights);
	s->ids = calloc(tokens * s->info.topk, sizeof *s->ids);
	if (!s->x || !s->y || !s->weights || !s->ids)
		return moe_error_set(err, -ENOMEM, "no memory for %u tokens", s->tokens);
	for (size_t i = 0; i < tokens * s->info.hidden; i++)
		s->x[i] = (float)(next_random(&s->random) % 2001) / 1000.0f - 1.0f;
	for (size_t i = 0; i < tokens * s->info.topk; i++)
		s->weights[i] = 1.0f / (float)s->info.topk;
	return 0;
}

int gpu_session_attach(struct gpu_session *s, struct gpu *g, struct moe_client *client,
		       const struct moe_attach_params *params, uint32_t tokens, struct moe_error *err)
{
	struct moe_attach_params p = *params;
	int r;

	*s = (struct gpu_session){.client = client, .tokens = tokens, .random = 1};
	p.size = sizeof p;
	p.device = g->name;
	p.max_tokens = tokens;
	r = moe_attach(client, &s->session, &p, err);
	if (r < 0) {
		s->session = NULL;
		return r;
	}
	moe_session_info(s->session, &s->info);
	while (s->layer + 1 < s->info.n_layers && s->info.layer_index[s->layer] < 0)
		s->layer++;
	return make_room(s, err);
}

void gpu_session_detach(struct gpu_session *s)
{
	moe_detach(s->session);
	free(s->x);
	free(s->y);
	free(s->weights);
	free(s->ids);
	*s = (struct gpu_session){0};
}

void gpu_session_draw(struct gpu_session *s, uint32_t tokens)
{
	const uint32_t k = s->info.topk;

	for (uint32_t t = 0; t < tokens; t++)
		for (uint32_t i = 0; i < k; i++) {
			int32_t *ids = s->ids + (size_t)t * k;
			bool again;

			do {
				ids[i] = (int32_t)(next_random(&s->random) % s->info.n_experts);
				again = false;
				for (uint32_t j = 0; j < i; j++)
					again |= ids[j] == ids[i];
			} while (again);
		}
}

uint32_t gpu_session_list(struct gpu_session *s, uint32_t first, uint32_t count)
{
	const uint32_t tokens = DIV_UP(count, s->info.topk);

	for (uint32_t i = 0; i < tokens * s->info.topk; i++)
		s->ids[i] = i < count ? (int32_t)((first + i) % s->info.n_experts) : -1;
	return tokens;
}

int gpu_session_submit(struct gpu_session *s, uint32_t layer, enum moe_mode mode, uint32_t tokens,
		       struct moe_step **ret, uint64_t *ret_bytes, struct moe_error *err)
{
	struct moe_plan_view view;
	struct moe_plan *plan;
	int r = moe_plan(s->session, layer, mode, tokens, s->info.topk, s->ids, s->weights, &plan, err);

	if (r < 0)
		return r;
	moe_plan_view(plan, &view);
	if (ret_bytes)
		*ret_bytes = view.n_copies * s->info.slot_bytes;
	return moe_submit(s->session, plan, s->x, ret, err);
}

json_t *gpu_session_stats(const struct gpu_session *s)
{
	json_t *all = bench_document(s->client, MOE_DOCUMENT_STATS), *each, *found = NULL;
	size_t i;

	json_array_foreach (json_object_get(all, "sessions"), i, each)
		if ((uint64_t)json_integer_value(json_object_get(each, "id")) == s->info.session)
			found = json_incref(each);
	json_decref(all);
	return found;
}

json_t *gpu_models(struct moe_client *client)
{
	return bench_document(client, MOE_DOCUMENT_MODELS);
}

const json_t *gpu_model(const struct gpu *g, const json_t *models)
{
	const json_t *each, *found = NULL;
	json_int_t most = 0;
	size_t i;

	json_array_foreach (json_object_get(models, "models"), i, each) {
		const json_int_t experts = json_integer_value(json_object_get(each, "experts"));
		const char *name = json_string_value(json_object_get(each, "name"));

		if (g->o->model ? name && strcmp(name, g->o->model) == 0 : experts > most) {
			found = each;
			most = experts;
		}
	}
	return found;
}
