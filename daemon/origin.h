/* SPDX-License-Identifier: MIT */
/*
 * origin - the files that a served model was loaded from, for who reads its records again.
 *
 * Law: a record is what the manifest says or it is an error. Files are opened when they are needed first, and stay
 * open; after a restart nothing is known of them but the folder's name. What is laid out anew must fit the manifest,
 * and what is read is believed only when its digest is the record's: files that change under the daemon cost an error
 * (-ESTALE), never a wrong weight.
 *
 * One thread opens and lists; others may check records whose pieces it has listed.
 */
#ifndef DAEMON_ORIGIN_H
#define DAEMON_ORIGIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/piece.h"
#include "daemon/shardfile.h"
#include "model/model.h"
#include "moe-error.h"
#include "uapi/moe_manifest.h"

struct origin {
	char *path;
	const struct moe_manifest *manifest;
	struct model *model;     /* NULL: not open */
	struct shardfile *files; /* [model->n_shards] */
	uint32_t *layers;        /* [n_moe_layers]: of each row */
	bool buffered;           /* O_DIRECT is not tried */
	uint64_t failed_ns;      /* until then opening it fails as it did last */
	struct moe_error failed;
	_Atomic bool indirect; /* a file was opened without O_DIRECT */
};

/* `model` is taken over, also on failure; NULL: origin_open() opens it. */
int origin_init(struct origin *ret, const char *path, const struct moe_manifest *manifest, struct model *model,
		bool buffered, struct moe_error *err);
void origin_end(struct origin *origin); /* also one that was never more than zeros */

/* The model is open. */
int origin_open(struct origin *origin, struct moe_error *err);

/* 0 when all files that were opened still are what they were then. */
int origin_check_files(const struct origin *origin, struct moe_error *err);

/* The largest of all records, PIECE_GRANULE_MAX at most. It is open. */
uint64_t origin_granule(const struct origin *origin);

/* The pieces of a record in file order, as piece_check() wants them; their files are open. */
int origin_list(struct origin *origin, uint32_t record, struct piece ret[EXPERT_SOURCES_MAX], uint32_t *ret_n,
		struct moe_error *err);

/* The record at `share` [n_pools] is the manifest's, or -ESTALE, with `first`, its first piece, for the message; with
 * `learn` its digest goes there instead. */
int origin_check(const struct origin *origin, uint32_t record, const uint8_t *const *share, const struct piece *first,
		 uint8_t *learn, struct moe_error *err);

#endif
