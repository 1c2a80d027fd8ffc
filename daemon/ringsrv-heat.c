/* SPDX-License-Identifier: MIT */
/*
 * ringsrv-heat - what a client says that its routers have chosen (moe_ring.h, the law of the heat).
 *
 * Each counter is loaded once. Whatever is there is a number, taken as one: a client that lies spoils what is advice,
 * for those who ask for it, and nothing that is computed. What was taken stands in the daemon region, so that a
 * successor takes nothing twice.
 */
#include "base/util.h"
#include "daemon/ringsrv-internal.h"

#define PASSED_MAX UINT32_MAX /* steps from one look to the next */

uint32_t ringsrv_take_heat(struct session *s)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint32_t n = m->n_moe_layers * m->n_experts;
	const struct moe_client_page *client = client_at(&s->client, 0);
	struct heats_table *t = s->entry->lasting;
	const uint32_t *cells;
	uint64_t steps, passed, divisor;

	if (!s->heat_offset || !t || s->attach.tp_rank != 0)
		return 0;
	/* Partner: the client's store of it, behind the pairs of the step. */
	steps = __atomic_load_n(&client->heat_steps, __ATOMIC_ACQUIRE);
	passed = steps - s->page->heat_taken;
	if (passed == 0) /* its pairs are in front of it: there are no new ones */
		return 0;
	/* A number that went back, or that nobody reaches, ages nothing: it would spoil the others' heat for good. */
	divisor = heat_table_age(t->page, passed <= PASSED_MAX ? passed : 0, t->every);
	s->page->heat_taken = steps;
	cells = client_at(&s->client, s->heat_offset);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t now = __atomic_load_n(&cells[i], __ATOMIC_RELAXED), pairs = now - s->taken[i];

		if (pairs == 0)
			continue;
		s->taken[i] = now;
		heat_table_add(t->page, i, pairs / divisor);
	}
	return n;
}
