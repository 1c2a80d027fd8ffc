/* SPDX-License-Identifier: MIT */
/*
 * Transfers by Ascend's rule and by vLLM's, against twins that say the rules again and look at all ranks for each
 * choice. Placements are random, on two to eight ranks.
 */
#include "placement/transfer.h"
#include "tests/placements.h"

#define RANKS 8
#define SLOTS 6
#define ALL (RANKS * SLOTS)

static unsigned long long seed;

struct sent {
	uint32_t expert, from, to, number; /* number: round or buffer */
};

static bool has(const struct placement *p, uint32_t layer, uint32_t rank, uint32_t expert)
{
	return placement_holds(p->at + placement_row(p, layer, rank), p->slots, (int32_t)expert);
}

static uint32_t twin_ascend(struct sent *ret, const struct placement *from, const struct placement *to, uint32_t layer)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < to->ranks; r++)
		for (uint32_t e = 0, buffer = 0; e < to->experts; e++) {
			uint32_t source = RANKS;

			if (!has(to, layer, r, e) || has(from, layer, r, e))
				continue;
			for (uint32_t i = to->ranks; i-- > 0;)
				if (has(from, layer, i, e) && !has(to, layer, i, e))
					source = i;
			while (source == RANKS || !has(from, layer, source, e))
				source = source == RANKS ? 0 : source + 1;
			ret[n++] = (struct sent){e, source, r, buffer++};
		}
	return n;
}

/* Pairs of ranks in the order in which expert ids name them, each in the first round that has neither. */
static void give_rounds(struct sent *list, uint32_t n)
{
	bool busy[ALL][RANKS] = {{false}};

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = 0, round = 0;

		while (list[k].from != list[i].from || list[k].to != list[i].to)
			k++;
		if (k < i) {
			list[i].number = list[k].number;
			continue;
		}
		while (busy[round][list[i].from] || busy[round][list[i].to])
			round++;
		list[i].number = round;
		busy[round][list[i].from] = busy[round][list[i].to] = true;
	}
}

static uint32_t twin_vllm(struct sent *ret, const struct placement *from, const struct placement *to, uint32_t layer)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < to->experts; e++) {
		uint32_t s[RANKS], r[RANKS], m = 0, receivers = 0, q;

		for (uint32_t i = 0; i < to->ranks; i++) {
			if (has(from, layer, i, e))
				s[m++] = i;
			else if (has(to, layer, i, e))
				r[receivers++] = i;
		}
		q = receivers / m;
		for (uint32_t k = 0; k < receivers; k++)
			for (uint32_t i = 0; i < m; i++)
				if ((k >= i * q && k < (i + 1) * q) || k == m * q + i)
					ret[n++] = (struct sent){e, s[i], r[k], 0};
	}
	give_rounds(ret, n);
	return n;
}

static bool same_transfers(const struct transfer_plan *plan, enum transfer_rule rule, const struct placement *from,
			   const struct placement *to)
{
	size_t at = 0;
	bool good = true;

	for (uint32_t l = 0; l < to->layers; l++) {
		struct sent list[ALL];
		const uint32_t n = (rule == TRANSFER_ASCEND ? twin_ascend : twin_vllm)(list, from, to, l);

		for (uint32_t i = 0; i < n; i++, at++) {
			const struct transfer *t = &plan->list[at];

			good = good && at < plan->n && t->layer == l && t->expert == list[i].expert &&
			       t->from_rank == list[i].from && t->to_rank == list[i].to &&
			       (rule == TRANSFER_ASCEND ? t->buffer : t->round) == list[i].number;
		}
		/* What a rank copies for itself comes behind. */
		while (rule == TRANSFER_VLLM && at < plan->n && plan->list[at].layer == l &&
		       plan->list[at].from_rank == plan->list[at].to_rank)
			at++;
	}
	return good && at == plan->n;
}

static void test_transfers(enum transfer_rule rule, const char *name)
{
	uint32_t wrong = 0;
	size_t sent = 0;

	for (uint32_t i = 0; i < 10000; i++) {
		struct placement from, to;
		struct transfer_plan plan;

		draw_placement(&seed, &from, i % 2);
		must(placement_copy(&to, &from, NULL) == 0, "there is memory");
		for (uint32_t l = 0; l < to.layers; l++)
			draw_layer(&seed, &to, l);
		must(transfer_preserve(&from, &to, NULL) == 0 && transfer_plan(&plan, rule, &from, &to, NULL) == 0,
		     name);
		wrong += !same_transfers(&plan, rule, &from, &to);
		sent += plan.n;
		transfer_plan_fini(&plan);
		placement_fini(&from);
		placement_fini(&to);
	}
	ok(wrong == 0 && sent > 10000, "%s: %zu transfers of 10000 cases have the twin's ranks and numbers, %u do not",
	   name, sent, wrong);
}

int main(void)
{
	seed = tap_seed();
	test_transfers(TRANSFER_ASCEND, "Ascend's");
	test_transfers(TRANSFER_VLLM, "vLLM's");
	return tap_done();
}
