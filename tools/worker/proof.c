/* SPDX-License-Identifier: MIT */
#include "tools/worker/proof.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/util.h"
#include "tools/worker/records.h"

#define PROOF_BYTES ((uint64_t)64 << 20)
#define PROOF_RECORDS 8u

/* One record's digest, from the tensors in the shards. */
static int hash_record(struct records *records, uint32_t layer, uint32_t expert, uint8_t *ret, struct moe_error *err)
{
	XXH128_canonical_t digest;
	struct moe_layout layout;
	const uint8_t *record;
	int r = records_build(records, layer, expert, &layout, &record, err);

	if (r < 0)
		return r;
	XXH128_canonicalFromHash(&digest, XXH3_128bits(record, layout.record_bytes));
	memcpy(ret, &digest, MOE_DIGEST_BYTES);
	return 0;
}

static uint32_t nth_moe_layer(const struct model_config *config, uint64_t n)
{
	uint32_t layer = 0;

	while (!config->is_moe[layer] || n-- > 0)
		layer++;
	return layer;
}

static int compare_records(const struct moe_session *session, struct records *records, const char *socket,
			   struct moe_error *err)
{
	const struct model *model = records->model;
	const struct model_config *config = &model->config;
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
		int r = hash_record(records, layer, expert, ours, err);

		if (r == 0)
			r = moe_record_digest(session, layer, expert, theirs, err);
		if (r < 0)
			return r;
		if (memcmp(ours, theirs, sizeof ours) != 0)
			return moe_error_set(
				err, -ESTALE,
				"%s: model '%s' holds other weights than %s: expert %u of layer %u differs; load this "
				"folder under a name of its own: moectl load %s --name NAME",
				socket, info.model, model->path, expert, layer, model->path);
	}
	return 0;
}

int proof_check(const struct moe_session *session, const struct model *model, const char *socket, struct moe_error *err)
{
	struct records records;
	int r = records_open(&records, model, err);

	if (r == 0)
		r = compare_records(session, &records, socket, err);
	records_close(&records);
	return r;
}
