/* SPDX-License-Identifier: MIT */
/* The status, and the accounts of users, which the statistics have too. */
#include "daemon/documents-internal.h"

#include <unistd.h>

#include "base/uring.h"
#include "base/util.h"
#include "daemon/estate.h"
#include "daemon/handover.h"

static json_t *resources_json(const uint64_t amounts[ACCOUNT_RESOURCES])
{
	json_t *o = json_object();

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		json_object_set_new(o, account_resource_name((enum account_resource)i), integer(amounts[i]));
	return o;
}

json_t *accounts_json(const struct service *s)
{
	uint64_t limits[ACCOUNT_RESOURCES];
	json_t *users = json_array();

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		limits[i] = accounts_limit(s->accounts, (enum account_resource)i);
	for (const struct account *u = accounts_first(s->accounts); u; u = u->next) {
		json_t *user = resources_json(u->held);

		json_object_set_new(user, "uid", integer(u->uid));
		json_object_set_new(user, "pool_ns", integer(u->pool_ns));
		json_object_set_new(user, "refused", resources_json(u->refused));
		json_array_append_new(users, user);
	}
	return json_pack("{s:o, s:o}", "limits", resources_json(limits), "users", users);
}

json_t *loading_json(const struct service *s)
{
	const struct load *load = s->load;
	uint64_t done;

	if (!load)
		return json_null();
	done = atomic_load(&load->done_bytes);
	return json_pack("{s:o, s:o, s:I, s:I, s:I, s:o}", "name", path_json(load->name), "path", path_json(load->path),
			 "done_bytes", (json_int_t)done, "total_bytes", (json_int_t)atomic_load(&load->total_bytes),
			 "elapsed_ns", (json_int_t)atomic_load(&load->elapsed_ns), "eta_ns",
			 done ? integer(load_eta_ns(load)) : json_null()); /* nothing is known of the rate */
}

/* By name: what the reactor uses, what else is there, and what this kernel has not. */
static json_t *io_uring_json(const struct service *s)
{
	const uint64_t used = loop_uses(s->loop), there = (uint64_t)MAX(s->uring, 0) | used;
	json_t *lists[3] = {json_array(), json_array(), json_array()};

	for (int i = 0; i < URING_FEATURES; i++)
		json_array_append_new(lists[used >> i & 1    ? 0
					    : there >> i & 1 ? 1
							     : 2],
				      json_string(uring_facts[i].name));
	return json_pack("{s:o, s:o, s:o}", "used", lists[0], "available", lists[1], "missing", lists[2]);
}

/* By NUMA node: what the pool asked of its memory, and its threads there. */
static json_t *nodes_json(const struct service *s)
{
	json_t *nodes = json_array();

	for (uint32_t i = 0; i < s->host->n_nodes; i++) {
		struct pool_node_stats now;

		pool_node_stats(s->pool, i, &now);
		json_array_append_new(nodes, json_pack("{s:i, s:i, s:I, s:I, s:I, s:I}", "node", s->host->nodes[i].id,
						       "threads", (int)now.threads, "busy_ns", (json_int_t)now.busy_ns,
						       "read_bytes", (json_int_t)now.read_bytes, "copy_bytes",
						       (json_int_t)now.copy_bytes, "whole", (json_int_t)now.whole));
	}
	return nodes;
}

static json_t *bus_json(const struct service *s)
{
	const char *state, *why;

	bus_state(s, &state, &why);
	return json_pack("{s:s, s:s, s:s}", "state", state, "name", s->config->bus_name, "why", why);
}

/* The kernel module, and what lies there. */
static json_t *module_json(const struct service *s)
{
	static const char *const features[] = {"pools", "leases", "events", "seal", "dmabuf", "queue", "uring"};
	const struct modpools *m = &s->modpools;
	const struct modqueue *q = &s->modqueue;
	json_t *names = json_array();

	for (uint32_t i = 0; i < sizeof features / sizeof *features; i++)
		if (m->features & 1u << i)
			json_array_append_new(names, json_string(features[i]));
	return json_pack("{s:s, s:s, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:{s:s, s:I, s:I, s:I}}", "state",
			 modpools_state_name(m->state), "why", m->why, "version", (json_int_t)m->abi, "features", names,
			 "pools", (json_int_t)modpools_kept(m), "leases", (json_int_t)modpools_leases(m),
			 "models_taken", (json_int_t)m->taken, "leases_dropped", (json_int_t)m->dropped, "events_lost",
			 (json_int_t)m->lost, "queue", "way", modqueue_way(q), "fetched", (json_int_t)q->fetched,
			 "reissued", (json_int_t)q->reissued, "refused", (json_int_t)q->refused);
}

json_t *status_json(const struct service *s)
{
	struct pool_stats pool;
	uint64_t read = s->weight_bytes_read;
	const bool keeps = handover_keeps(s->handover);
	uint32_t live = 0, unkept = 0, tiered = 0;
	json_t *o, *cpu;

	pool_stats(s->pool, &pool);
	for (const struct entry *e = s->registry.head; e; e = e->next) {
		tiered += e->tier != NULL;
		read += e->tier ? tier_read_bytes(e->tier) : 0;
	}
	for (const struct session *x = s->sessions; x; x = x->next) {
		live += !x->dead;
		unkept += !x->dead && (x->unkept || !keeps);
	}
	cpu = json_pack("{s:i, s:s, s:s, s:i, s:I, s:I, s:I, s:I}", "threads", (int)pool_threads(s->pool), "isa",
			isa_name(s->config->isa), "isa_why", s->config->isa_why, "nodes", (int)s->host->n_nodes,
			"busy_ns", (json_int_t)pool.busy_ns, "jobs", (json_int_t)pool.jobs, "pairs",
			(json_int_t)pool.pairs, "copy_bytes", (json_int_t)pool.copy_bytes);
	json_object_set_new(cpu, "by_node", nodes_json(s));
	o = json_pack("{s:s, s:i, s:I, s:o, s:s, s:o}", "version", MOE_VERSION, "pid", (int)getpid(), "uptime_ns",
		      (json_int_t)(now_ns() - s->started_ns), "socket", path_json(s->config->socket), "state",
		      s->ready ? "ready" : "loading", "cpu", cpu);
	json_object_set_new(o, "models", integer(s->registry.n));
	json_object_set_new(o, "bytes", integer(registry_bytes(&s->registry)));
	json_object_set_new(o, "weight_bytes_read", integer(read));
	json_object_set_new(o, "restarts", integer(s->estate->restarts));
	json_object_set_new(o, "kept", json_boolean(keeps));
	json_object_set_new(o, "sessions_unkept", integer(unkept));
	json_object_set_new(o, "keeper_waits", integer(handover_waiting(s->handover)));
	json_object_set_new(o, "tiered", integer(tiered));
	json_object_set_new(o, "pool_max", integer(s->config->pool_max));
	json_object_set_new(o, "memory_max", integer(s->config->memory_max));
	json_object_set_new(o, "fill_budget", integer(sched_fill_budget(s->sched)));
	json_object_set_new(o, "sessions", integer(live));
	json_object_set_new(o, "connections", integer(s->n_peers));
	json_object_set_new(o, "queues_readonly", json_boolean(!s->writable_queues));
	json_object_set_new(o, "push_cuda", json_boolean(s->push));
	json_object_set_new(o, "push_ended", json_boolean(s->push && push_has_ended(s->push)));
	json_object_set_new(o, "weights_sealed", json_boolean(!s->config->writable_weights));
	json_object_set_new(o, "io_uring", io_uring_json(s));
	json_object_set_new(o, "bus", bus_json(s));
	json_object_set_new(o, "module", module_json(s));
	json_object_set_new(o, "draining", json_boolean(s->draining));
	json_object_set_new(o, "accounts", accounts_json(s));
	json_object_set_new(o, "loading", loading_json(s));
	return o;
}
