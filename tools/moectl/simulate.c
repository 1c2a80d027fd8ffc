/* SPDX-License-Identifier: MIT */
/* moectl simulate: what caches would have found in a recorded trace. No daemon is asked. */
#include "simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "moectl.h"
#include "output.h"

/* How often each expert of each layer is asked for, in pairs: what `static` begins with. */
static int calibrate(uint64_t **ret, const char *path, bool together, const struct trace_file *for_file,
		     struct moe_error *err)
{
	struct trace_file file = {0};
	uint64_t *counts = NULL;
	int r = trace_file_read(&file, path, together, err);
	const struct sim_trace *t;

	if (r < 0)
		return r;
	t = &file.cases[0].trace;
	for (uint32_t i = 0; r == 0 && i < for_file->n; i++)
		if (file.n > 1 || for_file->cases[i].trace.layers != t->layers ||
		    for_file->cases[i].trace.experts != t->experts)
			r = moe_error_set(
				err, -EINVAL,
				"--calibrate: %s: %u traces, %u layers of %u experts found, one, %u of %u (%s) "
				"expected",
				path, file.n, t->layers, t->experts, for_file->cases[i].trace.layers,
				for_file->cases[i].trace.experts, for_file->cases[i].id);
	if (r == 0 && !(counts = calloc((size_t)t->layers * t->experts, sizeof *counts)))
		r = moe_error_set(err, -ENOMEM, "--calibrate: no memory");
	for (size_t place = 0; r == 0 && place < (size_t)t->steps * t->layers; place++)
		for (size_t i = 0; i < (size_t)t->tokens[place] * t->topk; i++)
			if (t->ids[t->first[place] + i] >= 0)
				counts[place % t->layers * t->experts + (uint32_t)t->ids[t->first[place] + i]]++;
	trace_file_free(&file);
	if (r == 0)
		*ret = counts;
	return r;
}

static int write_svg(const struct runs *runs, const struct trace_case *one, bool costs, const char *path)
{
	struct output out;
	int r = output_open(&out, path);

	if (r == 0) {
		simulate_chart(runs, one, costs, out.to);
		r = output_end(&out, 0);
	}
	if (r < 0)
		fprintf(stderr, "moectl: %s: %s\n", path, strerror(-r));
	return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

/* One case: 0 or an exit status. With --json its document goes to `documents`. */
static int simulate_case(const struct arguments *arg, const struct trace_file *file, uint32_t at,
			 const struct run_wishes *wishes, json_t *documents)
{
	const struct trace_case *one = &file->cases[at];
	struct moe_error err = {0};
	struct runs runs = {0};
	int r = runs_plan(&runs, one, wishes, &err), status = EXIT_DONE;

	if (r == 0)
		r = runs_run(&runs, one, wishes, &err);
	if (r < 0) {
		status = fail(&err);
	} else if (arg->json) {
		json_array_append_new(documents, simulate_document(&runs, one, file->format));
	} else if (arg->svg) {
		status = write_svg(&runs, one, wishes->rates != NULL, arg->svg);
	} else {
		if (at > 0)
			putchar('\n');
		simulate_table(&runs, one, file->format, stdout);
		if (wishes->rates)
			simulate_cost_table(&runs, stdout);
	}
	runs_free(&runs);
	return status;
}

static int simulate_file(const struct arguments *arg, const struct trace_file *file, const struct run_wishes *wishes)
{
	json_t *documents = json_array();
	int status = EXIT_DONE;

	if (arg->svg && file->n > 1) {
		fprintf(stderr, "moectl: simulate: --svg draws one trace, %s has %u: give one case in a file\n",
			arg->words[0], file->n);
		status = EXIT_FAILED;
	}
	for (uint32_t i = 0; status == EXIT_DONE && i < file->n; i++)
		status = simulate_case(arg, file, i, wishes, documents);
	if (status == EXIT_DONE && arg->json) {
		json_t *all = file->several ? json_pack("{s:O}", "cases", documents)
					    : json_incref(json_array_get(documents, 0));

		json_dumpf(all, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(all);
	}
	json_decref(documents);
	return status;
}

int verb_simulate(const struct arguments *arg)
{
	struct run_wishes wishes = {.policies = arg->policy,
				    .capacities = arg->capacity,
				    .modes = arg->mode,
				    .json = arg->json,
				    .evictions = arg->evictions};
	struct moe_error err = {0};
	struct trace_file file = {0};
	struct cost_rates rates;
	uint64_t *counts = NULL;
	json_t *params = NULL;
	int r, status;

	if (arg->evictions && !arg->json) {
		fprintf(stderr, "moectl: simulate: --evictions is for --json, which has room for them\n");
		return EXIT_USAGE;
	}
	if (arg->cost && simulate_rates(&rates, arg->cost, &err) < 0) {
		fail(&err);
		return EXIT_USAGE;
	}
	wishes.rates = arg->cost ? &rates : NULL;
	if (arg->param && simulate_params(&params, arg->param, &err) < 0) {
		fail(&err);
		return EXIT_USAGE;
	}
	wishes.params = params;
	if (runs_check(&wishes, &err) < 0) {
		fail(&err);
		json_decref(params);
		return EXIT_USAGE;
	}
	r = trace_file_read(&file, arg->words[0], arg->together, &err);
	if (r == 0 && arg->calibrate)
		r = calibrate(&counts, arg->calibrate, arg->together, &file, &err);
	wishes.calibration = counts;
	status = r < 0 ? fail(&err) : simulate_file(arg, &file, &wishes);
	trace_file_free(&file);
	json_decref(params);
	free(counts);
	return status;
}
