/* SPDX-License-Identifier: MIT */
#include "places.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/util.h"

int places_init(struct places *places, uint32_t n_rows, uint32_t n_slots, uint32_t first_spare, uint32_t n_spare,
		struct moe_error *err)
{
	const uint32_t n = n_rows * n_slots;
	uint32_t i;

	*places = (struct places){
		.n_slots = n_slots,
		.n_spare = n_spare,
		.slots = calloc(MAX(n, 1), sizeof *places->slots),
		.spare = calloc(MAX(n_spare, 1), sizeof *places->spare),
	};
	if (!places->slots || !places->spare)
		return moe_error_set(err, -ENOMEM, "moe_attach: no memory for the places of %u slots", n);
	for (i = 0; i < n; i++)
		places->slots[i].place = i;
	for (i = 0; i < n_spare; i++)
		places->spare[i].place = first_spare + i;
	return 0;
}

void places_fini(struct places *places)
{
	free(places->slots);
	free(places->spare);
}

void place_use_later(struct place_use *use, const struct place_use *other)
{
	if (other->event && (!use->event || other->seq > use->seq))
		*use = *other;
}

void places_fill(struct places *places, uint32_t row, uint32_t slot, const struct place_users *readers,
		 const struct place_use *copies, struct place_users *users)
{
	struct place_slot *at = places_slot(places, row, slot);
	struct place_spare taken = {at->place, *readers};
	int i;

	place_use_later(&taken.users.last[PLACE_COPY], &at->filled);
	if (places->n_spare) {
		const struct place_spare left = taken;

		taken = places->spare[places->next];
		places->spare[places->next] = left;
		places->next = (places->next + 1) % places->n_spare;
	}
	for (i = 0; i < PLACE_STREAMS; i++)
		place_use_later(&users->last[i], &taken.users.last[i]);
	*at = (struct place_slot){taken.place, *copies};
}

void place_users_forget(struct place_users *users, const struct device_event *event)
{
	int i;

	for (i = 0; i < PLACE_STREAMS; i++)
		if (users->last[i].event == event)
			users->last[i] = (struct place_use){0};
}

void places_forget(struct places *places, const struct device_event *event)
{
	uint32_t i;

	for (i = 0; i < places->n_spare; i++)
		place_users_forget(&places->spare[i].users, event);
}
