/* SPDX-License-Identifier: MIT */
/* moectl trace show: who has routed, how much, and how the choices of each layer are spread. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "trace.h"

#define PHASES 3

static const char *const phase_words[PHASES] = {"none", "prefill", "decode"};

struct seen_source {
	struct routes_pass pass;
	uint64_t routes, tokens, lost, phases[PHASES]; /* tokens: of the routes that begin a pass */
	bool left;
};

/* Of the file's one model, by layer. */
struct seen_layer {
	uint64_t routes, tokens, pairs, distinct;
	uint64_t *loads; /* [n_experts] */
};

struct seen {
	struct routes file;
	struct seen_source *sources;
	struct seen_layer *layers; /* of the first source's model; routes of others are not counted here */
	uint32_t n_sources;
	uint64_t *stamp; /* [n_experts] the route that named it last */
	uint64_t routes, cut;
	const char *end;
};

static const char *const end_words[] = {"stopped", "steps", "seconds", "max-bytes"};

static int grow(struct seen *s, struct moe_error *err)
{
	const struct moe_trace_source *model = s->file.sources;
	struct seen_source *more;

	if (s->n_sources == s->file.n_sources)
		return 0;
	more = reallocarray(s->sources, s->file.n_sources, sizeof *more);
	if (more) {
		memset(more + s->n_sources, 0, (s->file.n_sources - s->n_sources) * sizeof *more);
		s->sources = more;
		s->n_sources = s->file.n_sources;
	}
	if (!s->layers)
		s->layers = calloc(model->n_layers, sizeof *s->layers);
	if (!s->stamp)
		s->stamp = calloc(model->n_experts, sizeof *s->stamp);
	if (!more || !s->layers || !s->stamp)
		return moe_error_set(err, -ENOMEM, "%s: no memory", s->file.name);
	return 0;
}

static int count_layer(struct seen *s, const struct routes_record *record, struct moe_error *err)
{
	struct seen_layer *layer = &s->layers[record->route.layer];

	if (!layer->loads)
		layer->loads = calloc(s->file.sources->n_experts, sizeof *layer->loads);
	if (!layer->loads)
		return moe_error_set(err, -ENOMEM, "%s: no memory", s->file.name);
	layer->routes++;
	layer->tokens += record->route.tokens;
	for (size_t i = 0; i < (size_t)record->route.tokens * record->route.topk; i++) {
		const int32_t id = routes_id(record, i);

		if (id < 0)
			continue;
		layer->pairs++;
		layer->loads[id]++;
		layer->distinct += s->stamp[id] != s->routes;
		s->stamp[id] = s->routes;
	}
	return 0;
}

static int count_route(struct seen *s, const struct routes_record *record, struct moe_error *err)
{
	struct seen_source *source = &s->sources[record->route.source];
	const struct moe_trace_source *model = &s->file.sources[record->route.source];

	s->routes++;
	source->routes++;
	if (routes_begins(&source->pass, &record->route)) {
		source->tokens += record->route.tokens;
		source->phases[MIN(record->route.phase, PHASES - 1)]++;
	}
	if (memcmp(model->digest, s->file.sources->digest, sizeof model->digest) != 0)
		return 0;
	return count_layer(s, record, err);
}

static int count_all(struct seen *s, struct moe_error *err)
{
	struct routes_record record;
	int r;

	while ((r = routes_next(&s->file, &record, err)) > 0) {
		r = grow(s, err);
		if (r == 0 && record.kind == MOE_TRACE_ROUTE)
			r = count_route(s, &record, err);
		if (record.kind == MOE_TRACE_LOST)
			s->sources[record.mark.source].lost += record.mark.lost;
		if (record.kind == MOE_TRACE_LEFT)
			s->sources[record.mark.source].left = true;
		if (record.kind == MOE_TRACE_END)
			s->end = end_words[MIN(record.end.reason, ARRAY_LEN(end_words) - 1)];
		if (r < 0)
			return r;
	}
	s->cut = s->file.size - s->file.at;
	return r;
}

static uint64_t most_asked(const struct seen *s, const struct seen_layer *layer, uint32_t *ret_used, int *ret_expert)
{
	uint64_t most = 0;

	*ret_used = 0;
	*ret_expert = -1;
	for (uint32_t e = 0; e < s->file.sources->n_experts; e++) {
		*ret_used += layer->loads[e] > 0;
		if (layer->loads[e] > most) {
			most = layer->loads[e];
			*ret_expert = (int)e;
		}
	}
	return most;
}

static json_t *source_json(const struct moe_trace_source *model, const struct seen_source *x)
{
	json_t *phases = json_object();

	for (int i = 0; i < PHASES; i++)
		json_object_set_new(phases, phase_words[i], json_integer((json_int_t)x->phases[i]));
	return json_pack("{s:I, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:b, s:o}", "session",
			 (json_int_t)model->session, "model", model->model, "pid", (int)model->pid, "layers",
			 (int)model->n_layers, "experts", (int)model->n_experts, "topk", (int)model->topk, "steps",
			 (json_int_t)x->pass.passes, "tokens", (json_int_t)x->tokens, "routes", (json_int_t)x->routes,
			 "lost", (json_int_t)x->lost, "left", x->left, "phases", phases);
}

static void show_json(const struct seen *s)
{
	json_t *sources = json_array(), *layers = json_array(), *o;

	for (uint32_t i = 0; i < s->n_sources; i++)
		json_array_append_new(sources, source_json(&s->file.sources[i], &s->sources[i]));
	for (uint32_t l = 0; s->n_sources && l < s->file.sources->n_layers; l++) {
		const struct seen_layer *x = &s->layers[l];
		uint32_t used;
		int expert;

		if (!x->loads)
			continue;
		most_asked(s, x, &used, &expert);
		o = json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:I}", "layer", (int)l, "routes",
			      (json_int_t)x->routes, "tokens", (json_int_t)x->tokens, "pairs", (json_int_t)x->pairs,
			      "distinct", (json_int_t)x->distinct, "experts_used", (int)used, "most_asked", expert,
			      "most_asked_pairs", (json_int_t)(expert < 0 ? 0 : x->loads[expert]));
		json_array_append_new(layers, o);
	}
	o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:o}", "file", s->file.name, "began_ns",
		      (json_int_t)s->file.head.began_ns, "bytes", (json_int_t)s->file.size, "cut_off",
		      (json_int_t)s->cut, "routes", (json_int_t)s->routes, "end", s->end ? s->end : "none", "sessions",
		      sources, "layers", layers);
	print_json(o);
	json_decref(o);
}

static void show_text(const struct seen *s)
{
	printf("%s: %llu routes of %u sessions; %s\n", s->file.name, (unsigned long long)s->routes, s->n_sources,
	       s->end ? "ended in order" : "no end: the daemon died, or the disk was full");
	if (s->cut)
		printf("%llu bytes behind the last whole record are passed over\n", (unsigned long long)s->cut);
	if (s->n_sources)
		printf("\n%8s %-24s %8s %8s %8s %8s %8s\n", "SESSION", "MODEL", "STEPS", "PREFILL", "DECODE", "TOKENS",
		       "LOST");
	for (uint32_t i = 0; i < s->n_sources; i++) {
		const struct seen_source *x = &s->sources[i];

		printf("%8llu %-24.24s %8llu %8llu %8llu %8llu %8llu\n", (unsigned long long)s->file.sources[i].session,
		       s->file.sources[i].model, (unsigned long long)x->pass.passes, (unsigned long long)x->phases[1],
		       (unsigned long long)x->phases[2], (unsigned long long)x->tokens, (unsigned long long)x->lost);
	}
	if (s->routes)
		printf("\n%6s %8s %8s %10s %6s %12s\n", "LAYER", "ROUTES", "TOKENS", "DISTINCT", "USED", "MOST ASKED");
	for (uint32_t l = 0; s->routes && l < s->file.sources->n_layers; l++) {
		const struct seen_layer *x = &s->layers[l];
		uint64_t most;
		uint32_t used;
		int expert;

		if (!x->loads)
			continue;
		most = most_asked(s, x, &used, &expert);
		printf("%6u %8llu %8llu %10.2f %6u %4d (%3.0f %%)\n", l, (unsigned long long)x->routes,
		       (unsigned long long)x->tokens, (double)x->distinct / (double)x->routes, used, expert,
		       x->pairs ? 100.0 * (double)most / (double)x->pairs : 0.0);
	}
}

static int map_file(const char *path, void **ret, size_t *ret_size, struct moe_error *err)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	int r = 0;

	*ret = NULL;
	*ret_size = 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		r = moe_error_sys(err, -errno, "%s", path);
	else if (st.st_size > 0) {
		*ret = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		*ret_size = (size_t)st.st_size;
		if (*ret == MAP_FAILED)
			r = moe_error_sys(err, -errno, "%s", path);
	}
	if (fd >= 0)
		close(fd);
	return r;
}

int trace_show(const struct arguments *arg, const char *path)
{
	struct trace_source file = {.name = path};
	struct moe_error err = {0};
	struct seen s = {0};
	void *map;
	int r = map_file(path, &map, &file.size, &err);

	if (r < 0)
		return fail(&err);
	file.data = map;
	r = routes_open(&s.file, &file, &err);
	if (r == 0)
		r = count_all(&s, &err);
	if (r == 0 && arg->json)
		show_json(&s);
	else if (r == 0)
		show_text(&s);
	for (uint32_t l = 0; s.layers && l < s.file.sources->n_layers; l++)
		free(s.layers[l].loads);
	free(s.layers);
	free(s.sources);
	free(s.stamp);
	routes_close(&s.file);
	if (map)
		munmap(map, file.size);
	return r < 0 ? fail(&err) : EXIT_DONE;
}
