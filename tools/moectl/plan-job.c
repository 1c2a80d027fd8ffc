/* SPDX-License-Identifier: MIT */
#include "plan-job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "plan-show.h"

int plan_no_memory(struct moe_error *err)
{
	return moe_error_set(err, -ENOMEM, "plan: no memory for the result");
}

const char *plan_shape_word(const char *text)
{
	static const char *const words[] = {"replicas", "groups", "nodes", "gpus"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strncmp(text, words[i], strlen(words[i])) == 0 && text[strlen(words[i])] == ':')
			return words[i];
	return NULL;
}

static int add_transfers(struct plan_job *job, const struct placement *from, struct moe_error *err)
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
static int keep_unsound(struct plan_job *job, const struct placement *from, struct moe_error *err)
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
	return json_object_set_new(job->shown, "kept", kept) < 0 ? plan_no_memory(err) : 0;
}

int plan_job_eplb(struct plan_job *job, struct eplb_problem *p, const struct placement *from, struct moe_error *err)
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
		r = plan_no_memory(err);
	return r == 0 && job->arg->transfers ? add_transfers(job, from, err) : r;
}

int plan_job_balance(struct plan_job *job, const struct plan_state *s, enum balance_policy policy,
		     struct moe_error *err)
{
	const struct balance_problem p = {.from = &s->from, .stages = s->stages, .work = s->work};
	struct balance_plan plan;
	int r = balance_plan(&plan, policy, &p, err);

	if (r < 0)
		return r;
	job->shown = plan_show_balance(&p, &plan, job->policy->name);
	if (!job->shown)
		r = plan_no_memory(err);
	if (r == 0)
		r = placement_copy(&job->to, &plan.to, err);
	balance_plan_fini(&plan);
	if (r == 0 && (job->arg->transfers || job->arg->map))
		r = keep_unsound(job, &s->from, err);
	return r == 0 && job->arg->transfers ? add_transfers(job, &s->from, err) : r;
}
