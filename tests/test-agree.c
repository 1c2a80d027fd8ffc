/* SPDX-License-Identifier: MIT */
/*
 * Eight processes agree on the phase of each step, with random delays: under ranks that are killed, stopped and come
 * back, and under a daemon that is killed. Every rank writes what it wished and what it was told into memory that the
 * test reads: all that were told of a step were told the same, and it follows from the wishes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/raw-client.h"

#define RANKS 8
#define STEPS 20000
#define PATIENT_MS 60000 /* where nobody is to be given up, however slow the machine is */
#define SILENT_MS 8000   /* where somebody is, and is waited for */
#define GROUP 0xd9

/* What a rank knows of a step: phase + 1, tokens, dummy. Never 0 when it was told. */
struct known {
	_Atomic uint32_t wished, told;
};

struct rank {
	_Atomic uint64_t step; /* the last that it was told of */
	_Atomic uint32_t dead, stale, other;
	char text[512]; /* of the last error but -ESTALE */
	struct known known[STEPS + 1];
};

static struct shared {
	_Atomic uint64_t goal; /* all end with this step */
	struct rank ranks[RANKS];
} * shared;

static pid_t pids[RANKS];
static unsigned long long seed;
static uint32_t lives, agree_ms = PATIENT_MS;

static uint32_t known(enum moe_step_phase phase, uint32_t tokens, bool dummy)
{
	return (uint32_t)(phase + 1) | tokens << 4 | (dummy ? 1u << 31 : 0);
}

static enum moe_step_phase phase_of(uint32_t known)
{
	return (enum moe_step_phase)((known & 15) - 1);
}

static uint32_t tokens_of(uint32_t known)
{
	return known >> 4 & 0xffff;
}

/* -- a rank ------------------------------------------------------------------------------------------------------- */

static void note(struct rank *me, int r, const char *text)
{
	if (r != -ESTALE)
		snprintf(me->text, sizeof me->text, "%s", text);
	atomic_fetch_add(r == -EOWNERDEAD ? &me->dead : r == -ESTALE ? &me->stale : &me->other, 1);
}

static int one_step(struct rank *me, struct moe_session *session, unsigned long long *random, struct moe_error *err)
{
	static const enum moe_step_phase wishes[] = {MOE_STEP_PREFILL, MOE_STEP_NONE,   MOE_STEP_NONE,
						     MOE_STEP_DECODE,  MOE_STEP_DECODE, MOE_STEP_NONE};
	const uint64_t which = tap_random(random) % 12;
	const enum moe_step_phase wish = which < ARRAY_LEN(wishes) ? wishes[which] : MOE_STEP_NONE;
	const uint32_t tokens = wish ? 1 + (uint32_t)(tap_random(random) % 500) : 0;
	struct moe_agreement a;
	int r;

	if (tap_random(random) % 4 == 0)
		usleep((unsigned)(tap_random(random) % 300));
	r = moe_agree(session, wish, tokens, &a, err);
	if (r < 0) {
		note(me, r, err->text);
		return r == -EOWNERDEAD || r == -ESTALE ? 0 : r;
	}
	if (a.step <= STEPS) {
		atomic_store(&me->known[a.step].wished, known(wish, tokens, false));
		atomic_store(&me->known[a.step].told, known(a.phase, a.tokens, a.dummy));
	}
	atomic_store(&me->step, a.step);
	return 0;
}

static void work(uint32_t number)
{
	const struct moe_attach_params params = {
		.size = sizeof params,
		.group = GROUP,
		.dp_rank = number,
		.dp_size = RANKS,
		.agree_ms = agree_ms,
		.entries = 8,
	};
	unsigned long long random = seed + lives * 977 + number;
	struct rank *me = &shared->ranks[number];
	struct moe_session *session;
	struct moe_client *client;
	struct moe_error err;
	int r = moe_open(&client, fixture.socket, &err);

	if (r == 0)
		r = moe_attach(client, &session, &params, &err);
	if (r < 0)
		note(me, r, err.text);
	while (r == 0 && atomic_load(&me->step) < atomic_load(&shared->goal))
		r = one_step(me, session, &random, &err);
	_exit(r < 0);
}

static void kill_daemon(void)
{
	const int sock = connect_raw();

	if (hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY))
		kill((pid_t)((const struct moe_msg_hello *)answer)->pid, SIGKILL);
	close(sock);
}

static void start(uint32_t number)
{
	fflush(stdout);
	lives++;
	pids[number] = fork();
	if (pids[number] == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		work(number);
	}
}

/* -- what the test sees ------------------------------------------------------------------------------------------- */

static void start_all(uint64_t goal)
{
	memset(shared, 0, sizeof *shared);
	atomic_store(&shared->goal, goal);
	for (uint32_t i = 0; i < RANKS; i++)
		start(i);
}

static void await_step(uint32_t number, uint64_t step)
{
	uint64_t end = 0;

	while (atomic_load(&shared->ranks[number].step) < step && tap_wait(&end))
		;
}

/* How many of the ranks have ended well. */
static uint32_t all_end(void)
{
	uint32_t good = 0;

	for (uint32_t i = 0; i < RANKS; i++) {
		int status = -1;

		waitpid(pids[i], &status, 0);
		good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		if (shared->ranks[i].other)
			diag("rank %u: %s", i, shared->ranks[i].text);
	}
	return good;
}

static uint32_t sum(size_t offset)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RANKS; i++)
		n += atomic_load((_Atomic uint32_t *)((uint8_t *)&shared->ranks[i] + offset));
	return n;
}

/* What the wishes come to; *ret_told: how many were told of the step, all of them of `told`. */
static bool step_good(uint64_t step, uint32_t *ret_told)
{
	enum moe_step_phase phase = MOE_STEP_NONE, told = MOE_STEP_NONE;
	uint32_t tokens = 0, told_tokens = 0, n = 0;
	bool good = true;

	for (uint32_t i = 0; i < RANKS; i++) {
		const uint32_t t = shared->ranks[i].known[step].told, w = shared->ranks[i].known[step].wished;
		const bool stronger = phase_of(w) && phase != MOE_STEP_PREFILL && phase_of(w) != phase;

		if (!t)
			continue;
		good &= n == 0 || (told == phase_of(t) && told_tokens == tokens_of(t));
		good &= t >> 31 == (phase_of(t) != MOE_STEP_NONE && phase_of(t) != phase_of(w));
		told = phase_of(t);
		told_tokens = tokens_of(t);
		n++;
		if (stronger && (phase == MOE_STEP_NONE || phase_of(w) == MOE_STEP_PREFILL)) {
			phase = phase_of(w);
			tokens = tokens_of(w);
		} else if (phase_of(w) == phase) {
			tokens = MAX(tokens, tokens_of(w));
		}
	}
	*ret_told = n;
	/* Who was killed before it could write may have wished as well: that only makes it more. */
	if (n < RANKS)
		return good && (told == phase ? told_tokens >= tokens : told == MOE_STEP_PREFILL || !phase);
	return good && told == phase && told_tokens == tokens;
}

/* Steps of which nobody was told are those that a lost rank has spoiled. */
static void check_steps(uint64_t goal, uint32_t most_spoiled, uint32_t least_full)
{
	uint32_t wrong = 0, spoiled = 0, full = 0, told;

	for (uint64_t i = 1; i <= goal; i++) {
		wrong += !step_good(i, &told);
		spoiled += told == 0;
		full += told == RANKS;
	}
	ok(wrong == 0, "%u of %llu steps are not agreed on", wrong, (unsigned long long)goal);
	ok(spoiled <= most_spoiled, "%u have no agreement, %u ranks were lost", spoiled, most_spoiled);
	ok(full >= least_full, "all ranks were told of %u", full);
}

/* -- the tests ---------------------------------------------------------------------------------------------------- */

static void test_delays(uint64_t goal)
{
	start_all(goal);
	ok(all_end() == RANKS, "eight ranks end");
	ok(sum(offsetof(struct rank, dead)) + sum(offsetof(struct rank, stale)) == 0, "and have lost none");
	check_steps(goal, 0, (uint32_t)goal);
}

/* One rank after the other is killed; when the others have gone on without it, it comes back. */
static void test_kills(uint64_t goal, uint32_t kills)
{
	uint32_t named = 0;

	start_all(goal);
	for (uint32_t i = 0; i < kills; i++) {
		const uint32_t victim = 1 + i % (RANKS - 1);
		const uint32_t before = shared->ranks[0].dead;
		uint64_t end = 0, step;
		char name[48];

		await_step(victim, atomic_load(&shared->ranks[0].step) + 20);
		kill(pids[victim], SIGKILL);
		waitpid(pids[victim], NULL, 0);
		while (atomic_load(&shared->ranks[0].dead) == before && tap_wait(&end))
			;
		snprintf(name, sizeof name, "(%u): %u;", agree_ms, victim);
		named += strstr(shared->ranks[0].text, name) != NULL;
		step = atomic_load(&shared->ranks[0].step);
		await_step(0, step + 5);
		start(victim);
		await_step(victim, step + 6);
	}
	atomic_store(&shared->goal, atomic_load(&shared->ranks[0].step) + 500);
	goal = atomic_load(&shared->goal);
	ok(all_end() == RANKS, "eight ranks end, and %u of them were killed and came back", kills);
	ok(named == kills, "each was named to the others: %u of %u (%s)", named, kills, shared->ranks[0].text);
	ok(shared->ranks[0].dead == kills, "once: %u", shared->ranks[0].dead);
	check_steps(MIN(goal, STEPS), kills, 500);
}

/* One that is stopped is given up in time, and takes part again when it goes on. */
static void test_silence(void)
{
	uint64_t end = 0, step, began;

	agree_ms = SILENT_MS;
	start_all(STEPS);
	await_step(3, 50);
	began = now_ns();
	kill(pids[3], SIGSTOP);
	while (atomic_load(&shared->ranks[0].dead) == 0 && tap_wait(&end))
		;
	ok(now_ns() - began >= (uint64_t)(SILENT_MS - 100) * 1000000, "a stopped rank is waited for");
	step = atomic_load(&shared->ranks[0].step);
	await_step(0, step + 50);
	ok(strstr(shared->ranks[0].text, ": 3;") != NULL, "and named: %s", shared->ranks[0].text);
	kill(pids[3], SIGCONT);
	await_step(3, step + 51);
	atomic_store(&shared->goal, atomic_load(&shared->ranks[0].step) + 500);
	ok(all_end() == RANKS, "eight ranks end");
	ok(shared->ranks[3].stale == 1, "the one that was late was told so once: %u", shared->ranks[3].stale);
	ok(sum(offsetof(struct rank, dead)) == RANKS - 1, "the others once: %u", sum(offsetof(struct rank, dead)));
	check_steps(atomic_load(&shared->goal), 1, 300);
	agree_ms = PATIENT_MS;
}

/* Kills itself at each of these points, after so many times that it comes there. */
static void write_plan(const char *path, uint32_t kills)
{
	static const char *const points[] = {"agreed", "claimed", "done", "last", "cqe", "seq", "tail", "cleared"};
	FILE *f = fopen(path, "w");

	require(f != NULL, "the plan is written");
	for (uint32_t i = 0; i < kills; i++)
		fprintf(f, "%s %u\n%s", points[i % ARRAY_LEN(points)], 1 + (uint32_t)(tap_random(&seed) % 60),
			i % 5 == 0 ? "recovery 1\n" : "");
	fclose(f);
}

static off_t plan_left(const char *path)
{
	struct stat st;

	return stat(path, &st) < 0 ? 0 : st.st_size;
}

/* Until the plan is used up. A daemon that does not come to its point (a recovery with nothing to recover) is killed
 * from outside. */
static void follow_plan(const char *path)
{
	uint64_t end = 0, since = 0;
	off_t left = 0;

	while (plan_left(path) > 0 && tap_wait(&end)) {
		const uint64_t step = atomic_load(&shared->ranks[0].step);

		if (plan_left(path) != left) {
			left = plan_left(path);
			since = step;
		} else if (step > since + 200) {
			kill_daemon();
			since = step;
		}
	}
}

/* Answers are neither lost nor different when the daemon is killed, at whatever moment. */
static void test_daemon(const char *path, uint32_t kills)
{
	uint64_t goal;

	write_plan(path, kills);
	start_all(UINT64_MAX);
	kill_daemon();
	follow_plan(path);
	goal = atomic_load(&shared->ranks[0].step) + 300;
	atomic_store(&shared->goal, goal);
	ok(plan_left(path) == 0, "the daemon was killed %u times", kills);
	ok(all_end() == RANKS, "eight ranks end");
	ok(sum(offsetof(struct rank, dead)) + sum(offsetof(struct rank, stale)) == 0, "and were told nothing of it");
	diag("%llu steps", (unsigned long long)goal);
	check_steps(MIN(goal, STEPS), 0, (uint32_t)MIN(goal, STEPS));
}

/* The same in the first round, which nobody can number yet. */
static void test_first_round(const char *path, uint32_t times)
{
	static const char *const points[] = {"agreed", "done", "cqe", "tail", "completed"};
	uint32_t good = 0, told;

	for (uint32_t i = 0; i < times; i++) {
		FILE *f = fopen(path, "w");

		require(f != NULL, "the plan is written");
		fprintf(f, "%s %u\n", points[i % ARRAY_LEN(points)], 1 + (uint32_t)(tap_random(&seed) % RANKS));
		fclose(f);
		kill_daemon();
		start_all(3);
		good += all_end() == RANKS && plan_left(path) == 0;
		for (uint64_t step = 1; step <= 3; step++)
			good += step_good(step, &told) && told == RANKS;
	}
	ok(good == 4 * times, "killed in the first round: %u of %u", good, 4 * times);
}

/* -- ranks that are replaced, and time --------------------------------------------------------------------------- */

#define SHORT_MS 6000
#define WATCHDOG_MS 2000

struct asking {
	struct moe_session *session;
	struct moe_agreement told;
	struct moe_error err;
	pthread_t thread;
	int r;
};

static void attach_rank(struct moe_client *client, struct asking *a, uint32_t rank, uint32_t ms)
{
	const struct moe_attach_params params = {.size = sizeof params,
						 .group = 6,
						 .dp_rank = rank,
						 .dp_size = 2,
						 .agree_ms = ms,
						 .watchdog_ms = WATCHDOG_MS,
						 .entries = 8};

	moe_detach(a->session);
	a->session = NULL;
	require(moe_attach(client, &a->session, &params, &a->err) == 0, "rank %u attaches %s", rank, a->err.text);
}

static void *ask(void *arg)
{
	struct asking *a = arg;

	a->r = moe_agree(a->session, MOE_STEP_DECODE, 1, &a->told, &a->err);
	return NULL;
}

/* The step that both were told of, or 0. */
static uint64_t ask_both(struct asking both[2])
{
	for (int i = 0; i < 2; i++)
		require(pthread_create(&both[i].thread, NULL, ask, &both[i]) == 0, "a thread");
	for (int i = 0; i < 2; i++)
		pthread_join(both[i].thread, NULL);
	return both[0].r == 0 && both[1].r == 0 && both[0].told.step == both[1].told.step ? both[0].told.step : 0;
}

/* Nobody who is left was told of the last step, and then the daemon dies. */
static void test_replaced(struct moe_client *client)
{
	struct asking both[2] = {0};
	uint64_t step = 0;

	for (uint32_t i = 0; i < 2; i++)
		attach_rank(client, &both[i], i, agree_ms);
	for (int i = 0; i < 3; i++)
		step = ask_both(both);
	ok(step == 3, "two ranks agree on three steps (%llu)", (unsigned long long)step);
	for (uint32_t i = 0; i < 2; i++)
		attach_rank(client, &both[i], i, agree_ms);
	kill_daemon();
	step = ask_both(both);
	ok(step == 4, "replaced, and with another daemon, they go on behind them (%llu)", (unsigned long long)step);
	for (int i = 0; i < 2; i++)
		moe_detach(both[i].session);
}

/* Killed when one has waited for most of agree_ms: the rest of it is left, and no more than its client waits. */
static void test_time(struct moe_client *client)
{
	struct asking both[2] = {0};

	for (uint32_t i = 0; i < 2; i++)
		attach_rank(client, &both[i], i, SHORT_MS);
	require(pthread_create(&both[0].thread, NULL, ask, &both[0]) == 0, "a thread");
	usleep(SHORT_MS * 1000u * 5 / 6);
	kill_daemon();
	pthread_join(both[0].thread, NULL);
	ok(both[0].r == -EOWNERDEAD && both[0].told.step == 0,
	   "who waits for a rank in vain is told, daemon or other: %d %s", both[0].r, both[0].err.text);
	for (int i = 0; i < 2; i++)
		moe_detach(both[i].session);
}

/* -- what is refused ---------------------------------------------------------------------------------------------- */

static int try_attach(struct moe_client *client, struct moe_session **ret, uint32_t rank, uint32_t size, uint64_t group,
		      struct moe_error *err)
{
	const struct moe_attach_params params = {
		.size = sizeof params, .group = group, .dp_rank = rank, .dp_size = size, .agree_ms = 200, .entries = 8};

	return moe_attach(client, ret, &params, err);
}

static void test_refusals(void)
{
	struct moe_session *session, *other;
	struct moe_agreement a = {.step = 77};
	struct moe_client *client;
	struct moe_error err;

	require(moe_open(&client, fixture.socket, &err) == 0, "connected");
	ok(try_attach(client, &session, 2, 2, 5, &err) == -EINVAL, "rank 2 of 2: %s", err.text);
	ok(try_attach(client, &session, 0, 2, 0, &err) == -EINVAL, "no group: %s", err.text);
	ok(try_attach(client, &session, 0, 65, 5, &err) == -EINVAL, "65 ranks: %s", err.text);
	require(try_attach(client, &session, 0, 2, 5, &err) == 0, "rank 0 of 2 attaches");
	ok(try_attach(client, &other, 1, 3, 5, &err) == -EINVAL, "another of 3: %s", err.text);
	ok(moe_agree(session, (enum moe_step_phase)3, 1, &a, &err) == -EINVAL, "phase 3: %s", err.text);
	ok(moe_agree(session, MOE_STEP_NONE, 1, &a, &err) == -EINVAL, "no work of 1 token: %s", err.text);
	ok(moe_agree(session, MOE_STEP_DECODE, 1, &a, &err) == -EOWNERDEAD && a.step == 77,
	   "a rank that never attached: %s", err.text);
	ok(moe_agree(session, MOE_STEP_DECODE, 4, &a, &err) == 0 && a.phase == MOE_STEP_DECODE && a.tokens == 4 &&
		   a.step == 2 && !a.dummy,
	   "then this one agrees with itself");
	moe_detach(session);
	require(try_attach(client, &session, 0, 0, 5, &err) == 0, "a session that agrees with nobody attaches");
	ok(moe_agree(session, MOE_STEP_DECODE, 1, &a, &err) == -EINVAL, "alone: %s", err.text);
	moe_detach(session);
	moe_close(client);
}

int main(void)
{
	static const char *const options[] = {"--keep", NULL};
	const char *kills = getenv("RESTART_KILLS");
	struct moe_client *client;
	char path[96];

	seed = tap_seed();
	fixture_make_folder(&fixture);
	snprintf(path, sizeof path, "%s/plan", fixture.folder);
	setenv("MOE_CRASH_PLAN", path, 1);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(shared != MAP_FAILED, "memory");
	fixture_start(&fixture, fixture_sample(), options);
	test_refusals();
	test_delays(3000);
	test_kills(STEPS, 8);
	test_silence();
	test_daemon(path, kills ? (uint32_t)atoi(kills) : 60);
	test_first_round(path, 15);
	require(moe_open(&client, fixture.socket, NULL) == 0, "connected");
	test_replaced(client);
	test_time(client);
	moe_close(client);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	return tap_done();
}
