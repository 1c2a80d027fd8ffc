/* SPDX-License-Identifier: MIT */
#include "daemon/manifest.h"

#include <errno.h>
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

#define ELEMENT_BYTES 2u

uint64_t manifest_part_offset(const struct moe_manifest *m, enum expert_part part)
{
	return part == PART_GATE ? 0 : part == PART_UP ? m->up_offset : m->down_offset;
}

uint64_t manifest_part_bytes(const struct moe_manifest *m)
{
	return (uint64_t)m->inter * m->hidden * ELEMENT_BYTES;
}

/* The inner layout of a record. */
static bool lay_out(struct moe_manifest *m)
{
	uint64_t part, up, down, record;

	if (!checked_mul(&part, (uint64_t)m->inter * ELEMENT_BYTES, m->hidden) ||
	    !checked_align(&up, part, MOE_PART_ALIGN) || !checked_add(&down, up, part) ||
	    !checked_align(&down, down, MOE_PART_ALIGN) || !checked_add(&record, down, part) ||
	    !checked_align(&record, record, MOE_RECORD_ALIGN))
		return false;
	m->up_offset = up;
	m->down_offset = down;
	m->record_bytes = record;
	return true;
}

/* The manifest's own parts, and that all records together can be counted in bytes. */
static bool lay_out_table(struct moe_manifest *m)
{
	const uint64_t records = (uint64_t)m->n_moe_layers * m->n_experts;
	uint64_t index, at, table, bytes, all;

	if (!checked_mul(&index, m->n_layers, sizeof(int32_t)) || !checked_add(&at, sizeof *m, index) ||
	    !checked_align(&at, at, 8) || !checked_mul(&table, records, sizeof(struct moe_record)) ||
	    !checked_add(&bytes, at, table) || !checked_mul(&all, records, m->record_bytes) || all > INT64_MAX)
		return false;
	m->records_offset = at;
	m->bytes = bytes;
	return true;
}

static void place_records(struct moe_manifest *m, uint32_t n_nodes)
{
	struct moe_record *record = manifest_records(m);

	for (uint32_t row = 0; row < m->n_moe_layers; row++) {
		for (uint32_t expert = 0; expert < m->n_experts; expert++, record++) {
			record->pool = (uint32_t)(((uint64_t)row + expert) % n_nodes);
			record->offset = m->pools[record->pool].bytes;
			m->pools[record->pool].bytes += m->record_bytes;
		}
	}
	while (m->n_pools < n_nodes && m->pools[m->n_pools].bytes > 0)
		m->n_pools++;
}

int manifest_new(struct moe_manifest **ret, const struct model_config *config, uint32_t type, uint32_t n_nodes,
		 struct moe_error *err)
{
	struct moe_manifest head = {.magic = MOE_MANIFEST_MAGIC,
				    .layout = MOE_LAYOUT_VERSION,
				    .n_layers = config->n_layers,
				    .n_moe_layers = config->n_moe_layers,
				    .n_experts = config->n_experts,
				    .topk = config->topk,
				    .hidden = config->hidden,
				    .inter = config->inter,
				    .type = type,
				    .activation = config->activation};
	struct moe_manifest *m;
	int32_t *index, row = 0;

	if (n_nodes < 1 || n_nodes > MOE_POOLS_MAX)
		return moe_error_set(err, -EINVAL, "%u NUMA nodes found, 1 to %d expected", n_nodes, MOE_POOLS_MAX);
	if (head.n_moe_layers == 0 || head.n_experts == 0 || head.hidden == 0 || head.inter == 0 || !lay_out(&head) ||
	    !lay_out_table(&head))
		return moe_error_set(
			err, -EINVAL,
			"config.json: %u MoE layers of %u experts with hidden %u and intermediate %u found, "
			"none of them 0 and at most 2^63 bytes in all expected",
			head.n_moe_layers, head.n_experts, head.hidden, head.inter);
	m = calloc(1, head.bytes);
	if (!m)
		return moe_error_set(err, -ENOMEM, "no memory for a manifest of %llu bytes",
				     (unsigned long long)head.bytes);
	*m = head;
	index = manifest_layer_index(m);
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		index[layer] = config->is_moe[layer] ? row++ : -1;
	place_records(m, n_nodes);
	*ret = m;
	return 0;
}

void manifest_record_digest(uint8_t ret[MOE_DIGEST_BYTES], const void *record, uint64_t bytes)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(record, bytes));
	memcpy(ret, canonical.digest, MOE_DIGEST_BYTES);
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
	for (uint64_t i = 0; i < records; i++)
		XXH3_128bits_update(state, record[i].digest, MOE_DIGEST_BYTES);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	memcpy(m->digest, canonical.digest, MOE_DIGEST_BYTES);
	return 0;
}

_Static_assert(offsetof(struct moe_manifest, activation) - offsetof(struct moe_manifest, n_layers) ==
		       7 * sizeof(uint32_t),
	       "the eight numbers of the digest stand side by side");

_Static_assert((int)MODEL_SILU == MOE_ACTIVATION_SILU && (int)MODEL_GELU == MOE_ACTIVATION_GELU &&
		       (int)MODEL_GELU_TANH == MOE_ACTIVATION_GELU_TANH,
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
