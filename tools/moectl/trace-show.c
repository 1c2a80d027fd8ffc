/* SPDX-License-Identifier: MIT */
/* moectl trace show: of a recording who has routed, how much, and how the choices of each layer are spread. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "plan-file.h"
#include "trace-layers.h"
#include "trace.h"

#define PHASES 3

static const char *const phase_words[PHASES] = {"none", "prefill", "decode"};

struct seen_source {
	struct routes_pass pass;
	uint64_t routes, tokens, lost, phases[PHASES]; /* tokens: of the routes that begin a pass */
	bool left;
};

struct seen {
	struct routes file;
	struct seen_source *sources;
	struct trace_layers layers; /* of the first source's model; routes of others are not counted here */
	uint32_t n_sources;
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
	if (!more)
		return moe_error_set(err, -ENOMEM, "%s: no memory", s->file.name);
	return s->layers.layer ? 0
			       : trace_layers_init(&s->layers, model->n_layers, model->n_experts, s->file.name, err);
}

static int count_layer(struct seen *s, const struct routes_record *record, struct moe_error *err)
{
	const struct moe_route *route = &record->route;
	const int r = trace_layers_place(&s->layers, route->layer, route->tokens, s->file.name, err);

	for (size_t i = 0; r == 0 && i < (size_t)route->tokens * route->topk; i++)
		trace_layers_choice(&s->layers, route->layer, routes_id(record, i));
	return r;
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
	json_t *sources = json_array(), *o;

	for (uint32_t i = 0; i < s->n_sources; i++)
		json_array_append_new(sources, source_json(&s->file.sources[i], &s->sources[i]));
	o = json_pack("{s:o, s:I, s:I, s:I, s:I, s:s, s:o, s:o}", "file", text_json(s->file.name), "began_ns",
		      (json_int_t)s->file.head.began_ns, "bytes", (json_int_t)s->file.size, "cut_off",
		      (json_int_t)s->cut, "routes", (json_int_t)s->routes, "end", s->end ? s->end : "none", "sessions",
		      sources, "layers", trace_layers_json(&s->layers));
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
	trace_layers_print(&s->layers);
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

static int show_recording(const struct arguments *arg, const struct trace_source *file)
{
	struct moe_error err = {0};
	struct seen s = {0};
	int r = routes_open(&s.file, file, &err);

	if (r == 0)
		r = count_all(&s, &err);
	if (r == 0 && arg->json)
		show_json(&s);
	else if (r == 0)
		show_text(&s);
	trace_layers_fini(&s.layers);
	free(s.sources);
	routes_close(&s.file);
	return r < 0 ? fail(&err) : EXIT_DONE;
}

static bool is_recording(const struct trace_source *file)
{
	static const char magic[] = "MOETRACE";

	return file->size >= strlen(magic) && memcmp(file->data, magic, strlen(magic)) == 0;
}

/* A map is no trace, but one of the forms that a trace is converted to. */
static int show_map(const struct arguments *arg, const char *path)
{
	struct arguments of_plan = *arg;

	of_plan.plan = (struct plan_arguments){.from = path};
	return verb_plan(&of_plan);
}

int trace_show(const struct arguments *arg, const char *path)
{
	struct trace_source file = {.name = path, .together = arg->together};
	struct trace_file steps = {0};
	struct moe_error err = {0};
	void *map = NULL;
	int r, status = EXIT_FAILED;

	if (strcmp(path, "-") == 0)
		r = trace_file_read(&steps, path, arg->together, &err);
	else if ((r = map_file(path, &map, &file.size, &err)) == 0) {
		file.data = map;
		if (is_recording(&file))
			status = show_recording(arg, &file);
		else if (plan_file_is_map(map, file.size))
			status = show_map(arg, path);
		else
			r = trace_file_parse(&steps, &file, &err);
	}
	if (r < 0)
		status = fail(&err);
	else if (steps.cases)
		status = trace_show_steps(arg, &steps);
	trace_file_free(&steps);
	if (map)
		munmap(map, file.size);
	return status;
}
