/* SPDX-License-Identifier: MIT */
/* The statistics: of models and their layers, and of sessions and their modes. */
#include <stdlib.h>

#include "base/util.h"
#include "daemon/documents-ghosts.h"
#include "daemon/documents-internal.h"
#include "daemon/documents-replicas.h"
#include "daemon/documents-times.h"
#include "daemon/ringsrv.h"

static const char *const mode_names[MOE_STATS_MODES] = {"decode", "prefetch", "full", "dual_batch"};

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

/* -- in the making ------------------------------------------------------------------------------------------------ */

/* Of a layer, over all sessions. */
struct layer_sums {
	struct moe_layer_stats counters;
	struct histogram waits;
};

struct model_sums {
	const struct entry *entry;
	struct model_ghosts ghosts;
	struct moe_layer_stats counters; /* of the layers that have their part */
	struct served_layer served;
	struct times times;
	json_t *parts;
	struct layer_sums *layers; /* [n_layers] */
};

struct stats {
	const struct service *service;
	json_t *sessions, *models;
	uint32_t n, at, layer; /* models; and where the next part is */
	struct model_sums model[];
};

/* What has ended so far. */
static bool begin_model(struct model_sums *m, const struct entry *e)
{
	const uint32_t n = e->model->manifest->n_layers;

	*m = (struct model_sums){.entry = e, .ghosts = e->tally->ghosts, .parts = json_array()};
	m->layers = calloc(n, sizeof *m->layers);
	for (uint32_t i = 0; m->layers && i < n; i++)
		m->layers[i] = (struct layer_sums){e->retired[i], e->tally->layers[i].part[TIMES_WAIT]};
	return m->layers && m->parts;
}

struct stats *stats_begin(const struct service *s)
{
	struct stats *stats = calloc(1, sizeof *stats + s->registry.n * sizeof stats->model[0]);
	bool good = stats;

	if (!stats)
		return NULL;
	stats->service = s;
	stats->sessions = json_array();
	stats->models = json_array();
	for (const struct entry *e = s->registry.head; e && good; e = e->next)
		good = begin_model(&stats->model[stats->n++], e);
	if (good && stats->sessions && stats->models)
		return stats;
	json_decref(stats_end(stats));
	return NULL;
}

static void add_to_model(struct model_sums *m, const struct session *x)
{
	struct moe_ghost_stats ghosts;

	for (uint32_t l = 0; l < m->entry->model->manifest->n_layers; l++) {
		struct moe_layer_stats now;

		ringsrv_read_stats(x, l, &now);
		layer_stats_add(&m->layers[l].counters, &now, x->attach.tp_rank == 0);
		ringsrv_add_waits(x, l, &m->layers[l].waits);
	}
	ringsrv_read_ghosts(x, &ghosts);
	model_ghosts_add(&m->ghosts, &ghosts);
}

void stats_add_session(struct stats *stats, const struct session *x, bool there)
{
	for (uint32_t i = 0; i < stats->n; i++)
		if (stats->model[i].entry == x->entry)
			add_to_model(&stats->model[i], x);
	if (there)
		json_array_append_new(stats->sessions, session_stats_json(x));
}

static void add_layer(struct model_sums *m, uint32_t l)
{
	const struct entry *e = m->entry;
	struct times times = e->tally->layers[l];
	json_t *layer = json_pack("{s:i}", "layer", (int)l);

	times.part[TIMES_WAIT] = m->layers[l].waits;
	add_counters(layer, &m->layers[l].counters);
	add_served(layer, &e->served[l]);
	add_slack(layer, &m->layers[l].counters);
	json_object_set_new(layer, "times", documents_times(&times));
	json_array_append_new(m->parts, layer);
	layer_stats_add(&m->counters, &m->layers[l].counters, true);
	served_add(&m->served, &e->served[l]);
	times_add(&m->times, &times);
}

static json_t *end_model(struct model_sums *m, const struct service *s)
{
	const struct moe_manifest *manifest = m->entry->model->manifest;
	json_t *totals = json_object(), *o;

	add_counters(totals, &m->counters);
	add_served(totals, &m->served);
	json_object_set_new(totals, "times", documents_times(&m->times));
	json_object_set_new(totals, "leases_held", integer(m->entry->model->leases));
	json_object_set_new(totals, "tier", tier_json(m->entry));
	json_object_set_new(totals, "replicas", documents_replicas(s, m->entry));
	o = json_pack("{s:s, s:o, s:i, s:i, s:o, s:o}", "name", manifest->name, "digest", digest_json(manifest->digest),
		      "experts", (int)manifest->n_experts, "topk", (int)manifest->topk, "layers", m->parts, "totals",
		      totals);
	m->parts = NULL;
	documents_add_model_ghosts(o, m->entry, &m->ghosts, &m->counters);
	return o;
}

bool stats_add_layer(struct stats *stats)
{
	struct model_sums *m = &stats->model[stats->at];

	if (stats->at == stats->n)
		return false;
	if (stats->layer < m->entry->model->manifest->n_layers) {
		if (m->entry->model->layer_index[stats->layer] >= 0)
			add_layer(m, stats->layer);
		stats->layer++;
		return true;
	}
	json_array_append_new(stats->models, end_model(m, stats->service));
	stats->at++;
	stats->layer = 0;
	return true;
}

json_t *stats_end(struct stats *stats)
{
	const struct service *s = stats->service;
	json_t *document = json_pack("{s:I, s:o, s:o, s:o}", "uptime_ns", (json_int_t)(now_ns() - s->started_ns),
				     "models", stats->models, "sessions", stats->sessions, "accounts",
				     accounts_json(s));

	for (uint32_t i = 0; i < stats->n; i++) {
		free(stats->model[i].layers);
		json_decref(stats->model[i].parts);
	}
	free(stats);
	return document;
}
