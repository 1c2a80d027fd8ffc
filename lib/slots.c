/* SPDX-License-Identifier: MIT */
/* slots - the session's slot arena for others than the library: as a dma-buf, and what lies where. */
#include <errno.h>

#include "base/error.h"
#include "engine.h"
#include "moe-expert.h"

int moe_slots_dmabuf(struct moe_session *session, struct moe_slots_dmabuf *ret, struct moe_error *err)
{
	struct engine *e = session->engine;
	int fd, r;

	if (!e->has_slots)
		return moe_error_set(err, -ENOTSUP,
				     "moe_slots_dmabuf: a session without slots has no device: set cache_expert_num");
	if (!e->ops->dmabuf)
		return moe_error_set(err, -EOPNOTSUPP,
				     "moe_slots_dmabuf: memory of device '%s' has no dma-buf: attach to a GPU",
				     e->ops->name);
	r = e->ops->dmabuf(e->device, &e->slots, &fd, err);
	if (r < 0)
		return r;
	*ret = (struct moe_slots_dmabuf){
		.fd = fd,
		.slots = engine_all_slots(e),
		.slot_bytes = session->info.slot_bytes,
		.bytes = e->slots.bytes,
	};
	return 0;
}

int moe_slot_number(struct moe_session *session, uint32_t layer, uint32_t slot, uint32_t *ret, struct moe_error *err)
{
	struct engine *e = session->engine;
	const int row = session_row(session, layer, err);

	if (row < 0)
		return row;
	if (slot >= e->n_slots)
		return moe_error_set(err, -EINVAL, "moe_slot_number: slot %u found; the session has %u a layer", slot,
				     e->n_slots);
	pthread_mutex_lock(&e->lock);
	*ret = engine_slot(e, (uint32_t)row, layer, (int32_t)slot);
	pthread_mutex_unlock(&e->lock);
	return 0;
}
