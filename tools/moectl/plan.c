/* SPDX-License-Identifier: MIT */
/*
 * plan - moectl plan: which rank should hold which experts, from loads, cases or maps in files.
 *
 * Law: no daemon is asked, and no file is written but --map's, or the one that --config records a map in, when all has
 * gone well. Of Ascend's policies a layer of --map and --transfers is the new one only where a worker would take it;
 * the others are kept, and named. What a case asks for is printed as the planner gives it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "moectl.h"
#include "placement/eplb-config.h"
#include "placement/expert-map.h"
#include "plan-file.h"
#include "plan-hot.h"
#include "plan-read.h"
#include "plan-show.h"

static const struct policy {
	const char *name;
	bool eplb, global;
	enum balance_policy balance, of_case; /* of_case: as published results have it */
	bool hot;                             /* copies beside what is everywhere */
} policies[] = {
	{"eplb", true, false, 0, 0},
	{"eplb-global", true, true, 0, 0},
	{"random", false, false, BALANCE_RANDOM, BALANCE_RANDOM},
	{"dynamic", false, false, BALANCE_DYNAMIC, BALANCE_DYNAMIC},
	{"dynamic_ep", false, false, BALANCE_DYNAMIC, BALANCE_DYNAMIC}, /* its old name, which published results have */
	{"swift", false, false, BALANCE_SWIFT, BALANCE_SWIFT_UPSTREAM},
	{"swift-exact", false, false, BALANCE_SWIFT, BALANCE_SWIFT},
	{"swift-upstream", false, false, BALANCE_SWIFT_UPSTREAM, BALANCE_SWIFT_UPSTREAM},
	{"flashlb", false, false, BALANCE_FLASHLB, BALANCE_FLASHLB},
	{"hot", .hot = true},
	{0},
};

static const struct policy *find_policy(const char *name)
{
	for (const struct policy *p = policies; p->name; p++)
		if (strcmp(name, p->name) == 0)
			return p;
	return NULL;
}

struct job {
	const struct plan_arguments *arg;
	uint64_t redundant; /* copies beyond one of each expert, as --config says */
	const struct policy *policy;
	const char *map_word; /* what names the file of the new map, for texts */
	bool records;         /* its folder is made where it is not there yet */
	json_t *loads;        /* what --weights names, where it was read already */
	struct placement to;  /* the new one, where --map or --transfers ask for it */
	json_t *shown;
};

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moectl: plan: %s%s%s; see moectl plan --help\n", text, word ? ": " : "", word ? word : "");
	return EXIT_USAGE;
}

/* Of a word that find_policy does not know. */
static int unknown_policy(const char *word)
{
	char names[256] = "";

	for (const struct policy *p = policies; p->name; p++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
			 p == policies ? ""
			 : p[1].name   ? ", "
				       : " or ",
			 p->name);
	fprintf(stderr, "moectl: plan: --policy: '%s' found, %s expected; see moectl plan --help\n", word, names);
	return EXIT_USAGE;
}

static int no_memory(struct moe_error *err)
{
	return moe_error_set(err, -ENOMEM, "plan: no memory for the result");
}

/* A shape's number that a planner complains of: its name there, in a case num_ and this, and an option's. */
static const char *shape_word(const char *text)
{
	static const char *const words[] = {"replicas", "groups", "nodes", "gpus"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strncmp(text, words[i], strlen(words[i])) == 0 && text[strlen(words[i])] == ':')
			return words[i];
	return NULL;
}

/* Planners know no files: what they refuse is put into this case's words. */
static int in_case(const char *file, const char *place, int r, struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];

	snprintf(text, sizeof text, "%s", err->text);
	return moe_error_set(err, r, "%s: %s%s%s", file, place, shape_word(text) ? "num_" : "", text);
}

/* The same of loads, whose shape stands in options. */
static int in_loads(const struct plan_arguments *arg, int r, struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];
	const char *word;
	bool given;

	snprintf(text, sizeof text, "%s", err->text);
	word = shape_word(text);
	if (!word)
		return moe_error_set(err, r, "%s: %s", arg->weights, text);
	given = *word == 'r'                  ? arg->replicas
		: strcmp(word, "groups") == 0 ? arg->groups
		: *word == 'n'                ? arg->nodes
					      : arg->gpus;
	return moe_error_set(err, r, "--%s%s%s", word, given ? "" : " (not given)", text + strlen(word));
}

/* -- what becomes of a plan --------------------------------------------------------------------------------------- */

static int add_transfers(struct job *job, const struct placement *from, struct moe_error *err)
{
	const enum transfer_rule rule = job->policy->eplb ? TRANSFER_VLLM : TRANSFER_ASCEND;
	struct transfer_plan plan;
	int r = transfer_plan(&plan, rule, from, &job->to, err);

	if (r < 0)
		return r;
	json_object_set_new(job->shown, "transfers", plan_show_transfers(&plan, rule));
	transfer_plan_fini(&plan);
	return 0;
}

/* Layers that a worker would not take stay as they were. */
static int keep_unsound(struct job *job, const struct placement *from, struct moe_error *err)
{
	const size_t all = (size_t)from->ranks * from->slots;
	json_t *kept = json_array();

	for (uint32_t l = 0; l < from->layers; l++) {
		struct moe_error why;

		if (placement_check_step(from, &job->to, l, &why) == 0)
			continue;
		fprintf(stderr, "moectl: plan: layer %u is kept: %s\n", l, why.text);
		memcpy(job->to.at + l * all, from->at + l * all, all * sizeof *from->at);
		json_array_append_new(kept, json_integer(l));
	}
	return json_object_set_new(job->shown, "kept", kept) < 0 ? no_memory(err) : 0;
}

static int plan_eplb(struct job *job, struct eplb_problem *p, const struct placement *from, struct moe_error *err)
{
	struct eplb_plan plan;
	int r;

	if (job->policy->global)
		p->groups = p->nodes = 1;
	r = eplb_plan(&plan, p, err);
	if (r < 0)
		return r;
	if (from)
		r = eplb_keep_slots(&plan, p, from, err);
	if (r == 0)
		r = eplb_placement(&job->to, &plan, p, err);
	job->shown = r == 0 ? plan_show_eplb(p, &plan) : NULL;
	eplb_plan_fini(&plan);
	if (r == 0 && job->shown && job->policy->global)
		json_object_set_new(job->shown, "policy", json_string("global"));
	if (r == 0 && !job->shown)
		r = no_memory(err);
	return r == 0 && job->arg->transfers ? add_transfers(job, from, err) : r;
}

static int plan_balance(struct job *job, const struct plan_state *s, enum balance_policy policy, struct moe_error *err)
{
	const struct balance_problem p = {.from = &s->from, .stages = s->stages, .work = s->work};
	struct balance_plan plan;
	int r = balance_plan(&plan, policy, &p, err);

	if (r < 0)
		return r;
	job->shown = plan_show_balance(&p, &plan, job->policy->name);
	if (!job->shown)
		r = no_memory(err);
	if (r == 0)
		r = placement_copy(&job->to, &plan.to, err);
	balance_plan_fini(&plan);
	if (r == 0 && (job->arg->transfers || job->arg->map))
		r = keep_unsound(job, &s->from, err);
	return r == 0 && job->arg->transfers ? add_transfers(job, &s->from, err) : r;
}

/* -- cases -------------------------------------------------------------------------------------------------------- */

static int check_map(struct job *job, const char *file, const char *place, const json_t *one, struct moe_error *err)
{
	const json_t *map = json_object_get(one, "map"), *experts = json_object_get(one, "experts");
	const json_int_t n = json_integer_value(experts);
	struct moe_error why = {0};
	struct placement p;
	int r;

	if (!json_is_object(map) || (experts && (n < 1 || n > PLACEMENT_EXPERTS_MAX)))
		return moe_error_set(err, -EINVAL,
				     "%s: %smap: an object expected, and a number of experts from 1 to %u; cases of "
				     "loads need --policy",
				     file, place, PLACEMENT_EXPERTS_MAX);
	r = expert_map_read(&p, "map", map, (uint32_t)n, &why);
	if (r == -ENOMEM)
		return moe_error_set(err, r, "%s", why.text);
	if (r < 0) {
		job->shown = json_pack("{s:b, s:s}", "valid", 0, "why", why.text);
		return job->shown ? 0 : no_memory(err);
	}
	job->shown = plan_show_map(&p, 1);
	json_object_set_new(job->shown, "valid", json_true());
	if (json_object_get(one, "layers_tp2")) {
		json_t *two = plan_show_map(&p, 2);

		json_object_set(job->shown, "layers_tp2", json_object_get(two, "layers"));
		json_decref(two);
	}
	placement_fini(&p);
	return 0;
}

/* NULL: what is wrong stands in `err`. */
static json_t *run_case(const struct job *all, const char *file, const char *place, const json_t *one,
			struct moe_error *err)
{
	struct job job = {.arg = all->arg, .policy = all->policy};
	const json_t *id = json_object_get(one, "id");
	struct eplb_problem eplb;
	struct plan_state state;
	int r;

	if (!job.policy) {
		r = check_map(&job, file, place, one, err);
	} else if (job.policy->eplb) {
		r = plan_read_eplb(&eplb, file, place, one, err);
		if (r == 0) {
			r = plan_eplb(&job, &eplb, NULL, err);
			r = r < 0 ? in_case(file, place, r, err) : r;
			free((double *)eplb.weight);
		}
	} else {
		r = plan_read_state(&state, file, place, one, err);
		if (r == 0) {
			r = plan_balance(&job, &state, job.policy->of_case, err);
			r = r < 0 ? in_case(file, place, r, err) : r;
			plan_state_fini(&state);
		}
	}
	placement_fini(&job.to);
	if (r == 0 && (json_is_string(id) || json_is_number(id)))
		json_object_set(job.shown, "id", (json_t *)id);
	if (r == 0)
		return job.shown;
	json_decref(job.shown);
	if (json_is_string(id)) {
		char words[64], text[MOE_ERROR_TEXT_MAX];

		snprintf(text, sizeof text, "%s", err->text);
		moe_error_set(err, r, "case %s: %s", file_clean(words, sizeof words, json_string_value(id)), text);
	}
	return NULL;
}

static int run_cases(struct job *job, const char *file, struct moe_error *err)
{
	_cleanup_json_ json_t *document = NULL;
	const json_t *cases, *one;
	size_t i;
	int r = plan_file_json(&document, file, err);

	if (r < 0)
		return r;
	if (!json_is_object(document))
		return moe_error_set(err, -EINVAL, "%s: one case, or an object with \"cases\", expected", file);
	cases = json_object_get(document, "cases");
	if (!cases) {
		job->shown = run_case(job, file, "", document, err);
		return job->shown ? 0 : err->code;
	}
	if (!json_is_array(cases))
		return moe_error_set(err, -EINVAL, "%s: cases: an array expected", file);
	job->shown = json_pack("{s:[]}", "cases");
	json_array_foreach (cases, i, one) {
		char place[32];
		json_t *shown;

		snprintf(place, sizeof place, "cases[%zu].", i);
		shown = run_case(job, file, place, one, err);
		if (!shown)
			return err->code;
		json_array_append_new(json_object_get(job->shown, "cases"), shown);
	}
	return 0;
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
static uint32_t replicas_of(const struct job *job, const struct plan_loads *loads, const struct placement *from)
{
	if (job->arg->replicas)
		return job->arg->replicas;
	return from ? from->ranks * from->slots : loads->experts + (uint32_t)job->redundant;
}

static int plan_loads_eplb(struct job *job, struct plan_loads *loads, const struct placement *from,
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
	return plan_eplb(job, &p, from, err);
}

static int plan_loads_balance(struct job *job, const struct plan_loads *loads, const struct placement *from,
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
	r = plan_balance(job, &state, job->policy->balance, err);
	plan_state_fini(&state);
	return r;
}

static int plan_loads(struct job *job, struct plan_loads *loads, const struct placement *from, struct moe_error *err)
{
	if (!job->policy->hot)
		return job->policy->eplb ? plan_loads_eplb(job, loads, from, err)
					 : plan_loads_balance(job, loads, from, err);
	sum_stages(loads);
	return plan_hot(&job->shown, loads, job->arg->nodes, job->arg->replicas, err);
}

static int run_loads(struct job *job, struct moe_error *err)
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
static int check_usage(const struct arguments *all, const struct plan_arguments *arg, const struct policy *policy)
{
	if (all->policy && !policy)
		return unknown_policy(all->policy);
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
static int read_config(struct job *job, struct plan_arguments *arg, const struct arguments *all, json_t **document,
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
		return job->shown ? 0 : no_memory(err);
	}
	if (!arg->from)
		arg->from = config.map;
	if (!all->policy && arg->weights)
		job->policy = find_policy(names[config.policy]);
	job->redundant = config.redundant;
	if (!config.record || arg->map || !arg->weights)
		return 0;
	arg->map = config.record;
	job->map_word = "eplb_config.expert_map_record_path";
	job->records = true;
	return 0;
}

static int run(struct job *job, const struct arguments *all, struct moe_error *err)
{
	int r = 0;

	if (!job->shown)
		r = job->arg->cases ? run_cases(job, job->arg->cases, err) : run_loads(job, err);
	if (r == 0 && !job->shown)
		r = no_memory(err);
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
	struct job job = {.arg = &arg, .policy = all->policy ? find_policy(all->policy) : NULL, .map_word = "--map"};
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
	struct job job = {.arg = &arg, .policy = find_policy(policy), .map_word = "--to expert-map", .loads = loads};
	struct moe_error err = {0};
	int r = 0;

	arg.weights = name;
	arg.map = path;
	if (!job.policy)
		r = unknown_policy(policy);
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
