/* SPDX-License-Identifier: MIT */
#include "daemon/documents-replicas.h"

static const char *const state_names[] = {"waits", "opens", "moves", "refused"};

static json_t *worth_json(const struct hot_worth *w)
{
	return json_pack("{s:f, s:f}", "covered", w->covered, "balance", w->balance);
}

static json_t *nodes_json(const struct service *s, const struct replicas_level *level)
{
	json_t *nodes = json_array();

	for (uint32_t n = 0; n < level->nodes; n++)
		json_array_append_new(nodes, json_pack("{s:i, s:i, s:I}", "node", s->host->nodes[n].id, "copies",
						       (int)level->copies[n], "bytes",
						       (json_int_t)(level->bytes / level->nodes)));
	return nodes;
}

json_t *documents_replicas(const struct service *s, const struct entry *e)
{
	struct mover_stats now;

	if (!e->mover)
		return json_null();
	mover_stats(e->mover, &now);
	return json_pack("{s:s, s:s, s:I, s:I, s:i, s:o, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}",
			 "state", state_names[now.state], "why", now.why, "limit", (json_int_t)now.level.limit, "bytes",
			 (json_int_t)now.level.bytes, "slots", (int)now.level.slots, "nodes", nodes_json(s, &now.level),
			 "used_slots", (int)now.level.used_slots, "old_tables", (int)now.level.old, "epoch",
			 (json_int_t)now.level.epoch, "looks", (json_int_t)now.looks, "layers_moved",
			 (json_int_t)now.layers_moved, "copies_made", (json_int_t)now.copies, "bytes_moved",
			 (json_int_t)now.bytes, "failed", (json_int_t)now.failed, "put_off", (json_int_t)now.put_off,
			 "before", worth_json(&now.before), "after", worth_json(&now.after));
}
