/* SPDX-License-Identifier: MIT */
#include "daemon/attach.h"

#include <errno.h>

#include "base/error.h"
#include "daemon/group.h"
#include "daemon/service.h"

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* Each rank gets one unit of every layer's experts at least. */
static int check_slices(const struct resident *model, const struct moe_msg_attach *a, struct moe_error *err)
{
	const struct moe_manifest *m = model->manifest;
	const struct moe_layout *least = model->layouts;

	for (uint32_t i = 1; i < m->n_layouts; i++)
		if (moe_slice_units(&model->layouts[i]) < moe_slice_units(least))
			least = &model->layouts[i];
	if (a->tp_size <= moe_slice_units(least))
		return 0;
	return moe_error_set(err, -EINVAL,
			     "attach to '%s': tp_size %u found, at most %u expected: the experts' intermediate size %u "
			     "in format %s (down: %s) is cut in units of %u",
			     m->name, a->tp_size, moe_slice_units(least), m->inter,
			     moe_formats[least->part[MOE_PART_GATE].format].name,
			     moe_formats[least->part[MOE_PART_DOWN].format].name, moe_slice_unit(least));
}

static int check_dp(const struct moe_manifest *m, const struct moe_msg_attach *a, struct moe_error *err)
{
	if (!a->dp_size)
		return a->agree_ms ? moe_error_set(err, -EINVAL, "attach to '%s': agree_ms without dp_size", m->name)
				   : 0;
	if (a->dp_rank >= a->dp_size || !a->agree_ms || !a->group)
		return moe_error_set(err, -EINVAL,
				     "attach to '%s': dp_rank %u of dp_size %u, agree_ms %u, group %llx found: ranks "
				     "that agree have a rank below dp_size, a group, and agree_ms of at least 1",
				     m->name, a->dp_rank, a->dp_size, a->agree_ms, (unsigned long long)a->group);
	if (a->agree_ms > MOE_AGREE_MS_MAX)
		return moe_error_set(err, -EINVAL, "attach to '%s': agree_ms %u found, 1 to %u expected", m->name,
				     a->agree_ms, MOE_AGREE_MS_MAX);
	if ((uint64_t)a->dp_size * a->tp_size > MOE_AGREE_MAX)
		return moe_error_set(err, -EINVAL,
				     "attach to '%s': dp_size %u times tp_size %u found, at most %d can agree", m->name,
				     a->dp_size, a->tp_size, MOE_AGREE_MAX);
	return 0;
}

/* Whether it can be asked through the kernel module's queue. */
static int check_client(const struct peer *peer, const struct moe_msg_attach *a, struct moe_error *err)
{
	const struct modqueue *queue = &peer->service->modqueue;

	if (a->client && !queue->id)
		return moe_error_set(
			err, -EOPNOTSUPP,
			"attach: this daemon serves no queue of the kernel module; moectl status says why");
	if (a->client && modqueue_has(queue, a->client, peer->pid, peer->uid))
		return moe_error_set(
			err, -EEXIST,
			"attach: a session is asked by the open device %llu already: open it once for each",
			(unsigned long long)a->client);
	return 0;
}

int attach_pool_fd(const struct entry *entry, uint32_t pool)
{
	return entry->tier ? tier_client_fd(entry->tier, pool) : entry->model->pools[pool].fd;
}

/* Those that are attached already: the same group goes together, and a device has room for one more. */
static int check_others(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry,
			struct moe_error *err)
{
	const struct moe_manifest *m = entry->model->manifest;
	uint32_t sharers = 0;

	for (const struct session *s = peer->service->sessions; s; s = s->next) {
		sharers += a->device && s->attach.device == a->device && s->uid == peer->uid;
		if (s->dead || a->group == 0 || s->attach.group != a->group || s->entry != entry || s->uid != peer->uid)
			continue;
		if (s->attach.tp_size != a->tp_size)
			return moe_error_set(err, -EINVAL, "attach to '%s': group %llx has tp_size %u, not %u", m->name,
					     (unsigned long long)a->group, s->attach.tp_size, a->tp_size);
		if (s->attach.dp_size && a->dp_size && s->attach.dp_size != a->dp_size)
			return moe_error_set(err, -EINVAL, "attach to '%s': group %llx has dp_size %u, not %u", m->name,
					     (unsigned long long)a->group, s->attach.dp_size, a->dp_size);
		/* Those that agree on phases are told apart by these two alone. */
		if (s->attach.tp_rank == a->tp_rank && s->attach.dp_rank == a->dp_rank &&
		    (s->attach.ep_rank == a->ep_rank || (s->attach.dp_size && a->dp_size)))
			return moe_error_set(err, -EEXIST,
					     "attach to '%s': rank %u of group %llx is attached already (pid %d)",
					     m->name, a->tp_rank, (unsigned long long)a->group, s->pid);
	}
	if (sharers >= SCHED_SHARERS_MAX)
		return moe_error_set(err, -EUSERS,
				     "attach to '%s': device %llx has %u sessions already, at most %d can share its "
				     "budget for fills: name no device (0), or another one",
				     m->name, (unsigned long long)a->device, sharers, SCHED_SHARERS_MAX);
	return 0;
}

int attach_check(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry,
		 struct moe_error *err)
{
	const struct moe_manifest *m = entry->model->manifest;
	int r;

	if (a->layout != m->layout)
		return moe_error_set(err, -EPROTO,
				     "attach to '%s': record layout %u found, the daemon has %u: library and daemon "
				     "are of different versions",
				     m->name, a->layout, m->layout);
	if (a->tp_size == 0 || a->tp_rank >= a->tp_size)
		return moe_error_set(err, -EINVAL, "attach to '%s': tp_rank %u of tp_size %u: no such slice", m->name,
				     a->tp_rank, a->tp_size);
	r = check_slices(entry->model, a, err);
	if (r == 0)
		r = check_client(peer, a, err);
	if (r == 0)
		r = check_dp(m, a, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < m->n_pools; i++)
		if (attach_pool_fd(entry, i) < 0)
			return moe_error_sys(err, attach_pool_fd(entry, i),
					     "attach to '%s': it is tiered, and its pool files cannot be opened "
					     "read-only (is /proc mounted?)",
					     m->name);
	if (!is_power_of_two(a->entries) || a->entries < MOE_RING_ENTRIES_MIN || a->entries > MOE_RING_ENTRIES_MAX)
		return moe_error_set(err, -EINVAL,
				     "attach: %u queue entries found, a power of two from %d to %d expected",
				     a->entries, MOE_RING_ENTRIES_MIN, MOE_RING_ENTRIES_MAX);
	r = group_check(peer, a, entry, err);
	return r < 0 ? r : check_others(peer, a, entry, err);
}
