/* SPDX-License-Identifier: MIT */
/*
 * Lanes: passes that are captured once and replayed (on the host given anew) have the bits of steps that are planned
 * each time; and whatever becomes of the daemon, no stream waits for ever and nobody is given a wrong number without
 * being told.
 *
 * TEST_REPLAYS: how many (1000). TEST_SHARED_LANE: the micro-batches share their lanes, which must be seen.
 */
#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <unistd.h>

#include "lanes.h"
#include "tests/lane-user.h"

static int env_number(const char *name, int otherwise)
{
	const char *given = getenv(name);

	return given ? atoi(given) : otherwise;
}

/* Some experts of each layer come into slots. */
static void warm(struct user *u)
{
	struct job job;

	for (int i = 0; i < 20; i++) {
		job_init(&job);
		if (job_run(u->fake, &job, MOE_MODE_DECODE) != 0)
			require(false, "a planned step");
	}
}

static void begin_lanes(struct user *u)
{
	struct moe_error err = {0};
	uint32_t i;
	int r;

	warm(u);
	r = moe_lanes_fix(&u->fake->session, &err);
	for (i = 0; i < BATCHES && r == 0; i++)
		r = capture(u, &u->batches[i], &err);
	if (r < 0) {
		diag("%s", err.text);
		abort();
	}
}

/* Whose they are by the map. */
static void count_pairs(struct user *u, const struct batch *b)
{
	for (uint32_t row = 0; row < MOE_LAYERS; row++) {
		const struct cache *cache = u->fake->session.engine->rows[row].cache;

		for (uint32_t i = 0; i < b->tokens * TOPK; i++) {
			const int32_t id = b->host->ids[row][i];

			u->hit += id >= 0 && cache->cache_map[id] >= 0;
			u->cpu += id >= 0 && cache->cache_map[id] < 0;
		}
	}
}

/* Both micro-batches are under way at once. Returns passes with an error, and of the others stores those with other
 * bits than planned steps. */
static int run_passes(struct user *u, int passes, enum moe_mode mode, int *ret_wrong)
{
	struct moe_error err = {0};
	int pass, failed = 0, differing;
	uint32_t i;

	*ret_wrong = 0;
	for (pass = 0; pass < passes; pass++) {
		int r[BATCHES];

		for (i = 0; i < BATCHES; i++)
			r[i] = start_pass(u, &u->batches[i], &err);
		for (i = 0; i < BATCHES; i++) {
			const int end = end_pass(u, &u->batches[i], &err);

			r[i] = r[i] == 0 ? end : r[i];
			if (r[i] < 0 && failed++ == 0)
				diag("pass %d: %s", pass, err.text);
			count_pairs(u, &u->batches[i]);
			differing = r[i] < 0 ? 0 : count_differing(u, &u->batches[i], mode);
			if (differing != 0 && (*ret_wrong)++ == 0)
				diag("pass %d of micro-batch %u: %d layers differ", pass, i, differing);
		}
	}
	return failed;
}

/* What is in the device's room for the answers of a micro-batch's first lane is that lane's latest answer. */
static bool has_landed(struct user *u, struct batch *b)
{
	const struct engine *e = u->fake->session.engine;
	const struct lane *lane = &e->lanes->lanes[2 * (b - u->batches)];
	const uint64_t each = lanes_landing_bytes(e) / (2 * BATCHES), bytes = b->tokens * HIDDEN * sizeof(float);

	if (!e->landing.base)
		return false;
	u->ops->copy_to_host(b->commands, b->host->x, e->landing.base + (uint64_t)(lane - e->lanes->lanes) * each,
			     bytes);
	return moe_stream_wait(b->stream, 0, NULL) == 0 && memcmp(b->host->x, lane->y, bytes) == 0;
}

static void test_replays(int passes, enum moe_answers answers)
{
	struct moe_attach_params p = lane_params();
	struct totals before, after;
	struct user u;
	int failed, wrong, landed = 0;

	p.answers = answers;
	user_init(&u, &p);
	u.shares_lane = env_number("TEST_SHARED_LANE", 0);
	u.fake->pause_us = 20;
	begin_lanes(&u);
	before = read_stats(u.fake);
	failed = run_passes(&u, passes, MOE_MODE_DECODE, &wrong);
	after = read_stats(u.fake);
	ok(failed == 0 && wrong == 0 && u.fake->breaches == 0,
	   "%d passes of %d micro-batches%s: %d failed, %d have other bits than planned steps", passes, BATCHES,
	   has_graphs() ? ", captured once" : "", failed, wrong);
	for (int i = 0; i < BATCHES; i++)
		landed += has_landed(&u, &u.batches[i]);
	ok(landed == (answers == MOE_ANSWERS_COPY ? BATCHES : 0), "answers: %s",
	   answers == MOE_ANSWERS_COPY ? "copied first" : "read in place");
	ok(after.hit - before.hit == 2 * u.hit && after.cpu - before.cpu == 2 * u.cpu && u.hit > 0 && u.cpu > 0,
	   "%llu pairs of the device and %llu of the CPU are counted, and those of planned steps",
	   (unsigned long long)u.hit, (unsigned long long)u.cpu);
	user_fini(&u);
}

/* The caches go on between two times of lanes; the graphs stay. */
static void test_new_maps(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	int round, failed = 0, wrong = 0, more;
	struct user u;

	user_init(&u, &p);
	begin_lanes(&u);
	for (round = 0; round < 5; round++) {
		failed += run_passes(&u, 5, MOE_MODE_DECODE, &more);
		wrong += more;
		moe_lanes_release(&u.fake->session);
		warm(&u);
		failed += moe_lanes_fix(&u.fake->session, &err) < 0;
	}
	ok(failed == 0 && wrong == 0, "graphs go on with the maps of other caches");
	user_fini(&u);
}

/* Nobody leaves a slot while lanes are in use. */
static void test_fixed(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	struct moe_plan_view view;
	struct moe_plan *plan;
	struct user u;
	struct job job;
	int r[3];

	user_init(&u, &p);
	r[0] = moe_lane_submit(&u.fake->session, &(struct moe_lane_step){.size = sizeof(struct moe_lane_step)}, &err);
	ok(r[0] == -EINVAL, "a dense layer is refused");
	r[0] = give_pass(&u, &u.batches[0], &err);
	ok(r[0] == -EINVAL, "without a map nothing is given: %s", err.text);
	do
		job_init(&job);
	while (job.pairs == 0);
	u.fake->stall = true;
	if (job_submit(u.fake, &job, MOE_MODE_DECODE, &err) < 0)
		abort();
	r[0] = moe_lanes_fix(&u.fake->session, &err);
	ok(r[0] == -EBUSY, "no map while a step is in flight: %s", err.text);
	u.fake->stall = false;
	moe_wait(job.step, job.y, 0, &err);
	warm(&u);
	job.layer = 1;
	do {
		moe_lanes_release(&u.fake->session);
		job_init(&job);
		job.layer = 1;
		if (job_plan(u.fake, &job, MOE_MODE_DECODE, &plan, &err) < 0)
			abort();
		moe_plan_view(plan, &view);
		r[0] = moe_lanes_fix(&u.fake->session, &err);
		moe_plan_free(plan);
	} while (view.n_copies == 0);
	ok(r[0] == -EBUSY, "nor while a plan that fills slots is not submitted: %s", err.text);
	require(moe_lanes_fix(&u.fake->session, &err) == 0, "the caches are taken as they are");
	r[1] = 0;
	for (int i = 0; i < 30; i++) {
		job_init(&job);
		if (job_plan(u.fake, &job, MOE_MODE_DECODE, &plan, &err) < 0)
			abort();
		moe_plan_view(plan, &view);
		r[1] += (int)view.n_copies;
		moe_plan_free(plan);
	}
	r[2] = moe_fill(&u.fake->session, 1, 0, 0, &err);
	ok(r[1] == 0 && r[2] == -EBUSY, "from then on decode plans fill nothing, and neither does moe_fill: %s",
	   err.text);
	user_fini(&u);
}

struct planner {
	struct user *u;
	pthread_barrier_t begin, end;
	struct job job;
	struct moe_plan *plan;
	_Atomic bool stop;
};

static void *plan_beside(void *userdata)
{
	struct planner *p = userdata;

	for (;;) {
		pthread_barrier_wait(&p->begin);
		if (p->stop)
			return NULL;
		if (job_plan(p->u->fake, &p->job, MOE_MODE_DECODE, &p->plan, NULL) < 0)
			abort();
		pthread_barrier_wait(&p->end);
	}
}

/* Whoever plans while the map is being fixed comes before, and then it is not, or after, and then fills nothing. */
static void test_fixed_beside_plans(void)
{
	struct moe_attach_params params = lane_params();
	int fixed = 0, refused = 0, wrong = 0;
	struct planner p = {0};
	pthread_t thread;
	struct user u;

	user_init(&u, &params);
	p.u = &u;
	warm(&u);
	pthread_barrier_init(&p.begin, NULL, 2);
	pthread_barrier_init(&p.end, NULL, 2);
	if (pthread_create(&thread, NULL, plan_beside, &p) != 0)
		abort();
	for (int i = 0; i < 300; i++) {
		struct moe_plan_view view;
		int r;

		job_init(&p.job);
		pthread_barrier_wait(&p.begin);
		r = moe_lanes_fix(&u.fake->session, NULL);
		pthread_barrier_wait(&p.end);
		moe_plan_view(p.plan, &view);
		fixed += r == 0;
		refused += r == -EBUSY;
		wrong += r == 0 && view.n_copies > 0;
		moe_plan_free(p.plan);
		moe_lanes_release(&u.fake->session);
	}
	p.stop = true;
	pthread_barrier_wait(&p.begin);
	pthread_join(thread, NULL);
	ok(wrong == 0 && fixed > 0 && fixed + refused == 300,
	   "beside a plan the map is fixed %d times, %d of them although the plan fills slots, and refused %d times",
	   fixed, wrong, refused);
	pthread_barrier_destroy(&p.begin);
	pthread_barrier_destroy(&p.end);
	user_fini(&u);
}

/* Steps that fill free slots and miss buffers go on beside lanes, whose map does not know. */
static void test_beside_prefetch(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	int pass, wrong = 0, failed = 0;
	struct totals before;
	struct user u;
	struct job job;

	p.cache_expert_num = EXPERTS - 2;
	user_init(&u, &p);
	begin_lanes(&u);
	before = read_stats(u.fake);
	for (pass = 0; pass < 40; pass++) {
		const int r = start_pass(&u, &u.batches[pass % 2], &err);

		job_init(&job);
		failed += job_run(u.fake, &job, pass % 3 ? MOE_MODE_PREFETCH : MOE_MODE_FULL) != 0;
		failed += r < 0 || end_pass(&u, &u.batches[pass % 2], &err) < 0;
		wrong += count_wrong(&u, &u.batches[pass % 2]);
	}
	ok(failed == 0 && wrong == 0 && read_stats(u.fake).fills > before.fills,
	   "%llu experts come beside passes, which stay right",
	   (unsigned long long)(read_stats(u.fake).fills - before.fills));
	user_fini(&u);
}

/* Each rank's lanes have the bits of its planned steps; with group shares rank 1 has no CPU part. */
static void test_ranks(enum moe_share share, const char *name)
{
	struct moe_error err = {0};
	int pass, failed = 0, differing = 0;
	static struct user ranks[2];
	uint32_t r;

	for (r = 0; r < 2; r++) {
		struct moe_attach_params p = lane_params();

		p.tp_rank = r;
		p.tp_size = 2;
		p.share = share;
		p.n_copy = MOE_N_COPY_STAIRS;
		user_init(&ranks[r], &p);
		ranks[r].batches[1].tokens = 3;
	}
	for (r = 0; r < 2; r++) {
		failed += moe_lanes_fix(&ranks[r].fake->session, &err) < 0;
		failed += moe_fill(&ranks[r].fake->session, 1, 5, 0, NULL) != -EBUSY;
		moe_lanes_release(&ranks[r].fake->session);
		for (uint32_t i = 0; i < 4 * MOE_LAYERS; i++)
			failed += moe_fill(&ranks[r].fake->session, 1 + i / 4, 3 * (i % 4), i % 4, &err) < 0;
		failed += moe_lanes_fix(&ranks[r].fake->session, &err) < 0;
		failed += capture(&ranks[r], &ranks[r].batches[1], &err) < 0;
	}
	for (pass = 0; pass < 20; pass++) {
		new_numbers(&ranks[0].batches[1]);
		memcpy(ranks[1].batches[1].host, ranks[0].batches[1].host, sizeof(struct lane_data));
		for (r = 0; r < 2; r++)
			failed += give_numbers(&ranks[r], &ranks[r].batches[1], &err) < 0;
		for (r = 0; r < 2; r++) {
			failed += end_pass(&ranks[r], &ranks[r].batches[1], &err) < 0;
			differing += count_differing(&ranks[r], &ranks[r].batches[1], MOE_MODE_DECODE) != 0;
		}
	}
	ok(failed == 0 && differing == 0, "%s: both ranks have the bits of planned steps", name);
	ok(ranks[0].fake->computes > 0 && (ranks[1].fake->computes == 0) == (share == MOE_SHARE_GROUP),
	   "%s: who has a CPU part asks for it", name);
	user_fini(&ranks[0]);
	user_fini(&ranks[1]);
}

static void test_failed_compute(void)
{
	struct moe_attach_params p = lane_params();
	struct user u;
	int failed, wrong;

	user_init(&u, &p);
	begin_lanes(&u);
	u.fake->fail_computes = 1;
	failed = run_passes(&u, 5, MOE_MODE_DECODE, &wrong);
	ok(failed == 1 && wrong == 0, "a failed COMPUTE fails one pass, and no other is wrong");
	user_fini(&u);
}

/* A graph may be launched at any time, and always ends. */
static void test_not_fixed(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	int r, end, failed, wrong;
	struct user u;

	user_init(&u, &p);
	begin_lanes(&u);
	moe_lanes_release(&u.fake->session);
	r = start_pass(&u, &u.batches[0], &err);
	end = end_pass(&u, &u.batches[0], r == 0 ? &err : NULL);
	ok(has_graphs() ? r == 0 && end == -ESTALE : r == -EINVAL, "a pass while no map is fixed: %s", err.text);
	if (moe_lanes_fix(&u.fake->session, &err) < 0)
		abort();
	failed = run_passes(&u, 2, MOE_MODE_DECODE, &wrong);
	ok(failed == 0 && wrong == 0, "once one is, the next passes are right");
	user_fini(&u);
}

/* Threads of this process that SIGTERM is not delivered to. */
static int threads_deaf(void)
{
	glob_t found = {0};
	int n = 0;

	glob("/proc/self/task/*/status", 0, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *in = fopen(found.gl_pathv[i], "r");
		unsigned long long blocked = 0;
		char line[256];

		while (in && fgets(line, sizeof line, in))
			sscanf(line, "SigBlk: %llx", &blocked);
		if (in)
			fclose(in);
		n += blocked >> (SIGTERM - 1) & 1;
	}
	globfree(&found);
	return n;
}

/* Who blocks a signal after attaching, to wait for it, must not lose it to a thread of the library. */
static void test_signals(void)
{
	struct moe_attach_params p = lane_params();
	const int before = threads_deaf();
	struct user u;

	user_init(&u, &p);
	if (access("/proc/self/task", R_OK) == 0)
		ok(threads_deaf() >= before + 2, /* a sanitizer may have one of its own */
		   "the feeder, the lanes and device host's streams take no signals: %d threads",
		   threads_deaf() - before);
	user_fini(&u);
}

static void test_wrong_ids(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	struct user u;
	struct batch *b = &u.batches[0];
	device_ptr ids;
	int r, failed, wrong;

	user_init(&u, &p);
	begin_lanes(&u);
	ids = b->device + offsetof(struct lane_data, ids);
	for (int i = 0; i < 2; i++) {
		b->host->ids[0][0] = (const int[]){EXPERTS, INT32_MAX}[i];
		u.ops->copy_to_device(b->commands, &(struct device_copy){ids, b->host->ids, 256, 256, 1}, 1);
		r = replay(&u, b, &err) == 0 ? end_pass(&u, b, &err) : 0;
		ok(r == -EINVAL, "expert %d, which there is not, is told of: %s", b->host->ids[0][0], err.text);
	}
	failed = run_passes(&u, 2, MOE_MODE_DECODE, &wrong);
	ok(failed == 0 && wrong == 0, "and the next passes are right");
	user_fini(&u);
}

/* A daemon that is killed, or silent, in the middle of passes. */
static void *end_daemon(void *arg)
{
	struct user *u = arg;

	nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
	u->fake->stall = true;
	nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	if (u->fake->session.params.watchdog_ms == 0)
		fake_die(u->fake);
	return NULL;
}

static void test_lost(uint32_t watchdog_ms, const char *name)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	int r = 0, wrong = 0, passes = 0, after = 0, i;
	uint64_t began, longest = 0;
	pthread_t thread;
	struct user u;

	p.watchdog_ms = watchdog_ms;
	user_init(&u, &p);
	u.fake->session.params.watchdog_ms = watchdog_ms;
	begin_lanes(&u);
	if (pthread_create(&thread, NULL, end_daemon, &u) != 0)
		abort();
	for (; r == 0; passes++) {
		began = now_ns();
		r = start_pass(&u, &u.batches[0], &err);
		if (r == 0)
			r = end_pass(&u, &u.batches[0], &err);
		longest = MAX(longest, now_ns() - began);
		if (r == 0)
			for (i = 0; i < MOE_LAYERS; i++)
				wrong += u.batches[0].host->y[i][0] != u.batches[0].host->y[i][0];
	}
	pthread_join(thread, NULL);
	ok(r == (watchdog_ms ? -ETIME : -EPIPE) && wrong == 0 && longest < TAP_SOON_NS,
	   "%s: after %d passes the next one ends with an error: %s", name, passes - 1, err.text);
	for (i = 0; i < 5; i++) {
		began = now_ns();
		r = start_pass(&u, &u.batches[i % 2], &err);
		if (r == 0)
			r = end_pass(&u, &u.batches[i % 2], &err);
		after += r < 0 && now_ns() - began < TAP_SOON_NS;
	}
	ok(after == 5, "%s: and so does every later one, at once", name);
	user_fini(&u);
}

static void test_params(void)
{
	struct moe_attach_params p = lane_params();
	struct moe_error err = {0};
	struct fake *f;
	int r[3], i;

	for (i = 0; i < 3; i++) {
		p = lane_params();
		if (i == 0)
			p.lanes = 33;
		else if (i == 1)
			p.lane_tokens = TOKENS + 1;
		else
			p.cache_expert_num = 0;
		f = fake_new(&shape, &p, model_seed);
		r[i] = engine_new(&f->session.engine, &f->session, &err);
		diag("%s", err.text);
		fake_free(f);
	}
	ok(r[0] == -EINVAL && r[1] == -EINVAL && r[2] == -EINVAL, "too many, too large, and for no device: refused");
	p = default_params();
	f = open_fake(&p);
	ok(moe_lanes_fix(&f->session, &err) == -EINVAL && moe_lane_error(&f->session, 0, NULL) == -EINVAL,
	   "a session without lanes: %s", err.text);
	moe_lanes_release(&f->session);
	fake_free(f);
}

int main(void)
{
	jobs_begin();
	test_replays(env_number("TEST_REPLAYS", 1000), MOE_ANSWERS_READ);
	test_replays(env_number("TEST_REPLAYS", 1000) / 4, MOE_ANSWERS_COPY);
	test_new_maps();
	test_fixed();
	test_fixed_beside_plans();
	test_beside_prefetch();
	test_ranks(MOE_SHARE_PART, "part");
	test_ranks(MOE_SHARE_GROUP, "group");
	test_failed_compute();
	test_not_fixed();
	test_signals();
	test_wrong_ids();
	test_lost(0, "a killed daemon");
	test_lost(100, "a silent daemon");
	test_params();
	return tap_done();
}
