/* SPDX-License-Identifier: MIT */
#include "daemon/mover.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/crash.h"
#include "daemon/manifest.h"
#include "daemon/team.h"
#include "model/pool-size.h"

struct mover {
	struct mover_params params;
	struct replicas *replicas;
	struct pages pages[MOE_POOLS_MAX];
	struct team team;
	double *weight; /* [rows][experts], the thread's */
	uint32_t *last; /* the same: pairs at the last look */
	struct replica_copy *list;
	uint64_t since; /* the last look, the reactor's */
	struct pool_move move;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t cond;
	uint32_t *heat; /* [rows][experts]: pairs */
	bool seen, stop, moved, parted;
	int status; /* of the move */
	struct mover_stats stats;
};

/* Those that were parted and may still have a copy made. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t fewer;
	uint32_t n;
} parted = {.lock = PTHREAD_MUTEX_INITIALIZER, .fewer = PTHREAD_COND_INITIALIZER};

static uint32_t rows_of(const struct mover *m)
{
	return m->params.model->manifest->n_moe_layers;
}

static uint32_t experts_of(const struct mover *m)
{
	return m->params.model->manifest->n_experts;
}

static const char *name_of(const struct mover *m)
{
	return m->params.model->manifest->name;
}

static void set_state(struct mover *m, enum mover_state state, const char *why)
{
	pthread_mutex_lock(&m->lock);
	m->stats.state = state;
	snprintf(m->stats.why, sizeof m->stats.why, "%.*s", (int)sizeof m->stats.why - 1, why);
	pthread_mutex_unlock(&m->lock);
}

static bool stopped(struct mover *m)
{
	bool stop;

	pthread_mutex_lock(&m->lock);
	stop = m->stop;
	pthread_mutex_unlock(&m->lock);
	return stop;
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static int go_on(uint64_t done, uint64_t total, void *userdata)
{
	return stopped(userdata);
}

static void close_pages(struct mover *m)
{
	for (uint32_t n = 0; n < MOE_POOLS_MAX; n++)
		pages_free(&m->pages[n]);
}

/* Slots are counted for these: with larger ones the limit may have no room for what is lost of the last page. */
static uint64_t page_bytes(const struct mover_params *p)
{
	return pages_rung_bytes(p->pages == PAGES_AUTO ? PAGES_2M : (enum pages_rung)p->pages);
}

/* On the best pages with which the file stays within the node's part of the limit. */
static int make_file(struct mover *m, uint32_t node, struct moe_error *err)
{
	const struct mover_params *p = &m->params;
	const uint64_t bytes = replicas_file_bytes(m->replicas), most = p->max / p->model->manifest->n_pools;
	const bool any = p->pages == PAGES_AUTO;
	int r = -ENOMEM;

	for (int rung = any ? PAGES_1G : p->pages; rung <= (any ? PAGES_4K : p->pages); rung++) {
		if (any && rung == PAGES_1G && bytes < POOL_1G_MIN)
			continue;
		if (ALIGN_UP(bytes, pages_rung_bytes((enum pages_rung)rung)) > most) {
			r = moe_error_set(err, -ENOSPC,
					  "a file of %llu bytes on %s pages is more than a node's part of %llu",
					  (unsigned long long)bytes, pages_rung_name((enum pages_rung)rung),
					  (unsigned long long)p->max);
			continue;
		}
		r = pages_new_watched(&m->pages[node], "moe-replicas", bytes, rung, &p->host->nodes[node], go_on, m,
				      err);
		if (r == 0 || r == -ECANCELED)
			break;
	}
	return r;
}

static int open_pages(struct mover *m, struct moe_error *err)
{
	uint8_t *files[MOE_POOLS_MAX] = {0};
	uint64_t bytes = 0;
	int r = 0;

	for (uint32_t n = 0; r == 0 && n < m->params.model->manifest->n_pools; n++) {
		r = make_file(m, n, err);
		files[n] = r == 0 ? m->pages[n].map : NULL;
		bytes += r == 0 ? m->pages[n].bytes : 0;
	}
	if (r < 0)
		close_pages(m);
	else
		replicas_use(m->replicas, files, bytes);
	return r;
}

static int open_memory(struct mover *m)
{
	struct moe_error err = {0};
	int r;

	set_state(m, MOVER_OPENS, "");
	r = open_pages(m, &err);
	if (r < 0 && !stopped(m))
		log_warning("%s: no copies of hot experts: %s", name_of(m), err.text);
	set_state(m, r < 0 ? MOVER_REFUSED : MOVER_MOVES, err.text);
	return r;
}

/* -- a layer ------------------------------------------------------------------------------------------------------ */

static void move_done(struct pool_move *move, int status)
{
	struct mover *m = container_of(move, struct mover, move);

	pthread_mutex_lock(&m->lock);
	m->moved = true;
	m->status = status;
	pthread_cond_signal(&m->cond);
	pthread_mutex_unlock(&m->lock);
}

static int move_shares(struct mover *m, uint32_t row, const struct replica_copy *copy)
{
	const struct resident *model = m->params.model;
	const uint64_t bytes = model->layouts[resident_layout(model, row)].record_bytes;
	int r;

	m->move = (struct pool_move){.node = copy->node, .done = move_done};
	for (uint32_t s = 0; s < model->manifest->n_pools; s++)
		if (s != copy->node) {
			m->move.ranges[m->move.n] = (struct pool_range){resident_share(model, row, copy->expert, s),
									copy->to + bytes * m->move.n, bytes};
			m->move.n++;
		}
	m->moved = false;
	pool_submit_move(m->params.pool, &m->move);
	crash_at(CRASH_COPYING);
	pthread_mutex_lock(&m->lock);
	while (!m->moved)
		pthread_cond_wait(&m->cond, &m->lock);
	r = m->status;
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* The node's own share and what was copied to it are the record. */
static int check_copy(const struct mover *m, uint32_t row, const struct replica_copy *copy)
{
	const struct resident *model = m->params.model;
	const struct moe_layout *layout = &model->layouts[resident_layout(model, row)];
	const uint8_t *share[MOE_POOLS_MAX], *at = copy->to;
	uint8_t digest[MOE_DIGEST_BYTES];

	for (uint32_t s = 0; s < layout->shares; s++) {
		share[s] = s == copy->node ? resident_share(model, row, copy->expert, s) : at;
		at += s == copy->node ? 0 : layout->record_bytes;
	}
	manifest_record_digest(digest, layout, share);
	return memcmp(digest, model->records[(size_t)row * experts_of(m) + copy->expert].digest, sizeof digest) == 0
		       ? 0
		       : -EBADMSG;
}

static const struct replica_copy *copy_of(const struct mover *m, uint32_t n, const struct transfer *t)
{
	for (uint32_t i = 0; i < n; i++)
		if (m->list[i].expert == t->expert && m->list[i].node == t->to_rank)
			return &m->list[i];
	return NULL;
}

/* As the transfers say, one after the other. They always read the rows, which are never given up. */
static int make_copies(struct mover *m, uint32_t row, const struct hot_plan *plan, uint32_t n)
{
	const uint64_t bytes = (m->params.model->manifest->n_pools - 1) *
			       m->params.model->layouts[resident_layout(m->params.model, row)].record_bytes;
	int r = plan->moves.n == n ? 0 : -EPROTO;

	for (size_t i = 0; r == 0 && i < plan->moves.n; i++) {
		const struct replica_copy *copy = copy_of(m, n, &plan->moves.list[i]);

		r = stopped(m) ? -ECANCELED : copy ? move_shares(m, row, copy) : -EPROTO;
		crash_at(CRASH_COPIED);
		if (r == 0)
			r = check_copy(m, row, copy);
		pthread_mutex_lock(&m->lock);
		m->stats.copies += r == 0;
		m->stats.bytes += r == 0 ? bytes : 0;
		pthread_mutex_unlock(&m->lock);
	}
	return r;
}

static void move_row(struct mover *m, uint32_t row, const struct hot_plan *plan)
{
	uint32_t n;
	int r = replicas_begin(m->replicas, row, plan->at, m->list, &n);
	bool put_off = r == -EAGAIN;

	if (r == 0) {
		r = make_copies(m, row, plan, n);
		crash_at(CRASH_CHECKED);
		if (r == 0)
			replicas_commit(m->replicas);
		else
			replicas_abort(m->replicas);
		crash_at(CRASH_MOVED);
	}
	if (r < 0 && r != -EAGAIN && r != -ECANCELED && m->stats.failed == 0) /* the thread alone counts them */
		log_warning("%s: row %u: copies of hot experts stay as they were: %s", name_of(m), row, strerror(-r));
	pthread_mutex_lock(&m->lock);
	m->stats.layers_moved += r == 0;
	m->stats.put_off += put_off;
	m->stats.failed += r < 0 && !put_off;
	pthread_mutex_unlock(&m->lock);
}

/* -- the thread --------------------------------------------------------------------------------------------------- */

/* What was seen counts half, what came since whole. Heat stops at its largest value. */
static bool wait_for_heat(struct mover *m)
{
	const size_t n = (size_t)rows_of(m) * experts_of(m);
	bool stop;

	pthread_mutex_lock(&m->lock);
	m->stats.state = m->stats.state == MOVER_REFUSED ? MOVER_REFUSED : MOVER_WAITS;
	while (!m->seen && !m->stop)
		pthread_cond_wait(&m->cond, &m->lock);
	stop = m->stop;
	for (size_t i = 0; !stop && i < n; i++) {
		m->weight[i] = m->weight[i] / 2 + (m->heat[i] - m->last[i]);
		m->last[i] = m->heat[i];
	}
	m->seen = false;
	m->stats.state = m->stats.state == MOVER_REFUSED ? MOVER_REFUSED : MOVER_MOVES;
	pthread_mutex_unlock(&m->lock);
	return !stop;
}

static void look(struct mover *m)
{
	struct hot_worth before = {0}, after = {0};
	const double share = 1.0 / rows_of(m);
	uint32_t row = 0;

	for (; row < rows_of(m) && !stopped(m); row++) {
		struct replicas_level level;
		struct hot_problem problem;
		struct hot_plan plan;

		replicas_level(m->replicas, &level);
		problem = (struct hot_problem){.experts = experts_of(m),
					       .nodes = level.nodes,
					       .slots = level.slots,
					       .weight = m->weight + (size_t)row * experts_of(m),
					       .now = replicas_now(m->replicas, row)};
		if (hot_plan(&plan, &problem, NULL) < 0)
			continue;
		before.covered += share * plan.before.covered;
		before.balance += share * plan.before.balance;
		after.covered += share * plan.after.covered;
		after.balance += share * plan.after.balance;
		if (plan.change)
			move_row(m, row, &plan);
		hot_plan_fini(&plan);
	}
	pthread_mutex_lock(&m->lock);
	if (row == rows_of(m)) {
		m->stats.before = before;
		m->stats.after = after;
		m->stats.looks++;
	}
	pthread_mutex_unlock(&m->lock);
}

static void *run(void *arg)
{
	struct mover *m = arg;

	if (!wait_for_heat(m) || open_memory(m) < 0)
		return NULL;
	do
		look(m);
	while (wait_for_heat(m));
	return NULL;
}

/* -- from outside ------------------------------------------------------------------------------------------------- */

static int allocate(struct mover *m, struct moe_error *err)
{
	const size_t n = (size_t)rows_of(m) * experts_of(m);
	struct replicas_level level;

	replicas_level(m->replicas, &level);
	m->weight = calloc(n, sizeof *m->weight);
	m->last = calloc(n, sizeof *m->last);
	m->heat = calloc(n, sizeof *m->heat);
	m->list = calloc((size_t)level.nodes * level.slots, sizeof *m->list);
	return m->weight && m->last && m->heat && m->list
		       ? 0
		       : moe_error_set(err, -ENOMEM, "%s: no memory for the heat of %zu records", name_of(m), n);
}

int mover_new(struct mover **ret, const struct mover_params *params, struct moe_error *err)
{
	struct mover *m;
	int r;

	if (params->model->manifest->n_pools < 2 || params->model->frames)
		return moe_error_set(err, -EOPNOTSUPP,
				     "%s: only a model that is all in memory, on two nodes or more, "
				     "has copies of hot experts",
				     params->model->manifest->name);
	m = calloc(1, sizeof *m);
	if (!m)
		return moe_error_set(err, -ENOMEM, "%s: no memory for a mover", params->model->manifest->name);
	m->params = *params;
	for (uint32_t n = 0; n < MOE_POOLS_MAX; n++)
		m->pages[n] = PAGES_NONE;
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->cond, NULL);
	r = replicas_new(&m->replicas, params->model, params->max, page_bytes(params), err);
	if (r == 0)
		r = allocate(m, err);
	if (r == 0)
		r = team_start(&m->team, "moe-mover", 1, run, m, err);
	if (r < 0) {
		mover_free(m);
		return r;
	}
	params->model->replicas = m->replicas;
	*ret = m;
	return 0;
}

static void stop(struct mover *m)
{
	pthread_mutex_lock(&m->lock);
	m->stop = true;
	pthread_cond_signal(&m->cond);
	pthread_mutex_unlock(&m->lock);
}

static void count_parted(int one)
{
	pthread_mutex_lock(&parted.lock);
	parted.n += (uint32_t)one;
	pthread_cond_broadcast(&parted.fewer);
	pthread_mutex_unlock(&parted.lock);
}

void mover_part(struct mover *m)
{
	m->parted = true;
	count_parted(1);
	stop(m);
}

void movers_settle(void)
{
	pthread_mutex_lock(&parted.lock);
	while (parted.n)
		pthread_cond_wait(&parted.fewer, &parted.lock);
	pthread_mutex_unlock(&parted.lock);
}

struct mover *mover_free(struct mover *m)
{
	if (!m)
		return NULL;
	stop(m);
	team_join(&m->team);
	if (m->parted)
		count_parted(-1);
	m->params.model->replicas = NULL;
	replicas_free(m->replicas);
	close_pages(m);
	pthread_cond_destroy(&m->cond);
	pthread_mutex_destroy(&m->lock);
	free(m->weight);
	free(m->last);
	free(m->heat);
	free(m->list);
	free(m);
	return NULL;
}

void mover_saw(struct mover *m, uint64_t pairs, const struct heat_cell *heat)
{
	const size_t n = (size_t)rows_of(m) * experts_of(m);

	m->since += pairs;
	if (m->since < n * (m->params.look ? m->params.look : MOVER_LOOK) || pthread_mutex_trylock(&m->lock) != 0)
		return;
	if (m->stats.state == MOVER_WAITS) {
		for (size_t i = 0; i < n; i++)
			m->heat[i] = heat[i].pairs;
		m->since = 0;
		m->seen = true;
		pthread_cond_signal(&m->cond);
	}
	pthread_mutex_unlock(&m->lock);
}

void mover_stats(struct mover *m, struct mover_stats *ret)
{
	pthread_mutex_lock(&m->lock);
	*ret = m->stats;
	pthread_mutex_unlock(&m->lock);
	replicas_level(m->replicas, &ret->level);
}
