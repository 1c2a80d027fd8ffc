/* SPDX-License-Identifier: MIT */
/* simulate-show - results for a person: a table, policies by slots; for a script: the vectors' words. */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "chart.h"
#include "model/file.h"
#include "simulate.h"

double trace_width(const struct sim_trace *t, uint32_t *ret_most)
{
	uint32_t *seen = calloc(t->experts, sizeof *seen), events = 0, most = 0;
	uint64_t sum = 0;

	for (size_t place = 0; seen && place < (size_t)t->steps * t->layers; place++) {
		const int32_t *ids = t->ids + t->first[place];
		uint32_t width = 0;

		events += t->tokens[place] > 0;
		for (size_t i = 0; i < (size_t)t->tokens[place] * t->topk; i++) {
			if (ids[i] < 0 || seen[ids[i]] == events)
				continue;
			seen[ids[i]] = events;
			width++;
		}
		sum += width;
		most = MAX(most, width);
	}
	free(seen);
	*ret_most = most;
	return events ? (double)sum / events : 0;
}

const char *run_name(const struct run *run, char to[RUN_NAME])
{
	snprintf(to, RUN_NAME, "%s%s%s%s", run->policy, run->mode == SIM_ATOMIC ? ", atomic" : "",
		 *run->label ? ", " : "", run->label);
	return to;
}

static double found(const struct run *run)
{
	const uint64_t all = run->total.hits_unique + run->total.misses_unique;

	return all ? (double)run->total.hits_unique / (double)all : 0;
}

static bool same_rule(const struct run *a, const struct run *b)
{
	return a->mode == b->mode && strcmp(a->policy, b->policy) == 0 && strcmp(a->label, b->label) == 0;
}

/* The first of those with its rule: it has a line of the table, or of the chart. */
static bool begins(const struct runs *runs, uint32_t i)
{
	for (uint32_t j = 0; j < i; j++)
		if (same_rule(&runs->runs[j], &runs->runs[i]))
			return false;
	return true;
}

static const struct run *find(const struct runs *runs, const struct run *rule, uint32_t capacity)
{
	for (uint32_t i = 0; i < runs->n; i++)
		if (same_rule(&runs->runs[i], rule) && runs->runs[i].capacity == capacity)
			return &runs->runs[i];
	return NULL;
}

/* The least capacity above `than`; UINT32_MAX: none. */
static uint32_t next_capacity(const struct runs *runs, int64_t than)
{
	uint32_t next = UINT32_MAX;

	for (uint32_t i = 0; i < runs->n; i++)
		if (runs->runs[i].capacity > than)
			next = MIN(next, runs->runs[i].capacity);
	return next;
}

static void print_head(const struct trace_case *one, const char *format, FILE *to)
{
	const struct sim_trace *t = &one->trace;
	char id[128];
	uint32_t most;
	const double width = trace_width(t, &most);

	fprintf(to, "%s (%s): %u layers of %u experts, top-%u, %u steps; %.1f distinct experts at once, at most %u\n",
		file_clean(id, sizeof id, one->id), format, t->layers, t->experts, t->topk, t->steps, width, most);
}

static int name_width(const struct runs *runs)
{
	char name[RUN_NAME];
	size_t width = 16;

	for (uint32_t i = 0; i < runs->n; i++)
		width = MAX(width, strlen(run_name(&runs->runs[i], name)));
	return (int)width;
}

void simulate_table(const struct runs *runs, const struct trace_case *one, const char *format, FILE *to)
{
	char name[RUN_NAME];
	const int width = name_width(runs);

	print_head(one, format, to);
	fprintf(to, "Share of distinct experts found, by slots of a layer:\n%-*s", width, "");
	for (uint32_t c = next_capacity(runs, -1); c != UINT32_MAX; c = next_capacity(runs, c))
		fprintf(to, " %7u", c);
	fputc('\n', to);
	for (uint32_t i = 0; i < runs->n; i++) {
		if (!begins(runs, i))
			continue;
		fprintf(to, "%-*s", width, run_name(&runs->runs[i], name));
		for (uint32_t c = next_capacity(runs, -1); c != UINT32_MAX; c = next_capacity(runs, c)) {
			const struct run *run = find(runs, &runs->runs[i], c);

			if (run)
				fprintf(to, " %7.4f", found(run));
			else
				fprintf(to, " %7s", "");
		}
		fputc('\n', to);
	}
}

json_t *simulate_document(const struct runs *runs, const struct trace_case *one, const char *format)
{
	const struct sim_trace *t = &one->trace;
	json_t *results = json_array();
	uint32_t most;
	const double width = trace_width(t, &most);

	for (uint32_t i = 0; i < runs->n; i++)
		json_array_append(results, runs->runs[i].document);
	return json_pack("{s:s,s:s,s:{s:i,s:i,s:i,s:i,s:f,s:i},s:o}", "id", one->id, "format", format, "shape",
			 "layers", (int)t->layers, "experts", (int)t->experts, "topk", (int)t->topk, "steps",
			 (int)t->steps, "mean_unique", width, "max_unique", (int)most, "results", results);
}

static void draw_found(const struct runs *runs, const struct trace_case *one, FILE *to)
{
	struct chart chart = {.x_axis = "slots of a layer",
			      .y_axis = "distinct experts found",
			      .x_max = one->trace.experts,
			      .y_max = 1};
	char title[256], name[RUN_NAME];

	snprintf(title, sizeof title, "%.100s: %u experts, top-%u, %u steps", one->id, one->trace.experts,
		 one->trace.topk, one->trace.steps);
	chart.title = title;
	chart_begin(&chart, 0, to);
	for (uint32_t i = 0; i < runs->n; i++) {
		if (!begins(runs, i))
			continue;
		chart_line(&chart, run_name(&runs->runs[i], name), runs->runs[i].mode >= SIM_BELADY);
		for (uint32_t c = next_capacity(runs, -1); c != UINT32_MAX; c = next_capacity(runs, c)) {
			const struct run *run = find(runs, &runs->runs[i], c);

			if (run)
				chart_point(&chart, c, found(run));
		}
	}
	chart_end(&chart);
}

/* COST_DESIGNS is the ideal. */
static double step_ns(const struct cost *cost, int design)
{
	return design == COST_DESIGNS ? cost->ideal : cost->design[design];
}

/* The slowest step of any run: all charts have one scale. */
static double slowest(const struct runs *runs)
{
	double most = 0;

	for (uint32_t i = 0; i < runs->n; i++)
		for (int j = 0; j < COST_DESIGNS; j++)
			most = MAX(most, runs->runs[i].cost.design[j]);
	return most;
}

/* Of one rule: a line for each design. */
static void draw_steps(const struct runs *runs, const struct trace_case *one, const struct run *rule, unsigned at,
		       FILE *to)
{
	const double most = slowest(runs), unit = most >= 1e6 ? 1e6 : 1e3;
	struct chart chart = {.x_axis = "slots of a layer",
			      .y_axis = unit == 1e6 ? "a step, ms" : "a step, us",
			      .x_max = one->trace.experts,
			      .y_max = chart_round(most / unit)};
	char title[256], name[RUN_NAME];

	snprintf(title, sizeof title, "%s: time of a step by a model of copies and experts, not measured",
		 run_name(rule, name));
	chart.title = title;
	chart_begin(&chart, at, to);
	for (int j = 0; j <= COST_DESIGNS; j++) {
		chart_line(&chart, j == COST_DESIGNS ? "ideal" : cost_design_name(j), j == COST_DESIGNS);
		for (uint32_t c = next_capacity(runs, -1); c != UINT32_MAX; c = next_capacity(runs, c)) {
			const struct run *run = find(runs, rule, c);

			if (run)
				chart_point(&chart, c, step_ns(&run->cost, j) / unit);
		}
	}
	chart_end(&chart);
}

void simulate_chart(const struct runs *runs, const struct trace_case *one, bool costs, FILE *to)
{
	unsigned rules = 0;

	for (uint32_t i = 0; i < runs->n; i++)
		rules += begins(runs, i);
	costs = costs && slowest(runs) > 0;
	chart_open(1 + (costs ? rules : 0), to);
	draw_found(runs, one, to);
	rules = 0;
	for (uint32_t i = 0; costs && i < runs->n; i++)
		if (begins(runs, i))
			draw_steps(runs, one, &runs->runs[i], ++rules, to);
	chart_close(to);
}
