/* SPDX-License-Identifier: MIT */
#include "daemon/pool.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/util.h"
#include "daemon/pool-internal.h"

/* -- threads ------------------------------------------------------------------------------------------------------ */

/* Draws the units after those that are to be run, which can then ask memory for them: but not such as are taken one by
 * one, each of which takes milliseconds, not the last ones, for which another thread might have to wait, and not before
 * something more urgent. */
static struct pool_units worker_draw_ahead(struct pool_worker *w, struct pool_view *view)
{
	if (!view->batch->several || pool_view_left(view) <= w->pool->n_workers ||
	    pool_queue_urgent(&w->pool->queue, w->team, view->batch))
		return (struct pool_units){0};
	return pool_view_draw(view, w->team);
}

/* Before and after what may take time. The thread alone writes it. */
static void worker_turns(struct pool_worker *w)
{
	atomic_store_explicit(&w->turns, atomic_load_explicit(&w->turns, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

/* Draws units until there are none or something more urgent has come. */
static void worker_run(struct pool_worker *w, struct pool_view *view)
{
	struct pool_queue *queue = &w->pool->queue;
	struct pool_batch *batch = view->batch;
	const uint64_t start_ns = now_ns();
	struct pool_units units = {0};

	do {
		struct pool_units next;

		if (!units.n)
			units = pool_view_draw(view, w->team);
		if (!units.n) {
			pool_queue_exhausted(queue, w->team, view);
			break;
		}
		next = worker_draw_ahead(w, view);
		worker_turns(w);
		batch->run(batch, w->team, units, next);
		worker_turns(w);
		units = next;
	} while (units.n || !pool_queue_urgent(queue, w->team, batch));
	pool_batch_unref(batch);
	atomic_fetch_add_explicit(&w->busy_ns, now_ns() - start_ns, memory_order_relaxed);
}

/* Does the most urgent thing there is; where a job may as well begin as another go on, the other goes on. */
static bool worker_step(struct pool_worker *w)
{
	struct pool *pool = w->pool;

	for (enum pool_priority p = 0; p < POOL_PRIORITIES; p++) {
		const bool room = scratch_has_room(&pool->scratch, p);
		const bool begin = pool_queue_new_first(&pool->queue, w->team, p) &&
				   (room || !pool_queue_first_takes_scratch(&pool->queue, p));
		struct pool_entry *entry = begin ? pool_queue_take(&pool->queue, p, room) : NULL;
		struct pool_view *view;

		if (entry) {
			worker_turns(w);
			entry->start(pool, entry);
			worker_turns(w);
			return true;
		}
		view = pool_queue_view(&pool->queue, w->team, p);
		if (view) {
			worker_run(w, view);
			return true;
		}
	}
	return false;
}

static void *worker_main(void *arg)
{
	struct pool_worker *w = arg;
	struct pool *pool = w->pool;
	char name[16]; /* TASK_COMM_LEN */

	snprintf(name, sizeof(name), "moe-pool/%u.%u", w->team, w->index);
	pthread_setname_np(pthread_self(), name);
	for (;;) {
		const uint32_t heard = pool_queue_listen(&pool->queue, w->team);

		if (worker_step(w))
			continue;
		if (atomic_load(&pool->stop))
			return NULL;
		pool_queue_wait(&pool->queue, w->team, heard, pool->spin_ns, &w->crowd);
	}
}

/* Pinned before it runs. No signal is ever delivered to it but SIGBUS, for which its own access is the cause: where
 * that is blocked Linux ends the process without asking the handler (guard.h). */
static int worker_start(struct pool_worker *w, struct moe_error *err)
{
	pthread_attr_t attr;
	size_t bytes;
	cpu_set_t *cpus = host_cpu_mask((uint32_t)w->cpu, &bytes);
	sigset_t signals;
	int r;

	if (!cpus)
		return moe_error_set(err, -ENOMEM, "pool: no memory for a set of CPUs");
	sigfillset(&signals);
	sigdelset(&signals, SIGBUS);
	pthread_attr_init(&attr);
	r = pthread_attr_setaffinity_np(&attr, bytes, cpus);
	pthread_attr_setsigmask_np(&attr, &signals);
	pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
	if (!r)
		r = thread_create(&w->thread, &attr, worker_main, w);
	pthread_attr_destroy(&attr);
	CPU_FREE(cpus);
	if (r)
		return moe_error_sys(err, -r, "pool: cannot start a thread on CPU %d", w->cpu);
	return 0;
}

/* -- teams -------------------------------------------------------------------------------------------------------- */

/* Which nodes have a team, and how many threads each team has. */
struct pool_shape {
	uint32_t n_teams, n_workers;
	uint32_t node[HOST_NODES_MAX], threads[HOST_NODES_MAX];
};

/* As many as there are cores, or as the quota lets run all the time: a thread that is stopped in the middle of a unit
 * holds up all others. At least one. */
static uint32_t default_threads(const struct host *host)
{
	uint32_t cores = 0;

	for (uint32_t n = 0; n < host->n_nodes; n++)
		cores += host->nodes[n].n_cores;
	if (host->cpu_quota > 0 && host->cpu_quota < cores)
		cores = (uint32_t)host->cpu_quota;
	return MAX(cores, 1u);
}

static int shape_of(struct pool_shape *ret, const struct pool_params *params, struct moe_error *err)
{
	const struct host *host = params->host;
	const uint32_t threads = params->threads ? params->threads : default_threads(host);
	struct pool_shape s = {0};

	/* Each team computes its rows of each expert: with more threads than another it would only wait for it. */
	for (uint32_t n = 0; n < host->n_nodes; n++)
		if (host->nodes[n].n_cpus && s.n_teams < threads)
			s.node[s.n_teams++] = n;
	if (!s.n_teams)
		return moe_error_set(err, -EINVAL,
				     "pool: none of the %u NUMA nodes has a CPU that this process may run on; widen "
				     "its CPU affinity",
				     host->n_nodes);
	for (uint32_t t = 0; t < s.n_teams; t++) {
		s.threads[t] = threads / s.n_teams + (t < threads % s.n_teams);
		if (!params->threads) /* nodes of different sizes: none more than its cores */
			s.threads[t] = MIN(s.threads[t], MAX(host->nodes[s.node[t]].n_cores, 1u));
		s.n_workers += s.threads[t];
	}
	*ret = s;
	return 0;
}

/* The shares of nodes without a team are dealt to the others. */
static void teams_of_shares(struct pool *pool, const struct pool_shape *shape)
{
	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		pool->team_of[i] = i % shape->n_teams;
	for (uint32_t t = 0; t < shape->n_teams; t++) {
		pool->team_of[shape->node[t]] = t;
		pool->node_of[t] = shape->node[t];
	}
}

static int workers_start(struct pool *pool, const struct pool_shape *shape, const struct host *host,
			 struct moe_error *err)
{
	for (uint32_t t = 0; t < shape->n_teams; t++) {
		const struct host_node *node = &host->nodes[shape->node[t]];

		for (uint32_t i = 0; i < shape->threads[t]; i++) {
			struct pool_worker *w = &pool->workers[pool->n_workers];
			int r;

			w->pool = pool;
			w->team = t;
			w->index = i;
			w->node = shape->node[t];
			w->cpu = node->cpus[i % node->n_cpus];
			r = worker_start(w, err);
			if (r < 0)
				return r;
			pool->n_workers++;
		}
	}
	return 0;
}

/* -- the pool ----------------------------------------------------------------------------------------------------- */

static void cleanup_pool(struct pool **pool)
{
	pool_free(*pool);
}

int pool_new(struct pool **ret, const struct pool_params *params, struct moe_error *err)
{
	_cleanup_(cleanup_pool) struct pool *pool = NULL;
	struct pool_shape shape = {0};
	int r;

	r = shape_of(&shape, params, err);
	if (r < 0)
		return r;
	pool = aligned_alloc(_Alignof(struct pool), sizeof(*pool));
	if (!pool)
		return moe_error_set(err, -ENOMEM, "pool: no memory for the pool");
	*pool = (struct pool){.kernels = params->kernels, .spin_ns = (uint64_t)params->spin_us * 1000};
	pool_queue_init(&pool->queue, shape.n_teams);
	scratch_cache_init(&pool->scratch);
	teams_of_shares(pool, &shape);
	pool->workers = calloc(shape.n_workers, sizeof(*pool->workers));
	if (!pool->workers)
		return moe_error_set(err, -ENOMEM, "pool: no memory for %u threads", shape.n_workers);
	r = workers_start(pool, &shape, params->host, err);
	if (r < 0)
		return r;
	*ret = steal_ptr(pool);
	return 0;
}

struct pool *pool_free(struct pool *pool)
{
	if (!pool)
		return NULL;
	atomic_store(&pool->stop, true);
	pool_queue_ring_all(&pool->queue);
	for (uint32_t i = 0; i < pool->n_workers; i++)
		pthread_join(pool->workers[i].thread, NULL);
	pool_queue_destroy(&pool->queue);
	scratch_cache_destroy(&pool->scratch);
	free(pool->workers);
	free(pool);
	return NULL;
}

uint32_t pool_threads(const struct pool *pool)
{
	return pool->n_workers;
}

bool pool_look(struct pool *pool, char *why, size_t size)
{
	const bool waits = pool_queue_waiting(&pool->queue) || pool_queue_has_views(&pool->queue);
	const bool waited = pool->waited;
	const struct pool_worker *stuck = NULL;
	bool moved = false;

	for (uint32_t i = 0; i < pool->n_workers; i++) {
		struct pool_worker *w = &pool->workers[i];
		const uint32_t turns = atomic_load_explicit(&w->turns, memory_order_relaxed);

		moved |= turns != w->seen;
		if (turns == w->seen && turns % 2)
			stuck = w;
		w->seen = turns;
	}
	pool->waited = waits;
	if (stuck)
		snprintf(why, size, "thread moe-pool/%u.%u is in one unit of work since the last look", stuck->team,
			 stuck->index);
	else if (waits && waited && !moved)
		snprintf(why, size, "jobs wait and no thread of the pool takes them");
	else
		return true;
	return false;
}

void pool_trim(struct pool *pool)
{
	scratch_trim(&pool->scratch);
}

void pool_submit_compute(struct pool *pool, struct pool_compute *job)
{
	job->entry.start = ffn_start;
	job->entry.takes_scratch = true;
	pool_queue_submit(&pool->queue, &job->entry, job->priority, job->order);
}

void pool_submit_copy(struct pool *pool, struct pool_copy *job)
{
	job->entry.start = copy_start;
	job->entry.takes_scratch = false;
	pool_queue_submit(&pool->queue, &job->entry, job->priority, job->order);
}

void pool_submit_move(struct pool *pool, struct pool_move *job)
{
	job->entry.start = move_start;
	job->entry.takes_scratch = false;
	/* After all that somebody asked for. */
	pool_queue_submit(&pool->queue, &job->entry, POOL_BACKGROUND, POOL_ORDER_NONE - 1);
}

void pool_stats(struct pool *pool, struct pool_stats *ret)
{
	*ret = (struct pool_stats){
		.jobs = atomic_load_explicit(&pool->jobs, memory_order_relaxed),
		.pairs = atomic_load_explicit(&pool->pairs, memory_order_relaxed),
		.copy_bytes = atomic_load_explicit(&pool->copy_bytes, memory_order_relaxed),
	};
	for (uint32_t i = 0; i < pool->n_workers; i++)
		ret->busy_ns += atomic_load_explicit(&pool->workers[i].busy_ns, memory_order_relaxed);
}

void pool_node_stats(struct pool *pool, uint32_t node, struct pool_node_stats *ret)
{
	*ret = (struct pool_node_stats){
		.read_bytes = atomic_load_explicit(&pool->shares[node].read_bytes, memory_order_relaxed),
		.copy_bytes = atomic_load_explicit(&pool->shares[node].copy_bytes, memory_order_relaxed),
		.whole = atomic_load_explicit(&pool->shares[node].whole, memory_order_relaxed),
	};
	for (uint32_t i = 0; i < pool->n_workers; i++) {
		if (pool->workers[i].node != node)
			continue;
		ret->threads++;
		ret->busy_ns += atomic_load_explicit(&pool->workers[i].busy_ns, memory_order_relaxed);
	}
}
