/* SPDX-License-Identifier: MIT */
/*
 * store - a published model folder becomes a resident model: records in pool files, a manifest, digests.
 *
 * Law: nothing is read but expert tensors, each byte once (loader.h has the exception); there is never a second copy
 * of the model; a failed load leaves nothing behind; a resident model is immutable (sealed) from the moment it exists.
 * Each NUMA node has a share of the rows of every record, so that each expert is read over all memory controllers
 * (docs/decisions/0008).
 *
 * A model that needs more memory than it may take is tiered where that is allowed (pool_max): its pool files are
 * frames, its records come from disk when they are asked for (daemon/tier.h), and a record stays what and where it is
 * while it is pinned.
 */
#ifndef DAEMON_STORE_H
#define DAEMON_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "daemon/loader.h"
#include "daemon/pages.h"
#include "moe-error.h"
#include "uapi/moe_manifest.h"

struct resident {
	const struct moe_manifest *manifest; /* mapped read-only from manifest_fd */
	const int32_t *layer_index;          /* [n_layers] */
	const struct moe_layout *layouts;    /* [n_layouts] */
	const struct moe_record *records;    /* [n_moe_layers][n_experts] */
	int manifest_fd;
	uint32_t n_pools;
	struct pages pools[MOE_POOLS_MAX];
	uint32_t frames;       /* of a tiered model, 0: of one that is all there */
	uint64_t *offsets;     /* [n_moe_layers][n_experts] of a tiered model, RESIDENT_NOWHERE: not there; else NULL */
	struct reader *reader; /* of a tiered model */
	struct replicas *replicas; /* NULL: no copies of hot experts; the mover's */
	char *path;
	char family[32];
	uint64_t read_bytes;       /* from disk, supersets included */
	uint64_t load_ns, read_ns; /* from the first look at its files until it was served; what of that was reading */
	bool direct;               /* O_DIRECT was in force */
	uint32_t sessions;         /* attached; the reactor's */
	uint32_t leases;           /* held; the reactor's */
};

#define RESIDENT_NOWHERE UINT64_MAX

/* Of a record in each pool file. Of a tiered model: while it is pinned. row = layer_index[layer] >= 0. */
static inline uint64_t resident_offset(const struct resident *r, uint32_t row, uint32_t expert)
{
	const uint64_t record = (uint64_t)row * r->manifest->n_experts + expert;

	return r->offsets ? r->offsets[record] : r->records[record].offset;
}

/* First byte of a share of a record. */
static inline const uint8_t *resident_share(const struct resident *r, uint32_t row, uint32_t expert, uint32_t share)
{
	return (const uint8_t *)r->pools[share].map + resident_offset(r, row, expert);
}

/* Of a model with one share: first byte of a record. */
static inline const uint8_t *resident_record(const struct resident *r, uint32_t row, uint32_t expert)
{
	return resident_share(r, row, expert, 0);
}

/* Index of the layout of a row's records. */
static inline uint32_t resident_layout(const struct resident *r, uint32_t row)
{
	return r->records[(uint64_t)row * r->manifest->n_experts].layout;
}

/* What a daemon writes down of a model for its successor, beside the manifest. */
struct model_books {
	uint64_t magic;
	uint32_t version, n_layers;
	uint64_t bytes; /* of the file */
	uint64_t read_bytes, load_ns;
	uint32_t direct, n_pools;
	uint32_t frames;
	uint32_t policy;    /* of the frames: its place in the table of policy.h */
	uint32_t cells;     /* of the heat */
	uint32_t beside_ms; /* what of load_ns was not reading; 0 of daemons that did not count it */
	struct {
		uint64_t bytes, huge_bytes;
		int32_t rung, node;
		char better[256];
	} pools[MOE_POOLS_MAX];
	char family[32];
	char path[4096];
};

/* The files of a model whose daemon is no more. */
struct store_left {
	struct model_books *books;
	int manifest_fd, pools[MOE_POOLS_MAX];
	uint32_t n_pools;
};

struct store_params {
	const char *path;
	const char *name; /* NULL or "": the folder's name */
	int pages;        /* PAGES_AUTO or an enum pages_rung that is required */
	bool writable_clients;
	uint64_t memory_max; /* bytes that this model's records may take, 0: what the host has */
	uint64_t pool_max;   /* a model that needs more is tiered and takes so much (or memory_max); 0: it is refused */
	uint64_t epoch;
	const struct host *host;
	struct loader_tuning tuning; /* zeros: the defaults */
	/* Called from the loading thread a few times a second, and with done == total at the end; a non-zero return
	 * cancels the load (-ECANCELED). */
	int (*progress)(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata);
	void *userdata;
	_Atomic uint64_t *
		moved; /* bytes prepared or read, just before each `progress`: it stands still when all does; or NULL */
};

/* Blocking; run it on a thread of its own. */
int store_load(struct resident **ret, const struct store_params *params, struct moe_error *err);

/* The same model again from what is left of it, which is taken over but for the books, also on failure. Nothing is
 * read from disk. -EPROTO: records of another layout version. */
int store_adopt(struct resident **ret, struct store_left *left, const struct host *host, struct moe_error *err);
void store_left_close(struct store_left *left);
void store_fill_books(struct model_books *books, const struct resident *resident);

struct resident *resident_free(struct resident *resident); /* takes NULL, returns NULL */

#endif
