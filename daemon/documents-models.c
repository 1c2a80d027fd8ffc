/* SPDX-License-Identifier: MIT */
/* The document of the models: shapes, layouts, memory, tiers. */
#include "daemon/documents-internal.h"
#include "daemon/documents-replicas.h"

#include "daemon/tier.h"

static const char *const activation_names[] = {"silu", "gelu", "gelu_tanh", "swiglu_clamped"};

static json_t *pool_json(const struct pages *p)
{
	return json_pack("{s:i, s:I, s:I, s:s, s:I, s:s}", "node", p->node, "bytes", (json_int_t)p->bytes, "page_bytes",
			 (json_int_t)pages_rung_bytes(p->rung), "rung", pages_rung_name(p->rung), "huge_bytes",
			 (json_int_t)p->huge_bytes, "better", p->better);
}

/* The distinct names. */
static json_t *formats_json(const struct resident *r)
{
	json_t *names = json_array();
	uint32_t seen = 0;

	for (uint32_t i = 0; i < r->manifest->n_layouts * MOE_PARTS; i++) {
		const uint32_t format = r->layouts[i / MOE_PARTS].part[i % MOE_PARTS].format;

		if (!(seen & 1u << format))
			json_array_append_new(names, json_string(moe_formats[format].name));
		seen |= 1u << format;
	}
	return names;
}

static json_t *layout_json(const struct resident *r, uint32_t number)
{
	const struct moe_layout *layout = &r->layouts[number];
	json_t *layers = json_array();

	for (uint32_t l = 0; l < r->manifest->n_layers; l++)
		if (r->layer_index[l] >= 0 && resident_layout(r, (uint32_t)r->layer_index[l]) == number)
			json_array_append_new(layers, integer(l));
	return json_pack("{s:s, s:s, s:I, s:i, s:o}", "gate_up", moe_formats[layout->part[MOE_PART_GATE].format].name,
			 "down", moe_formats[layout->part[MOE_PART_DOWN].format].name, "record_bytes",
			 (json_int_t)(layout->record_bytes * layout->shares), "tp_max", (int)moe_slice_units(layout),
			 "layers", layers);
}

static json_t *layouts_json(const struct resident *r)
{
	json_t *layouts = json_array();

	for (uint32_t i = 0; i < r->manifest->n_layouts; i++)
		json_array_append_new(layouts, layout_json(r, i));
	return layouts;
}

static json_t *model_json(const struct resident *r)
{
	const struct moe_manifest *m = r->manifest;
	json_t *pools = json_array();

	for (uint32_t i = 0; i < r->n_pools; i++)
		json_array_append_new(pools, pool_json(&r->pools[i]));
	return json_pack("{s:s, s:o, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:b, "
			 "s:i, s:i, s:I, s:o, s:I}",
			 "name", m->name, "digest", digest_json(m->digest), "path", path_json(r->path), "family",
			 r->family, "layers", (int)m->n_layers, "moe_layers", (int)m->n_moe_layers, "experts",
			 (int)m->n_experts, "topk", (int)m->topk, "hidden", (int)m->hidden, "inter", (int)m->inter,
			 "formats", formats_json(r), "layouts", layouts_json(r), "activation",
			 activation_names[m->activation], "record_bytes", (json_int_t)(m->record_bytes * m->n_pools),
			 "bytes", (json_int_t)registry_model_bytes(r), "read_bytes", (json_int_t)r->read_bytes,
			 "load_ns", (json_int_t)r->load_ns, "direct", r->direct, "sessions", (int)r->sessions, "leases",
			 (int)r->leases, "epoch", (json_int_t)m->epoch, "pools", pools, "read_ns",
			 (json_int_t)r->read_ns);
}

/* A model that is all there has none. */
json_t *tier_json(const struct entry *e)
{
	const struct moe_manifest *m = e->model->manifest;
	const struct frames_counters *c;
	struct frames_level level;

	if (!e->tier)
		return json_null();
	c = tier_counters(e->tier);
	frames_level(tier_frames(e->tier), &level);
	return json_pack(
		"{s:s, s:i, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		"policy", frames_policy(tier_frames(e->tier))->name, "frames", (int)level.frames, "records",
		(json_int_t)m->n_moe_layers * m->n_experts, "ready", (int)level.ready, "free", (int)level.free,
		"reading", (int)level.reading, "pinned", (int)level.pinned, "leased", (int)level.leased, "waiting",
		(int)level.waiting, "hits", (json_int_t)c->hits, "misses", (json_int_t)c->misses, "waits",
		(json_int_t)c->waits, "wait_ns", (json_int_t)c->wait_ns, "reads", (json_int_t)c->reads, "failures",
		(json_int_t)c->failures, "read_bytes", (json_int_t)c->read_bytes, "evictions", (json_int_t)c->evictions,
		"prefetches", (json_int_t)c->prefetches, "prefetch_used", (json_int_t)c->prefetch_used,
		"prefetch_wasted", (json_int_t)c->prefetch_wasted);
}

static json_t *model_with_tier(const struct service *s, const struct entry *e)
{
	json_t *model = model_json(e->model);

	json_object_set_new(model, "tier", tier_json(e));
	json_object_set_new(model, "replicas", documents_replicas(s, e));
	return model;
}

json_t *models_json(const struct service *s)
{
	json_t *models = json_array();

	for (const struct entry *e = s->registry.head; e; e = e->next)
		json_array_append_new(models, model_with_tier(s, e));
	return json_pack("{s:o, s:o}", "models", models, "loading", loading_json(s));
}
