/* SPDX-License-Identifier: MIT */
/*
 * heats - the lasting heat of the loaded models: one table for each digest, in memory and on disk.
 *
 * Law: a table is there as long as a model of its digest is loaded. It begins with what a daemon before has left in
 * memory (with the keeper), else with what is on disk, else empty. It is saved when its steps have grown by
 * HEATS_SAVE_STEPS, at most every HEATS_SAVE_NS, and when its last model is unloaded or the daemon ends; without a
 * folder it is never saved. What is forgotten is removed from disk, in its turn among the saves. Nobody waits for
 * either, but at the daemon's end: what is unloaded stays in memory until it is over, and is taken from there when it
 * is loaded again. What lies on disk is read by the thread that loads; what is unloaded meanwhile is newer, and stays
 * in memory as well. What cannot be read, saved or removed is said once, and costs nobody anything but heat.
 */
#ifndef DAEMON_HEATS_H
#define DAEMON_HEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/heat-table.h"

#define HEATS_SAVE_STEPS 1024u
#define HEATS_SAVE_NS 10000000000u

struct entry;
struct handover;
struct heat_save;

struct heats_table {
	struct heats_table *next;
	struct heat_page *page; /* of `fd` */
	int fd;
	uint64_t bytes;
	uint64_t every; /* steps that halve it */
	uint32_t users; /* entries */
};

struct heats {
	struct heats_table *first;
	char *folder; /* NULL: none */
	uint64_t every;
	struct heat_save *save;      /* in progress */
	struct heats_table *parting; /* unloaded, until it is over */
	uint64_t saved_ns, looked_ns;
	bool complained; /* a save has failed, and none was good since */
	bool held;       /* somebody reads what lies on disk */
};

/* Of a model, what lies on disk: its page (NULL: there was no memory for it), and how reading it ended. */
struct heats_saved {
	struct heat_page *page;
	int code;
	struct moe_error error;
};

/* Blocks. On any thread, with a folder that is the heats'; between heats_hold and heats_release, both the reactor's. */
void heats_read(struct heats_saved *ret, const char *folder, const struct moe_manifest *manifest);
void heats_saved_free(struct heats_saved *saved);
void heats_hold(struct heats *heats);
void heats_release(struct heats *heats);

/* With the keeper, where it is not yet; NULL: nothing. */
void heats_keep(struct handover *handover, const struct heats_table *table);
/* A model that is loaded gets its table; without memory it has none, and the log says so. `saved`: what was read for
 * it; without a page it is read now, where a table is neither there nor kept. */
void heats_join(struct heats *heats, struct handover *handover, struct entry *entry, const struct heats_saved *saved);
/* Before it is unloaded: its sessions have told theirs. Begins to save what is new. Without `handover` it stays kept.
 */
void heats_part(struct heats *heats, struct handover *handover, struct entry *entry);
/* At the end: waits for what is being saved. */
void heats_end(struct heats *heats);

/* Saves what is due, without waiting. */
void heats_look(struct heats *heats, uint64_t now);

/* In memory at once, on disk soon. -ENOENT: it has none; or another -errno: nothing is forgotten. */
int heats_forget(struct heats *heats, struct entry *entry, struct moe_error *err);

#endif
