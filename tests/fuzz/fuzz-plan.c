/* SPDX-License-Identifier: MIT */
/*
 * What moectl plan reads: loads, cases and expert maps. Refused in one line, or sound; what is sound and small is
 * planned, and the plan is sound too. The first byte chooses the policy.
 */
#include "model/file.h"
#include "placement/expert-map.h"
#include "tests/fuzz/fuzz.h"
#include "tools/moectl/plan-read.h"

#define SMALL 4096 /* slots of all layers and stages: more only takes longer */

static void read_map(const json_t *document)
{
	struct moe_error err = {0};
	struct placement p, again;
	json_t *written;
	int r = expert_map_read(&p, "map", document, 0, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	fuzz_check(placement_check(&p, "map", &err) == 0);
	written = expert_map_json(&p);
	fuzz_check(written && expert_map_read(&again, "again", written, p.experts, &err) == 0);
	fuzz_check(memcmp(p.at, again.at, (size_t)p.layers * p.ranks * p.slots * sizeof *p.at) == 0);
	json_decref(written);
	placement_fini(&p);
	placement_fini(&again);
}

static void plan_eplb(const json_t *document)
{
	struct moe_error err = {0};
	struct eplb_problem p;
	struct eplb_plan plan;
	struct placement to;
	int r = plan_read_eplb(&p, "case", "", document, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	if (p.replicas * (uint64_t)p.layers <= SMALL) {
		r = eplb_plan(&plan, &p, &err);
		if (r < 0) {
			fuzz_check_refused(r, &err);
		} else {
			fuzz_check(eplb_placement(&to, &plan, &p, &err) == 0);
			eplb_plan_fini(&plan);
			placement_fini(&to);
		}
	}
	free((double *)p.weight);
}

/* As it was: what begins with an expert twice on a rank may stay so. */
static bool is_kept(const struct placement *from, const struct placement *to, uint32_t layer)
{
	return memcmp(from->at + placement_row(from, layer, 0), to->at + placement_row(to, layer, 0),
		      (size_t)from->ranks * from->slots * sizeof *from->at) == 0;
}

static void plan_state(const json_t *document, enum balance_policy policy)
{
	struct moe_error err = {0};
	struct balance_plan plan;
	struct plan_state s;
	int r = plan_read_state(&s, "case", "", document, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	const struct balance_problem p = {.from = &s.from, .stages = s.stages, .work = s.work};

	if ((uint64_t)s.stages * s.from.layers * s.from.ranks * s.from.slots <= SMALL) {
		r = balance_plan(&plan, policy, &p, &err);
		if (r < 0)
			fuzz_check_refused(r, &err);
		for (uint32_t l = 0; r == 0 && policy != BALANCE_RANDOM && l < s.from.layers; l++)
			fuzz_check(is_kept(&s.from, &plan.to, l) ||
				   placement_check_step(&s.from, &plan.to, l, &err) == 0);
		if (r == 0)
			balance_plan_fini(&plan);
	}
	plan_state_fini(&s);
}

static void read_loads(const json_t *document)
{
	struct moe_error err = {0};
	struct plan_loads loads;
	int r = plan_read_loads(&loads, "loads", document, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	fuzz_check(loads.stages && loads.layers && loads.experts);
	for (size_t i = 0; i < (size_t)loads.stages * loads.layers * loads.experts; i++)
		fuzz_check(loads.weight[i] >= 0 && loads.weight[i] <= 2e30);
	plan_loads_fini(&loads);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const enum balance_policy policy = size ? data[0] % (BALANCE_FLASHLB + 1) : BALANCE_RANDOM;
	char *alone = fuzz_alone(data + (size > 0), size ? size - 1 : 0);
	struct moe_error err = {0};
	json_t *document = NULL;
	int r = plan_parse(&document, "input", alone, size ? size - 1 : 0, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
	} else {
		read_map(document);
		read_loads(document);
		if (json_is_object(document)) {
			plan_eplb(document);
			plan_state(document, policy);
		}
	}
	json_decref(document);
	free(alone);
	return 0;
}
