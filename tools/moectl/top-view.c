/* SPDX-License-Identifier: MIT */
#include "top-view.h"

#include <stdlib.h>
#include <string.h>

#include "moectl.h"

static const char *const path_names[TOP_PATHS] = {"hit", "miss_buffer", "pool", "cpu", "local"};
static const char *const order_names[TOP_ORDERS] = {"pairs", "hit rate", "fills", "wait", "pid"};

/* A terminal is not to be steered by a model's name. */
static void plain(char to[TOP_TEXT], const char *from)
{
	size_t i;

	for (i = 0; from[i] && i + 1 < TOP_TEXT; i++)
		to[i] = from[i] >= ' ' && from[i] < 0x7f ? from[i] : '?';
	to[i] = '\0';
}

/* A second, over `seconds`; what has become less began anew. */
static double rate(const json_t *before, const json_t *now, const char *key, double seconds)
{
	const double change = get_number(now, key) - get_number(before, key);

	if (!before || seconds <= 0)
		return TOP_UNKNOWN;
	return change > 0 ? change / seconds : 0;
}

static void make_rates(struct top_rates *ret, const json_t *before, const json_t *now, double seconds)
{
	const json_t *pairs = json_object_get(now, "pairs"), *pairs_before = json_object_get(before, "pairs");
	const double resident = rate(before, now, "resident_pairs", seconds);
	const double wait = rate(before, now, "wait_ns", seconds);

	*ret = (struct top_rates){.hit_rate = TOP_UNKNOWN};
	for (int i = 0; i < TOP_PATHS; i++) {
		ret->pairs[i] = rate(pairs_before, pairs, path_names[i], seconds);
		ret->all_pairs += ret->pairs[i];
	}
	if (!before || seconds <= 0)
		ret->all_pairs = TOP_UNKNOWN;
	if (ret->all_pairs > 0)
		ret->hit_rate = resident < ret->all_pairs ? resident / ret->all_pairs : 1;
	ret->fill_bytes = rate(before, now, "bytes", seconds);
	ret->wait = wait < 0 ? TOP_UNKNOWN : wait / 1e9;
}

/* The element of `list` with the same value of both keys (the second may be NULL). */
static const json_t *find(const json_t *list, const json_t *like, const char *key, const char *other)
{
	const json_t *element;
	size_t i;

	json_array_foreach (list, i, element)
		if (json_equal(json_object_get(element, key), json_object_get(like, key)) &&
		    (!other || json_equal(json_object_get(element, other), json_object_get(like, other))))
			return element;
	return NULL;
}

static void make_sessions(struct top_view *v, const json_t *before, const json_t *now, double seconds)
{
	const json_t *s;
	size_t i;

	v->sessions = calloc(json_array_size(now) + 1, sizeof *v->sessions);
	if (!v->sessions)
		return;
	json_array_foreach (now, i, s) {
		struct top_session *to = &v->sessions[v->n_sessions++];

		to->id = get_number(s, "id");
		to->pid = get_number(s, "pid");
		to->uid = get_number(s, "uid");
		plain(to->model, get_text(s, "model"));
		plain(to->phase, get_text(s, "phase"));
		make_rates(&to->rates, find(before, s, "id", "pid"), s, seconds);
	}
}

static void make_models(struct top_view *v, const json_t *before, const json_t *now, double seconds)
{
	const json_t *m;
	size_t i;

	v->models = calloc(json_array_size(now) + 1, sizeof *v->models);
	if (!v->models)
		return;
	json_array_foreach (now, i, m) {
		const json_t *was = find(before, m, "name", "digest"), *totals = json_object_get(m, "totals");
		const json_t *tier = json_object_get(totals, "tier");
		const double hits = get_number(tier, "hits"), misses = get_number(tier, "misses");
		struct top_model *to = &v->models[v->n_models++];

		plain(to->name, get_text(m, "name"));
		to->found = hits + misses > 0 ? hits / (hits + misses) : TOP_UNKNOWN;
		make_rates(&to->rates, json_object_get(was, "totals"), totals, seconds);
		for (unsigned j = 0; j < v->n_sessions; j++)
			to->sessions += strcmp(v->sessions[j].model, to->name) == 0;
	}
}

/* Of so many threads, the share of their time that they worked. */
static double load_of(const json_t *before, const json_t *now, double seconds)
{
	const double busy = rate(before, now, "busy_ns", seconds), threads = get_number(now, "threads");

	if (busy < 0 || threads < 1)
		return TOP_UNKNOWN;
	return busy / 1e9 < threads ? busy / 1e9 / threads : 1;
}

static void make_nodes(struct top_view *v, const json_t *before, const json_t *now, double seconds)
{
	const json_t *n;
	size_t i;

	v->nodes = calloc(json_array_size(now) + 1, sizeof *v->nodes);
	if (!v->nodes)
		return;
	json_array_foreach (now, i, n) {
		const json_t *was = find(before, n, "node", NULL);

		v->nodes[v->n_nodes++] = (struct top_node){
			.node = get_number(n, "node"),
			.threads = get_number(n, "threads"),
			.load = load_of(was, n, seconds),
			.read_bytes = rate(was, n, "read_bytes", seconds),
			.copy_bytes = rate(was, n, "copy_bytes", seconds),
		};
	}
}

static double seconds_between(const json_t *before, const json_t *now)
{
	return (get_number(now, "uptime_ns") - get_number(before, "uptime_ns")) / 1e9;
}

void top_view_make(struct top_view *ret, const struct top_documents *before, const struct top_documents *now)
{
	const json_t *status = now->status, *stats = now->stats, *cpu = json_object_get(status, "cpu");
	const json_t *loading = json_object_get(status, "loading");
	const bool same = before->status && get_number(before->status, "pid") == get_number(status, "pid");
	const json_t *was = same ? before->status : NULL, *was_cpu = json_object_get(was, "cpu");
	const json_t *was_stats = same ? before->stats : NULL;
	const double seconds = seconds_between(was, status), stats_seconds = seconds_between(was_stats, stats);

	*ret = (struct top_view){
		.loading_share = TOP_UNKNOWN,
		.loading_eta_ns = TOP_UNKNOWN,
		.pid = get_number(status, "pid"),
		.uptime_ns = get_number(status, "uptime_ns"),
		.bytes = get_number(status, "bytes"),
		.threads = get_number(cpu, "threads"),
		.load = load_of(was_cpu, cpu, seconds),
		.pool_pairs = rate(was_cpu, cpu, "pairs", seconds),
	};
	plain(ret->version, get_text(status, "version"));
	plain(ret->state, get_text(status, "state"));
	if (json_is_object(loading)) {
		const double total = get_number(loading, "total_bytes");

		plain(ret->loading, get_text(loading, "path"));
		ret->loading_share = total > 0 ? get_number(loading, "done_bytes") / total : 0;
		if (json_is_number(json_object_get(loading, "eta_ns")))
			ret->loading_eta_ns = get_number(loading, "eta_ns");
	}
	make_sessions(ret, json_object_get(was_stats, "sessions"), json_object_get(stats, "sessions"), stats_seconds);
	make_models(ret, json_object_get(was_stats, "models"), json_object_get(stats, "models"), stats_seconds);
	make_nodes(ret, json_object_get(was_cpu, "by_node"), json_object_get(cpu, "by_node"), seconds);
}

/* -- order -------------------------------------------------------------------------------------------------------- */

/* Large first. */
static double weight(const struct top_session *s, enum top_order order)
{
	switch (order) {
	case TOP_BY_HIT_RATE:
		return s->rates.hit_rate;
	case TOP_BY_FILLS:
		return s->rates.fill_bytes;
	case TOP_BY_WAIT:
		return s->rates.wait;
	case TOP_BY_PID:
		return -s->pid;
	default:
		return s->rates.all_pairs;
	}
}

static int compare(const void *left, const void *right, void *userdata)
{
	const struct top_session *a = left, *b = right;
	const enum top_order order = *(enum top_order *)userdata;
	const double difference = weight(b, order) - weight(a, order);

	if (difference != 0)
		return difference > 0 ? 1 : -1;
	return a->id < b->id ? -1 : a->id > b->id;
}

void top_view_sort(struct top_view *v, enum top_order order)
{
	if (v->n_sessions)
		qsort_r(v->sessions, v->n_sessions, sizeof *v->sessions, compare, &order);
}

const char *top_order_name(enum top_order order)
{
	return order_names[order];
}

void top_view_free(struct top_view *v)
{
	free(v->sessions);
	free(v->models);
	free(v->nodes);
	*v = (struct top_view){0};
}

void top_documents_free(struct top_documents *d)
{
	json_decref(d->status);
	json_decref(d->stats);
	*d = (struct top_documents){0};
}
