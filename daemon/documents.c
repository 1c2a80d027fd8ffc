/* SPDX-License-Identifier: MIT */
#include "daemon/documents.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/uring.h"
#include "base/util.h"
#include "daemon/documents-ghosts.h"
#include "daemon/documents-times.h"
#include "daemon/estate.h"
#include "daemon/handover.h"
#include "daemon/ringsrv.h"

static const char *const activation_names[] = {"silu", "gelu", "gelu_tanh", "swiglu_clamped"};
static const char *const phase_names[] = {"none", "prefill", "decode"};
static const char *const mode_names[MOE_STATS_MODES] = {"decode", "prefetch", "full", "dual_batch"};
static const char *const op_names[MOE_OP_COUNT] = {"nop",  "fill",  "compute", "release",
						   "hint", "phase", "cancel",  "agree"};

/* A path may be any bytes; JSON is UTF-8. */
static json_t *path_json(const char *path)
{
	json_t *text = json_string(path);
	char *copy = text ? NULL : strdup(path);

	if (text || !copy)
		return text;
	for (char *p = copy; *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	text = json_string(copy);
	free(copy);
	return text;
}

static json_t *integer(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static json_t *digest_json(const uint8_t *digest)
{
	char hex[2 * MOE_DIGEST_BYTES + 1];

	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	return json_string(hex);
}

/* -- models ------------------------------------------------------------------------------------------------------- */

static json_t *pool_json(const struct pages *p)
{
	return json_pack("{s:i, s:I, s:I, s:s, s:I, s:s}", "node", p->node, "bytes", (json_int_t)p->bytes, "page_bytes",
			 (json_int_t)pages_rung_bytes(p->rung), "rung", pages_rung_name(p->rung), "huge_bytes",
			 (json_int_t)p->huge_bytes, "better", p->better);
}

/* The distinct names. */
static json_t *formats_json(const struct resident *r)
{
	json_t *names = json_array();
	uint32_t seen = 0;

	for (uint32_t i = 0; i < r->manifest->n_layouts * MOE_PARTS; i++) {
		const uint32_t format = r->layouts[i / MOE_PARTS].part[i % MOE_PARTS].format;

		if (!(seen & 1u << format))
			json_array_append_new(names, json_string(moe_formats[format].name));
		seen |= 1u << format;
	}
	return names;
}

static json_t *layout_json(const struct resident *r, uint32_t number)
{
	const struct moe_layout *layout = &r->layouts[number];
	json_t *layers = json_array();

	for (uint32_t l = 0; l < r->manifest->n_layers; l++)
		if (r->layer_index[l] >= 0 && resident_layout(r, (uint32_t)r->layer_index[l]) == number)
			json_array_append_new(layers, integer(l));
	return json_pack("{s:s, s:s, s:I, s:i, s:o}", "gate_up", moe_formats[layout->part[MOE_PART_GATE].format].name,
			 "down", moe_formats[layout->part[MOE_PART_DOWN].format].name, "record_bytes",
			 (json_int_t)(layout->record_bytes * layout->shares), "tp_max", (int)moe_slice_units(layout),
			 "layers", layers);
}

static json_t *layouts_json(const struct resident *r)
{
	json_t *layouts = json_array();

	for (uint32_t i = 0; i < r->manifest->n_layouts; i++)
		json_array_append_new(layouts, layout_json(r, i));
	return layouts;
}

static json_t *model_json(const struct resident *r)
{
	const struct moe_manifest *m = r->manifest;
	json_t *pools = json_array();

	for (uint32_t i = 0; i < r->n_pools; i++)
		json_array_append_new(pools, pool_json(&r->pools[i]));
	return json_pack("{s:s, s:o, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:b, "
			 "s:i, s:i, s:I, s:o}",
			 "name", m->name, "digest", digest_json(m->digest), "path", path_json(r->path), "family",
			 r->family, "layers", (int)m->n_layers, "moe_layers", (int)m->n_moe_layers, "experts",
			 (int)m->n_experts, "topk", (int)m->topk, "hidden", (int)m->hidden, "inter", (int)m->inter,
			 "formats", formats_json(r), "layouts", layouts_json(r), "activation",
			 activation_names[m->activation], "record_bytes", (json_int_t)(m->record_bytes * m->n_pools),
			 "bytes", (json_int_t)registry_model_bytes(r), "read_bytes", (json_int_t)r->read_bytes,
			 "load_ns", (json_int_t)r->load_ns, "direct", r->direct, "sessions", (int)r->sessions, "leases",
			 (int)r->leases, "epoch", (json_int_t)m->epoch, "pools", pools);
}

/* A model that is all there has none. */
static json_t *tier_json(const struct entry *e)
{
	const struct moe_manifest *m = e->model->manifest;
	const struct frames_counters *c;
	struct frames_level level;

	if (!e->tier)
		return json_null();
	c = tier_counters(e->tier);
	frames_level(tier_frames(e->tier), &level);
	return json_pack(
		"{s:s, s:i, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		"policy", frames_policy(tier_frames(e->tier))->name, "frames", (int)level.frames, "records",
		(json_int_t)m->n_moe_layers * m->n_experts, "ready", (int)level.ready, "free", (int)level.free,
		"reading", (int)level.reading, "pinned", (int)level.pinned, "leased", (int)level.leased, "waiting",
		(int)level.waiting, "hits", (json_int_t)c->hits, "misses", (json_int_t)c->misses, "waits",
		(json_int_t)c->waits, "wait_ns", (json_int_t)c->wait_ns, "reads", (json_int_t)c->reads, "failures",
		(json_int_t)c->failures, "read_bytes", (json_int_t)c->read_bytes, "evictions", (json_int_t)c->evictions,
		"prefetches", (json_int_t)c->prefetches, "prefetch_used", (json_int_t)c->prefetch_used,
		"prefetch_wasted", (json_int_t)c->prefetch_wasted);
}

static json_t *model_with_tier(const struct entry *e)
{
	json_t *model = model_json(e->model);

	json_object_set_new(model, "tier", tier_json(e));
	return model;
}

static json_t *models_json(const struct service *s)
{
	json_t *models = json_array();

	for (const struct entry *e = s->registry.head; e; e = e->next)
		json_array_append_new(models, model_with_tier(e));
	return json_pack("{s:o}", "models", models);
}

/* -- sessions ----------------------------------------------------------------------------------------------------- */

static json_t *session_json(const struct session *x)
{
	json_t *ops = json_object();
	char group[20], device[20];

	snprintf(group, sizeof group, "%llx", (unsigned long long)x->attach.group);
	snprintf(device, sizeof device, "%llx", (unsigned long long)x->attach.device);
	for (int i = 0; i < MOE_OP_COUNT; i++)
		json_object_set_new(ops, op_names[i], integer(x->ops[i]));
	return json_pack(
		"{s:I, s:i, s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:s, s:b, s:b, s:I, s:i, s:i, s:I, s:I, "
		"s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:i, s:o}",
		"id", (json_int_t)x->id, "pid", (int)x->pid, "uid", (int)x->uid, "model",
		x->entry->model->manifest->name, "group", group, "device", device, "tp_rank", (int)x->attach.tp_rank,
		"tp_size", (int)x->attach.tp_size, "dp_rank", (int)x->attach.dp_rank, "ep_rank", (int)x->attach.ep_rank,
		"attached_ns", (json_int_t)(now_ns() - x->attached_ns), "phase", phase_names[x->phase], "dummy",
		x->dummy, "tapped", x->tapped, "step", (json_int_t)x->step, "in_flight", (int)x->in_flight, "leases",
		(int)x->leases_held, "data_bytes", (json_int_t)x->arenas[MOE_ARENA_DATA].bytes, "slot_bytes",
		(json_int_t)x->arenas[MOE_ARENA_SLOTS].bytes, "device_bytes", (json_int_t)x->device_bytes,
		"charged_bytes", (json_int_t)x->charge.held[ACCOUNT_BYTES], "pool_ns", (json_int_t)x->pool_ns, "failed",
		(json_int_t)x->failed, "cancelled", (json_int_t)x->cancelled, "fill_bytes_running",
		(json_int_t)sched_filling(&x->sched), "dp_size", (int)x->attach.dp_size, "requests", ops);
}

static json_t *sessions_array(const struct service *s)
{
	json_t *sessions = json_array();

	for (const struct session *x = s->sessions; x; x = x->next)
		if (!x->dead)
			json_array_append_new(sessions, session_json(x));
	return sessions;
}

/* -- accounts ----------------------------------------------------------------------------------------------------- */

static json_t *resources_json(const uint64_t amounts[ACCOUNT_RESOURCES])
{
	json_t *o = json_object();

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		json_object_set_new(o, account_resource_name((enum account_resource)i), integer(amounts[i]));
	return o;
}

static json_t *accounts_json(const struct service *s)
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

/* -- stats -------------------------------------------------------------------------------------------------------- */

static uint64_t all_pairs(const struct moe_layer_stats *t)
{
	return t->pairs_hit + t->pairs_miss_buffer + t->pairs_pool + t->pairs_cpu + t->pairs_local;
}

static void add_counters(json_t *o, const struct moe_layer_stats *t)
{
	const uint64_t pairs = all_pairs(t);

	json_object_set_new(o, "steps", integer(t->steps));
	json_object_set_new(o, "tokens", integer(t->tokens));
	json_object_set_new(o, "pairs",
			    json_pack("{s:I, s:I, s:I, s:I, s:I}", "hit", (json_int_t)t->pairs_hit, "miss_buffer",
				      (json_int_t)t->pairs_miss_buffer, "pool", (json_int_t)t->pairs_pool, "cpu",
				      (json_int_t)t->pairs_cpu, "local", (json_int_t)t->pairs_local));
	json_object_set_new(o, "resident_pairs", integer(t->pairs_resident));
	json_object_set_new(o, "hit_rate", pairs ? json_real((double)t->pairs_resident / (double)pairs) : json_null());
	json_object_set_new(o, "asked_experts", integer(t->experts_asked));
	json_object_set_new(o, "resident_experts", integer(t->experts_resident));
	json_object_set_new(o, "hit_rate_experts",
			    t->experts_asked ? json_real((double)t->experts_resident / (double)t->experts_asked)
					     : json_null());
	json_object_set_new(o, "fills", integer(t->fills));
	json_object_set_new(o, "bytes", integer(t->fill_bytes));
	json_object_set_new(o, "reads", integer(t->reads));
	json_object_set_new(o, "read_bytes", integer(t->read_bytes));
	json_object_set_new(o, "wait_ns", integer(t->wait_ns));
	json_object_set_new(o, "cpu_ns", integer(t->cpu_ns));
	json_object_set_new(o, "device_ns", integer(t->device_ns));
	json_object_set_new(o, "copy_ns", integer(t->copy_ns));
	json_object_set_new(
		o, "predict",
		json_pack("{s:I, s:I, s:I, s:o}", "guessed", (json_int_t)t->guessed, "asked",
			  (json_int_t)t->guess_asked, "found", (json_int_t)t->guess_found, "recall",
			  t->guess_asked ? json_real((double)t->guess_found / (double)t->guess_asked) : json_null()));
}

static void add_served(json_t *o, const struct served_layer *served)
{
	json_object_set_new(o, "served",
			    json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "computes",
				      (json_int_t)served->computes, "pairs", (json_int_t)served->pairs, "work_ns",
				      (json_int_t)served->work_ns, "wait_ns", (json_int_t)served->wait_ns, "fills",
				      (json_int_t)served->fills, "fill_bytes", (json_int_t)served->fill_bytes, "leases",
				      (json_int_t)served->leases, "hinted", (json_int_t)served->hinted, "hint_used",
				      (json_int_t)served->hint_used));
}

/* Slots minus the mean active set: with nothing to spare every step evicts what it needs next ("capacity deadlock"). */
static void add_slack(json_t *o, const struct moe_layer_stats *t)
{
	const double active = t->steps ? (double)t->active_sum / (double)t->steps : 0;

	json_object_set_new(o, "slots", integer(t->slots));
	json_object_set_new(o, "active_mean", json_real(active));
	json_object_set_new(o, "active_max", integer(t->active_max));
	json_object_set_new(o, "slack", json_real((double)t->slots - active));
	if (t->slots > 0 && t->steps > 0 && (double)t->slots - active <= 0)
		json_object_set_new(
			o, "warning",
			json_string("slots minus active experts is not positive: each step evicts what the next "
				    "one needs; more slots, smaller batches or fewer tokens a step help"));
}

static void layer_totals(const struct service *s, const struct entry *e, uint32_t layer, struct moe_layer_stats *ret)
{
	*ret = e->retired[layer];
	for (const struct session *x = s->sessions; x; x = x->next) {
		struct moe_layer_stats now;

		if (x->dead || x->entry != e)
			continue;
		ringsrv_read_stats(x, layer, &now);
		layer_stats_add(ret, &now, x->attach.tp_rank == 0);
	}
}

static void served_add(struct served_layer *to, const struct served_layer *from)
{
	to->computes += from->computes;
	to->pairs += from->pairs;
	to->work_ns += from->work_ns;
	to->wait_ns += from->wait_ns;
	to->fills += from->fills;
	to->fill_bytes += from->fill_bytes;
	to->leases += from->leases;
	to->hinted += from->hinted;
	to->hint_used += from->hint_used;
}

static json_t *model_stats_json(const struct service *s, const struct entry *e)
{
	const struct moe_manifest *m = e->model->manifest;
	struct moe_layer_stats total = {0};
	struct served_layer served = {0};
	struct times times, all_times = {0};
	json_t *layers = json_array(), *totals = json_object();

	for (uint32_t l = 0; l < m->n_layers; l++) {
		struct moe_layer_stats now;
		json_t *layer;

		if (e->model->layer_index[l] < 0)
			continue;
		layer_totals(s, e, l, &now);
		layer = json_pack("{s:i}", "layer", (int)l);
		add_counters(layer, &now);
		add_served(layer, &e->served[l]);
		add_slack(layer, &now);
		documents_layer_times(s, e, l, &times);
		json_object_set_new(layer, "times", documents_times(&times));
		times_add(&all_times, &times);
		json_array_append_new(layers, layer);
		layer_stats_add(&total, &now, true);
		served_add(&served, &e->served[l]);
	}
	add_counters(totals, &total);
	add_served(totals, &served);
	json_object_set_new(totals, "times", documents_times(&all_times));
	json_object_set_new(totals, "leases_held", integer(e->model->leases));
	json_object_set_new(totals, "tier", tier_json(e));
	return json_pack("{s:s, s:o, s:i, s:i, s:o, s:o}", "name", m->name, "digest", digest_json(m->digest), "experts",
			 (int)m->n_experts, "topk", (int)m->topk, "layers", layers, "totals", totals);
}

/* What a client says may be any number. */
static json_t *ns_json(double ns)
{
	return json_integer((json_int_t)MIN(ns, 9e18));
}

/* Parts that could run side by side: one after the other they take t_wait + t_compute, at best t_ideal. */
static json_t *mode_json(const struct moe_mode_stats *m)
{
	const double wait = (double)m->copy_ns, device = (double)m->device_ns, cpu = (double)m->cpu_ns;
	const double serial = wait + device + cpu, ideal = MAX(wait, MAX(device, cpu)), gain = serial - ideal;

	return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "steps", (json_int_t)m->steps,
			 "hidden_steps", (json_int_t)m->hidden, "reads", (json_int_t)m->reads, "read_bytes",
			 (json_int_t)m->read_bytes, "t_wait_ns", ns_json(wait), "t_compute_ns", ns_json(device + cpu),
			 "device_ns", ns_json(device), "cpu_ns", ns_json(cpu), "t_ideal_ns", ns_json(ideal), "gain_ns",
			 ns_json(gain), "t_step_ns", ns_json((double)m->taken_ns), "overlap_efficiency",
			 gain > 0 ? json_real((serial - (double)m->taken_ns) / gain) : json_null());
}

static json_t *modes_json(const struct session *x)
{
	json_t *modes = json_object();

	for (int i = 0; i < MOE_STATS_MODES; i++) {
		struct moe_mode_stats now;

		ringsrv_read_mode(x, (enum moe_stats_mode)i, &now);
		json_object_set_new(modes, mode_names[i], mode_json(&now));
	}
	return modes;
}

static json_t *session_stats_json(const struct session *x)
{
	struct moe_layer_stats total = {0};
	json_t *o = session_json(x);

	for (uint32_t l = 0; l < x->entry->model->manifest->n_layers; l++) {
		struct moe_layer_stats now;

		ringsrv_read_stats(x, l, &now);
		layer_stats_add(&total, &now, true);
	}
	add_counters(o, &total);
	json_object_set_new(o, "modes", modes_json(x));
	json_object_set_new(o, "times", documents_session_times(x));
	documents_add_ghosts(o, x, &total);
	return o;
}

static json_t *stats_json(const struct service *s)
{
	json_t *models = json_array(), *sessions = json_array();

	for (const struct entry *e = s->registry.head; e; e = e->next)
		json_array_append_new(models, model_stats_json(s, e));
	for (const struct session *x = s->sessions; x; x = x->next)
		if (!x->dead)
			json_array_append_new(sessions, session_stats_json(x));
	return json_pack("{s:I, s:o, s:o, s:o}", "uptime_ns", (json_int_t)(now_ns() - s->started_ns), "models", models,
			 "sessions", sessions, "accounts", accounts_json(s));
}

/* -- heat --------------------------------------------------------------------------------------------------------- */

static json_t *layer_heat_json(const struct entry *e, uint32_t layer)
{
	const uint32_t experts = e->model->manifest->n_experts;
	const struct heat_cell *row = &e->heat[(size_t)e->model->layer_index[layer] * experts];
	json_t *pairs = json_array(), *copies = json_array();

	for (uint32_t i = 0; i < experts; i++) {
		json_array_append_new(pairs, integer(row[i].pairs));
		json_array_append_new(copies, integer(row[i].copies));
	}
	return json_pack("{s:i, s:o, s:o}", "layer", (int)layer, "pairs", pairs, "copies", copies);
}

static json_t *heat_json(const struct service *s)
{
	json_t *models = json_array();

	for (const struct entry *e = s->registry.head; e; e = e->next) {
		const struct moe_manifest *m = e->model->manifest;
		json_t *layers = json_array();

		for (uint32_t l = 0; l < m->n_layers; l++)
			if (e->model->layer_index[l] >= 0)
				json_array_append_new(layers, layer_heat_json(e, l));
		json_array_append_new(models, json_pack("{s:s, s:o, s:i, s:o}", "name", m->name, "digest",
							digest_json(m->digest), "experts", (int)m->n_experts, "layers",
							layers));
	}
	return json_pack("{s:o}", "models", models);
}

/* -- status ------------------------------------------------------------------------------------------------------- */

static json_t *loading_json(const struct service *s)
{
	const struct load *load = s->load;

	if (!load)
		return json_null();
	return json_pack("{s:o, s:I, s:I, s:I, s:I}", "path", path_json(load->path), "done_bytes",
			 (json_int_t)atomic_load(&load->done_bytes), "total_bytes",
			 (json_int_t)atomic_load(&load->total_bytes), "elapsed_ns",
			 (json_int_t)atomic_load(&load->elapsed_ns), "eta_ns", (json_int_t)load_eta_ns(load));
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
		json_array_append_new(nodes,
				      json_pack("{s:i, s:i, s:I, s:I, s:I}", "node", s->host->nodes[i].id, "threads",
						(int)now.threads, "busy_ns", (json_int_t)now.busy_ns, "read_bytes",
						(json_int_t)now.read_bytes, "copy_bytes", (json_int_t)now.copy_bytes));
	}
	return nodes;
}

static json_t *bus_json(const struct service *s)
{
	const char *state, *why;

	bus_state(s, &state, &why);
	return json_pack("{s:s, s:s, s:s}", "state", state, "name", s->config->bus_name, "why", why);
}

static json_t *status_json(const struct service *s)
{
	struct pool_stats pool;
	uint64_t read = s->weight_bytes_read;
	uint32_t live = 0, tiered = 0;
	json_t *o, *cpu;

	pool_stats(s->pool, &pool);
	for (const struct entry *e = s->registry.head; e; e = e->next) {
		tiered += e->tier != NULL;
		read += e->tier ? tier_read_bytes(e->tier) : 0;
	}
	for (const struct session *x = s->sessions; x; x = x->next)
		live += !x->dead;
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
	json_object_set_new(o, "kept", json_boolean(handover_keeps(s->handover)));
	json_object_set_new(o, "tiered", integer(tiered));
	json_object_set_new(o, "pool_max", integer(s->config->pool_max));
	json_object_set_new(o, "memory_max", integer(s->config->memory_max));
	json_object_set_new(o, "fill_budget", integer(sched_fill_budget(s->sched)));
	json_object_set_new(o, "sessions", integer(live));
	json_object_set_new(o, "connections", integer(s->n_peers));
	json_object_set_new(o, "queues_readonly", json_boolean(!s->writable_queues));
	json_object_set_new(o, "push_cuda", json_boolean(s->push));
	json_object_set_new(o, "weights_sealed", json_boolean(!s->config->writable_weights));
	json_object_set_new(o, "io_uring", io_uring_json(s));
	json_object_set_new(o, "bus", bus_json(s));
	json_object_set_new(o, "draining", json_boolean(s->draining));
	json_object_set_new(o, "accounts", accounts_json(s));
	json_object_set_new(o, "loading", loading_json(s));
	return o;
}

int document_make(const struct service *service, uint32_t what, char **ret, struct moe_error *err)
{
	size_t flags = JSON_INDENT(1);
	json_t *document;
	char *text;

	switch (what) {
	case MOE_QUERY_STATUS:
		document = status_json(service);
		break;
	case MOE_QUERY_STATS:
		document = stats_json(service);
		break;
	case MOE_QUERY_MODELS:
		document = models_json(service);
		break;
	case MOE_QUERY_SESSIONS:
		document = json_pack("{s:o}", "sessions", sessions_array(service));
		break;
	case MOE_QUERY_HEAT:
		document = heat_json(service);
		flags = JSON_COMPACT; /* it is large */
		break;
	default:
		return moe_error_set(err, -EINVAL, "query: document %u found, 1 to 5 expected", what);
	}
	text = document ? json_dumps(document, flags) : NULL;
	json_decref(document);
	if (!text)
		return moe_error_sys(err, -ENOMEM, "query");
	*ret = text;
	return 0;
}

bool documents_make(const struct service *service, struct documents *ret)
{
	*ret = (struct documents){status_json(service), stats_json(service), models_json(service)};
	if (ret->status && ret->stats && ret->models)
		return true;
	documents_free(ret);
	return false;
}

void documents_free(struct documents *d)
{
	json_decref(d->status);
	json_decref(d->stats);
	json_decref(d->models);
	*d = (struct documents){0};
}
