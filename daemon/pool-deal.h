/* SPDX-License-Identifier: MIT */
/*
 * pool-deal - which experts of a wave one team computes whole, where nodes have whole copies of some (replicas.h).
 *
 * Law: pure. Cut by rows an expert keeps all teams equally busy, so experts are dealt whole only as long as the teams
 * stay equally busy with them, but for 1/DEAL_UNEVEN of what each has of the wave; the others are cut by rows as ever.
 * An expert costs what its pairs cost, or reading it once. Dearer ones are dealt first, of equal ones those with fewer
 * copies, then by number: to the team that has least and has a copy.
 */
#ifndef DAEMON_POOL_DEAL_H
#define DAEMON_POOL_DEAL_H

#include <stdint.h>

#define DEAL_ROWS UINT32_MAX
#define DEAL_UNEVEN 32

struct deal_expert {
	uint32_t number, pairs;
	uint32_t teams; /* a bit for each that has a copy */
	uint32_t team;  /* the answer; DEAL_ROWS: cut by rows */
};

/* `list` is sorted as it is dealt. all_cost: of all experts of the wave. Returns how many are whole. */
uint32_t deal_whole(struct deal_expert *list, uint32_t n, uint32_t n_teams, uint64_t all_cost);

uint64_t deal_cost(uint32_t pairs);

#endif
