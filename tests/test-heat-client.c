/* SPDX-License-Identifier: MIT */
/*
 * What the daemon takes from a client's heat: what is new, once; and a client whose step counter goes back, or jumps,
 * spoils nothing that lasts. Of many clients only so many are asked at a time. The sessions are made by hand, of the
 * fields that ringsrv_take_heat() and a round read.
 */
#include <stdlib.h>

#include "daemon/heat-round.h"
#include "daemon/heat-table.h"
#include "daemon/heats.h"
#include "daemon/ringsrv-internal.h"
#include "tests/tap.h"

#define LAYERS 2
#define EXPERTS 4
#define CELLS (LAYERS * EXPERTS)
#define EVERY 8

struct world {
	struct session session;
	struct entry entry;
	struct resident model;
	struct moe_manifest manifest;
	struct heats_table lasting;
	struct moe_daemon_page daemon_page;
	struct moe_client_page *client_page;
	uint32_t *cells, taken[CELLS];
};

static void make(struct world *w)
{
	const uint8_t digest[MOE_DIGEST_BYTES] = {1};
	uint8_t *region = calloc(1, sizeof *w->client_page + CELLS * sizeof *w->cells);

	*w = (struct world){.manifest = {.n_moe_layers = LAYERS, .n_experts = EXPERTS}};
	w->lasting.page = calloc(1, heat_bytes(LAYERS, EXPERTS));
	if (!region || !w->lasting.page)
		abort();
	heat_page_init(w->lasting.page, LAYERS, EXPERTS, digest);
	w->lasting.every = EVERY;
	w->model.manifest = &w->manifest;
	w->entry.model = &w->model;
	w->entry.lasting = &w->lasting;
	w->client_page = (struct moe_client_page *)region;
	w->cells = (uint32_t *)(region + sizeof *w->client_page);
	w->session.entry = &w->entry;
	w->session.page = &w->daemon_page;
	w->session.client.base = region;
	w->session.client.bytes = sizeof *w->client_page + CELLS * sizeof *w->cells;
	w->session.heat_offset = sizeof *w->client_page;
	w->session.taken = w->taken;
}

/* A step, all of whose pairs are one expert's. */
static void step(struct world *w, uint32_t cell, uint32_t pairs)
{
	w->cells[cell] += pairs;
	w->client_page->heat_steps++;
	ringsrv_take_heat(&w->session);
}

#define MANY 4000

/* All on one table, linked in their order. */
static void make_many(struct world *w)
{
	for (uint32_t i = 0; i < MANY; i++) {
		make(&w[i]);
		w[i].session.next = i + 1 < MANY ? &w[i + 1].session : NULL;
		if (i > 0)
			free(w[i].lasting.page);
		w[i].lasting.page = w[0].lasting.page;
		w[i].lasting.every = UINT32_MAX;
		w[i].cells[0]++;
		w[i].client_page->heat_steps++;
	}
}

static void test_round(void)
{
	struct world *w = calloc(MANY, sizeof *w);
	struct heat_round round = {0};
	struct heat_page *page;
	struct session *next;
	uint32_t turns = 1;

	require(w != NULL, "memory");
	make_many(w);
	page = w[0].lasting.page;
	ok(!heat_round_turn(&round, false), "no round, nothing to do");
	heat_round_begin(&round, &w[0].session);
	require(heat_round_turn(&round, false), "a piece of one");
	ok(page->steps > 0 && page->steps <= MANY / 4, "%llu of %d clients at a time", (unsigned long long)page->steps,
	   MANY);
	next = round.next;
	ok(heat_round_turn(&round, true) && round.next == next, "and none for a while where the rings have work");
	heat_round_forget(&round, &w[MANY - 1].session);
	heat_round_forget(&round, next);
	ok(round.next == next->next, "who goes away is not asked any more");
	w[MANY - 1].session.dead = true;
	while (heat_round_turn(&round, false))
		turns++;
	ok(page->steps == MANY - 2 && page->cells[0] == MANY - 2, "all others are, in %u turns", turns);
	for (uint32_t i = 0; i < MANY; i++)
		free(w[i].client_page);
	free(page);
	free(w);
}

int main(void)
{
	struct world w;
	struct heat_page *page;

	make(&w);
	page = w.lasting.page;
	step(&w, 1, 100);
	ok(page->cells[1] == 100 && page->steps == 1, "a step's pairs are taken");
	ringsrv_take_heat(&w.session);
	ok(page->cells[1] == 100 && page->steps == 1, "and only once");
	w.cells[2] = UINT32_MAX - 1;
	w.taken[2] = UINT32_MAX - 1;
	step(&w, 2, 5);
	ok(page->cells[2] == 5, "a counter that turns over goes on");

	w.client_page->heat_steps = 0;
	ringsrv_take_heat(&w.session);
	ok(page->steps == 2 && page->cells[1] == 100, "steps that go back age nothing");
	w.client_page->heat_steps = UINT64_MAX / 2;
	ringsrv_take_heat(&w.session);
	ok(page->steps == 2 && page->cells[1] == 100, "steps that nobody makes neither");
	for (uint32_t i = 0; i < EVERY - 2; i++)
		step(&w, 3, 1);
	ok(page->steps == EVERY && page->cells[1] == 50, "and those that follow age it as ever: %u of 100 in the %uth",
	   page->cells[1], EVERY);
	free(w.client_page);
	free(page);
	test_round();
	return tap_done();
}
