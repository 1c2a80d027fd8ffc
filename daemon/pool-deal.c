/* SPDX-License-Identifier: MIT */
#include "daemon/pool-deal.h"

#include <stdlib.h>

#include "base/host.h"
#include "base/util.h"
#include "daemon/pool.h"

uint64_t deal_cost(uint32_t pairs)
{
	return MAX(pairs, (uint32_t)POOL_PAIRS_PER_READ);
}

static int dearer(const void *a, const void *b)
{
	const struct deal_expert *x = a, *y = b;
	const int copies = __builtin_popcount(x->teams) - __builtin_popcount(y->teams);

	if (deal_cost(x->pairs) != deal_cost(y->pairs))
		return deal_cost(x->pairs) > deal_cost(y->pairs) ? -1 : 1;
	if (copies)
		return copies;
	return x->number < y->number ? -1 : 1;
}

static uint32_t least(const uint64_t *load, uint32_t n_teams, uint32_t teams)
{
	uint32_t found = DEAL_ROWS;

	for (uint32_t t = 0; t < n_teams; t++)
		if (teams & 1u << t && (found == DEAL_ROWS || load[t] < load[found]))
			found = t;
	return found;
}

/* The busiest team's cheapest expert is cut by rows after all. False: they are even enough. */
static bool take_back(struct deal_expert *list, uint32_t n, uint64_t *load, uint32_t n_teams, uint64_t uneven)
{
	uint32_t most = 0, few = 0;

	for (uint32_t t = 1; t < n_teams; t++) {
		most = load[t] > load[most] ? t : most;
		few = load[t] < load[few] ? t : few;
	}
	if (load[most] - load[few] <= uneven)
		return false;
	while (list[--n].team != most)
		continue;
	load[most] -= deal_cost(list[n].pairs);
	list[n].team = DEAL_ROWS;
	return true;
}

uint32_t deal_whole(struct deal_expert *list, uint32_t n, uint32_t n_teams, uint64_t all_cost)
{
	uint64_t load[HOST_NODES_MAX] = {0};
	uint32_t whole = 0;

	qsort(list, n, sizeof *list, dearer);
	for (uint32_t i = 0; i < n; i++) {
		list[i].team = least(load, n_teams, list[i].teams);
		if (list[i].team != DEAL_ROWS)
			load[list[i].team] += deal_cost(list[i].pairs);
	}
	while (take_back(list, n, load, n_teams, all_cost / n_teams / DEAL_UNEVEN))
		continue;
	for (uint32_t i = 0; i < n; i++)
		whole += list[i].team != DEAL_ROWS;
	return whole;
}
