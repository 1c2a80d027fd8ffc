/* SPDX-License-Identifier: MIT */
/* Transfers: made, they turn the old placement into the new one; who sends is as both rules say. */
#include <errno.h>

#include "placement/transfer.h"
#include "tests/placements.h"

static unsigned long long seed;

/* All that is received and copied from the old, then what was received is copied on. */
static bool apply(const struct transfer_plan *plan, const struct placement *from, const struct placement *to)
{
	struct placement now;
	bool good = true;

	must(placement_copy(&now, from, NULL) == 0, "there is memory");
	for (uint32_t late = 0; late < 2; late++)
		for (size_t i = 0; i < plan->n; i++) {
			const struct transfer *t = &plan->list[i];
			const struct placement *source = late ? &now : from;
			const int32_t e = source->at[placement_row(source, t->layer, t->from_rank) + t->from_slot];

			if (t->of_new != late)
				continue;
			good = good && e == (int32_t)t->expert;
			now.at[placement_row(&now, t->layer, t->to_rank) + t->to_slot] = e;
		}
	good = good && memcmp(now.at, to->at, (size_t)to->layers * to->ranks * to->slots * sizeof *to->at) == 0;
	placement_fini(&now);
	return good;
}

static bool holds(const struct placement *p, const struct transfer *t, uint32_t rank)
{
	return placement_holds(p->at + placement_row(p, t->layer, rank), p->slots, (int32_t)t->expert);
}

/* -- Ascend's ----------------------------------------------------------------------------------------------------- */

static uint32_t expected_sender(const struct placement *from, const struct placement *to, const struct transfer *t)
{
	for (uint32_t r = 0; r < from->ranks; r++)
		if (holds(from, t, r) && !holds(to, t, r))
			return r;
	for (uint32_t r = 0; r < from->ranks; r++)
		if (holds(from, t, r))
			return r;
	return from->ranks;
}

static bool ascend_rules(const struct transfer_plan *plan, const struct placement *from, const struct placement *to)
{
	bool good = plan->n == placement_moved_in(from, to);

	for (size_t i = 0; i < plan->n; i++) {
		const struct transfer *t = &plan->list[i], *before = i ? t - 1 : NULL;

		good = good && t->from_rank == expected_sender(from, to, t) && !holds(from, t, t->to_rank);
		if (before && before->layer == t->layer && before->to_rank == t->to_rank)
			good = good && t->buffer == before->buffer + 1 && t->expert > before->expert;
		else
			good = good && t->buffer == 0 &&
			       (!before || before->layer < t->layer || before->to_rank < t->to_rank);
	}
	return good;
}

/* -- vLLM's ------------------------------------------------------------------------------------------------------- */

/* Senders of one expert share its receivers evenly; a rank is in one pair of a round. */
static bool vllm_rules(const struct transfer_plan *plan, const struct placement *from)
{
	bool good = true;

	for (size_t i = 0; i < plan->n; i++) {
		const struct transfer *t = &plan->list[i];
		uint32_t served[16] = {0}, least = UINT32_MAX, most = 0;

		if (t->from_rank == t->to_rank)
			continue;
		good = good && !holds(from, t, t->to_rank);
		for (size_t k = 0; k < plan->n; k++) {
			const struct transfer *x = &plan->list[k];
			const bool apart = x->from_rank != t->from_rank && x->from_rank != t->to_rank &&
					   x->to_rank != t->from_rank && x->to_rank != t->to_rank;

			if (x->layer != t->layer || x->from_rank == x->to_rank)
				continue;
			served[x->from_rank] += x->expert == t->expert;
			good = good && (k == i || x->expert != t->expert || x->to_rank != t->to_rank);
			if (x->from_rank == t->from_rank && x->to_rank == t->to_rank)
				good = good && x->round == t->round;
			else
				good = good && (x->round != t->round || apart);
		}
		for (uint32_t r = 0; r < from->ranks; r++)
			if (holds(from, t, r)) {
				least = served[r] < least ? served[r] : least;
				most = served[r] > most ? served[r] : most;
			}
		good = good && most - least <= 1;
	}
	return good;
}

/* Also lists with an expert twice on a rank, as EPLB makes them. */
static void draw_any(struct placement *p)
{
	for (uint32_t l = 0; l < p->layers; l++)
		for (uint32_t i = 0; i < p->ranks * p->slots; i++)
			p->at[(size_t)l * p->ranks * p->slots + i] =
				(int32_t)(i < p->experts ? i : draw_below(&seed, p->experts));
	for (uint32_t l = 0; l < p->layers; l++)
		for (uint32_t i = p->ranks * p->slots; i-- > 1;) {
			int32_t *at = p->at + (size_t)l * p->ranks * p->slots;
			const uint32_t k = draw_below(&seed, i + 1);
			const int32_t was = at[i];

			at[i] = at[k];
			at[k] = was;
		}
}

static void test_random(void)
{
	uint32_t wrong[4] = {0}, copies = 0, kept = 0;

	for (uint32_t i = 0; i < 5000; i++) {
		struct placement from, to;
		struct transfer_plan plan;

		draw_placement(&seed, &from, true);
		must(placement_copy(&to, &from, NULL) == 0, "there is memory");
		for (uint32_t l = 0; l < to.layers; l++)
			draw_layer(&seed, &to, l);
		must(transfer_preserve(&from, &to, NULL) == 0, "there is memory");
		for (uint32_t l = 0; l < to.layers; l++)
			kept += placement_check_step(&from, &to, l, NULL) < 0;
		must(transfer_plan(&plan, TRANSFER_ASCEND, &from, &to, NULL) == 0, "Ascend's is planned");
		wrong[0] += !apply(&plan, &from, &to);
		wrong[1] += !ascend_rules(&plan, &from, &to);
		transfer_plan_fini(&plan);
		draw_any(&from);
		draw_any(&to);
		if (i % 2)
			must(transfer_preserve(&from, &to, NULL) == 0, "there is memory");
		must(transfer_plan(&plan, TRANSFER_VLLM, &from, &to, NULL) == 0, "vLLM's is planned");
		wrong[2] += !apply(&plan, &from, &to);
		wrong[3] += !vllm_rules(&plan, &from);
		for (size_t k = 0; k < plan.n; k++)
			copies += plan.list[k].of_new;
		transfer_plan_fini(&plan);
		placement_fini(&from);
		placement_fini(&to);
	}
	ok(kept == 0, "a list with slots preserved is one that a worker takes");
	ok(wrong[0] == 0, "Ascend's: 5000 times the old placement becomes the new one");
	ok(wrong[1] == 0, "each arrival once, from who gives it up, buffers by rank and expert");
	ok(wrong[2] == 0 && copies > 100, "vLLM's: the same, %u slots copied from what had just come", copies);
	ok(wrong[3] == 0, "once to each rank, senders share evenly, a rank is in one pair of a round");
}

static void test_by_hand(void)
{
	/* Expert 0 is on ranks 0 and 1, and goes to 2, 3 and 4: two for the first, one for the second. */
	int32_t old[10] = {0, 1, 0, 2, 3, 4, 5, 6, 7, 8}, new[10] = {0, 1, 0, 2, 0, 4, 0, 6, 0, 8};
	struct placement from = {1, 5, 2, 9, old}, to = {1, 5, 2, 9, new};
	struct transfer_plan plan;
	struct moe_error err;

	require(transfer_plan(&plan, TRANSFER_VLLM, &from, &to, NULL) == 0, "three receivers, two senders");
	ok(plan.n == 3 && plan.list[0].from_rank == 0 && plan.list[1].from_rank == 1 && plan.list[2].from_rank == 0 &&
		   plan.list[0].to_rank == 2 && plan.list[1].to_rank == 3 && plan.list[2].to_rank == 4 &&
		   plan.list[0].round == 0 && plan.list[1].round == 0 && plan.list[2].round == 1,
	   "one each, and the third from the first sender, in a second round");
	transfer_plan_fini(&plan);
	old[0] = old[2] = 1;
	ok(transfer_plan(&plan, TRANSFER_VLLM, &from, &to, &err) == -EINVAL &&
		   strstr(err.text, "expert 0 is on no rank"),
	   "refused: %s", err.text);
	to.slots = 1;
	ok(transfer_plan(&plan, TRANSFER_VLLM, &from, &to, &err) == -EINVAL && strstr(err.text, "5 ranks of 1 slots"),
	   "refused: %s", err.text);
}

/* Each sender serves as many receivers in a row. */
static void test_in_a_row(void)
{
	int32_t old[12] = {0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10}, new[12] = {0, 1, 0, 2, 0, 4, 0, 6, 0, 8, 0, 10};
	const struct placement from = {1, 6, 2, 11, old}, to = {1, 6, 2, 11, new};
	struct transfer_plan plan;

	require(transfer_plan(&plan, TRANSFER_VLLM, &from, &to, NULL) == 0, "four receivers, two senders");
	ok(plan.n == 4 && plan.list[0].from_rank == 0 && plan.list[1].from_rank == 0 && plan.list[2].from_rank == 1 &&
		   plan.list[3].from_rank == 1 && plan.list[3].to_rank == 5,
	   "two in a row each");
	transfer_plan_fini(&plan);
}

int main(void)
{
	seed = tap_seed();
	test_random();
	test_by_hand();
	test_in_a_row();
	return tap_done();
}
