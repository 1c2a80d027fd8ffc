/* SPDX-License-Identifier: MIT */
/*
 * The mover: hot experts get copies that are the records' bytes, other heat moves them, the same heat moves nothing;
 * whatever is refused at whatever step leaves the layer as it was and the results the same.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/manifest.h"
#include "daemon/mover.h"
#include "tests/pool-fills.h"

enum { NODES = 2, EXPERTS = 16, ROWS = 2, HIDDEN = 128, INTER = 128, SLOTS = 4, JOBS = 12, THREADS = 3 };

struct world {
	struct fake f;
	struct host *host;
	struct pool *pool;
	struct heat_cell heat[ROWS * EXPERTS];
	struct job *jobs[JOBS];
	uint8_t *expected[JOBS];
};

static uint64_t limit_of(const struct world *w)
{
	return NODES * ALIGN_UP(SLOTS * (ROWS + 1) * w->f.manifest.record_bytes, (uint64_t)4096);
}

static struct mover_params params_of(struct world *w)
{
	return (struct mover_params){.model = &w->f.model,
				     .pool = w->pool,
				     .host = w->host,
				     .pages = PAGES_4K,
				     .max = limit_of(w),
				     .look = 1};
}

static void world_make(struct world *w)
{
	*w = (struct world){.host = host_make(NODES), .pool = pool_make(NODES, THREADS)};
	w->host->nodes[1].id = w->host->nodes[0].id; /* there need not be another */
	fake_layout(&w->f, EXPERTS, HIDDEN, INTER, MOE_FORMAT_BF16, NODES);
	fake_fill(&w->f);
	for (uint32_t i = 0; i < ROWS * EXPERTS; i++) {
		const uint8_t *share[NODES] = {resident_share(&w->f.model, i / EXPERTS, i % EXPERTS, 0),
					       resident_share(&w->f.model, i / EXPERTS, i % EXPERTS, 1)};

		manifest_record_digest(((struct moe_record *)w->f.model.records)[i].digest, &w->f.layouts[i / EXPERTS],
				       share);
	}
	for (uint32_t i = 0; i < JOBS; i++) {
		w->jobs[i] = job_make(&w->f, i % 3 ? 1 + pick(3) : 40, 4, pick_x_type(), MOE_TYPE_F32, 0);
		job_run(w->pool, w->jobs[i]);
		require(job_good(&w->f, w->jobs[i], kernels_get(isa_detect(NULL))), "a job is right");
		w->expected[i] = allocate(w->jobs[i]->y_bytes);
		memcpy(w->expected[i], w->jobs[i]->y, w->jobs[i]->y_bytes);
	}
}

static void world_free(struct world *w)
{
	for (uint32_t i = 0; i < JOBS; i++) {
		job_free(w->jobs[i]);
		free(w->expected[i]);
	}
	pool_free(w->pool);
	fake_free(&w->f);
	free(w->host);
}

static bool jobs_same(struct world *w)
{
	struct fill *fill = fill_make(&w->f, 0, 1);
	bool same = true;

	pool_submit_copy(w->pool, &fill->copy);
	for (uint32_t i = 0; i < JOBS; i++) {
		memset(w->jobs[i]->y, 0xff, w->jobs[i]->y_bytes);
		w->jobs[i]->ends = 0;
		pool_submit_compute(w->pool, &w->jobs[i]->compute);
	}
	for (uint32_t i = 0; i < JOBS; i++) {
		job_wait(w->jobs[i]);
		same = same && memcmp(w->expected[i], w->jobs[i]->y, w->jobs[i]->y_bytes) == 0;
	}
	while (sem_wait(&fill->ended) < 0)
		continue;
	same = same && fill_good(fill);
	fill_free(fill);
	return same;
}

/* Four experts are hot, from `first` on. */
static uint64_t heat(struct world *w, uint32_t first)
{
	for (uint32_t i = 0; i < ROWS * EXPERTS; i++)
		w->heat[i].pairs += (i % EXPERTS - first) % EXPERTS < 4 ? 1000 + i % 3 : 1;
	return ROWS * EXPERTS;
}

/* Shows it until it has looked once more at all layers, or gives up. */
static bool look_again(struct world *w, struct mover *m, uint64_t looks, bool *same)
{
	struct mover_stats now;

	for (uint32_t i = 0; i < 20000; i++) {
		mover_stats(m, &now);
		if (now.looks >= looks || now.state == MOVER_REFUSED)
			return true;
		mover_saw(m, ROWS * EXPERTS, w->heat);
		*same = jobs_same(w) && *same;
		usleep(1000);
	}
	return false;
}

static uint64_t looks_of(struct mover *m)
{
	struct mover_stats now;

	mover_stats(m, &now);
	return now.looks;
}

/* Each copy of a row's table is the record. */
static bool copies_good(struct world *w, uint32_t row, uint32_t *ret_copies)
{
	struct replica_table *t = replicas_hold(w->f.model.replicas, row);
	const uint64_t bytes = w->f.layouts[row].record_bytes;
	bool good = true;

	for (uint32_t e = 0; t && e < EXPERTS; e++)
		for (uint32_t n = 0; n < NODES; n++) {
			if (!replicas_has(t, e, NODES, n))
				continue;
			(*ret_copies)++;
			good = good && memcmp(replicas_share(w->f.model.replicas, t, e, n, !n),
					      resident_share(&w->f.model, row, e, !n), bytes) == 0;
		}
	replicas_release(w->f.model.replicas, t);
	return good;
}

static void test_moves(struct world *w)
{
	const struct mover_params params = params_of(w);
	struct mover_stats first, same_heat, other;
	struct mover *m = NULL;
	struct moe_error err = {0};
	bool same = true, good;
	uint32_t copies = 0;

	require(mover_new(&m, &params, &err) == 0, "a mover: %s", err.text);
	mover_stats(m, &first);
	ok(first.state == MOVER_WAITS && first.level.bytes == 0, "no memory before there is heat");
	heat(w, 3);
	require(look_again(w, m, 1, &same), "it looks");
	mover_stats(m, &first);
	good = copies_good(w, 0, &copies) && copies_good(w, 1, &copies);
	ok(good && copies == ROWS * NODES * SLOTS && first.copies == copies && first.failed == 0,
	   "%u copies are their records", copies);
	ok(first.after.covered > 0.9 && first.before.covered == 0 && first.after.balance < 1.3,
	   "they have %.3f of the pairs, balance %.2f", first.after.covered, first.after.balance);
	ok(first.level.bytes > 0 && first.level.bytes <= first.level.limit, "%llu bytes of %llu",
	   (unsigned long long)first.level.bytes, (unsigned long long)first.level.limit);
	heat(w, 3);
	require(look_again(w, m, looks_of(m) + 2, &same), "it looks again");
	mover_stats(m, &same_heat);
	ok(same_heat.layers_moved == first.layers_moved, "the same heat moves nothing");
	for (uint32_t i = 0; i < 4; i++)
		heat(w, 9);
	require(look_again(w, m, looks_of(m) + 2, &same), "and again");
	mover_stats(m, &other);
	copies = 0;
	good = copies_good(w, 0, &copies) && copies_good(w, 1, &copies);
	ok(good && other.layers_moved > first.layers_moved && other.level.epoch >= 2 && other.level.old == 0 &&
		   other.level.used_slots == copies,
	   "other heat moves them: %llu tables, epoch %llu", (unsigned long long)other.layers_moved,
	   (unsigned long long)other.level.epoch);
	ok(same, "results have the same bits all the time");
	mover_free(m);
	ok(w->f.model.replicas == NULL && jobs_same(w), "and when it is gone");
}

/* A record whose bytes are not what its digest says is not copied; its layer stays as it was, the other one moves. */
static void test_bad_record(struct world *w)
{
	const struct mover_params params = params_of(w);
	struct moe_record *record = (struct moe_record *)&w->f.model.records[EXPERTS + 5];
	struct mover_stats stats;
	struct mover *m = NULL;
	bool same = true, good;
	uint32_t copies = 0;

	record->digest[7] ^= 1;
	require(mover_new(&m, &params, NULL) == 0, "a mover");
	heat(w, 4);
	for (uint32_t i = 0; i < 20; i++)
		heat(w, 4);
	require(look_again(w, m, 1, &same), "it looks");
	mover_stats(m, &stats);
	good = copies_good(w, 1, &copies);
	ok(good && copies == 0 && stats.failed > 0, "a copy that is not its record is not used");
	good = copies_good(w, 0, &copies);
	ok(good && copies == NODES * SLOTS && stats.level.used_slots == copies,
	   "the other layer has its copies, and no slot is lost");
	record->digest[7] ^= 1;
	require(look_again(w, m, looks_of(m) + 2, &same), "it looks again");
	mover_stats(m, &stats);
	copies = 0;
	good = copies_good(w, 1, &copies);
	ok(good && copies == NODES * SLOTS && same, "later it is made");
	mover_free(m);
}

/* Tables that are held have their slots: what has no room waits, and is made when they are let go of. */
static void test_held(struct world *w)
{
	const struct mover_params params = params_of(w);
	struct replica_table *held[8] = {0};
	struct mover_stats stats;
	struct mover *m = NULL;
	bool same = true;

	require(mover_new(&m, &params, NULL) == 0, "a mover");
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t k = 0; k < 6 * (i + 1); k++)
			heat(w, 4 * i);
		require(look_again(w, m, looks_of(m) + 2, &same), "it looks");
		held[2 * i] = replicas_hold(w->f.model.replicas, 0);
		held[2 * i + 1] = replicas_hold(w->f.model.replicas, 1);
	}
	mover_stats(m, &stats);
	ok(stats.put_off > 0 && stats.level.bytes <= stats.level.limit, "%llu were put off",
	   (unsigned long long)stats.put_off);
	for (uint32_t i = 0; i < 8; i++)
		replicas_release(w->f.model.replicas, held[i]);
	require(look_again(w, m, looks_of(m) + 2, &same), "it looks again");
	mover_stats(m, &stats);
	ok(stats.level.old == 0 && stats.after.covered > 0.9 && same, "then they are made");
	mover_free(m);
}

static void test_ends(struct world *w)
{
	const struct mover_params params = params_of(w);
	bool same = true;
	uint32_t began = 0, i = 0;

	for (; i < 150 || (began < 5 && i < 3000); i++) {
		struct mover_stats stats;
		struct mover *m = NULL;

		if (mover_new(&m, &params, NULL) < 0)
			break;
		heat(w, pick(EXPERTS));
		mover_saw(m, ROWS * EXPERTS, w->heat);
		if (pick(2))
			same = jobs_same(w) && same;
		usleep(pick(i < 150 ? 100 * (1 + i) : 1000 * (i - 149))); /* where all is slow, as long as it takes */
		mover_stats(m, &stats);
		began += stats.copies > 0;
		mover_free(m);
	}
	ok(same && began >= 5 && jobs_same(w), "ended at any moment, %u of %u in the midst or after", began, i);
}

/* A thread of the pool, which is not let go of. */
struct holder {
	struct fill *fill;
	sem_t *go;
};
static struct holder holders[THREADS];

static void hold_thread(struct pool_copy *copy, const struct pool_result *result)
{
	for (uint32_t i = 0; i < THREADS; i++)
		while (&holders[i].fill->copy == copy && sem_wait(holders[i].go) < 0)
			continue;
	fill_done(copy, result);
}

static void *free_parted(void *arg)
{
	mover_free(arg);
	return NULL;
}

/* With a copy under way that the pool has no thread for; after so long it has most likely begun. False: it had not. */
static bool part_held(struct world *w, useconds_t after)
{
	const struct mover_params params = params_of(w);
	struct mover_stats stats;
	struct mover *m = NULL;
	pthread_t thread;
	bool held;
	sem_t go;

	sem_init(&go, 0, 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		holders[i] = (struct holder){fill_make(&w->f, 0, 1), &go};
		holders[i].fill->copy.done = hold_thread;
		pool_submit_copy(w->pool, &holders[i].fill->copy);
	}
	require(mover_new(&m, &params, NULL) == 0, "a mover");
	heat(w, 2);
	mover_saw(m, ROWS * EXPERTS, w->heat);
	do {
		usleep(1000);
		mover_stats(m, &stats);
	} while (stats.state != MOVER_MOVES);
	usleep(after);
	mover_part(m); /* would hang here for ever if it waited */
	require(pthread_create(&thread, NULL, free_parted, m) == 0, "a thread");
	usleep(after);
	held = pthread_tryjoin_np(thread, NULL) == EBUSY;
	for (uint32_t i = 0; i < THREADS; i++)
		sem_post(&go);
	movers_settle();
	if (held)
		pthread_join(thread, NULL);
	for (uint32_t i = 0; i < THREADS; i++) {
		while (sem_wait(&holders[i].fill->ended) < 0)
			continue;
		fill_free(holders[i].fill);
	}
	sem_destroy(&go);
	return held;
}

static void test_parted(struct world *w)
{
	useconds_t after = 1000;

	while (!part_held(w, after) && after < 2000000)
		after *= 2;
	ok(after < 2000000, "a mover that is parted is not waited for, and its end waits for the copy");
	ok(w->f.model.replicas == NULL && jobs_same(w), "and when it is gone");
}

static void test_refused(struct world *w)
{
	struct mover_params params = params_of(w);
	struct mover_stats stats;
	struct mover *m = NULL;
	struct moe_error err = {0};
	struct rlimit files;
	bool same = true;

	params.max = 4096;
	ok(mover_new(&m, &params, &err) == -ENOSPC && !m && !w->f.model.replicas, "too little: %s", err.text);
	params.max = limit_of(w);
	w->f.model.frames = 1;
	ok(mover_new(&m, &params, &err) == -EOPNOTSUPP, "a tiered model: %s", err.text);
	w->f.model.frames = 0;
	require(mover_new(&m, &params, &err) == 0, "a mover");
	require(getrlimit(RLIMIT_NOFILE, &files) == 0, "a limit of files");
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 0, .rlim_max = files.rlim_max});
	heat(w, 0);
	require(look_again(w, m, 1, &same), "it tries");
	setrlimit(RLIMIT_NOFILE, &files);
	mover_stats(m, &stats);
	ok(stats.state == MOVER_REFUSED && strstr(stats.why, "moe-replicas") && stats.level.bytes == 0 && same,
	   "no memory: %s", stats.why);
	mover_free(m);
	ok(mover_free(NULL) == NULL, "freeing nothing");
}

int main(void)
{
	static struct world w;

	seed = tap_seed();
	world_make(&w);
	test_moves(&w);
	test_bad_record(&w);
	test_held(&w);
	test_ends(&w);
	test_parted(&w);
	test_refused(&w);
	world_free(&w);
	return tap_done();
}
