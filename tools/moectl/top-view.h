/* SPDX-License-Identifier: MIT */
/*
 * top-view - what `moectl top` knows: rates, from two pairs of documents and the daemon's own clock in them.
 *
 * Law: pure. A rate is a difference over a difference of uptimes, so a slow or stopped moectl does not change it;
 * without documents of the same daemon before these there are none (negative: unknown).
 */
#ifndef TOOLS_TOP_VIEW_H
#define TOOLS_TOP_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TOP_TEXT 64
#define TOP_UNKNOWN (-1.0)

enum { TOP_HIT, TOP_MISS_BUFFER, TOP_POOL, TOP_CPU, TOP_LOCAL, TOP_PATHS };

struct top_documents {
	json_t *status, *stats;
};

/* Each a second, or TOP_UNKNOWN. */
struct top_rates {
	double hit_rate;         /* 0 .. 1, of these seconds; unknown without pairs */
	double pairs[TOP_PATHS]; /* by path */
	double all_pairs;
	double fill_bytes;
	double wait; /* seconds that steps waited */
};

struct top_session {
	double id, pid, uid;
	char model[TOP_TEXT], phase[TOP_TEXT];
	struct top_rates rates;
};

struct top_model {
	char name[TOP_TEXT];
	unsigned sessions;
	double found; /* of a tiered model: records that requests found in memory, 0 .. 1, since it was loaded */
	struct top_rates rates;
};

struct top_node {
	double node, threads;
	double load, read_bytes, copy_bytes; /* load: 0 .. 1 */
};

enum top_order { TOP_BY_PAIRS, TOP_BY_HIT_RATE, TOP_BY_FILLS, TOP_BY_WAIT, TOP_BY_PID, TOP_ORDERS };

struct top_view {
	char version[TOP_TEXT], state[TOP_TEXT], loading[TOP_TEXT]; /* loading: a path, or "" */
	double loading_share, loading_eta_ns;
	double pid, uptime_ns, bytes, threads, load, pool_pairs;
	unsigned n_sessions, n_models, n_nodes;
	struct top_session *sessions;
	struct top_model *models;
	struct top_node *nodes;
};

/* *before may be empty. Without memory for them it has no sessions, models or nodes. */
void top_view_make(struct top_view *ret, const struct top_documents *before, const struct top_documents *now);
void top_view_sort(struct top_view *view, enum top_order order);
const char *top_order_name(enum top_order order);
void top_view_free(struct top_view *view);

void top_documents_free(struct top_documents *documents);

#endif
