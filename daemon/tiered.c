/* SPDX-License-Identifier: MIT */
#include "daemon/tiered.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/frames.h"
#include "daemon/journal.h"
#include "daemon/manifest.h"
#include "daemon/reader.h"
#include "model/expert.h"
#include "model/pool-size.h"

#define UNDER_WAY_MAX 32u /* records at a time: more than the reader has reads in flight */
#define TICK_NS 200000000u

static uint64_t records_of(const struct moe_manifest *m)
{
	return (uint64_t)m->n_moe_layers * m->n_experts;
}

/* -- the plan ----------------------------------------------------------------------------------------------------- */

int tiered_plan(struct moe_manifest *m, const struct store_params *p, uint32_t *ret_frames, struct moe_error *err)
{
	const struct pool_size size = {
		.pools = m->n_pools, .records = records_of(m), .record = m->record_bytes, .file = m->pools[0].bytes};
	const struct pool_limits limits = {.memory_max = p->memory_max, .pool_max = p->pool_max};
	struct moe_error why = {0};
	uint64_t frames;
	int r = pool_frames(&size, m->n_experts, m->topk, &limits, &frames, &why);

	if (r < 0)
		return moe_error_set(err, r, "%s: %s%s", p->path, why.text,
				     p->pool_max
					     ? " (--pool-max, --memory-max)"
					     : ": raise the memory limit, load a smaller model, or let what does not "
					       "fit stay on disk (--pool-max, PoolMax=)");
	*ret_frames = 0;
	if (frames == 0)
		return 0;
	if (m->n_experts > JOURNAL_EXPERTS_MAX || records_of(m) >= FRAMES_NONE)
		return moe_error_set(err, -E2BIG, "%s: %u experts a layer found, at most %u expected of a tiered model",
				     p->path, m->n_experts, JOURNAL_EXPERTS_MAX);
	m->flags |= MOE_MANIFEST_TIERED;
	for (uint64_t i = 0; i < records_of(m); i++)
		manifest_records(m)[i].offset = 0;
	for (uint32_t i = 0; i < m->n_pools; i++)
		m->pools[i].bytes = frames * m->record_bytes;
	*ret_frames = (uint32_t)frames;
	return 0;
}

uint64_t tiered_bytes(const struct model *model)
{
	const struct model_config *c = &model->config;
	struct expert_source sources[EXPERT_SOURCES_MAX];
	uint64_t bytes = 0;

	for (uint32_t layer = 0; layer < c->n_layers; layer++)
		for (uint32_t expert = 0; c->is_moe[layer] && expert < c->n_experts; expert++)
			for (uint32_t n = expert_sources(model, layer, expert, sources); n-- > 0;)
				bytes += sources[n].repack.bytes;
	return bytes;
}

int tiered_open(struct resident *r, const struct moe_manifest *m, const char *path, struct model *model, bool buffered,
		struct moe_error *err)
{
	struct reader_params params = {.path = path, .manifest = m, .model = model, .buffered = buffered};

	for (uint32_t i = 0; i < r->n_pools; i++)
		params.memory[i] = r->pools[i].map;
	r->offsets = malloc(records_of(m) * sizeof *r->offsets);
	if (!r->offsets) {
		model_free(model);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a table of %" PRIu64 " records", path,
				     records_of(m));
	}
	memset(r->offsets, 0xff, records_of(m) * sizeof *r->offsets);
	return reader_new(&r->reader, &params, err);
}

/* -- all of it, once ---------------------------------------------------------------------------------------------- */

struct pass {
	struct resident *resident;
	struct moe_manifest *manifest;
	const struct store_params *params;
	uint64_t start_ns, total, done, read_bytes, ticked_ns;
	uint64_t prepared; /* bytes: what `moved` goes on from */
	uint32_t under_way, n_free;
	uint32_t *free; /* frames */
	uint32_t *left; /* what a frame's last record has left there: a layout and one, 0: all zeros */
};

static int submit(struct pass *x, uint64_t record, uint32_t frame, struct moe_error *err)
{
	struct moe_record *entry = &manifest_records(x->manifest)[record];
	struct reader_job *job = calloc(1, sizeof *job);

	if (!job)
		return moe_error_set(err, -ENOMEM, "%s: no memory to read a record", x->params->path);
	job->record = (uint32_t)record;
	job->offset = frame * x->manifest->record_bytes;
	job->zero = x->left[frame] && x->left[frame] != entry->layout + 1;
	job->learn = entry->digest;
	x->left[frame] = entry->layout + 1;
	x->under_way++;
	reader_read(x->resident->reader, job);
	return 0;
}

/* Waits for one. */
static int collect(struct pass *x, struct moe_error *err)
{
	const struct store_params *p = x->params;
	struct reader_job *job = reader_next_done(x->resident->reader, true);
	int r = job->status;

	x->under_way--;
	x->read_bytes += job->read_bytes;
	x->done = MIN(x->done + job->read_bytes, x->total);
	x->free[x->n_free++] = (uint32_t)(job->offset / x->manifest->record_bytes);
	if (r < 0)
		moe_error_set(err, r, "%s", job->error);
	free(job);
	if (r < 0 || !p->progress || now_ns() - x->ticked_ns < TICK_NS)
		return r;
	x->ticked_ns = now_ns();
	if (p->moved)
		atomic_store(p->moved, x->prepared + x->done);
	if (p->progress(x->done, x->total, now_ns() - x->start_ns, p->userdata) == 0)
		return 0;
	return moe_error_set(err, -ECANCELED, "%s: loading was canceled", x->manifest->name);
}

static int collect_all(struct pass *x, struct moe_error *err)
{
	int r = 0;

	while (r == 0 && x->under_way > 0)
		r = collect(x, err);
	return r;
}

static int drop_rest(struct pass *x, struct moe_error *err)
{
	const uint32_t frames = x->resident->frames;
	int r = 0;

	for (uint64_t record = frames; r == 0 && record < records_of(x->manifest); record++) {
		if (x->n_free == 0 || x->under_way >= UNDER_WAY_MAX)
			r = collect(x, err);
		if (r == 0)
			r = submit(x, record, x->free[--x->n_free], err);
	}
	return r == 0 ? collect_all(x, err) : r;
}

static int keep_first(struct pass *x, struct moe_error *err)
{
	int r = 0;

	x->n_free = 0;
	for (uint32_t i = 0; r == 0 && i < x->resident->frames; i++) {
		if (x->under_way >= UNDER_WAY_MAX)
			r = collect(x, err);
		if (r == 0)
			r = submit(x, i, i, err);
	}
	return r == 0 ? collect_all(x, err) : r;
}

int tiered_read(struct resident *resident, struct moe_manifest *m, const struct store_params *params, uint64_t start_ns,
		uint64_t total, uint64_t *ret_bytes, struct moe_error *err)
{
	_cleanup_free_ uint32_t *free_frames = calloc(resident->frames, sizeof *free_frames);
	_cleanup_free_ uint32_t *left = calloc(resident->frames, sizeof *left);
	struct pass x = {.resident = resident,
			 .manifest = m,
			 .params = params,
			 .start_ns = start_ns,
			 .total = total,
			 .prepared = params->moved ? atomic_load(params->moved) : 0,
			 .n_free = resident->frames,
			 .free = free_frames,
			 .left = left};
	int r;

	if (!free_frames || !left)
		return moe_error_set(err, -ENOMEM, "%s: no memory for %u frames", params->path, resident->frames);
	for (uint32_t i = 0; i < resident->frames; i++)
		free_frames[i] = i;
	r = drop_rest(&x, err);
	if (r == 0)
		r = keep_first(&x, err);
	if (r == 0)
		r = reader_check_files(resident->reader, err);
	if (r == 0 && params->progress)
		params->progress(total, total, now_ns() - start_ns, params->userdata);
	*ret_bytes = x.read_bytes;
	return r;
}

void tiered_say(const struct resident *r)
{
	const struct moe_manifest *m = r->manifest;

	if (r->frames)
		log_notice("%s: tiered: %u of %" PRIu64 " records have room in memory, the others are read from disk "
			   "when they are asked for (--pool-max)",
			   m->name, r->frames, records_of(m));
}
