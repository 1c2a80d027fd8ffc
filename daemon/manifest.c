/* SPDX-License-Identifier: MIT */
#include "daemon/manifest.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* In line, so that it is compiled for this program's instruction set: the library's own code is plain x86-64. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "model/expert.h"
#include "model/pool-size.h"

/* What is known before the table is made. */
struct plan {
	struct moe_layout layouts[MOE_LAYOUTS_MAX];
	uint32_t n_layouts;
	uint32_t *of_row; /* [n_moe_layers] */
};

static void free_plan(struct plan *plan)
{
	free(plan->of_row);
}

static int add_layout(struct plan *plan, const struct moe_layout *layout, const struct model *model, uint32_t layer,
		      struct moe_error *err)
{
	for (uint32_t i = 0; i < plan->n_layouts; i++)
		if (memcmp(&plan->layouts[i], layout, sizeof *layout) == 0)
			return (int)i;
	if (plan->n_layouts == MOE_LAYOUTS_MAX)
		return moe_error_set(
			err, -E2BIG,
			"%s: layer %u: one more combination of weight formats found, at most %d in a model "
			"expected: publish it with fewer mixtures",
			model->path, layer, MOE_LAYOUTS_MAX);
	plan->layouts[plan->n_layouts] = *layout;
	return (int)plan->n_layouts++;
}

static int plan_layouts(struct plan *plan, const struct model *model, struct moe_error *err)
{
	const struct model_config *c = &model->config;
	uint32_t row = 0;

	plan->of_row = calloc(MAX(c->n_moe_layers, 1u), sizeof *plan->of_row);
	if (!plan->of_row)
		return moe_error_set(err, -ENOMEM, "%s: no memory for a list of %u layers", model->path,
				     c->n_moe_layers);
	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		struct moe_layout layout = {0};
		int r;

		if (!c->is_moe[layer])
			continue;
		expert_layout(model, layer, &layout);
		r = add_layout(plan, &layout, model, layer, err);
		if (r < 0)
			return r;
		plan->of_row[row++] = (uint32_t)r;
	}
	return 0;
}

/* Cuts the records into shares, one for each file. */
static void spread(struct plan *plan, uint32_t shares)
{
	for (uint32_t i = 0; i < plan->n_layouts; i++)
		layout_spread(&plan->layouts[i], &plan->layouts[i], shares);
}

/* The manifest's own parts. */
static bool lay_out_table(struct moe_manifest *m, const struct plan *plan)
{
	const uint64_t records = (uint64_t)m->n_moe_layers * m->n_experts;
	uint64_t index, at, table, end;

	if (!checked_mul(&index, m->n_layers, sizeof(int32_t)) || !checked_add(&at, sizeof *m, index) ||
	    !checked_align(&at, at, 8) || !checked_mul(&table, records, sizeof(struct moe_record)))
		return false;
	m->n_layouts = plan->n_layouts;
	m->layouts_offset = at;
	m->records_offset = at + plan->n_layouts * sizeof(struct moe_layout);
	if (!checked_add(&end, m->records_offset, table))
		return false;
	m->bytes = end;
	return true;
}

static void place_records(struct moe_manifest *m, const struct plan *plan)
{
	struct moe_record *record = manifest_records(m);
	uint64_t at = 0;

	for (uint32_t row = 0; row < m->n_moe_layers; row++) {
		for (uint32_t expert = 0; expert < m->n_experts; expert++, record++) {
			record->layout = plan->of_row[row];
			record->offset = at;
			at += plan->layouts[record->layout].record_bytes;
		}
	}
	for (uint32_t i = 0; i < m->n_pools; i++)
		m->pools[i].bytes = at;
}

static struct moe_manifest head_of(const struct model_config *config)
{
	uint32_t limit;

	memcpy(&limit, &config->limit, sizeof limit);
	return (struct moe_manifest){.magic = MOE_MANIFEST_MAGIC,
				     .layout = MOE_LAYOUT_VERSION,
				     .n_layers = config->n_layers,
				     .n_moe_layers = config->n_moe_layers,
				     .n_experts = config->n_experts,
				     .topk = config->topk,
				     .hidden = config->hidden,
				     .inter = config->inter,
				     .activation = config->activation,
				     .limit = limit};
}

int manifest_new(struct moe_manifest **ret, const struct model *model, uint32_t n_nodes, struct moe_error *err)
{
	_cleanup_(free_plan) struct plan plan = {.n_layouts = 0};
	struct moe_manifest head = head_of(&model->config);
	struct pool_size size;
	struct moe_manifest *m;
	int32_t *index, row = 0;
	bool counted;
	int r;

	if (n_nodes < 1 || n_nodes > MOE_POOLS_MAX)
		return moe_error_set(err, -EINVAL, "%u NUMA nodes found, 1 to %d expected", n_nodes, MOE_POOLS_MAX);
	if (head.n_moe_layers == 0 || head.n_experts == 0 || head.hidden == 0 || head.inter == 0)
		return moe_error_set(err, -EINVAL,
				     "%s: config.json: %u MoE layers of %u experts with hidden %u and intermediate %u "
				     "found, none of them 0 expected",
				     model->path, head.n_moe_layers, head.n_experts, head.hidden, head.inter);
	r = plan_layouts(&plan, model, err);
	if (r < 0)
		return r;
	counted = pool_size(&size, model, n_nodes);
	spread(&plan, size.pools);
	head.n_pools = size.pools;
	head.record_bytes = size.record;
	if (!counted || !lay_out_table(&head, &plan))
		return moe_error_set(err, -E2BIG,
				     "%s: %u layers of %u experts of up to %llu bytes on each of %u NUMA nodes found, "
				     "at most 2^63 bytes in all expected",
				     model->path, head.n_moe_layers, head.n_experts,
				     (unsigned long long)head.record_bytes, head.n_pools);
	m = calloc(1, head.bytes);
	if (!m)
		return moe_error_set(err, -ENOMEM, "no memory for a manifest of %llu bytes",
				     (unsigned long long)head.bytes);
	*m = head;
	index = manifest_layer_index(m);
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		index[layer] = model->config.is_moe[layer] ? row++ : -1;
	memcpy(manifest_layouts(m), plan.layouts, plan.n_layouts * sizeof(struct moe_layout));
	place_records(m, &plan);
	*ret = m;
	return 0;
}

void manifest_formats(char ret[MANIFEST_FORMATS_TEXT], const struct moe_manifest *m)
{
	const struct moe_layout *layouts = manifest_layouts(m);
	uint32_t seen = 0;
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t i = 0; i < m->n_layouts * MOE_PARTS; i++) {
		const uint32_t format = layouts[i / MOE_PARTS].part[i % MOE_PARTS].format;

		if (seen & 1u << format)
			continue;
		seen |= 1u << format;
		used += (size_t)snprintf(ret + used, MANIFEST_FORMATS_TEXT - used, "%s%s", used ? "/" : "",
					 moe_formats[format].name);
	}
}

_Static_assert(MOE_FORMAT_COUNT <= 32, "a bit for each format");

/* Of a plane what its shares have, one after the other. */
static uint64_t hash_plane(XXH3_state_t *state, const struct moe_layout *layout, const uint8_t *const *share,
			   const struct moe_part *part, enum moe_plane plane)
{
	const uint64_t pitch = moe_band_bytes(part->format, plane, part->cols);
	const uint32_t band = moe_band_rows(part->format, plane);
	uint64_t hashed = 0;

	for (uint32_t i = 0; i < layout->shares; i++) {
		const uint32_t first = moe_share_row(part->rows, i, layout->shares);
		const uint32_t end = moe_share_row(part->rows, i + 1, layout->shares);
		const uint64_t bytes = DIV_UP(end - first, band) * pitch;

		XXH3_128bits_update(state, share[i] + part->plane[plane], bytes);
		hashed += bytes;
	}
	return hashed;
}

/* What lies between planes, and behind the last. */
static void hash_zeros(XXH3_state_t *state, uint64_t bytes)
{
	static const uint8_t zeros[MOE_RECORD_ALIGN];

	assert(bytes < sizeof zeros);
	XXH3_128bits_update(state, zeros, bytes);
}

static XXH128_hash_t hash_shares(const struct moe_layout *layout, const uint8_t *const *share)
{
	struct moe_layout whole;
	XXH3_state_t state;
	uint64_t at = 0;

	layout_spread(&whole, layout, 1);
	XXH3_128bits_reset(&state);
	for (int i = 0; i < MOE_PARTS * MOE_PLANES; i++) {
		const uint64_t begin = whole.part[i / MOE_PLANES].plane[i % MOE_PLANES];

		if (i > 0 && begin == 0)
			continue;
		hash_zeros(&state, begin - at);
		at = begin +
		     hash_plane(&state, layout, share, &layout->part[i / MOE_PLANES], (enum moe_plane)(i % MOE_PLANES));
	}
	hash_zeros(&state, whole.record_bytes - at);
	return XXH3_128bits_digest(&state);
}

void manifest_record_digest(uint8_t ret[MOE_DIGEST_BYTES], const struct moe_layout *layout, const uint8_t *const *share)
{
	XXH128_canonical_t canonical;

	/* At one go it is a third faster. */
	XXH128_canonicalFromHash(&canonical, layout->shares == 1 ? XXH3_128bits(share[0], layout->record_bytes)
								 : hash_shares(layout, share));
	memcpy(ret, canonical.digest, MOE_DIGEST_BYTES);
}

static void hash_layouts(XXH3_state_t *state, const struct moe_manifest *m)
{
	for (uint32_t i = 0; i < m->n_layouts; i++) {
		struct moe_layout whole;

		layout_spread(&whole, &manifest_layouts(m)[i], 1);
		XXH3_128bits_update(state, &whole.record_bytes, sizeof whole.record_bytes);
		XXH3_128bits_update(state, whole.part, sizeof whole.part);
	}
}

static int form_digest(struct moe_manifest *m, struct moe_error *err)
{
	const uint64_t records = (uint64_t)m->n_moe_layers * m->n_experts;
	const struct moe_record *record = manifest_records(m);
	XXH128_canonical_t canonical;
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return moe_error_set(err, -ENOMEM, "no memory for a digest");
	XXH3_128bits_reset(state);
	XXH3_128bits_update(state, MOE_LAYOUT_SEED, strlen(MOE_LAYOUT_SEED));
	XXH3_128bits_update(state, &m->n_layers, 8 * sizeof(uint32_t));
	XXH3_128bits_update(state, manifest_layer_index(m), m->n_layers * sizeof(int32_t));
	hash_layouts(state, m);
	for (uint32_t row = 0; row < m->n_moe_layers; row++)
		XXH3_128bits_update(state, &record[(uint64_t)row * m->n_experts].layout, sizeof(uint32_t));
	for (uint64_t i = 0; i < records; i++)
		XXH3_128bits_update(state, record[i].digest, MOE_DIGEST_BYTES);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	memcpy(m->digest, canonical.digest, MOE_DIGEST_BYTES);
	return 0;
}

_Static_assert(offsetof(struct moe_manifest, limit) - offsetof(struct moe_manifest, n_layers) == 7 * sizeof(uint32_t),
	       "the eight numbers of the digest stand side by side");

_Static_assert((int)MODEL_SILU == MOE_ACTIVATION_SILU && (int)MODEL_GELU == MOE_ACTIVATION_GELU &&
		       (int)MODEL_GELU_TANH == MOE_ACTIVATION_GELU_TANH &&
		       (int)MODEL_SWIGLU_CLAMPED == MOE_ACTIVATION_SWIGLU_CLAMPED,
	       "the model reader's activations are the ABI's");

int manifest_publish(int *ret_fd, const struct moe_manifest **ret, struct moe_manifest *m, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	void *map;
	int r;

	r = form_digest(m, err);
	if (r < 0)
		return r;
	fd = memfd_new_sealed("moe-manifest", m, m->bytes, err);
	if (fd < 0)
		return fd;
	r = memfd_map(&map, fd, m->bytes, PROT_READ, "manifest", err);
	if (r < 0)
		return r;
	*ret = map;
	*ret_fd = steal_fd(&fd);
	return 0;
}
