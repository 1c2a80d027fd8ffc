/* SPDX-License-Identifier: MIT */
/*
 * step-books - what an ended step adds to the statistics of its layer and of its mode, and to the cost model.
 *
 * The statistics lie in memory that the daemon reads at any time: each number is one relaxed atomic, cumulative, and a
 * reader may see some of a step's numbers before the others. A dummy step and a failed one count nowhere.
 *
 * By mode stands what says how much ran side by side: the lengths of the step's parts, which it would take one after
 * the other, and what it took. That is known only of a step whose end somebody has waited for; the others are counted
 * as hidden, and none of their times.
 */
#include "base/util.h"
#include "step.h"

static void add(__u64 *number, uint64_t value)
{
	if (value)
		__atomic_fetch_add(number, value, __ATOMIC_RELAXED);
}

void stats_raise(__u64 *number, uint64_t value)
{
	__u64 seen = __atomic_load_n(number, __ATOMIC_RELAXED);

	while (seen < value &&
	       !__atomic_compare_exchange_n(number, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Rank 0 computes whole experts for its group: its times say nothing about a slice. */
static bool cpu_times_are_ours(const struct moe_session *s)
{
	return s->params.share == MOE_SHARE_PART || s->params.tp_size == 1;
}

static uint64_t read_bytes(const struct moe_step *step)
{
	return step->plan->n_reads * session_slice(step->engine->session, step->row)->bytes;
}

static void measure(struct moe_step *step, uint64_t device_ns, uint64_t copy_bytes, uint64_t copy_ns)
{
	struct engine *e = step->engine;
	const struct moe_plan *plan = step->plan;
	const struct moe_cqe *cpu = &step->compute.op.cqe;

	pthread_mutex_lock(&e->lock);
	/* A late step waits for the pairs before it by design: that is not what the CPU costs. */
	if (step->has_cpu && !plan->late && cpu_times_are_ours(e->session))
		ncopy_measure(&e->ncopy.cpu, plan->n_cpu, plan->pairs_cpu, cpu->wait_ns + cpu->work_ns);
	if (step->has_device && plan->n_reads > 0)
		ncopy_measure_read(&e->ncopy, read_bytes(step), plan->pairs_pool, plan->n_device - plan->n_reads,
				   plan->pairs_hit + plan->pairs_miss_buffer, device_ns);
	else if (step->has_device)
		ncopy_measure(&e->ncopy.device, plan->n_device, plan->pairs_hit + plan->pairs_miss_buffer, device_ns);
	if (step->has_copies)
		ncopy_measure_copy(&e->ncopy, copy_bytes, copy_ns);
	pthread_mutex_unlock(&e->lock);
}

bool step_has_mode(const struct moe_step *step)
{
	return step->counts && step->plan->tokens > 0 && !step->plan->late;
}

static enum moe_stats_mode mode_of(const struct moe_step *step)
{
	if (step->plan->mode == MOE_MODE_PREFETCH)
		return MOE_STATS_PREFETCH;
	if (step->plan->mode == MOE_MODE_FULL)
		return MOE_STATS_FULL;
	return step->engine->session->params.dual_batch ? MOE_STATS_DUAL_BATCH : MOE_STATS_DECODE;
}

static void count_mode(struct moe_step *step, uint64_t copy_ns, uint64_t device_ns, uint64_t cpu_ns)
{
	struct moe_mode_stats *stats = &step->engine->session->queue.client->modes[mode_of(step)];

	if (!step->waited) {
		add(&stats->hidden, 1);
		return;
	}
	add(&stats->steps, 1);
	add(&stats->copy_ns, copy_ns);
	add(&stats->device_ns, device_ns);
	add(&stats->cpu_ns, cpu_ns);
	add(&stats->taken_ns, step->taken_ns);
	add(&stats->reads, step->plan->n_reads);
	add(&stats->read_bytes, read_bytes(step));
}

void step_count(struct moe_step *step, uint64_t wait_ns)
{
	const struct moe_plan *plan = step->plan;
	const struct engine *e = step->engine;
	struct moe_layer_stats *stats = &e->session->stats[plan->layer];
	const uint64_t cpu_ns = step->has_cpu ? step->compute.op.cqe.work_ns : 0;
	uint64_t device_ns = 0, copy_bytes = 0, copy_ns = 0;

	if (!step->counts)
		return;
	if (step->has_device)
		device_ns = e->ops->event_elapsed_ns(step->begin, step->end);
	if (plan->n_copies > 0)
		step_copy_cost(step, &copy_bytes, &copy_ns);
	measure(step, device_ns, copy_bytes, copy_ns);
	add(&stats->steps, plan->tokens > 0 && !plan->late);
	add(&stats->tokens, plan->late ? 0 : plan->tokens);
	add(&stats->pairs_hit, plan->pairs_hit);
	add(&stats->pairs_miss_buffer, plan->pairs_miss_buffer);
	add(&stats->pairs_pool, plan->pairs_pool);
	add(&stats->reads, plan->n_reads);
	add(&stats->read_bytes, read_bytes(step));
	add(&stats->pairs_cpu, plan->pairs_cpu);
	add(&stats->pairs_resident, plan->pairs_resident);
	add(&stats->experts_asked, plan->n_requests);
	add(&stats->experts_resident, plan->n_resident);
	add(&stats->fills, plan->n_copies);
	add(&stats->fill_bytes, copy_bytes);
	add(&stats->active_sum, plan->n_requests);
	stats_raise(&stats->active_max, plan->n_requests);
	add(&stats->wait_ns, wait_ns);
	add(&stats->cpu_ns, cpu_ns);
	add(&stats->device_ns, device_ns);
	add(&stats->copy_ns, copy_ns);
	if (step_has_mode(step) && e->session->waits)
		histogram_add(&e->session->waits[plan->layer], wait_ns);
	if (step_has_mode(step))
		count_mode(step, copy_ns, device_ns, cpu_ns);
}
