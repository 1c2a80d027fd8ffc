/* SPDX-License-Identifier: MIT */
/*
 * A journal's leases against a plain list of them: whatever is lent, given back or taken over, the next one is the
 * lowest place that is free, in its next generation; a full table has none. And what a successor finds in flight,
 * wherever in the table of slots it is.
 */
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/journal.h"
#include "tests/tap.h"

#define ENTRIES 16
#define STEPS 300000

static uint32_t generations[JOURNAL_LEASES_MAX], n_held;
static bool held[JOURNAL_LEASES_MAX];

static uint64_t expected(void)
{
	for (uint64_t i = 0; i < JOURNAL_LEASES_MAX; i++)
		if (!held[i])
			return (uint64_t)(generations[i] + 1) << 32 | (i + 1);
	return 0;
}

static void effect(struct journal *j, enum journal_effect effect, uint64_t lease)
{
	const uint64_t place = (lease & UINT32_MAX) - 1;
	const struct moe_sqe sqe = {.op = MOE_OP_FILL, .fill.expert = (uint32_t)place % 7};
	const uint32_t slot = (uint32_t)place % ENTRIES;

	journal_claim(j, slot, &sqe);
	journal_set_effect(j, slot, effect, lease);
	journal_end(j, slot, 0);
	n_held += (effect == JOURNAL_LEND) - held[place];
	held[place] = effect == JOURNAL_LEND;
	generations[place] = (uint32_t)(lease >> 32);
}

static bool lend(struct journal *j)
{
	const uint64_t lease = journal_free_lease(j);
	const uint64_t place = (lease & UINT32_MAX) - 1;
	bool good = lease != 0;

	if (good && place >= j->page->n_leases)
		good = journal_make_leases(j, place, place + 1) == 0;
	if (good)
		effect(j, JOURNAL_LEND, lease);
	return good && journal_holds(j, lease);
}

static bool give_back(struct journal *j, uint64_t place)
{
	const uint64_t lease = (uint64_t)generations[place] << 32 | (place + 1);

	if (!held[place])
		return !journal_holds(j, lease);
	effect(j, JOURNAL_RELEASE, lease);
	return !journal_holds(j, lease);
}

static bool same(const struct journal *j)
{
	return journal_free_lease(j) == expected() && journal_leases(j) == n_held;
}

/* As a successor opens it. */
static bool open_again(struct journal *j)
{
	struct journal next;

	if (journal_open(&next, dup(j->fd), NULL) < 0)
		return false;
	journal_free(j);
	*j = next;
	return true;
}

/* Around a wandering number of leases, so that places are met again; and the table's ends. */
static uint32_t wrong_steps(struct journal *j, unsigned long long *seed)
{
	uint32_t wrong = 0, most = 200;

	for (uint32_t i = 0; i < STEPS; i++) {
		const uint64_t draw = tap_random(seed);

		if (i % 1000 == 0)
			most = (uint32_t)(draw % 600);
		if (n_held < most ? draw % 4 > 0 : draw % 4 == 0)
			wrong += !lend(j);
		else
			wrong += !give_back(j, (draw >> 8) % (j->page->n_leases + 1));
		if (i % 20000 == 0)
			wrong += !open_again(j);
		wrong += !same(j);
	}
	return wrong;
}

/* Killed when its first lease was given out, and only the effect was still to be done, or only its end. */
static bool first_lease(bool done)
{
	const struct moe_sqe sqe = {.op = MOE_OP_FILL};
	struct moe_daemon_page page = {.cq_tail = 1};
	struct moe_cqe cqes[ENTRIES] = {0};
	uint32_t slots[ENTRIES];
	struct journal j;
	bool good = journal_new(&j, ENTRIES, NULL) == 0;
	const uint64_t lease = good ? journal_free_lease(&j) : 0;

	if (!good)
		return false;
	journal_claim(&j, 3, &sqe);
	journal_set_effect(&j, 3, JOURNAL_LEND, lease);
	journal_last(&j, 3);
	if (done)
		journal_drop(&j, 3);
	good = journal_make_leases(&j, 0, 1) == 0 && open_again(&j) && journal_leases(&j) == 0 &&
	       journal_recover(&j, &page, cqes, slots) == 0 && journal_holds(&j, lease) && journal_leases(&j) == 1;
	journal_free(&j);
	return good;
}

/* Some of the slots, of a table longer than what is looked at in one go. */
static bool found_in_flight(unsigned long long *seed)
{
	static struct moe_cqe cqes[MOE_RING_ENTRIES_MAX];
	static uint32_t slots[MOE_RING_ENTRIES_MAX];
	const struct moe_sqe sqe = {.op = MOE_OP_NOP};
	const uint32_t entries = 8u << tap_random(seed) % 10, n = (uint32_t)(tap_random(seed) % (entries + 1));
	struct moe_daemon_page page = {0};
	struct journal j;
	bool good = journal_new(&j, entries, NULL) == 0;

	if (!good)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		slots[i] = (uint32_t)(tap_random(seed) % entries);
		if (!j.page->slots[slots[i]].inflight)
			journal_claim(&j, slots[i], &sqe);
	}
	good = open_again(&j) && journal_recover(&j, &page, cqes, slots) == (int)j.page->next;
	for (uint64_t i = 0; i < j.page->next && good; i++)
		good = j.page->slots[slots[i]].counter == i;
	journal_free(&j);
	return good;
}

int main(void)
{
	unsigned long long seed = tap_seed();
	uint32_t wrong_tables = 0;
	struct moe_error err;
	struct journal j;
	uint32_t wrong;
	bool good = true;

	require(journal_new(&j, ENTRIES, &err) == 0, "a journal: %s", err.text);
	wrong = wrong_steps(&j, &seed);
	ok(wrong == 0, "%d leases at random: %u not as the plain list has them", STEPS, wrong);
	while (n_held < JOURNAL_LEASES_MAX && good)
		good = lend(&j);
	ok(good && journal_free_lease(&j) == 0 && journal_leases(&j) == JOURNAL_LEASES_MAX, "a full table has none");
	ok(open_again(&j) && journal_free_lease(&j) == 0, "nor has the successor's");
	for (int64_t at = JOURNAL_LEASES_MAX - 1; at >= 0 && good; at -= 1 + (int64_t)(tap_random(&seed) % 4096))
		good = give_back(&j, (uint64_t)at) && same(&j);
	ok(good, "from its end to its beginning");
	journal_release_all(&j);
	memset(held, 0, sizeof held);
	n_held = 0;
	ok(same(&j), "all of them");
	journal_free(&j);
	ok(first_lease(false), "a first lease that was given out and not lent yet is lent by the recovery");
	ok(first_lease(true), "and if its request was closed already");
	for (int i = 0; i < 2000; i++)
		wrong_tables += !found_in_flight(&seed);
	ok(wrong_tables == 0,
	   "2000 tables of 8 to 4096 slots: %u whose requests in flight were not all found, in order", wrong_tables);
	return tap_done();
}
