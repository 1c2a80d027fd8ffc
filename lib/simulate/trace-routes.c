/* SPDX-License-Identifier: MIT */
#include "simulate/trace-routes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "base/util.h"
#include "cache.h"
#include "simulate/trace-build.h"
#include "uapi/moe_ring.h"

/* What each record begins with. */
struct beginning {
	__u32 bytes;
	__u8 kind, other;
	__u16 source;
};

static int wrong(const struct routes *f, struct moe_error *err, const char *what)
{
	return moe_error_set(err, -EINVAL, "%s: byte %zu: %s", f->name, f->record, what);
}

float routes_weight(const struct routes_record *r, size_t i)
{
	float weight;

	memcpy(&weight, r->weights + 4 * i, sizeof weight);
	return weight;
}

int routes_open(struct routes *ret, const struct trace_source *file, struct moe_error *err)
{
	struct routes f = {.name = file->name, .data = file->data, .size = file->size};

	if (f.size)
		memcpy(&f.head, f.data, MIN(f.size, sizeof f.head));
	if (f.head.magic != MOE_TRACE_MAGIC)
		return moe_error_set(err, -EINVAL,
				     "%s: no recording, which begins with MOETRACE; traces in other forms are read by "
				     "moectl simulate and moectl trace convert",
				     f.name);
	if (f.head.version != MOE_TRACE_VERSION)
		return moe_error_set(err, -EINVAL, "%s: a recording of version %u found, %d expected", f.name,
				     f.head.version, MOE_TRACE_VERSION);
	if (f.size < sizeof f.head)
		return moe_error_set(err, -EINVAL, "%s: %zu bytes found, a recording has %zu at least", f.name, f.size,
				     sizeof f.head);
	if (f.head.bytes < sizeof f.head || f.head.bytes > f.size || f.head.bytes % 8)
		return moe_error_set(err, -EINVAL, "%s: a head of %u bytes found, %zu expected", f.name, f.head.bytes,
				     sizeof f.head);
	f.at = f.head.bytes;
	*ret = f;
	return 0;
}

void routes_close(struct routes *f)
{
	free(f->sources);
	*f = (struct routes){0};
}

static bool is_same(const struct moe_trace_source *a, const struct moe_trace_source *b)
{
	return memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

static bool has_shape(const struct moe_trace_source *a, const struct moe_trace_source *b)
{
	return a->n_layers == b->n_layers && a->n_experts == b->n_experts;
}

static int take_source(struct routes *f, const struct beginning *b, struct moe_error *err)
{
	const uint32_t n = f->n_sources;
	struct moe_trace_source source;

	if (b->bytes < sizeof source)
		return wrong(f, err, "a source that is too short");
	memcpy(&source, f->data + f->record, sizeof source);
	if (source.source != f->n_sources)
		return wrong(f, err, "sources are not numbered one after the other");
	if (source.n_layers == 0 || source.n_layers > SIM_LAYERS_MAX || source.n_experts == 0 ||
	    source.n_experts > CACHE_EXPERTS_MAX)
		return wrong(f, err, "a model of no layers or experts, or of too many");
	if (n && is_same(&source, f->sources) && !has_shape(&source, f->sources))
		return moe_error_set(
			err, -EINVAL,
			"%s: session %llu: %u layers of %u experts found, %u of %u expected as the first has", f->name,
			(unsigned long long)source.session, source.n_layers, source.n_experts, f->sources->n_layers,
			f->sources->n_experts);
	source.model[sizeof source.model - 1] = '\0';
	text_clean(source.model);
	if ((n & (n - 1)) == 0) { /* the room is the next power of two */
		struct moe_trace_source *more = reallocarray(f->sources, n ? 2 * (size_t)n : 1, sizeof *more);

		if (!more)
			return moe_error_set(err, -ENOMEM, "%s: no memory", f->name);
		f->sources = more;
	}
	f->sources[f->n_sources++] = source;
	return 0;
}

static bool ids_are_good(const struct routes_record *r, uint32_t experts)
{
	bool good = true;

	for (size_t i = 0; i < (size_t)r->route.tokens * r->route.topk; i++)
		good &= routes_id(r, i) < (int32_t)experts;
	return good;
}

static int take_route(const struct routes *f, const struct beginning *b, struct routes_record *ret,
		      struct moe_error *err)
{
	struct moe_route *route = &ret->route;

	if (b->bytes < sizeof *route)
		return wrong(f, err, "a route that is too short");
	memcpy(route, f->data + f->record, sizeof *route);
	if (route->topk == 0 || route->topk > MOE_TOPK_MAX || route->tokens == 0 || route->tokens > MOE_TOKENS_MAX ||
	    route->bytes != moe_route_bytes(route->tokens, route->topk))
		return wrong(f, err, "a route whose tokens and choices are not as long as it is");
	if (route->source >= f->n_sources || route->layer >= f->sources[route->source].n_layers)
		return wrong(f, err, "a route of a source, or of a layer, that is not there");
	ret->ids = f->data + f->record + sizeof *route;
	ret->weights = f->data + f->record + moe_route_weights(route->tokens, route->topk);
	return ids_are_good(ret, f->sources[route->source].n_experts)
		       ? 0
		       : wrong(f, err, "a route with an expert that the model does not have");
}

static int take(struct routes *f, const struct beginning *b, struct routes_record *ret, struct moe_error *err)
{
	ret->kind = (enum moe_trace_kind)b->kind;
	switch (ret->kind) {
	case MOE_TRACE_SOURCE:
		return take_source(f, b, err);
	case MOE_TRACE_ROUTE:
		return take_route(f, b, ret, err);
	case MOE_TRACE_LOST:
	case MOE_TRACE_LEFT:
		if (b->bytes < sizeof ret->mark || b->source >= f->n_sources)
			return wrong(f, err, "a mark that is too short, or of no source");
		memcpy(&ret->mark, f->data + f->record, sizeof ret->mark);
		return 0;
	default:
		if (b->bytes < sizeof ret->end)
			return wrong(f, err, "an end that is too short");
		memcpy(&ret->end, f->data + f->record, sizeof ret->end);
		return 0;
	}
}

int routes_next(struct routes *f, struct routes_record *ret, struct moe_error *err)
{
	struct beginning b = {.kind = 0};
	int r;

	do {
		if (f->size - f->at < sizeof b)
			return 0;
		f->record = f->at;
		memcpy(&b, f->data + f->at, sizeof b);
		if (b.bytes < sizeof b || b.bytes % 8)
			return wrong(f, err, "a record whose length is no multiple of 8");
		if (b.bytes > f->size - f->at)
			return 0;
		f->at += b.bytes;
	} while (b.kind < MOE_TRACE_ROUTE || b.kind > MOE_TRACE_END);
	*ret = (struct routes_record){0};
	r = take(f, &b, ret, err);
	return r < 0 ? r : 1;
}

bool routes_begins(struct routes_pass *pass, const struct moe_route *route)
{
	const bool begins = pass->passes == 0 || route->layer <= pass->layer || route->step != pass->step;

	pass->passes += begins;
	pass->layer = route->layer;
	pass->step = route->step;
	return begins;
}

/* -- as a trace --------------------------------------------------------------------------------------------------- */

struct reading {
	struct sim_build build;
	struct routes_pass pass;
	uint32_t next; /* layer whose place comes next; the number of layers: a step is complete */
};

static int pad(struct reading *t, uint32_t layer, struct moe_error *err)
{
	int r = 0;

	while (r == 0 && t->next < layer) {
		r = sim_build_place(&t->build, err);
		t->next++;
	}
	return r;
}

/* Ids stand where they stood, and a token that asks for nothing is one: policies count tokens and places. */
static int add_route(struct reading *t, const struct routes_record *record, struct moe_error *err)
{
	const uint32_t layers = t->build.trace.layers, topk = record->route.topk;
	int32_t ids[MOE_TOPK_MAX];
	float weights[MOE_TOPK_MAX];
	int r = 0;

	if (routes_begins(&t->pass, &record->route)) {
		r = pad(t, layers, err);
		t->next = 0;
	}
	if (r == 0)
		r = pad(t, record->route.layer + 1u, err);
	for (size_t i = 0; r == 0 && i < record->route.tokens; i++) {
		for (uint32_t k = 0; k < topk; k++) {
			const int32_t id = routes_id(record, i * topk + k);

			ids[k] = id < 0 ? -1 : id;
			weights[k] = id < 0 ? 0 : routes_weight(record, i * topk + k);
		}
		r = sim_build_token(&t->build, ids, weights, topk, err);
	}
	return r;
}

/* Where a route lies, and whose it is. */
struct lies {
	uint32_t source;
	size_t at;
};

struct all_routes {
	struct lies *list;
	size_t n, room;
	uint32_t topk; /* the most choices that any has */
};

static int by_source(const void *a, const void *b)
{
	const struct lies *x = a, *y = b;

	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

static int list_route(struct all_routes *all, const struct routes *f, const struct moe_route *route,
		      struct moe_error *err)
{
	const size_t room = all->room ? 2 * all->room : 1024;
	struct lies *more;

	all->topk = MAX(all->topk, (uint32_t)route->topk);
	if (all->n == all->room) {
		more = reallocarray(all->list, room, sizeof *more);
		if (!more)
			return moe_error_set(err, -ENOMEM, "%s: no memory for %zu routes", f->name, room);
		all->list = more;
		all->room = room;
	}
	all->list[all->n++] = (struct lies){route->source, f->record};
	return 0;
}

/* There is one at least, and all are of the first one's model, and so of its shape. */
static int check_sources(const struct routes *f, struct moe_error *err)
{
	const struct moe_trace_source *first = f->sources;

	if (f->n_sources == 0)
		return moe_error_set(err, -EINVAL, "%s: no session has routed anything in it", f->name);
	for (uint32_t i = 1; i < f->n_sources; i++) {
		const struct moe_trace_source *other = &f->sources[i];

		if (!is_same(other, first))
			return moe_error_set(err, -EINVAL,
					     "%s: sessions of several models, %s and %s: record one with 'moectl trace "
					     "record --model'",
					     f->name, first->model, other->model);
	}
	return 0;
}

/* All that are whole, each source's in their order. */
static int list_routes(struct routes *f, struct all_routes *all, struct moe_error *err)
{
	struct routes_record record;
	int r;

	while ((r = routes_next(f, &record, err)) > 0) {
		r = record.kind == MOE_TRACE_ROUTE ? list_route(all, f, &record.route, err) : 0;
		if (r < 0)
			return r;
	}
	if (r < 0)
		return r;
	r = check_sources(f, err);
	if (r == 0 && all->n)
		qsort(all->list, all->n, sizeof *all->list, by_source);
	return r;
}

/* The source's are the next of all; *at is behind them. */
static int read_source(struct reading *t, struct routes *f, const struct all_routes *all, uint32_t source, size_t *at,
		       struct moe_error *err)
{
	struct routes_record record;
	int r = pad(t, t->build.trace.layers, err);

	t->pass = (struct routes_pass){0};
	if (r == 0)
		r = sim_build_sequence(&t->build, err);
	for (; r == 0 && *at < all->n && all->list[*at].source == source; ++*at) {
		f->at = all->list[*at].at;
		r = routes_next(f, &record, err);
		if (r > 0)
			r = add_route(t, &record, err);
	}
	return r;
}

int routes_read(struct trace_file *ret, const struct trace_source *file, struct moe_error *err)
{
	struct all_routes all = {.topk = 1};
	struct reading t = {0};
	struct sim_trace trace;
	struct routes f;
	size_t at = 0;
	int r = routes_open(&f, file, err);

	if (r < 0)
		return r;
	r = list_routes(&f, &all, err);
	if (r == 0) {
		sim_build_begin(&t.build, f.sources[0].n_layers, f.sources[0].n_experts, all.topk);
		t.next = t.build.trace.layers;
	}
	for (uint32_t i = 0; r == 0 && i < f.n_sources; i++)
		r = read_source(&t, &f, &all, i, &at, err);
	if (r == 0)
		r = pad(&t, t.build.trace.layers, err);
	free(all.list);
	routes_close(&f);
	if (r < 0) {
		sim_build_drop(&t.build);
		return r;
	}
	sim_build_finish(&t.build, &trace);
	return trace_file_single(ret, "binary", file, &trace, err);
}
