/* SPDX-License-Identifier: MIT */
/* EPLB beside a plain restatement of its rules, on random loads with ties and zeros; what it refuses; binary32. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "placement/eplb.h"
#include "placement/transfer.h"
#include "tests/tap.h"

#define MOST 512

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* -- the rules once more, slowly ---------------------------------------------------------------------------------- */

/* Either binary32, as it should be, or binary64. */
static double round_to(bool single, double x)
{
	return single ? (double)(float)x : x;
}

/* n items to m packs: place[i] is pack * (n / m) + rank. */
static void plain_pack(bool single, const double *load, uint32_t n, uint32_t m, uint32_t *place)
{
	double total[MOST] = {0};
	uint32_t filled[MOST] = {0};
	bool placed[MOST] = {0};

	for (uint32_t k = 0; k < n; k++) {
		uint32_t item = n, to = m;

		for (uint32_t i = 0; i < n; i++)
			if (!placed[i] && (item == n || load[i] > load[item]))
				item = i;
		for (uint32_t i = 0; i < m; i++)
			if (filled[i] < n / m && (to == m || total[i] < total[to]))
				to = i;
		if (n == m) {
			item = k;
			to = k;
		}
		placed[item] = true;
		place[item] = to * (n / m) + filled[to]++;
		total[to] = round_to(single, total[to] + load[item]);
	}
}

/* One layer: phy2log and the number of each slot's copy. */
static void plain_layer(bool single, const struct eplb_problem *p, const double *weight, int32_t *slot, uint32_t *copy)
{
	const bool whole = p->groups % p->nodes != 0;
	const uint32_t groups = whole ? 1 : p->groups, nodes = whole ? 1 : p->nodes, size = p->experts / groups;
	const uint32_t e_node = p->experts / nodes, p_node = p->replicas / nodes, g_node = p->gpus / nodes;
	double sums[MOST] = {0};
	uint32_t place[MOST], of[MOST];

	for (uint32_t e = 0; e < p->experts; e++)
		sums[e / size] = round_to(single, sums[e / size] + round_to(single, weight[e]));
	plain_pack(single, sums, groups, nodes, place);
	for (uint32_t e = 0; e < p->experts; e++)
		of[place[e / size] * size + e % size] = e;
	for (uint32_t node = 0; node < nodes; node++) {
		uint32_t count[MOST], expert[MOST], number[MOST];
		double each[MOST];

		for (uint32_t i = 0; i < p_node; i++) {
			uint32_t best = i;

			for (uint32_t e = 0; i >= e_node && e < e_node; e++) {
				const double load = round_to(single, weight[of[node * e_node + e]]);
				const double most = round_to(single, weight[of[node * e_node + best % e_node]]);

				if (best == i ||
				    round_to(single, load / count[e]) > round_to(single, most / count[best]))
					best = e;
			}
			expert[i] = best;
			number[i] = i < e_node ? 0 : count[best];
			count[best] = number[i] + 1;
		}
		for (uint32_t i = 0; i < p_node; i++)
			each[i] = round_to(single,
					   round_to(single, weight[of[node * e_node + expert[i]]]) / count[expert[i]]);
		plain_pack(single, each, p_node, g_node, place);
		for (uint32_t i = 0; i < p_node; i++) {
			slot[node * p_node + place[i]] = (int32_t)of[node * e_node + expert[i]];
			copy[node * p_node + place[i]] = number[i];
		}
	}
}

/* -- random problems ---------------------------------------------------------------------------------------------- */

static double draw(uint32_t kind)
{
	const double u = (double)(tap_random(&seed) >> 11) / 9007199254740992.0;

	switch (kind) {
	case 0:
		return below(4);
	case 1:
		return below(3) ? floor(u * 5000) : 0;
	case 2:
		return floor(pow(u, 10) * 99900) + 1;
	case 3:
		return u * 1e-3;
	case 4:
		return 1e6 + floor(u * 1e6);
	default:
		return 420;
	}
}

static struct eplb_problem make(double *weight)
{
	const uint32_t nodes = 1 + below(4), gpus = nodes * (1 + below(4)), kind = below(6);
	const uint32_t groups = nodes * (1 + below(4)), experts = groups * (1 + below(5));
	struct eplb_problem p = {1 + below(3), experts, 0, groups, nodes, gpus, weight};

	if (below(4) == 0)
		p.groups = 1 + below(nodes); /* most of these are global: */
	if (p.groups % p.nodes)
		p.gpus = 1 + below(16); /* groups divide no experts then, and nodes no GPUs */
	else if (p.experts % p.groups)
		p.groups = 1;
	p.replicas = (experts + p.gpus - 1) / p.gpus * p.gpus + p.gpus * below(4);
	for (uint32_t i = 0; i < p.layers * p.experts; i++)
		weight[i] = draw(kind);
	return p;
}

/* Of one layer; what log2phy and logcnt say must be what the slots say. */
static bool same_layer(const struct eplb_problem *p, const struct eplb_plan *plan, uint32_t l, bool single)
{
	int32_t slot[MOST], count[MOST] = {0};
	uint32_t copy[MOST];
	bool good = true;

	plain_layer(single, p, p->weight + (size_t)l * p->experts, slot, copy);
	for (uint32_t i = 0; i < p->replicas; i++) {
		good = good && slot[i] == plan->phy2log[l * p->replicas + i] &&
		       plan->log2phy[((size_t)l * p->experts + (uint32_t)slot[i]) * plan->columns + copy[i]] ==
			       (int32_t)i;
		count[slot[i]]++;
	}
	for (uint32_t e = 0; e < p->experts; e++) {
		good = good && count[e] == plan->logcnt[l * p->experts + e];
		for (uint32_t k = (uint32_t)count[e]; k < plan->columns; k++)
			good = good && plan->log2phy[((size_t)l * p->experts + e) * plan->columns + k] == -1;
	}
	return good;
}

static void test_random(void)
{
	static double weight[3 * MOST];
	uint32_t wrong = 0, global = 0, differ = 0, layers = 0;

	for (uint32_t i = 0; i < 20000 || (differ == 0 && i < 400000); i++) {
		const struct eplb_problem p = make(weight);
		struct moe_error err = {0};
		struct eplb_plan plan;

		if (eplb_plan(&plan, &p, &err) < 0) {
			diag("%s", err.text);
			wrong++;
			continue;
		}
		global += plan.global;
		for (uint32_t l = 0; l < p.layers; l++, layers++) {
			wrong += !same_layer(&p, &plan, l, true);
			differ += !same_layer(&p, &plan, l, false);
		}
		eplb_plan_fini(&plan);
	}
	ok(wrong == 0 && global > 100, "%u random layers are as the rules have them, %u problems global", layers,
	   global);
	ok(differ > 0, "in %u of them binary64 would have chosen otherwise", differ);
}

/* -- what is refused ---------------------------------------------------------------------------------------------- */

static void refuse(struct eplb_problem p, const char *text)
{
	struct moe_error err = {0};
	struct eplb_plan plan;
	const int r = eplb_plan(&plan, &p, &err);

	ok(r == -EINVAL && strstr(err.text, text), "refused: %s", err.text);
	if (r == 0)
		eplb_plan_fini(&plan);
}

static void test_refused(void)
{
	double weight[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, bad[12] = {0, 1, -1}, nan[12] = {NAN};

	refuse((struct eplb_problem){1, 12, 16, 5, 1, 8, weight}, "experts: 12 found, a multiple of the 5 groups");
	refuse((struct eplb_problem){1, 12, 15, 6, 3, 5, weight}, "gpus: 5 found, a multiple of the 3 nodes");
	refuse((struct eplb_problem){1, 12, 16, 4, 2, 6, weight}, "replicas: 16 found, a multiple of the 6 gpus");
	refuse((struct eplb_problem){1, 12, 8, 4, 2, 8, weight}, "replicas: 8 found, 12 (one for each expert)");
	refuse((struct eplb_problem){1, 12, 16, 4, 0, 8, weight}, "nodes: 0 found");
	refuse((struct eplb_problem){0, 12, 16, 4, 2, 8, weight}, "layers: 0 found");
	refuse((struct eplb_problem){1, 12, 16, 4, 2, 8, bad}, "layer 0, expert 2: -1 found");
	refuse((struct eplb_problem){1, 12, 16, 4, 2, 8, nan}, "layer 0, expert 0: nan found");
}

/* Global: what does not concern it need not divide. */
static void test_global(void)
{
	double weight[7] = {5, 1, 1, 1, 1, 1, 1};
	const struct eplb_problem p = {1, 7, 10, 2, 3, 5, weight};
	struct eplb_plan plan;

	require(eplb_plan(&plan, &p, NULL) == 0, "7 experts, 2 groups, 3 nodes and 5 GPUs: planned globally");
	ok(plan.global && plan.logcnt[0] == 4, "the hot expert has the copies");
	eplb_plan_fini(&plan);
}

static void test_keep_slots(void)
{
	double weight[8] = {9, 8, 7, 6, 5, 4, 3, 2};
	const struct eplb_problem p = {1, 8, 12, 1, 1, 4, weight};
	struct placement first, again;
	struct eplb_plan plan;
	uint32_t stays = 0;
	bool sound = true;

	require(eplb_plan(&plan, &p, NULL) == 0 && eplb_placement(&first, &plan, &p, NULL) == 0, "a plan");
	eplb_plan_fini(&plan);
	for (uint32_t e = 0; e < 8; e++)
		weight[e] = 2 + (e * 5) % 8;
	require(eplb_plan(&plan, &p, NULL) == 0 && eplb_keep_slots(&plan, &p, &first, NULL) == 0 &&
			eplb_placement(&again, &plan, &p, NULL) == 0,
		"and one after it");
	for (uint32_t r = 0; r < 4; r++)
		for (uint32_t s = 0; s < 3; s++) {
			const int32_t e = again.at[r * 3 + s];

			stays += first.at[r * 3 + s] == e;
			sound = sound && (first.at[r * 3 + s] == e || !placement_holds(first.at + r * 3, 3, e) ||
					  placement_holds(again.at + r * 3, s, e));
		}
	for (uint32_t e = 0; e < 8; e++)
		for (uint32_t k = 0; k < (uint32_t)plan.logcnt[e]; k++)
			sound = sound && again.at[plan.log2phy[e * plan.columns + k]] == (int32_t)e &&
				(k == 0 || plan.log2phy[e * plan.columns + k] > plan.log2phy[e * plan.columns + k - 1]);
	ok(sound && stays > 0, "what stays on a GPU stays in its slot (%u), and log2phy goes by slot", stays);
	eplb_plan_fini(&plan);
	placement_fini(&first);
	placement_fini(&again);
}

/* Contracted, the product would not be rounded, and the difference not be zero. */
static void test_contraction(void)
{
	volatile float a = 1.0f + 0x1p-12f, b = 1.0f + 0x1p-12f, c = -(1.0f + 0x1p-11f);
	const float sum = a * b + c;

	ok(sum == 0, "the compiler makes no fused multiplications of its own");
}

int main(void)
{
	seed = tap_seed();
	test_random();
	test_refused();
	test_global();
	test_keep_slots();
	test_contraction();
	return tap_done();
}
