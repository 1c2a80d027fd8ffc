/* SPDX-License-Identifier: MIT */
/*
 * Replicas: copies come and go while jobs run, and no result has another bit for it; there are never more slots than
 * there are; what is held stays as it was; giving up in the midst leaves everything as before.
 */
#include <errno.h>
#include <pthread.h>

#include "base/cleanup.h"
#include "daemon/pool-deal.h"
#include "daemon/replicas.h"
#include "tests/pool-fills.h"

enum { NODES = 3, EXPERTS = 8, ROWS = 2, HIDDEN = 96, INTER = 112, SLOTS = 3, PAGE = 4096 };

struct world {
	struct fake f;
	struct replicas *replicas;
	uint8_t *files[NODES];
};

static uint64_t limit_of(const struct fake *f, uint32_t slots)
{
	const uint64_t slot = (NODES - 1) * f->manifest.record_bytes;

	return NODES * ALIGN_UP(slots * (ROWS + 1) * slot, PAGE);
}

static void world_make(struct world *w)
{
	struct moe_error err = {0};

	*w = (struct world){0};
	fake_layout(&w->f, EXPERTS, HIDDEN, INTER, MOE_FORMAT_BF16, NODES);
	fake_fill(&w->f);
	ok(replicas_slots(&w->f.model, limit_of(&w->f, SLOTS), PAGE) == SLOTS &&
		   replicas_slots(&w->f.model, limit_of(&w->f, SLOTS) - NODES, PAGE) == SLOTS - 1,
	   "the limit says how many slots");
	ok(replicas_new(&w->replicas, &w->f.model, limit_of(&w->f, 1) - NODES, PAGE, &err) == -ENOSPC, "too little: %s",
	   err.text);
	require(replicas_new(&w->replicas, &w->f.model, limit_of(&w->f, SLOTS), PAGE, &err) == 0, "replicas");
	for (uint32_t n = 0; n < NODES; n++)
		w->files[n] = allocate(replicas_file_bytes(w->replicas));
	replicas_use(w->replicas, w->files, NODES * replicas_file_bytes(w->replicas));
}

/* Nothing of the limit stays out but what fills no page. */
static void test_pages(void)
{
	const uint64_t small = 2 << 20, large = 1 << 30;
	struct fake f;

	fake_layout(&f, EXPERTS, HIDDEN, INTER, MOE_FORMAT_BF16, NODES);
	fake_fill(&f);
	ok(replicas_slots(&f.model, NODES * large, small) == EXPERTS &&
		   replicas_slots(&f.model, NODES * large, large) == EXPERTS,
	   "a page a node is a page, of 1 GiB, too");
	ok(replicas_slots(&f.model, NODES * large - 1, small) == EXPERTS &&
		   replicas_slots(&f.model, NODES * large - 1, large) == 0,
	   "less is none of these");
	fake_free(&f);
}

static void world_free(struct world *w)
{
	replicas_free(w->replicas);
	for (uint32_t n = 0; n < NODES; n++)
		free(w->files[n]);
	fake_free(&w->f);
}

/* Some experts on each node, none of them twice on one. */
static void pick_want(int32_t *want)
{
	for (uint32_t n = 0; n < NODES; n++)
		for (uint32_t s = 0; s < SLOTS; s++) {
			int32_t *slot = &want[n * SLOTS + s];
			bool twice;

			do {
				*slot = pick(4) ? (int32_t)pick(EXPERTS) : -1;
				twice = false;
				for (uint32_t i = 0; i < s; i++)
					twice = twice || (*slot >= 0 && want[n * SLOTS + i] == *slot);
			} while (twice);
		}
}

struct mine {
	struct pool_move move;
	sem_t ended;
	int status;
};

static void moved(struct pool_move *move, int status)
{
	struct mine *m = container_of(move, struct mine, move);

	m->status = status;
	sem_post(&m->ended);
}

static bool make_copy(struct pool *pool, const struct world *w, uint32_t row, const struct replica_copy *copy)
{
	const uint64_t bytes = w->f.layouts[row].record_bytes;
	struct mine m = {.move = {.node = copy->node, .done = moved}};

	sem_init(&m.ended, 0, 0);
	for (uint32_t s = 0; s < NODES; s++)
		if (s != copy->node) {
			m.move.ranges[m.move.n] = (struct pool_range){resident_share(&w->f.model, row, copy->expert, s),
								      copy->to + bytes * m.move.n, bytes};
			m.move.n++;
		}
	pool_submit_move(pool, &m.move);
	while (sem_wait(&m.ended) < 0)
		continue;
	sem_destroy(&m.ended);
	return m.status == 0;
}

/* Of what a table says each byte is the record's. */
static bool table_good(const struct world *w, const struct replica_table *t)
{
	const uint64_t bytes = w->f.layouts[t->row].record_bytes;

	for (uint32_t e = 0; e < EXPERTS; e++)
		for (uint32_t n = 0; n < NODES; n++)
			for (uint32_t s = 0; s < NODES && replicas_has(t, e, NODES, n); s++)
				if (s != n && memcmp(replicas_share(w->replicas, t, e, n, s),
						     resident_share(&w->f.model, t->row, e, s), bytes) != 0)
					return false;
	return true;
}

static bool table_is(const struct replica_table *t, const int32_t *want)
{
	uint32_t copies = 0;

	for (uint32_t i = 0; i < EXPERTS * NODES; i++)
		copies += t->at[i] != NULL;
	for (uint32_t i = 0; i < NODES * SLOTS; i++) {
		if (want[i] >= 0 && !replicas_has(t, (uint32_t)want[i], NODES, i / SLOTS))
			return false;
		copies -= want[i] >= 0;
	}
	return copies == 0;
}

static uint32_t refused, given_up, switched;
static bool level_good = true;

/* One row is made anew, or it is given up in the midst, or there is no room because of what is held. */
static bool move_once(struct pool *pool, struct world *w)
{
	struct replica_copy list[NODES * SLOTS];
	int32_t want[NODES * SLOTS];
	const uint32_t row = pick(ROWS);
	struct replica_table *before = replicas_hold(w->replicas, row), *after;
	struct replicas_level level;
	bool good = true;
	uint32_t n, fail;
	int r;

	pick_want(want);
	r = replicas_begin(w->replicas, row, want, list, &n);
	if (r < 0) {
		refused++;
		replicas_release(w->replicas, before);
		return r == -EAGAIN;
	}
	fail = pick(3) ? n : pick(n + 1);
	for (uint32_t i = 0; i < fail; i++)
		good = good && make_copy(pool, w, row, &list[i]);
	replicas_level(w->replicas, &level);
	level_good = level_good && level.bytes <= level.limit &&
		     level.used_slots + level.free_slots == NODES * SLOTS * (ROWS + 1);
	if (fail < n)
		replicas_abort(w->replicas);
	else
		replicas_commit(w->replicas);
	given_up += fail < n;
	switched += fail == n;
	after = replicas_hold(w->replicas, row);
	good = good && (!before || table_good(w, before)) && (!after || table_good(w, after));
	good = good && (fail < n ? after == before : after != before && table_is(after, want));
	good = good && (fail < n || after->epoch == (before ? before->epoch : 0) + 1);
	good = good && (fail < n || memcmp(replicas_now(w->replicas, row), want, sizeof want) == 0);
	replicas_release(w->replicas, before);
	replicas_release(w->replicas, after);
	return good;
}

static void test_moves(struct pool *pool)
{
	struct replica_table *held[6] = {0};
	struct replicas_level level;
	bool good = true, held_good = true;
	struct world w;

	world_make(&w);
	for (uint32_t i = 0; i < 3000 && good && held_good; i++) {
		struct replica_table **at = &held[pick(6)];

		held_good = held_good && (!*at || table_good(&w, *at));
		replicas_release(w.replicas, *at);
		*at = pick(3) ? NULL : replicas_hold(w.replicas, pick(ROWS));
		good = move_once(pool, &w);
	}
	ok(good, "3000 times: %u tables made, %u given up, %u had no room", switched, given_up, refused);
	ok(held_good, "what is held stays as it was");
	ok(level_good, "never more memory than allowed");
	ok(switched > 100 && given_up > 100 && refused > 100, "each of them often");
	for (uint32_t i = 0; i < 6; i++)
		replicas_release(w.replicas, held[i]);
	replicas_level(w.replicas, &level);
	ok(level.old == 0 && level.switches == switched, "nothing is left of old tables");
	ok(level.used_slots == level.copies[0] + level.copies[1] + level.copies[2], "nor a slot of theirs");
	world_free(&w);
}

/* -- jobs meanwhile ----------------------------------------------------------------------------------------------- */

enum { JOBS = 24, ROUNDS = 12 };

struct mover {
	struct pool *pool;
	struct world *world;
	_Atomic bool stop;
	bool good;
};

static void *move_on(void *arg)
{
	struct mover *m = arg;

	while (!atomic_load(&m->stop))
		m->good = move_once(m->pool, m->world) && m->good;
	return NULL;
}

static uint64_t whole_of(struct pool *pool)
{
	uint64_t whole = 0;

	for (uint32_t n = 0; n < NODES; n++) {
		struct pool_node_stats stats;

		pool_node_stats(pool, n, &stats);
		whole += stats.whole;
	}
	return whole;
}

/* Every job's result, one after the other and then all at once while tables change. */
static void test_jobs(uint32_t threads)
{
	struct pool *pool = pool_make(NODES, threads);
	struct mover mover = {.pool = pool, .good = true};
	struct replicas *replicas;
	struct job *jobs[JOBS];
	uint8_t *expected[JOBS];
	uint64_t whole = 0;
	struct fill *fill;
	bool same = true;
	pthread_t thread;
	struct world w;

	world_make(&w);
	replicas = w.replicas;
	mover.world = &w;
	for (uint32_t i = 0; i < JOBS; i++) {
		jobs[i] = job_make(&w.f, i % 3 ? 1 + pick(3) : 40, 4, pick_x_type(), MOE_TYPE_F32, i % 4 ? 0 : 5);
		job_run(pool, jobs[i]);
		same = same && job_good(&w.f, jobs[i], kernels_get(isa_detect(NULL)));
		expected[i] = allocate(jobs[i]->y_bytes);
		memcpy(expected[i], jobs[i]->y, jobs[i]->y_bytes);
	}
	fill = fill_make(&w.f, 0, 1);
	w.f.model.replicas = replicas;
	require(pthread_create(&thread, NULL, move_on, &mover) == 0, "a thread that moves");
	for (uint32_t round = 0; round < ROUNDS || (whole == 0 && round < 1000 * ROUNDS); round++) {
		whole = whole_of(pool);
		for (uint32_t i = 0; i < JOBS; i++) {
			memset(jobs[i]->y, 0xff, jobs[i]->y_bytes);
			jobs[i]->ends = 0;
			pool_submit_compute(pool, &jobs[i]->compute);
		}
		for (uint32_t i = 0; i < JOBS; i++) {
			job_wait(jobs[i]);
			same = same && jobs[i]->result.status == 0 &&
			       memcmp(expected[i], jobs[i]->y, jobs[i]->y_bytes) == 0;
		}
		memset(fill->dst, 0xa5, fill->slice.bytes);
		pool_submit_copy(pool, &fill->copy);
		while (sem_wait(&fill->ended) < 0)
			continue;
		same = same && fill_good(fill);
	}
	atomic_store(&mover.stop, true);
	pthread_join(thread, NULL);
	whole = whole_of(pool);
	ok(same, "%u threads: results and fills have the same bits while copies come and go", threads);
	ok(mover.good && whole > 0, "%u threads: tables are good, %llu experts were computed whole", threads,
	   (unsigned long long)whole);
	for (uint32_t i = 0; i < JOBS; i++) {
		job_free(jobs[i]);
		free(expected[i]);
	}
	fill_free(fill);
	world_free(&w);
	pool_free(pool);
}

/* -- dealing ------------------------------------------------------------------------------------------------------ */

static void test_deal(void)
{
	uint32_t whole = 0, uneven = 0, wrong = 0;
	struct deal_expert pair[2] = {{.number = 0, .pairs = 1, .teams = 3}, {.number = 1, .pairs = 1, .teams = 3}};
	struct deal_expert odd[3] = {{.number = 0, .pairs = 1, .teams = 3},
				     {.number = 1, .pairs = 1, .teams = 3},
				     {.number = 2, .pairs = 1, .teams = 3}};

	ok(deal_whole(pair, 2, 2, 32) == 2 && pair[0].team == 0 && pair[1].team == 1, "two experts, one each");
	ok(deal_whole(odd, 3, 2, 48) == 2 && odd[2].team == DEAL_ROWS, "of three the third is cut by rows");
	for (uint32_t i = 0; i < 20000; i++) {
		const uint32_t teams = 2 + pick(7), n = 1 + pick(40);
		uint64_t all = 0, load[8] = {0}, most = 0, least = UINT64_MAX;
		struct deal_expert list[40];
		uint32_t counted = 0, got;

		for (uint32_t e = 0; e < n; e++) {
			list[e] = (struct deal_expert){
				.number = e, .pairs = 1 + pick(pick(4) ? 8 : 200), .teams = pick(1u << teams)};
			all += deal_cost(list[e].pairs);
		}
		got = deal_whole(list, n, teams, all);
		for (uint32_t e = 0; e < n; e++) {
			if (list[e].team == DEAL_ROWS)
				continue;
			wrong += list[e].team >= teams || !(list[e].teams & 1u << list[e].team);
			load[list[e].team] += deal_cost(list[e].pairs);
			counted++;
		}
		for (uint32_t t = 0; t < teams; t++) {
			most = MAX(most, load[t]);
			least = MIN(least, load[t]);
		}
		wrong += counted != got;
		uneven += most - least > all / teams / DEAL_UNEVEN;
		whole += got;
	}
	ok(wrong == 0 && whole > 0, "each whole expert is on a team that has a copy (%u of them)", whole);
	ok(uneven == 0, "teams stay even");
}

int main(void)
{
	struct pool *pool;

	seed = tap_seed();
	test_deal();
	test_pages();
	pool = pool_make(NODES, NODES);
	test_moves(pool);
	pool_free(pool);
	test_jobs(NODES);
	test_jobs(2 * NODES + 1);
	test_jobs(2); /* a node without a team */
	return tap_done();
}
