/* SPDX-License-Identifier: MIT */
/*
 * pool-ffn - y = sum_k w_k W_down(act(W_gate x) * (W_up x)) by units.
 *
 * Down rows of an expert need all of its gate-and-up rows, those of the other teams as well. Nobody waits for them:
 * with two jobs each of two teams might stand in the down rows of one and wait for the other. The thread that finishes
 * an expert's last gate-and-up unit adds the down units instead. What units wait for is packing that others have begun.
 *
 * Whoever takes an output block's counter to zero adds the experts' partial results up, for each token in the order of
 * k. Whoever adds up the last block begins the next wave, or ends the job. Where a job that goes before this one waits
 * for scratch memory, this one gives its own back between two waves, and waits in the inbox.
 *
 * Rows of y without a pair are a sum of nothing. A few are written as such; where they are many they are work that
 * others must not wait for, and nobody's part of a wave: after the last wave they are zeroed by units of their own.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/pool-wave.h"

/* Tokens of one call of a kernel: what one array of row pointers on the stack holds. */
#define CALL_TOKENS 256

_Static_assert(CALL_TOKENS % KERNEL_GROUP == 0, "calls begin with a group");

/* Bytes of y: of a unit that zeroes, and how much a job zeroes without such units. */
#define ZERO_UNIT_BYTES ((size_t)1 << 20)

/* Zeroes rows of y: after its last wave nothing else of a job is left. */
struct ffn_zero {
	struct pool_batch batch;
	struct ffn_job *job;
	uint32_t each;                      /* tokens of a unit */
	uint32_t first[HOST_NODES_MAX + 1]; /* team t has units first[t] .. first[t + 1] */
	_Atomic uint32_t left;
};

static bool took_last(_Atomic uint32_t *left, uint32_t n)
{
	return atomic_fetch_sub_explicit(left, n, memory_order_acq_rel) == n;
}

/* Of a token: its ids, or which pairs of a wave they are. */
static bool has_pair(const int32_t *ids, uint32_t topk)
{
	for (uint32_t k = 0; k < topk; k++)
		if (ids[k] >= 0)
			return true;
	return false;
}

/* -- units -------------------------------------------------------------------------------------------------------- */

/* Units that a thread does at once: blocks of gate and up, or of down, of an expert, which lie behind one another. */
struct ffn_unit {
	struct wave_expert *expert;
	const struct wave_block *block; /* the first */
	uint32_t n, rows;               /* of all */
	bool down;
};

/* The first of them, up to where the rows of a share end. */
static struct ffn_unit ffn_unit(const struct wave_lane *lane, uint32_t team, struct pool_units units)
{
	const struct wave_place place = lane_place(lane, team, units.first);
	const struct wave_block *first = (place.down ? lane->wave->down_blocks : lane->wave->gate_blocks) + place.block;
	struct ffn_unit unit = {.expert = &lane->experts[place.down ? lane->ready[place.expert] : place.expert],
				.block = first,
				.down = place.down};

	for (; unit.n < units.n && first[unit.n].share == first->share; unit.n++)
		unit.rows += first[unit.n].rows;
	return unit;
}

/* The matrix that a unit reads first, from its first row on. */
static struct kernel_matrix ffn_reads(const struct wave *w, const struct ffn_unit *unit)
{
	const struct wave_matrices *m = wave_matrices(w, unit->expert, unit->block->share);

	return kernel_rows(unit->down ? &m->down : &m->gate, unit->block->row);
}

/* -- gate and up -------------------------------------------------------------------------------------------------- */

/* Packs rows first .. end of the job's activations. */
static void ffn_pack_x(struct wave *w, const struct wave_expert *e, uint32_t first, uint32_t end)
{
	const struct pool_compute *c = w->job->compute;
	const struct kernel_ops *ops = w->gate_ops;
	const uint32_t hidden = c->model->manifest->hidden;

	for (uint32_t t = first; t < end; t++) {
		const size_t at = (size_t)(w->token + t) * hidden;
		void *packed = w->x_packed + t * w->x_bytes;
		float *wide = ops->pack == PACK_F32 ? packed : w->wide + t * w->y_stride;

		if (c->x_type != MOE_TYPE_BF16) {
			ops->pack_row(hidden, ops->block, (const float *)c->x + at, packed);
			continue;
		}
		w->job->pool->kernels->bf16_to_f32(hidden, (const uint16_t *)c->x + at, wide);
		if (ops->pack != PACK_F32)
			ops->pack_row(hidden, ops->block, wide, packed);
	}
}

/* The same of its groups: rows first .. end are one. */
static void ffn_group_x(struct wave *w, const struct wave_expert *e, uint32_t first, uint32_t end)
{
	w->gate_ops->groups->pack(w->job->compute->model->manifest->hidden, end - first, w->x + e->first + first,
				  e->x_groups + first / KERNEL_GROUP * w->x_group);
}

/* What down takes: packed rows, or a group of them. */
static void ffn_pack_h(struct wave *w, const struct wave_expert *e, uint32_t first, uint32_t end)
{
	const uint32_t inter = w->job->compute->slice->inter;
	const void *rows[MAX(PACK_ROWS, KERNEL_GROUP)];

	for (uint32_t i = first; i < end; i++) {
		uint8_t *packed = w->h_packed + (e->first + i) * w->h_bytes;

		w->down_ops->pack_row(inter, w->down_ops->block, w->h + (e->first + i) * w->h_stride, packed);
		rows[i - first] = packed;
	}
	if (e->h_groups)
		w->down_ops->groups->pack(inter, end - first, rows, e->h_groups + first / KERNEL_GROUP * w->h_group);
}

typedef void pack_turn(struct wave *w, const struct wave_expert *e, uint32_t first, uint32_t end);

/* Packs until no turn of `each` rows is left to begin with, then waits for the others. */
static void ffn_pack(struct wave *w, struct wave_pack *pack, const struct wave_expert *e, uint32_t rows, uint32_t each,
		     pack_turn *turn)
{
	while (atomic_load_explicit(&pack->left, memory_order_acquire)) {
		const uint32_t first = atomic_fetch_add_explicit(&pack->next, 1, memory_order_relaxed) * each;

		if (first >= rows) {
			pool_wait_zero(&pack->left);
			break;
		}
		turn(w, e, first, MIN(first + each, rows));
		took_last(&pack->left, 1);
	}
}

static void ffn_need_x(struct wave *w, struct wave_expert *e)
{
	ffn_pack(w, &w->x_pack, NULL, w->tokens, PACK_ROWS, ffn_pack_x);
	ffn_pack(w, &e->x_pack, e, e->pairs, KERNEL_GROUP, ffn_group_x);
}

static void ffn_need_h(struct wave *w, struct wave_expert *e)
{
	ffn_pack(w, &e->h_pack, e, e->pairs, e->h_groups ? KERNEL_GROUP : PACK_ROWS, ffn_pack_h);
}

/* The expert's down units come after all that each team already has. A few rows are packed before: nobody waits. */
static void ffn_add_down(struct wave *w, struct wave_expert *expert)
{
	struct pool_queue *queue = &w->job->pool->queue;
	struct wave_lane *lane = expert->lane;

	if (expert->pairs <= PACK_ROWS)
		ffn_need_h(w, expert);
	pthread_mutex_lock(&lane->ready_lock);
	lane->ready[lane->n_ready++] = (uint32_t)(expert - lane->experts);
	for (uint32_t t = 0; t < queue->n_teams; t++)
		pool_queue_add(queue, &lane->batch, t, lane->down.team[t + 1] - lane->down.team[t]);
	pthread_mutex_unlock(&lane->ready_lock);
}

static void ffn_gate_up(struct wave *w, const struct ffn_unit *unit, const struct kernel_matrix *next)
{
	const uint32_t hidden = w->job->compute->model->manifest->hidden;
	const struct wave_block *block = unit->block;
	struct wave_expert *expert = unit->expert;
	struct kernel_matrix gate = ffn_reads(w, unit);
	const struct kernel_matrix up = kernel_rows(&wave_matrices(w, expert, block->share)->up, block->row);

	gate.next = next;
	ffn_need_x(w, expert);
	for (uint32_t done = 0; done < expert->pairs; done += CALL_TOKENS) {
		const uint32_t first = expert->first + done, n = MIN(expert->pairs - done, CALL_TOKENS);
		float *h[CALL_TOKENS];

		for (uint32_t i = 0; i < n; i++)
			h[i] = w->h + (first + i) * w->h_stride + block->out;
		if (expert->x_groups)
			w->gate_ops->groups->gate_up(&gate, &up, unit->rows, hidden, &w->act, n,
						     expert->x_groups + done / KERNEL_GROUP * w->x_group, h);
		else
			w->gate_ops->gate_up(&gate, &up, unit->rows, hidden, &w->act, n, w->x + first, h);
	}
	if (took_last(&expert->gate_up_left, unit->n))
		ffn_add_down(w, expert);
}

/* -- down, and the sum over the experts --------------------------------------------------------------------------- */

static void ffn_down(struct wave *w, const struct ffn_unit *unit, const struct kernel_matrix *next)
{
	const uint32_t inter = w->job->compute->slice->inter;
	const struct wave_block *block = unit->block;
	struct wave_expert *expert = unit->expert;
	struct kernel_matrix down = ffn_reads(w, unit);

	down.next = next;
	ffn_need_h(w, expert);
	for (uint32_t done = 0; done < expert->pairs; done += CALL_TOKENS) {
		const uint32_t first = expert->first + done, n = MIN(expert->pairs - done, CALL_TOKENS);
		const void *h[CALL_TOKENS];
		float *y[CALL_TOKENS];

		for (uint32_t i = 0; i < n; i++) {
			h[i] = wave_packs_h(w->down_ops) ? (void *)(w->h_packed + (first + i) * w->h_bytes)
							 : (void *)(w->h + (first + i) * w->h_stride);
			y[i] = w->partial + (first + i) * w->y_stride + block->out;
		}
		if (expert->h_groups)
			w->down_ops->groups->matmul(&down, unit->rows, inter, n,
						    expert->h_groups + done / KERNEL_GROUP * w->h_group, y);
		else
			w->down_ops->matmul(&down, unit->rows, inter, n, h, y);
	}
}

/* Asks for what other threads have written, all at once. */
static void ask(const float *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += CACHE_LINE)
		__builtin_prefetch((const char *)from + i);
}

static void ffn_sum(const struct wave *w, uint32_t row, uint32_t rows)
{
	const struct pool_compute *c = w->job->compute;
	const struct kernels *kernels = w->job->pool->kernels;
	const uint32_t hidden = c->model->manifest->hidden;

	for (uint32_t t = 0; t < w->tokens; t++) {
		const int32_t *pairs = w->pair_of + (size_t)t * c->topk;
		const float *weights = c->weights + (size_t)(w->token + t) * c->topk;
		const size_t at = (size_t)(w->token + t) * hidden + row;
		float sum[BLOCK_ROWS_MAX];

		if (w->job->zeroes_last && !has_pair(pairs, c->topk))
			continue;
		for (uint32_t k = 0; k < c->topk; k++)
			if (pairs[k] >= 0)
				ask(w->partial + (size_t)pairs[k] * w->y_stride + row, rows * sizeof(sum[0]));
		memset(sum, 0, rows * sizeof(sum[0]));
		for (uint32_t k = 0; k < c->topk; k++)
			if (pairs[k] >= 0)
				kernels->axpy(rows, weights[k], w->partial + (size_t)pairs[k] * w->y_stride + row, sum);
		if (c->y_type == MOE_TYPE_BF16)
			kernels->f32_to_bf16(rows, sum, (uint16_t *)c->y + at);
		else
			memcpy((float *)c->y + at, sum, rows * sizeof(sum[0]));
	}
}

/* -- the job ------------------------------------------------------------------------------------------------------ */

static void ffn_end(struct pool *pool, struct pool_compute *compute, int status, uint64_t start_ns, uint64_t pairs)
{
	const struct pool_result result = {
		.status = status, .start_ns = start_ns, .end_ns = now_ns(), .pairs = status ? 0 : pairs};

	pool_count(pool, &result);
	compute->done(compute, &result);
}

static void ffn_free(struct ffn_job *job, int status)
{
	struct pool *pool = job->pool;
	struct pool_compute *compute = job->compute;
	const uint64_t start_ns = job->start_ns, pairs = job->pairs;

	scratch_put(&pool->scratch, job->scratch);
	replicas_release(compute->model->replicas, job->replicas);
	free(job);
	ffn_end(pool, compute, status, start_ns, pairs);
	if (pool_queue_waiting(&pool->queue)) /* perhaps for the scratch memory */
		pool_queue_ring_one(&pool->queue);
}

/* -- rows without a pair ------------------------------------------------------------------------------------------ */

static size_t y_row_bytes(const struct pool_compute *c)
{
	return c->model->manifest->hidden * (c->y_type == MOE_TYPE_BF16 ? sizeof(uint16_t) : sizeof(float));
}

/* Of tokens first .. end those without a pair. */
static void zero_rows(const struct pool_compute *c, uint32_t first, uint32_t end)
{
	const size_t row = y_row_bytes(c);

	for (uint32_t t = first; t < end; t++)
		if (!has_pair(c->ids + (size_t)t * c->topk, c->topk))
			memset((char *)c->y + t * row, 0, row);
}

static bool zeroes_much(const struct pool_compute *c)
{
	const size_t row = y_row_bytes(c);
	size_t bytes = 0;

	for (uint32_t t = 0; t < c->tokens && bytes <= ZERO_UNIT_BYTES; t++)
		bytes += has_pair(c->ids + (size_t)t * c->topk, c->topk) ? 0 : row;
	return bytes > ZERO_UNIT_BYTES;
}

static void zero_run(struct pool_batch *batch, uint32_t team, struct pool_units units, struct pool_units next)
{
	struct ffn_zero *z = container_of(batch, struct ffn_zero, batch);
	const struct pool_compute *c = z->job->compute;
	const uint32_t first = (z->first[team] + units.first) * z->each;

	zero_rows(c, first, MIN(first + z->each, c->tokens));
	if (took_last(&z->left, 1))
		ffn_free(z->job, 0);
}

/* The job ends with the last unit. Its scratch memory goes before: other jobs may begin meanwhile. */
static void zero_start(struct ffn_job *job)
{
	struct pool *pool = job->pool;
	const struct pool_compute *c = job->compute;
	const uint32_t each = (uint32_t)MAX(ZERO_UNIT_BYTES / y_row_bytes(c), 1);
	const uint32_t units = DIV_UP(c->tokens, each), n_teams = pool->queue.n_teams;
	struct ffn_zero *z = aligned_alloc(_Alignof(struct ffn_zero), sizeof(*z));

	if (!z) {
		ffn_free(job, -ENOMEM);
		return;
	}
	job->scratch = scratch_put(&pool->scratch, job->scratch);
	pool_batch_init(&z->batch, zero_run, c->priority, job->place);
	z->job = job;
	z->each = each;
	for (uint32_t t = 0; t <= n_teams; t++)
		z->first[t] = (uint32_t)((uint64_t)units * t / n_teams);
	atomic_init(&z->left, units);
	for (uint32_t t = 0; t < n_teams; t++)
		pool_queue_add(&pool->queue, &z->batch, t, z->first[t + 1] - z->first[t]);
	pool_batch_unref(&z->batch);
}

/* -- waves -------------------------------------------------------------------------------------------------------- */

/* The weights that the wave reads, by the nodes where they lie: those of an expert once, however many pairs it has. */
static void ffn_count_reads(struct pool *pool, const struct wave *w)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < w->n_shares; i++) {
		const struct moe_slice_plane *planes = w->shares[i].plane[0];
		uint64_t bytes = 0;

		for (int p = 0; p < MOE_PARTS * MOE_PLANES; p++)
			bytes += planes[p].rows * planes[p].width;
		all += bytes;
		atomic_fetch_add_explicit(&pool->shares[i].read_bytes, bytes * w->rows.n_experts, memory_order_relaxed);
	}
	for (uint32_t t = 0; t < pool->queue.n_teams; t++) {
		struct pool_share *node = &pool->shares[pool->node_of[t]];

		if (!w->whole[t])
			continue;
		atomic_fetch_add_explicit(&node->read_bytes, all * w->whole[t]->n_experts, memory_order_relaxed);
		atomic_fetch_add_explicit(&node->whole, w->whole[t]->n_experts, memory_order_relaxed);
	}
}

static pool_run ffn_run;
static void ffn_resume(struct pool *pool, struct pool_entry *entry);

/* One reference is the wave's own: its last output block drops it, which may be of any lane. */
static void ffn_publish(struct pool *pool, struct wave *w)
{
	struct wave_lane *lanes[HOST_NODES_MAX];
	const uint32_t n = pool->queue.n_teams;

	memcpy(lanes, w->whole, n * sizeof(*lanes));
	atomic_fetch_add_explicit(&w->rows.batch.refs, 1, memory_order_relaxed);
	for (uint32_t t = 0; t < n; t++)
		pool_queue_add(&pool->queue, &w->rows.batch, t, lane_gate_units(&w->rows, t));
	for (uint32_t t = 0; t < n; t++)
		if (lanes[t]) {
			pool_queue_add(&pool->queue, &lanes[t]->batch, t, lane_gate_units(lanes[t], t));
			pool_batch_unref(&lanes[t]->batch);
		}
	pool_batch_unref(&w->rows.batch);
}

/* A computation that goes before this one waits for scratch memory, and this one has some. */
static bool holds_up_another(const struct ffn_job *job)
{
	struct pool *pool = job->pool;
	const enum pool_priority priority = job->compute->priority;

	return job->scratch && !scratch_has_room(&pool->scratch, priority) &&
	       pool_queue_first_takes_scratch(&pool->queue, priority) &&
	       atomic_load(&pool->queue.first[priority]) < job->place.order;
}

/* The job may go on, and be gone, when this returns. */
static void give_way(struct ffn_job *job)
{
	struct pool *pool = job->pool;
	const enum pool_priority priority = job->compute->priority;

	job->scratch = scratch_put(&pool->scratch, job->scratch);
	job->again = (struct pool_entry){.place = job->place, .takes_scratch = true, .start = ffn_resume};
	job->gave_way_ns = now_ns();
	pool_queue_return(&pool->queue, &job->again, priority);
}

/* Begins the next wave that has pairs; ends the job when there is none. The job may be gone when this returns. */
static void ffn_advance(struct ffn_job *job)
{
	struct pool *pool = job->pool;
	int r = 0;

	while (job->next_token < job->compute->tokens) {
		uint32_t tokens, pairs;
		struct wave *wave;

		wave_extent(job, &tokens, &pairs);
		if (!pairs) {
			if (!job->zeroes_last)
				zero_rows(job->compute, job->next_token, job->next_token + tokens);
			job->next_token += tokens;
			continue;
		}
		if (holds_up_another(job)) {
			give_way(job);
			return;
		}
		r = wave_new(&wave, job, tokens, pairs, ffn_run);
		if (r < 0)
			break;
		job->next_token += tokens;
		job->pairs += pairs;
		ffn_count_reads(pool, wave);
		ffn_publish(pool, wave);
		return;
	}
	if (r == 0 && job->zeroes_last)
		zero_start(job);
	else
		ffn_free(job, r);
}

/* Each block whose last expert this was is added up. The job may be gone when this returns. */
static void ffn_down_ended(struct wave *w, const struct ffn_unit *unit)
{
	for (const struct wave_block *b = unit->block; b < unit->block + unit->n; b++) {
		if (!took_last(&w->down_left[b - w->down_blocks], 1))
			continue;
		ffn_sum(w, b->out, b->rows);
		if (took_last(&w->blocks_left, 1)) { /* so it is this thread's last, too */
			struct ffn_job *job = w->job;

			pool_batch_unref(&w->rows.batch);
			ffn_advance(job);
			return;
		}
	}
}

static void ffn_run(struct pool_batch *batch, uint32_t team, struct pool_units units, struct pool_units after)
{
	struct wave_lane *lane = container_of(batch, struct wave_lane, batch);
	struct wave *w = lane->wave;

	while (units.n) {
		const struct ffn_unit unit = ffn_unit(lane, team, units);
		const struct kernel_matrix *next = NULL;
		struct kernel_matrix matrix;

		units.first += unit.n;
		units.n -= unit.n;
		if (units.n || after.n) {
			const struct ffn_unit other = ffn_unit(lane, team, units.n ? units : after);

			matrix = ffn_reads(w, &other);
			next = &matrix;
		}
		if (!unit.down) {
			ffn_gate_up(w, &unit, next);
			continue;
		}
		ffn_down(w, &unit, next);
		ffn_down_ended(w, &unit);
	}
}

static void ffn_resume(struct pool *pool, struct pool_entry *entry)
{
	struct ffn_job *job = container_of(entry, struct ffn_job, again);

	job->start_ns += now_ns() - job->gave_way_ns; /* it has waited */
	ffn_advance(job);
}

void ffn_start(struct pool *pool, struct pool_entry *entry)
{
	struct pool_compute *compute = container_of(entry, struct pool_compute, entry);
	struct ffn_job *job = malloc(sizeof(*job));
	const uint64_t start_ns = now_ns();

	if (!job) {
		ffn_end(pool, compute, -ENOMEM, start_ns, 0);
		return;
	}
	*job = (struct ffn_job){.pool = pool, .compute = compute, .place = entry->place, .start_ns = start_ns};
	job->zeroes_last = zeroes_much(compute);
	if (compute->model->replicas)
		job->replicas = replicas_hold(compute->model->replicas, compute->row);
	ffn_advance(job);
}
