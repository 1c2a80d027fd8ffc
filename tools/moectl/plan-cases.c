/* SPDX-License-Identifier: MIT */
#include "plan-cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/file.h"
#include "placement/expert-map.h"
#include "plan-file.h"
#include "plan-show.h"

/* What a planner refuses, in this case's words. */
static int in_case(const char *file, const char *place, int r, struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];

	snprintf(text, sizeof text, "%s", err->text);
	return moe_error_set(err, r, "%s: %s%s%s", file, place, plan_shape_word(text) ? "num_" : "", text);
}

static int check_map(struct plan_job *job, const char *file, const char *place, const json_t *one,
		     struct moe_error *err)
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
		return job->shown ? 0 : plan_no_memory(err);
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
static json_t *run_case(const struct plan_job *all, const char *file, const char *place, const json_t *one,
			struct moe_error *err)
{
	struct plan_job job = {.arg = all->arg, .policy = all->policy};
	const json_t *id = json_object_get(one, "id");
	struct eplb_problem eplb;
	struct plan_state state;
	int r;

	if (!job.policy) {
		r = check_map(&job, file, place, one, err);
	} else if (job.policy->eplb) {
		r = plan_read_eplb(&eplb, file, place, one, err);
		if (r == 0) {
			r = plan_job_eplb(&job, &eplb, NULL, err);
			r = r < 0 ? in_case(file, place, r, err) : r;
			free((double *)eplb.weight);
		}
	} else {
		r = plan_read_state(&state, file, place, one, err);
		if (r == 0) {
			r = plan_job_balance(&job, &state, job.policy->of_case, err);
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

int plan_cases(struct plan_job *job, const char *file, struct moe_error *err)
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
