/* SPDX-License-Identifier: MIT */
/*
 * registry - the loaded models by name and digest, with what was counted for each.
 *
 * Law: the reactor's alone. A model with sessions is never removed. Counters are cumulative since the model was loaded:
 * a session that ends adds its snapshot to `retired`, so totals never go back.
 */
#ifndef DAEMON_REGISTRY_H
#define DAEMON_REGISTRY_H

#include <stdint.h>

#include "daemon/store.h"
#include "daemon/tier.h"
#include "daemon/heat.h"
#include "daemon/heats.h"
#include "daemon/mover.h"
#include "daemon/tally.h"
#include "uapi/moe_ring.h"

/* What the daemon itself did for one layer. */
struct served_layer {
	uint64_t computes, pairs, work_ns, wait_ns;
	uint64_t fills, fill_bytes, leases;
	uint64_t hinted, hint_used; /* experts announced; of them, asked for by the next COMPUTE or FILL of the layer */
};

/* The counters lie behind the books in one memory file, which a successor takes over. */
struct entry {
	struct resident *model;
	int books_fd;
	struct model_books *books;
	struct served_layer *served;     /* [n_layers] */
	struct moe_layer_stats *retired; /* [n_layers], of sessions that have ended */
	struct heat_cell *heat;          /* [n_moe_layers][n_experts] */
	int tally_fd;
	struct tally *tally;         /* histograms of layers, ghosts of sessions that have ended */
	struct heats_table *lasting; /* the service's: heat of all sessions of these weights; NULL: none */
	struct tier *tier;           /* NULL: the model is all there */
	struct mover *mover;         /* NULL: no copies of hot experts (ReplicaMax=) */
	bool kept;                   /* the keeper has it (estate.h) */
	struct entry *next;
};

struct registry {
	struct entry *head;
	uint32_t n;
};

/* Before a load: -EINVAL when it is no name, -EEXIST when it is taken. */
int registry_check_name(const struct registry *registry, const char *name, struct moe_error *err);

/* Takes the model over; -EEXIST when the name is taken, -ENOMEM. */
int registry_add(struct registry *registry, struct resident *model, struct entry **ret, struct moe_error *err);

/* The same with the books that it had in a daemon before (books_fd is taken over, also on failure). */
int registry_adopt(struct registry *registry, struct resident *model, int books_fd, struct moe_error *err);

/* A copy of the books that registry_add() makes for a model of no tier, books->bytes long, which the caller frees; NULL
 * for want of memory. Of any thread. */
struct model_books *registry_new_books(const struct resident *model);

/* In place of the entry's new and empty tally that of a daemon before, which is taken over, also on failure: as
 * tally_open(), and the entry keeps its own. */
int registry_adopt_tally(struct entry *entry, int fd, struct moe_error *err);

/* Books of a daemon before, checked; the caller unmaps books->bytes of it. The fd stays the caller's. */
int registry_open_books(struct model_books **ret, int fd, struct moe_error *err);

/* By name ("": any) and digest (NULL or zeros: any). -ENOENT and the reason when there is none or no single one. */
int registry_find(const struct registry *registry, const char *name, const uint8_t *digest, struct entry **ret,
		  struct moe_error *err);

/* The model with this epoch, or NULL. */
struct entry *registry_by_epoch(const struct registry *registry, uint64_t epoch);

/* The model that was loaded from this folder or file (absolute) under this name, or NULL. */
struct entry *registry_by_path(const struct registry *registry, const char *path, const char *name);

/* -ENOENT; -EBUSY while sessions are attached. Frees the model. */
int registry_remove(struct registry *registry, const char *name, struct moe_error *err);
void registry_clear(struct registry *registry);

/* A tiered model begins to be served: with a tier, that is paused, and the policy that its books name. 0 for all
 * others. */
int registry_start_tier(struct entry *entry, struct loop *loop, struct moe_error *err);

/* The model's hot experts get copies from now on, if `params` has room for some; says in the log why not. */
void registry_start_mover(struct entry *entry, const struct mover_params *params);
/* Before the pool's end. */
void registry_stop_movers(struct registry *registry);

/* Of a tiered model: now and, by its books, under a successor. -EINVAL: no rule for frames, -EOPNOTSUPP: the model is
 * not tiered, -E2BIG: its tables would be too large, -ENOMEM. */
int registry_set_policy(struct entry *entry, const char *policy, struct moe_error *err);

/* Bytes of one model's pool files. */
uint64_t registry_model_bytes(const struct resident *model);

/* Bytes of all models' pool files. */
uint64_t registry_bytes(const struct registry *registry);

#endif
