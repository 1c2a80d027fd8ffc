/* SPDX-License-Identifier: MIT */
/* stats - on which path the token-expert pairs were computed, per layer and model and session; what of it ran side by
 * side, per session and mode. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "metrics/metrics.h"
#include "moectl.h"

static const char *const paths[] = {"hit", "miss_buffer", "pool", "cpu", "local"};

static double all_pairs(const json_t *pairs)
{
	double sum = 0;

	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		sum += get_number(pairs, paths[i]);
	return sum;
}

/* Of pairs, and of distinct experts. */
static void print_rates(const json_t *of)
{
	static const char *const rates[] = {"hit_rate", "hit_rate_experts"};

	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
		const json_t *rate = json_object_get(of, rates[i]);

		if (json_is_real(rate))
			printf("  %7.1f%%", 100 * json_number_value(rate));
		else
			printf("  %8s", "-");
	}
}

static void print_row(const char *name, const json_t *row)
{
	const json_t *pairs = json_object_get(row, "pairs");
	const double compute = get_number(row, "cpu_ns") + get_number(row, "device_ns");
	char bytes[SHOW_TEXT], wait[SHOW_TEXT], work[SHOW_TEXT];

	printf("%7s  %9.0f", name, get_number(row, "tokens"));
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		printf("  %10.0f", get_number(pairs, paths[i]));
	print_rates(row);
	printf("  %8.0f  %10s  %10s  %10s", get_number(row, "fills"), show_bytes(bytes, get_number(row, "bytes")),
	       show_time(wait, get_number(row, "wait_ns")), show_time(work, compute));
}

static void print_recall(const json_t *predict)
{
	if (get_number(predict, "asked") > 0)
		printf("  prediction: of %.0f experts that steps asked for, %.0f had been guessed (recall %.1f%%, %.0f "
		       "guesses)\n",
		       get_number(predict, "asked"), get_number(predict, "found"), 100 * get_number(predict, "recall"),
		       get_number(predict, "guessed"));
}

/* A layer's times, a median and a 99th of a hundred of each part. */
static void print_layer_times(const char *name, const json_t *row)
{
	static const char *const parts[] = {"wait", "queue", "compute", "copy"};

	printf("%7s", name);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		const json_t *time = json_object_get(json_object_get(row, "times"), parts[i]);
		const json_t *quantiles = json_object_get(time, "quantiles_ns");
		char median[SHOW_TEXT], high[SHOW_TEXT];

		if (get_number(time, "count") > 0)
			printf("  %10s  %10s", show_time(median, get_number(quantiles, "0.5")),
			       show_time(high, get_number(quantiles, "0.99")));
		else
			printf("  %10s  %10s", "-", "-");
	}
	putchar('\n');
}

static void print_all_times(const json_t *model)
{
	const json_t *totals = json_object_get(model, "totals"), *layer;
	size_t i;

	if (get_number(totals, "tokens") == 0)
		return;
	printf("%7s  %10s  %10s  %10s  %10s  %10s  %10s  %10s  %10s\n", "layer", "wait 50%", "99%", "queue 50%", "99%",
	       "compute", "99%", "copy 50%", "99%");
	json_array_foreach (json_object_get(model, "layers"), i, layer) {
		char number[SHOW_TEXT];

		snprintf(number, sizeof number, "%.0f", get_number(layer, "layer"));
		print_layer_times(number, layer);
	}
	print_layer_times("all", totals);
}

/* A model's ghost caches: those of all its sessions, added up. */
static void print_model_ghosts(const json_t *model)
{
	const json_t *ghosts = json_object_get(model, "ghosts"), *cache, *line;
	size_t i;

	if (get_number(ghosts, "asked") > 0)
		printf("  of %.0f experts that %.0f sessions asked for in up to %.0f layers each, caches would have "
		       "found\n",
		       get_number(ghosts, "asked"), get_number(ghosts, "sessions"), get_number(ghosts, "layers"));
	json_array_foreach (json_object_get(ghosts, "caches"), i, cache)
		if (get_number(cache, "asked") > 0)
			printf("  %-10s %5.0f slots  %5.1f%% (%5.1f%% of pairs) of %.0f\n", get_text(cache, "policy"),
			       get_number(cache, "slots"), 100 * get_number(cache, "hit_rate"),
			       100 * get_number(cache, "hit_rate_pairs"), get_number(cache, "asked"));
	json_array_foreach (json_object_get(ghosts, "bounds"), i, cache)
		if (json_is_real(json_object_get(cache, "hit_rate")))
			printf("  %-10s %5.0f slots  %5.1f%% of %.0f that were looked at, %.1f%% as it is\n", "at most",
			       get_number(cache, "slots"), 100 * get_number(cache, "hit_rate"),
			       get_number(cache, "asked"), 100 * get_number(cache, "own_hit_rate"));
	json_array_foreach (json_object_get(model, "advice"), i, line)
		printf("  %s\n", json_string_value(line));
}

static void print_model(const json_t *model)
{
	const json_t *layers = json_object_get(model, "layers"), *totals = json_object_get(model, "totals"), *layer;
	const json_t *pairs = json_object_get(totals, "pairs");
	const char *warning = NULL;
	char bytes[SHOW_TEXT];
	double expected = 0;
	size_t i;

	printf("model %s, top %.0f of %.0f experts\n", get_text(model, "name"), get_number(model, "topk"),
	       get_number(model, "experts"));
	printf("%7s  %9s  %10s  %10s  %10s  %10s  %10s  %8s  %8s  %8s  %10s  %10s  %10s  %5s  %6s\n", "layer", "tokens",
	       "hit", "miss_buffer", "pool", "cpu", "local", "hit rate", "experts", "fills", "filled", "wait",
	       "compute", "slots", "slack");
	json_array_foreach (layers, i, layer) {
		char number[SHOW_TEXT];

		snprintf(number, sizeof number, "%.0f", get_number(layer, "layer"));
		print_row(number, layer);
		printf("  %5.0f  %6.1f\n", get_number(layer, "slots"), get_number(layer, "slack"));
		if (*get_text(layer, "warning"))
			warning = get_text(layer, "warning");
		expected += get_number(layer, "tokens") * get_number(model, "topk");
	}
	print_row("all", totals);
	printf("\n  paths add up to %.0f pairs; tokens x layers x k is %.0f: %s\n", all_pairs(pairs), expected,
	       all_pairs(pairs) == expected ? "equal" : "NOT EQUAL (padding, or another top-k)");
	if (get_number(totals, "reads") > 0)
		printf("  zero copy: the device read %.0f experts in the pool, %s, for %.0f pairs\n",
		       get_number(totals, "reads"), show_bytes(bytes, get_number(totals, "read_bytes")),
		       get_number(pairs, "pool"));
	print_recall(json_object_get(totals, "predict"));
	print_tier("  ", json_object_get(totals, "tier"));
	print_replicas("  ", json_object_get(totals, "replicas"));
	if (warning)
		printf("  warning: %s\n", warning);
	print_all_times(model);
	print_model_ghosts(model);
}

static void print_sessions(const json_t *sessions)
{
	const json_t *s;
	size_t i;

	if (json_array_size(sessions) == 0)
		return;
	printf("%7s  %7s  %-16s  %5s  %10s  %11s  %10s  %10s  %8s  %8s  %8s  %10s  %10s\n", "session", "pid", "model",
	       "rank", "hit", "miss_buffer", "pool", "cpu", "hit rate", "experts", "fills", "wait", "compute");
	json_array_foreach (sessions, i, s) {
		const json_t *pairs = json_object_get(s, "pairs");
		const double compute = get_number(s, "cpu_ns") + get_number(s, "device_ns");
		char wait[SHOW_TEXT], work[SHOW_TEXT];

		printf("%7.0f  %7.0f  %-16s  %2.0f/%-2.0f  %10.0f  %11.0f  %10.0f  %10.0f", get_number(s, "id"),
		       get_number(s, "pid"), get_text(s, "model"), get_number(s, "tp_rank"), get_number(s, "tp_size"),
		       get_number(pairs, "hit"), get_number(pairs, "miss_buffer"), get_number(pairs, "pool"),
		       get_number(pairs, "cpu"));
		print_rates(s);
		printf("  %8.0f  %10s  %10s\n", get_number(s, "fills"), show_time(wait, get_number(s, "wait_ns")),
		       show_time(work, compute));
	}
}

static void print_mode(const json_t *session, const char *name, const json_t *mode)
{
	static const char *const times[] = {"t_wait_ns", "t_compute_ns", "t_ideal_ns", "gain_ns", "t_step_ns"};
	const json_t *efficiency = json_object_get(mode, "overlap_efficiency");
	char bytes[SHOW_TEXT];

	printf("%7.0f  %-10s  %9.0f  %9.0f  %8.0f  %10s", get_number(session, "id"), name, get_number(mode, "steps"),
	       get_number(mode, "hidden_steps"), get_number(mode, "reads"),
	       show_bytes(bytes, get_number(mode, "read_bytes")));
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		char time[SHOW_TEXT];

		printf("  %10s", show_time(time, get_number(mode, times[i])));
	}
	if (json_is_real(efficiency))
		printf("  %6.1f%%\n", 100 * json_number_value(efficiency));
	else
		printf("  %7s\n", "-");
}

static void print_modes(json_t *sessions)
{
	bool first = true;
	json_t *s, *mode;
	const char *name;
	size_t i;

	json_array_foreach (sessions, i, s) {
		json_object_foreach (json_object_get(s, "modes"), name, mode) {
			if (get_number(mode, "steps") + get_number(mode, "hidden_steps") == 0)
				continue;
			if (first)
				printf("%7s  %-10s  %9s  %9s  %8s  %10s  %10s  %10s  %10s  %10s  %10s  %7s\n",
				       "session", "mode", "steps", "hidden", "reads", "read", "T_wait", "T_compute",
				       "T_ideal", "gain", "T_step", "overlap");
			first = false;
			print_mode(s, name, mode);
		}
	}
}

static void print_time(const json_t *session, const char *name, const json_t *time)
{
	static const char *const shares[] = {"0.5", "0.9", "0.99", "0.999", "1"};
	const json_t *quantiles = json_object_get(time, "quantiles_ns");

	printf("%7.0f  %-8s  %9.0f", get_number(session, "id"), name, get_number(time, "count"));
	for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
		char text[SHOW_TEXT];

		printf("  %10s", show_time(text, get_number(quantiles, shares[i])));
	}
	putchar('\n');
}

/* Quantiles of how long requests waited and worked. */
static void print_times(json_t *sessions)
{
	bool first = true;
	json_t *s, *time;
	const char *name;
	size_t i;

	json_array_foreach (sessions, i, s) {
		json_object_foreach (json_object_get(s, "times"), name, time) {
			if (get_number(time, "count") == 0)
				continue;
			if (first)
				printf("%7s  %-8s  %9s  %10s  %10s  %10s  %10s  %10s\n", "session", "part", "requests",
				       "50%", "90%", "99%", "99.9%", "longest");
			first = false;
			print_time(s, name, time);
		}
	}
}

/* What other caches would have found, and what to do about it. */
static void print_ghosts(const json_t *sessions)
{
	const json_t *s, *cache, *line;
	size_t i, k;

	json_array_foreach (sessions, i, s) {
		const json_t *ghosts = json_object_get(s, "ghosts");

		if (get_number(ghosts, "asked") > 0) {
			printf("session %.0f: of %.0f experts that %.0f layers asked for, caches would have found\n",
			       get_number(s, "id"), get_number(ghosts, "asked"), get_number(ghosts, "layers"));
			json_array_foreach (json_object_get(ghosts, "caches"), k, cache)
				printf("  %-10s %5.0f slots  %5.1f%% (%5.1f%% of pairs)%s\n", get_text(cache, "policy"),
				       get_number(cache, "slots"), 100 * get_number(cache, "hit_rate"),
				       100 * get_number(cache, "hit_rate_pairs"), k == 0 ? "  as it is" : "");
			if (json_is_real(json_object_get(ghosts, "bound_hit_rate")))
				printf("  %-10s %5.0f slots  %5.1f%% of a recent window of steps, %.1f%% as it is\n",
				       "at most", get_number(ghosts, "bound_slots"),
				       100 * get_number(ghosts, "bound_hit_rate"),
				       100 * get_number(ghosts, "bound_own_hit_rate"));
		}
		json_array_foreach (json_object_get(s, "advice"), k, line)
			printf("session %.0f: %s\n", get_number(s, "id"), json_string_value(line));
	}
}

static int print_once(const struct arguments *arg)
{
	json_t *document = ask(arg, MOE_DOCUMENT_STATS);
	const json_t *model;
	size_t i;

	if (!document)
		return EXIT_FAILED;
	if (arg->json) {
		print_json(document);
	} else {
		if (json_array_size(json_object_get(document, "models")) == 0)
			printf("no model is loaded: moectl load PATH\n");
		json_array_foreach (json_object_get(document, "models"), i, model)
			print_model(model);
		print_sessions(json_object_get(document, "sessions"));
		print_modes(json_object_get(document, "sessions"));
		print_times(json_object_get(document, "sessions"));
		print_ghosts(json_object_get(document, "sessions"));
	}
	json_decref(document);
	/* Nobody may be there any more who reads it (| head). */
	return fflush(stdout) != 0 || ferror(stdout) ? EXIT_FAILED : EXIT_DONE;
}

struct figures {
	const struct metrics_family *begun; /* its head is printed */
};

static void print_figure(void *userdata, const struct metrics_sample *sample)
{
	const struct metrics_family *f = sample->family;
	char label[METRICS_LABEL_MAX], value[METRICS_VALUE_MAX];
	struct figures *figures = userdata;

	if (figures->begun != f)
		printf("%s (%s, of %s): %s\n", f->name, f->type == METRICS_COUNTER ? "counter" : "gauge",
		       metrics_scope_names[f->scope], f->help);
	figures->begun = f;
	metrics_value_text(sample, value, sizeof value);
	printf("  %20s%s", value, f->unit == METRICS_NS ? " s" : "");
	for (unsigned i = 0; i < sample->n_labels; i++)
		printf("%s %s %s", i ? "," : " ", sample->labels[i].name,
		       metrics_label_text(&sample->labels[i], label, sizeof label));
	putchar('\n');
}

/* All of the table, as lines for a person or as text for Prometheus. */
static int print_table(const struct metrics_documents *documents, bool prometheus)
{
	struct figures figures = {0};
	struct moe_error err = {0};
	char *text = NULL;

	for (size_t i = 0; i < metrics_n_families && !prometheus; i++)
		metrics_walk(&metrics_families[i], documents, print_figure, &figures);
	if (!prometheus)
		return EXIT_DONE;
	if (metrics_write(&text, documents, &err) < 0) {
		fail(&err);
		return EXIT_FAILED;
	}
	fputs(text, stdout);
	free(text);
	return EXIT_DONE;
}

static int print_figures(const struct arguments *arg)
{
	json_t *status = ask(arg, MOE_DOCUMENT_STATUS), *stats = NULL, *models = NULL;
	int r = EXIT_FAILED;

	if (status)
		stats = ask(arg, MOE_DOCUMENT_STATS);
	if (stats)
		models = ask(arg, MOE_DOCUMENT_MODELS);
	if (models)
		r = print_table(&(struct metrics_documents){{status, stats, models}}, arg->prometheus);
	json_decref(models);
	json_decref(stats);
	json_decref(status);
	return r;
}

int verb_stats(const struct arguments *arg)
{
	const struct timespec pause = {.tv_sec = (time_t)arg->interval,
				       .tv_nsec = (long)(1e9 * (arg->interval - (double)(time_t)arg->interval))};
	const bool screen = arg->watch && !arg->json && isatty(STDOUT_FILENO);
	int r;

	if (arg->prometheus || arg->figures)
		return print_figures(arg);
	do {
		if (screen)
			printf("\033[H\033[2J");
		r = print_once(arg);
	} while (arg->watch && r == EXIT_DONE && nanosleep(&pause, NULL) == 0);
	return r;
}
