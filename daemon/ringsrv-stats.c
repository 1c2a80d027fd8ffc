/* SPDX-License-Identifier: MIT */
/*
 * ringsrv-stats - what clients count in their own regions, read: any number may be there. What a session has counted is
 * added to its model's when it ends.
 */
#include "daemon/ringsrv-internal.h"

#include "base/util.h"

static void read_counters(const struct session *s, uint64_t offset, uint64_t *ret, size_t n)
{
	const uint64_t *from = client_at(&s->client, offset);

	for (size_t i = 0; i < n; i++)
		ret[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void ringsrv_read_stats(const struct session *s, uint32_t layer, struct moe_layer_stats *ret)
{
	read_counters(s, s->stats_offset + layer * sizeof *ret, (uint64_t *)ret, sizeof *ret / sizeof(uint64_t));
}

void ringsrv_add_waits(const struct session *s, uint32_t layer, struct histogram *to)
{
	const uint64_t *from;

	if (!s->waits_offset)
		return;
	from = client_at(&s->client, s->waits_offset + layer * sizeof *to);
	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		to->buckets[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void ringsrv_read_mode(const struct session *s, enum moe_stats_mode mode, struct moe_mode_stats *ret)
{
	read_counters(s, offsetof(struct moe_client_page, modes) + mode * sizeof *ret, (uint64_t *)ret,
		      sizeof *ret / sizeof(uint64_t));
}

void ringsrv_read_ghosts(const struct session *s, struct moe_ghost_stats *ret)
{
	read_counters(s, offsetof(struct moe_client_page, ghosts), (uint64_t *)ret, sizeof *ret / sizeof(uint64_t));
}

void layer_stats_add(struct moe_layer_stats *to, const struct moe_layer_stats *from, bool rank0)
{
	if (rank0) {
		to->steps += from->steps;
		to->tokens += from->tokens;
		to->pairs_hit += from->pairs_hit;
		to->pairs_miss_buffer += from->pairs_miss_buffer;
		to->pairs_pool += from->pairs_pool;
		to->pairs_cpu += from->pairs_cpu;
		to->pairs_local += from->pairs_local;
		to->pairs_resident += from->pairs_resident;
		to->active_sum += from->active_sum;
		to->active_max = MAX(to->active_max, from->active_max);
		to->slots = MAX(to->slots, from->slots);
		to->guessed += from->guessed;
		to->guess_asked += from->guess_asked;
		to->guess_found += from->guess_found;
		to->experts_asked += from->experts_asked;
		to->experts_resident += from->experts_resident;
	}
	to->fills += from->fills;
	to->fill_bytes += from->fill_bytes;
	to->reads += from->reads;
	to->read_bytes += from->read_bytes;
	to->wait_ns += from->wait_ns;
	to->cpu_ns += from->cpu_ns;
	to->device_ns += from->device_ns;
	to->copy_ns += from->copy_ns;
}

void ringsrv_retire_stats(struct session *s)
{
	struct moe_ghost_stats ghosts;

	ringsrv_read_ghosts(s, &ghosts);
	model_ghosts_add(&s->entry->tally->ghosts, &ghosts);
	for (uint32_t l = 0; l < s->entry->model->manifest->n_layers; l++) {
		struct moe_layer_stats stats;

		ringsrv_read_stats(s, l, &stats);
		layer_stats_add(&s->entry->retired[l], &stats, s->attach.tp_rank == 0);
		ringsrv_add_waits(s, l, &s->entry->tally->layers[l].part[TIMES_WAIT]);
	}
}
