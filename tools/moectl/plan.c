/* SPDX-License-Identifier: MIT */
/*
 * plan - moectl plan: which rank should hold which experts, from loads, cases or maps in files.
 *
 * Law: no daemon is asked, and no file is written but --map's, or the one that --config records a map in, when all has
 * gone well. What a case asks for is printed as the planner gives it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "moectl.h"
#include "placement/eplb-config.h"
#include "plan-cases.h"
#include "plan-file.h"
#include "plan-hot.h"
#include "plan-job.h"
#include "plan-read.h"
#include "plan-show.h"

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moectl: plan: %s%s%s; see moectl plan --help\n", text, word ? ": " : "", word ? word : "");
	return EXIT_USAGE;
}

/* Planners know no files: what they refuse of loads, whose shape stands in options, is put into these words. */
static int in_loads(const struct plan_arguments *arg, int r, struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];
	const char *word;
	bool given;

	snprintf(text, sizeof text, "%s", err->text);
	word = plan_shape_word(text);
	if (!word)
		return moe_error_set(err, r, "%s: %s", arg->weights, text);
	given = *word == 'r'                  ? arg->replicas
		: strcmp(word, "groups") == 0 ? arg->groups
		: *word == 'n'                ? arg->nodes
					      : arg->gpus;
	return moe_error_set(err, r, "--%s%s%s", word, given ? "" : " (not given)", text + strlen(word));
}

/* -- loads and maps ----------------------------------------------------------------------------------------------- */

/* EPLB looks at all stages together. */
static void sum_stages(struct plan_loads *loads)
{
	const size_t n = (size_t)loads->layers * loads->experts;

	for (uint32_t stage = 1; stage < loads->stages; stage++)
		for (size_t i = 0; i < n; i++)
			loads->weight[i] += loads->weight[stage * n + i];
	loads->stages = 1;
}

/* --config's number is at most ARGUMENTS_COUNT_MAX. */
static uint32_t replicas_of(const struct plan_job *job, const struct plan_loads *loads, const struct placement *from)
{
	if (job->arg->replicas)
		return job->arg->replicas;
	return from ? from->ranks * from->slots : loads->experts + (uint32_t)job->redundant;
}

static int plan_loads_eplb(struct plan_job *job, struct plan_loads *loads, const struct placement *from,
			   struct moe_error *err)
{
	const struct plan_arguments *arg = job->arg;
	struct eplb_problem p = {
		.layers = loads->layers,
		.experts = loads->experts,
		.replicas = replicas_of(job, loads, from),
		.groups = arg->groups ? arg->groups : 1,
		.nodes = arg->nodes ? arg->nodes : 1,
		.gpus = arg->gpus ? arg->gpus
			: from    ? from->ranks
				  : 1,
		.weight = loads->weight,
	};

	sum_stages(loads);
	return plan_job_eplb(job, &p, from, err);
}

static int plan_loads_balance(struct plan_job *job, const struct plan_loads *loads, const struct placement *from,
			      struct moe_error *err)
{
	const struct plan_arguments *arg = job->arg;
	const uint32_t gpus = arg->gpus ? arg->gpus : from ? from->ranks : 1;
	const uint32_t replicas = replicas_of(job, loads, from);
	struct placement initial = {0};
	struct plan_state state;
	int r = 0;

	if (from && (gpus != from->ranks || replicas != from->ranks * from->slots))
		return moe_error_set(
			err, -EINVAL,
			"%s: %u devices with %u slots found, %u with %u asked for by --gpus and --replicas", arg->from,
			from->ranks, from->ranks * from->slots, gpus, replicas);
	if (replicas % gpus != 0)
		return moe_error_set(err, -EINVAL, "replicas: %u found, a multiple of the %u gpus expected", replicas,
				     gpus);
	if (!from)
		r = placement_initial(&initial, loads->layers, gpus, replicas / gpus, loads->experts, err);
	if (r == 0)
		r = plan_share_loads(&state, from ? from : &initial, loads, err);
	placement_fini(&initial);
	if (r < 0)
		return r;
	r = plan_job_balance(job, &state, job->policy->balance, err);
	plan_state_fini(&state);
	return r;
}

static int plan_loads(struct plan_job *job, struct plan_loads *loads, const struct placement *from,
		      struct moe_error *err)
{
	if (!job->policy->hot)
		return job->policy->eplb ? plan_loads_eplb(job, loads, from, err)
					 : plan_loads_balance(job, loads, from, err);
	sum_stages(loads);
	return plan_hot(&job->shown, loads, job->arg->nodes, job->arg->replicas, err);
}

static int run_loads(struct plan_job *job, struct moe_error *err)
{
	_cleanup_json_ json_t *document = NULL;
	struct plan_loads loads = {0};
	struct placement from = {0};
	const struct placement *now = job->arg->from ? &from : NULL;
	int r = now ? plan_file_map(&from, job->arg->from, err) : 0;

	if (r == 0 && !job->policy) {
		job->shown = plan_show_map(&from, 1);
		if (job->arg->map)
			r = placement_copy(&job->to, &from, err);
		placement_fini(&from);
		return r;
	}
	if (r == 0 && job->loads)
		document = json_incref(job->loads);
	else if (r == 0)
		r = plan_file_json(&document, job->arg->weights, err);
	if (r == 0)
		r = plan_read_loads(&loads, job->arg->weights, document, err);
	if (r == 0) {
		r = plan_loads(job, &loads, now, err);
		r = r < 0 ? in_loads(job->arg, r, err) : r;
	}
	placement_fini(&from);
	plan_loads_fini(&loads);
	return r;
}

/* -- the verb ----------------------------------------------------------------------------------------------------- */

/* EXIT_USAGE: these do not go together. `arg`: with what --config says. */
static int check_usage(const struct arguments *all, const struct plan_arguments *arg, const struct plan_policy *policy)
{
	if (all->policy && !policy)
		return plan_policy_unknown(all->policy);
	if (policy && policy->hot) {
		if (arg->cases || arg->from || arg->map || arg->groups || arg->gpus || arg->transfers)
			return usage("--policy hot goes with --weights, --nodes and --replicas alone", NULL);
		if (!arg->weights || !arg->nodes || !arg->replicas)
			return usage("--policy hot needs --weights, --nodes and --replicas", NULL);
		return EXIT_DONE;
	}
	if (arg->cases &&
	    (arg->weights || arg->from || arg->map || arg->replicas || arg->groups || arg->nodes || arg->gpus))
		return usage("--case has loads, shapes and maps of its own", NULL);
	if (arg->cases && arg->transfers && (!policy || policy->eplb))
		return usage("--transfers of a case is for policies that begin with a placement", NULL);
	if (arg->cases && all->config)
		return usage("--case has no use for --config", NULL);
	if (arg->cases)
		return EXIT_DONE;
	if (all->json && arg->map && strcmp(arg->map, "-") == 0)
		return usage("--map - and --json both print: leave one of them out", NULL);
	if (!arg->weights && !arg->from)
		return usage("--weights, --from or --case is missing", NULL);
	if (arg->weights && !policy)
		return usage("--policy is missing", NULL);
	if (policy && !arg->weights)
		return usage("--weights is missing", NULL);
	if (policy && !arg->gpus && !arg->from)
		return usage("--gpus is missing", NULL);
	if (policy && !policy->eplb && (arg->groups || arg->nodes))
		fprintf(stderr,
			"moectl plan: --groups and --nodes are of eplb, which packs groups on nodes: %s plans "
			"without them\n",
			policy->name);
	if (arg->transfers && (!arg->from || !policy))
		return usage("--transfers needs --from, and a policy", NULL);
	return EXIT_DONE;
}

static void print_shown(const json_t *shown)
{
	const json_t *cases = json_object_get(shown, "cases"), *one;
	size_t i;

	if (!cases)
		plan_print(shown, stdout);
	else if (json_array_size(cases) == 0)
		puts("no cases");
	json_array_foreach (cases, i, one)
		plan_print(one, stdout);
}

/* -- the configuration -------------------------------------------------------------------------------------------- */

static void print_config(const json_t *config)
{
	const char *key;
	const json_t *value;

	json_object_foreach ((json_t *)config, key, value) {
		printf("%-32s ", key);
		json_dumpf(value, stdout, JSON_ENCODE_ANY);
		putchar('\n');
	}
}

/* Alone it is shown; else it says what the options do not. What it says stays in `document`. */
static int read_config(struct plan_job *job, struct plan_arguments *arg, const struct arguments *all, json_t **document,
		       struct moe_error *err)
{
	static const char *const names[] = {"random", "dynamic", "swift", "flashlb"};
	const struct eplb_config_env env = {getenv("DYNAMIC_EPLB"), getenv("EXPERT_MAP_RECORD")};
	struct eplb_config config;
	struct placement map;
	int r = plan_file_json(document, all->config, err);

	if (r == 0)
		r = eplb_config_read(&config, all->config, *document, arg->gpus, &env, err);
	if (r == 0 && config.redundant > ARGUMENTS_COUNT_MAX)
		r = moe_error_set(err, -EINVAL, "%s: eplb_config.num_redundant_experts: %llu found, at most %d planned",
				  all->config, (unsigned long long)config.redundant, ARGUMENTS_COUNT_MAX);
	if (r == 0 && config.map) {
		r = plan_file_map(&map, config.map, err);
		if (r == 0)
			placement_fini(&map);
	}
	if (r < 0)
		return r;
	if (!arg->weights && !arg->from && !all->policy) {
		job->shown = json_pack("{s:o}", "eplb_config", eplb_config_json(&config));
		return job->shown ? 0 : plan_no_memory(err);
	}
	if (!arg->from)
		arg->from = config.map;
	if (!all->policy && arg->weights)
		job->policy = plan_policy_find(names[config.policy]);
	job->redundant = config.redundant;
	if (!config.record || arg->map || !arg->weights)
		return 0;
	arg->map = config.record;
	job->map_word = "eplb_config.expert_map_record_path";
	job->records = true;
	return 0;
}

static int run(struct plan_job *job, const struct arguments *all, struct moe_error *err)
{
	int r = 0;

	if (!job->shown)
		r = job->arg->cases ? plan_cases(job, job->arg->cases, err) : run_loads(job, err);
	if (r == 0 && !job->shown)
		r = plan_no_memory(err);
	if (r == 0 && job->records)
		r = plan_file_make_folder(job->arg->map, job->map_word, err);
	if (r == 0 && job->arg->map)
		r = plan_file_write_map(&job->to, job->arg->map, job->map_word, err);
	if (r < 0)
		return r;
	if (all->json) {
		json_dumpf(job->shown, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
		putchar('\n');
	} else if (json_object_get(job->shown, "eplb_config")) {
		print_config(json_object_get(job->shown, "eplb_config"));
	} else if (!job->arg->map || strcmp(job->arg->map, "-") != 0) {
		print_shown(job->shown);
	}
	return 0;
}

int verb_plan(const struct arguments *all)
{
	struct plan_arguments arg = all->plan;
	struct plan_job job = {
		.arg = &arg, .policy = all->policy ? plan_policy_find(all->policy) : NULL, .map_word = "--map"};
	_cleanup_json_ json_t *config = NULL;
	struct moe_error err = {0};
	int r = 0;

	if (all->config && !arg.cases)
		r = read_config(&job, &arg, all, &config, &err);
	if (r < 0)
		return fail(&err);
	if (!job.shown)
		r = check_usage(all, &arg, job.policy);
	if (r != EXIT_DONE)
		return r;
	r = run(&job, all, &err);
	json_decref(job.shown);
	placement_fini(&job.to);
	return r < 0 ? fail(&err) : EXIT_DONE;
}

int plan_write_map(const struct arguments *all, const char *name, json_t *loads, const char *path)
{
	const char *policy = all->policy ? all->policy : "swift"; /* eplb puts an expert on a rank twice, no map does */
	struct plan_arguments arg = all->plan;
	struct plan_job job = {
		.arg = &arg, .policy = plan_policy_find(policy), .map_word = "--to expert-map", .loads = loads};
	struct moe_error err = {0};
	int r = 0;

	arg.weights = name;
	arg.map = path;
	if (!job.policy)
		r = plan_policy_unknown(policy);
	else if (job.policy->hot)
		r = usage("--policy hot makes copies, no expert map", NULL);
	else if (!arg.gpus && !arg.from)
		r = usage("an expert map is of ranks: --gpus is missing", NULL);
	if (r == 0)
		r = run_loads(&job, &err);
	if (r == 0)
		r = plan_file_write_map(&job.to, path, job.map_word, &err);
	json_decref(job.shown);
	json_decref(loads);
	placement_fini(&job.to);
	return r < 0 ? fail(&err) : r;
}
