/* SPDX-License-Identifier: MIT */
#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/path.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/manifest.h"
#include "daemon/prefault.h"
#include "daemon/reader.h"
#include "daemon/room.h"
#include "daemon/tiered.h"
#include "manifest/manifest-check.h"
#include "model/expert.h"
#include "model/model.h"

/* A load under way: everything that a failure gives back. */
struct load {
	const struct store_params *params;
	uint64_t start_ns;
	struct model *model;
	struct moe_manifest *manifest; /* private, until it is published */
	struct piece *pieces;
	uint64_t n_pieces;
	struct loader_record *records;
	uint64_t n_records, total; /* bytes of all pieces */
	struct resident *resident;
	enum pages_rung from; /* with PAGES_AUTO: better ones did not hold */
	_Atomic bool rung_failed;
	struct prefault_run *rest[MOE_POOLS_MAX]; /* of the pool files: still in the making */
};

struct resident *resident_free(struct resident *r)
{
	if (!r)
		return NULL;
	reader_free(r->reader);
	free(r->offsets);
	for (uint32_t i = 0; i < r->n_pools; i++)
		pages_free(&r->pools[i]);
	if (r->manifest)
		munmap((void *)r->manifest, r->manifest->bytes);
	close_fd(r->manifest_fd);
	free(r->path);
	free(r);
	return NULL;
}

static void free_load(struct load *load)
{
	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		prefault_end(load->rest[i]);
	resident_free(load->resident);
	free(load->records);
	free(load->pieces);
	free(load->manifest);
	model_free(load->model);
}

/* -- what is to be read ------------------------------------------------------------------------------------------- */

static int add_sources(struct load *load, uint64_t *room, const struct expert_source *sources, uint32_t n,
		       uint32_t record, struct moe_error *err)
{
	if (load->n_pieces + n > *room) {
		const uint64_t more = MAX(*room * 2, 1024u);
		struct piece *grown = reallocarray(load->pieces, more, sizeof *grown);

		if (!grown)
			return moe_error_set(err, -ENOMEM, "%s: no memory for a list of %" PRIu64 " tensors",
					     load->params->path, more);
		load->pieces = grown;
		*room = more;
	}
	for (uint32_t i = 0; i < n; i++)
		load->pieces[load->n_pieces++] = (struct piece){.offset = sources[i].offset,
								.shard = sources[i].shard,
								.record = record,
								.repack = sources[i].repack};
	return 0;
}

/* In the order of the files. */
static int list_pieces(struct load *load, struct moe_error *err)
{
	const struct model_config *c = &load->model->config;
	uint64_t room = 0;
	uint32_t record = 0;

	load->n_records = (uint64_t)c->n_moe_layers * c->n_experts;
	load->records = calloc(load->n_records, sizeof *load->records);
	if (!load->records)
		return moe_error_set(err, -ENOMEM, "%s: no memory for a list of %" PRIu64 " records",
				     load->params->path, load->n_records);
	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		for (uint32_t expert = 0; c->is_moe[layer] && expert < c->n_experts; expert++, record++) {
			struct expert_source sources[EXPERT_SOURCES_MAX];
			const uint32_t n = expert_sources(load->model, layer, expert, sources);
			const int r = add_sources(load, &room, sources, n, record, err);

			if (r < 0)
				return r;
		}
	}
	piece_sort(load->pieces, load->n_pieces);
	return 0;
}

static void name_manifest(struct moe_manifest *m, const struct store_params *params, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = params->name && params->name[0] ? params->name : slash && slash[1] ? slash + 1 : path;

	snprintf(m->name, sizeof m->name, "%s", name);
	m->epoch = params->epoch;
}

static int plan(struct load *load, struct moe_error *err)
{
	const struct store_params *p = load->params;
	struct resident *resident = load->resident;
	int r;

	r = model_open(&load->model, p->path, err);
	if (r < 0)
		return r;
	resident->path = path_real(p->path);
	if (!resident->path)
		return moe_error_sys(err, -errno, "%s", p->path);
	snprintf(resident->family, sizeof resident->family, "%s", model_family_name(load->model->config.family));
	r = manifest_new(&load->manifest, load->model, MIN(p->host->n_nodes, MOE_POOLS_MAX), err);
	if (r < 0)
		return r;
	name_manifest(load->manifest, p, resident->path);
	r = tiered_plan(load->manifest, p, &resident->frames, err);
	if (r < 0)
		return r;
	load->total = tiered_bytes(load->model);
	return 0;
}

/* -- where it goes ------------------------------------------------------------------------------------------------ */

static double gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

/* What there was no room for need not all be in memory, unless that was said already. */
static int refuse_room(const struct load *load, const struct moe_error *why, struct moe_error *err)
{
	if (load->resident->frames || why->code != -ENOMEM)
		return moe_error_set(err, why->code, "%s", why->text);
	return moe_error_set(err, why->code, "%s; or let what does not fit stay on disk (--pool-max, PoolMax=)",
			     why->text);
}

static int check_room(const struct load *load, struct moe_error *err)
{
	const struct moe_manifest *m = load->manifest;
	uint64_t bytes[MOE_POOLS_MAX];
	struct moe_error why = {0};
	int r;

	for (uint32_t i = 0; i < m->n_pools; i++)
		bytes[i] = m->pools[i].bytes;
	r = room_check_all(bytes, load->params->host->nodes, m->n_pools, load->params->pages, &why);
	return r < 0 ? refuse_room(load, &why, err) : 0;
}

/* The files are made, and filled while they are read into. */
static int make_pools(struct load *load, struct moe_error *err)
{
	const struct store_params *p = load->params;
	struct resident *resident = load->resident;
	struct moe_manifest *m = load->manifest;
	char name[MOE_NAME_BYTES + 32];
	struct moe_error why = {0};

	for (uint32_t i = 0; i < m->n_pools; i++) {
		int r;

		snprintf(name, sizeof name, "moe-pool-%s-node%d", m->name, p->host->nodes[i].id);
		r = pages_begin(&resident->pools[i], &load->rest[i], name, m->pools[i].bytes, p->pages, load->from,
				&p->host->nodes[i], &why);
		if (r < 0)
			return refuse_room(load, &why, err);
		resident->n_pools++;
	}
	return 0;
}

static int report_end(uint64_t done, uint64_t total, void *userdata)
{
	const struct load *load = userdata;
	const struct store_params *p = load->params;
	const uint64_t have = load->resident->frames ? 0 : load->total; /* a tiered model is read afterwards */

	if (p->moved)
		atomic_store(p->moved, have + done);
	return p->progress ? p->progress(have, load->total, now_ns() - load->start_ns, p->userdata) : 0;
}

/* What no record needed, and a look at what came. */
static int end_pools(struct load *load, struct moe_error *err)
{
	struct resident *resident = load->resident;
	struct moe_manifest *m = load->manifest;

	for (uint32_t i = 0; i < m->n_pools; i++) {
		struct pages *pages = &resident->pools[i];
		struct moe_error why = {0};
		int r = pages_end(pages, steal_ptr(load->rest[i]), load->params->pages, report_end, load, &why);

		if (r < 0) {
			atomic_store(&load->rung_failed, r != -ECANCELED);
			return moe_error_set(err, r, "%s: NUMA node %d, %s pages: %s", m->name, pages->node,
					     pages_rung_name(pages->rung), why.text);
		}
		log_info("%s: NUMA node %d: %.2f GiB on %s pages", m->name, pages->node, gib(pages->bytes),
			 pages_rung_name(pages->rung));
		if (pages->better[0])
			log_notice("%s: NUMA node %d: for better pages: %s", m->name, pages->node, pages->better);
		m->pools[i] = (struct moe_pool_info){.bytes = pages->bytes,
						     .page_bytes = pages_rung_bytes(pages->rung),
						     .node = pages->node,
						     .transparent = pages->rung == PAGES_THP};
	}
	return 0;
}

/* Where each record goes, and what it waits for. */
static void point_records(struct load *load)
{
	struct moe_record *table = manifest_records(load->manifest);

	for (uint64_t i = 0; i < load->n_records; i++) {
		struct loader_record *record = &load->records[i];

		record->offset = table[i].offset;
		record->layout = &manifest_layouts(load->manifest)[table[i].layout];
		record->digest = table[i].digest;
		atomic_store(&record->missing, 0);
	}
	for (uint64_t i = 0; i < load->n_pieces; i++)
		atomic_fetch_add(&load->records[load->pieces[i].record].missing,
				 load->pieces[i].repack.bytes * load->manifest->n_pools);
}

static int report(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	const struct load *load = userdata;
	const struct store_params *p = load->params;

	if (p->moved)
		atomic_store(p->moved, done);
	return p->progress ? p->progress(done, total, elapsed_ns, p->userdata) : 0;
}

static int need(uint32_t node, uint64_t offset, uint64_t bytes, void *userdata)
{
	struct load *load = userdata;
	const int r = prefault_need(load->rest[node], offset, bytes);

	if (r < 0)
		atomic_store(&load->rung_failed, true);
	return r;
}

static int read_pieces(struct load *load, struct loader_result *ret, struct moe_error *err)
{
	const struct store_params *p = load->params;
	struct loader_params params = {.name = load->manifest->name,
				       .shards = load->model->shards,
				       .n_shards = load->model->n_shards,
				       .pieces = load->pieces,
				       .n_pieces = load->n_pieces,
				       .records = load->records,
				       .repack = repack,
				       .nodes = p->host->nodes,
				       .n_nodes = load->manifest->n_pools,
				       .tuning = p->tuning,
				       .need = need,
				       .progress = report,
				       .userdata = load,
				       .start_ns = load->start_ns};

	for (uint32_t i = 0; i < params.n_nodes; i++)
		params.memory[i] = load->resident->pools[i].map;
	return loader_run(ret, &params, err);
}

/* Of a tiered model: each record once, for its digest; as many stay as there are frames. */
static int read_once(struct load *load, struct loader_result *ret, struct moe_error *err)
{
	const struct store_params *p = load->params;
	int r = tiered_open(load->resident, load->manifest, load->resident->path, steal_ptr(load->model),
			    p->tuning.buffered, err);

	if (r < 0)
		return r;
	*ret = (struct loader_result){.io_uring = true};
	r = tiered_read(load->resident, load->manifest, p, load->start_ns, load->total, &ret->read_bytes, err);
	ret->direct = reader_direct(load->resident->reader);
	return r;
}

static int publish(struct load *load, struct moe_error *err)
{
	struct resident *resident = load->resident;
	int r;

	for (uint32_t i = 0; i < resident->n_pools; i++) {
		resident->pools[i].writable = resident->frames > 0;
		r = pages_publish(&resident->pools[i], load->params->writable_clients, err);
		if (r < 0)
			return r;
	}
	r = manifest_publish(&resident->manifest_fd, &resident->manifest, load->manifest, err);
	if (r < 0)
		return r;
	resident->layer_index = manifest_layer_index(resident->manifest);
	resident->layouts = manifest_layouts(resident->manifest);
	resident->records = manifest_records(resident->manifest);
	if (resident->reader)
		reader_set_manifest(resident->reader, resident->manifest);
	return 0;
}

static void log_loading(const struct load *load)
{
	const struct moe_manifest *m = load->manifest;
	char formats[MANIFEST_FORMATS_TEXT];

	manifest_formats(formats, m);
	log_info("%s: %s, %s, %u layers of %u experts of %s%.1f MiB, %.2f GiB from %s", m->name, load->resident->family,
		 formats, m->n_moe_layers, m->n_experts, m->n_layouts > 1 ? "up to " : "",
		 (double)(m->record_bytes * m->n_pools) / (1u << 20), gib(load->total), load->resident->path);
}

static uint64_t pool_bytes(const struct moe_manifest *m)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->n_pools; i++)
		bytes += m->pools[i].bytes;
	return bytes;
}

static void log_loaded(const struct load *load, const struct loader_result *result, uint64_t read_ns)
{
	event_log(EVENT_LOADED,
		  FACTS(.model = load->manifest->name, .path = load->resident->path,
			.bytes = pool_bytes(load->manifest), .usec = load->resident->load_ns / 1000),
		  "%s: %.2f GiB read in %.2f s (%.2f GB/s, %s, %s), ready after %.2f s", load->manifest->name,
		  gib(load->total), (double)read_ns / 1e9, (double)result->read_bytes / (double)MAX(read_ns, 1u),
		  result->direct ? "direct" : "through the page cache", result->io_uring ? "io_uring" : "threads",
		  (double)load->resident->load_ns / 1e9);
}

static int try_pools(struct load *load, struct loader_result *ret, uint64_t *ret_ns, struct moe_error *err)
{
	const bool tiered = load->resident->frames > 0; /* whose frames are all needed from the beginning */
	int r = make_pools(load, err);

	if (r == 0 && tiered)
		r = end_pools(load, err);
	if (r < 0)
		return r;
	*ret_ns = now_ns();
	if (!tiered)
		point_records(load);
	r = tiered ? read_once(load, ret, err) : read_pieces(load, ret, err);
	*ret_ns = now_ns() - *ret_ns;
	return r < 0 || tiered ? r : end_pools(load, err);
}

/* The rung after the best that did not hold; false when there is none. */
static bool next_rung(struct load *load)
{
	enum pages_rung best = PAGES_4K;

	for (uint32_t i = 0; i < load->resident->n_pools; i++) {
		prefault_end(steal_ptr(load->rest[i]));
		best = MIN(best, load->resident->pools[i].rung);
		pages_free(&load->resident->pools[i]);
	}
	load->resident->n_pools = 0;
	load->from = best + 1;
	return load->params->pages == PAGES_AUTO && load->from < PAGES_RUNGS;
}

/* That a kind of pages runs out under way is rare: what was read is then read again. */
static int fill_pools(struct load *load, struct loader_result *ret, uint64_t *ret_ns, struct moe_error *err)
{
	struct moe_error why = {0};
	int r;

	for (;;) {
		atomic_store(&load->rung_failed, false);
		r = try_pools(load, ret, ret_ns, &why);
		if (r == 0 || !atomic_load(&load->rung_failed) || !next_rung(load))
			break;
		log_notice("%s; once more on %s pages", why.text, pages_rung_name(load->from));
	}
	if (r < 0 && err)
		*err = why;
	return r;
}

int store_load(struct resident **ret, const struct store_params *params, struct moe_error *err)
{
	_cleanup_(free_load) struct load load = {.params = params, .start_ns = now_ns()};
	struct loader_result result;
	uint64_t read_ns = 0;
	int r;

	load.resident = calloc(1, sizeof *load.resident);
	if (!load.resident)
		return moe_error_set(err, -ENOMEM, "%s: no memory", params->path);
	load.resident->manifest_fd = -1;
	r = plan(&load, err);
	if (r < 0)
		return r;
	log_loading(&load);
	/* Before any list of its records: a sparse file of a few MB may say that it has billions. */
	r = check_room(&load, err);
	if (r == 0 && !load.resident->frames)
		r = list_pieces(&load, err);
	if (r == 0)
		r = fill_pools(&load, &result, &read_ns, err);
	if (r < 0)
		return r;
	r = publish(&load, err);
	if (r < 0)
		return r;
	load.resident->read_bytes = result.read_bytes;
	load.resident->direct = result.direct;
	load.resident->load_ns = now_ns() - load.start_ns;
	load.resident->read_ns = read_ns;
	log_loaded(&load, &result, read_ns);
	tiered_say(load.resident);
	*ret = steal_ptr(load.resident);
	return 0;
}

/* -- a model that is there already -------------------------------------------------------------------------------- */

void store_left_close(struct store_left *left)
{
	close_fd(left->manifest_fd);
	for (uint32_t i = 0; i < left->n_pools; i++)
		left->pools[i] = close_fd(left->pools[i]);
	left->manifest_fd = -1;
	left->n_pools = 0;
}

void store_fill_books(struct model_books *b, const struct resident *r)
{
	b->read_bytes = r->read_bytes;
	b->load_ns = r->load_ns;
	b->beside_ms = (uint32_t)MIN((r->load_ns - r->read_ns) / 1000000u, (uint64_t)UINT32_MAX);
	b->direct = r->direct;
	b->n_pools = r->n_pools;
	b->frames = r->frames;
	snprintf(b->family, sizeof b->family, "%s", r->family);
	snprintf(b->path, sizeof b->path, "%s", r->path);
	for (uint32_t i = 0; i < r->n_pools; i++) {
		const struct pages *p = &r->pools[i];

		b->pools[i].bytes = p->bytes;
		b->pools[i].huge_bytes = p->huge_bytes;
		b->pools[i].rung = (int32_t)p->rung;
		b->pools[i].node = p->node;
		memcpy(b->pools[i].better, p->better, sizeof b->pools[i].better);
	}
}

static int adopt_manifest(struct resident *r, struct store_left *left, struct moe_error *err)
{
	uint64_t bytes;
	void *map;
	int c;

	r->manifest_fd = steal_fd(&left->manifest_fd);
	c = memfd_verify(r->manifest_fd, sizeof(struct moe_manifest), F_SEAL_WRITE | F_SEAL_SHRINK, &bytes, "manifest",
			 err);
	if (c == 0)
		c = memfd_map(&map, r->manifest_fd, bytes, PROT_READ, "manifest", err);
	if (c < 0)
		return c;
	c = manifest_check(map, bytes, err);
	if (c < 0) {
		munmap(map, bytes);
		return c;
	}
	r->manifest = map;
	if (r->manifest->n_pools != left->n_pools)
		return moe_error_set(err, -EPROTO, "manifest of %u pool files found, %u expected", r->manifest->n_pools,
				     left->n_pools);
	r->layer_index = manifest_layer_index(r->manifest);
	r->layouts = manifest_layouts(r->manifest);
	r->records = manifest_records(r->manifest);
	return 0;
}

static int adopt_pools(struct resident *r, struct store_left *left, struct moe_error *err)
{
	for (uint32_t i = 0; i < left->n_pools; i++) {
		struct pages *p = &r->pools[i];
		int c;

		*p = (struct pages){.fd = left->pools[i],
				    .bytes = left->books->pools[i].bytes,
				    .rung = (enum pages_rung)left->books->pools[i].rung,
				    .node = left->books->pools[i].node,
				    .huge_bytes = left->books->pools[i].huge_bytes,
				    .writable = r->frames > 0};
		memcpy(p->better, left->books->pools[i].better, sizeof p->better);
		left->pools[i] = -1;
		r->n_pools++;
		c = pages_adopt(p, r->manifest->pools[i].bytes, err);
		if (c < 0)
			return c;
	}
	return 0;
}

int store_adopt(struct resident **ret, struct store_left *left, const struct host *host, struct moe_error *err)
{
	struct resident *r = calloc(1, sizeof *r);
	int c = r ? 0 : moe_error_set(err, -ENOMEM, "%s: no memory", left->books->path);

	if (r) {
		r->manifest_fd = -1;
		r->path = strdup(left->books->path);
		snprintf(r->family, sizeof r->family, "%s", left->books->family);
		r->read_bytes = left->books->read_bytes;
		r->load_ns = left->books->load_ns;
		r->read_ns = r->load_ns - MIN((uint64_t)left->books->beside_ms * 1000000u, r->load_ns);
		r->direct = left->books->direct;
		r->frames = left->books->frames;
		c = r->path ? adopt_manifest(r, left, err) : moe_error_set(err, -ENOMEM, "no memory");
	}
	if (c == 0 && (r->manifest->flags & MOE_MANIFEST_TIERED) != (r->frames ? MOE_MANIFEST_TIERED : 0u))
		c = moe_error_set(err, -EBADMSG, "%s: books and manifest are not of one model", left->books->path);
	if (c == 0)
		c = adopt_pools(r, left, err);
	if (c == 0 && r->frames)
		c = tiered_open(r, r->manifest, r->path, NULL, false, err);
	store_left_close(left);
	if (c < 0) {
		resident_free(r);
		return c;
	}
	*ret = r;
	return 0;
}
