/* SPDX-License-Identifier: MIT */
#include "tools/worker/proof.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/util.h"
#include "uapi/moe_manifest.h"

#define PROOF_BYTES ((uint64_t)64 << 20)
#define PROOF_RECORDS 8u

static void add_padding(XXH3_state_t *state, uint64_t bytes, uint64_t align)
{
	static const uint8_t zeros[MOE_RECORD_ALIGN];

	XXH3_128bits_update(state, zeros, ALIGN_UP(bytes, align) - bytes);
}

/* One record's digest, from the tensors in the shards. */
static int hash_record(const struct weights *weights, uint32_t layer, uint32_t expert, uint8_t *ret,
		       struct moe_error *err)
{
	const struct model *model = weights->model;
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t digest;
	uint64_t bytes = 0;
	int r = state ? 0 : moe_error_set(err, -ENOMEM, "no memory to hash an expert");

	if (state)
		XXH3_128bits_reset(state);
	for (int part = 0; part < PARTS && r == 0; part++) {
		const struct tensor *t;

		r = model_expert_tensor(model, layer, expert, (enum expert_part)part, model->expert_type, &t, err);
		if (r < 0)
			break;
		XXH3_128bits_update(state, weights->maps[t->shard].data + t->offset, t->bytes);
		add_padding(state, t->bytes, MOE_PART_ALIGN);
		bytes += ALIGN_UP(t->bytes, (uint64_t)MOE_PART_ALIGN);
	}
	if (r == 0) {
		add_padding(state, bytes, MOE_RECORD_ALIGN);
		XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state));
		memcpy(ret, &digest, MOE_DIGEST_BYTES);
	}
	XXH3_freeState(state);
	return r;
}

static uint32_t nth_moe_layer(const struct model_config *config, uint64_t n)
{
	uint32_t layer = 0;

	while (!config->is_moe[layer] || n-- > 0)
		layer++;
	return layer;
}

int proof_check(const struct moe_session *session, const struct weights *weights, const char *socket,
		struct moe_error *err)
{
	const struct model_config *config = &weights->model->config;
	const uint64_t all = (uint64_t)config->n_moe_layers * config->n_experts;
	struct moe_session_info info;
	uint64_t n;

	moe_session_info(session, &info);
	n = MIN(MAX(PROOF_BYTES / info.record_bytes, PROOF_RECORDS), all);
	for (uint64_t i = 0; i < n; i++) {
		const uint64_t record = n > 1 ? i * (all - 1) / (n - 1) : 0;
		const uint32_t layer = nth_moe_layer(config, record / config->n_experts);
		const uint32_t expert = (uint32_t)(record % config->n_experts);
		uint8_t ours[MOE_DIGEST_BYTES], theirs[MOE_DIGEST_BYTES];
		int r = hash_record(weights, layer, expert, ours, err);

		if (r == 0)
			r = moe_record_digest(session, layer, expert, theirs, err);
		if (r < 0)
			return r;
		if (memcmp(ours, theirs, sizeof ours) != 0)
			return moe_error_set(
				err, -ESTALE,
				"%s: model '%s' holds other weights than %s: expert %u of layer %u differs; load this "
				"folder under a name of its own: moectl load %s --name NAME",
				socket, info.model, weights->model->path, expert, layer, weights->model->path);
	}
	return 0;
}
