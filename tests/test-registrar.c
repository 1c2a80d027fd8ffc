/* SPDX-License-Identifier: MIT */
/*
 * One process at a time registers pool files with a GPU's driver: processes that attach to one daemon, with the
 * simulated driver. One registers and stops on the way until it is told to go on; meanwhile others come, and it, or the
 * daemon, is killed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"

#define PATIENCE_NS 30000000000u
#define SOON_MS 300
#define PIECE_BYTES 200000

/* One process that attaches, in memory that it shares with the test. */
struct worker {
	pid_t pid;
	uint32_t wait_ms;
	_Atomic bool holds, waits, goes_on; /* `goes_on`: does not stop, or is to stop no more */
	_Atomic bool over;
	_Atomic int64_t seen;  /* whom it has waited for last */
	_Atomic uint32_t told; /* how often */
	uint64_t begin_ns, end_ns, done, total;
	bool backwards; /* progress was */
	int result;
	struct moe_error err;
};

static struct fixture fixture;

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static bool await(_Atomic bool *what)
{
	const uint64_t end = now_ns() + PATIENCE_NS;

	while (!atomic_load(what) && now_ns() < end)
		nap();
	return atomic_load(what);
}

static void progress(const struct moe_registering *r, void *userdata)
{
	struct worker *w = userdata;

	atomic_fetch_add(&w->told, 1);
	if (!atomic_load(&w->holds) && r->holder != getpid()) {
		atomic_store(&w->seen, r->holder);
		atomic_store(&w->waits, true);
		return;
	}
	if (w->begin_ns == 0)
		w->begin_ns = now_ns();
	w->end_ns = now_ns();
	w->backwards |= r->done_bytes < w->done || r->done_bytes > r->total_bytes;
	w->done = r->done_bytes;
	w->total = r->total_bytes;
	atomic_store(&w->holds, true);
	await(&w->goes_on);
}

static int attach(struct worker *w)
{
	const struct moe_attach_params params = {
		.size = sizeof params,
		.cache_expert_num = 2,
		.device = "cuda",
		.fill = MOE_FILL_PULL,
		.register_bytes = PIECE_BYTES,
		.register_wait_ms = w->wait_ms,
		.register_progress = progress,
		.register_userdata = w,
	};
	struct moe_client *client;
	struct moe_session *session;
	int r = moe_open(&client, fixture.socket, &w->err);

	if (r < 0)
		return r;
	r = moe_attach(client, &session, &params, &w->err);
	if (r == 0)
		r = moe_nop(session, &w->err);
	if (r == 0)
		moe_detach(session);
	moe_close(client);
	return r;
}

static struct worker *worker_new(uint32_t wait_ms, bool stops)
{
	struct worker *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (w == MAP_FAILED)
		abort();
	w->wait_ms = wait_ms;
	atomic_store(&w->goes_on, !stops);
	return w;
}

static struct worker *start(uint32_t wait_ms, bool stops)
{
	struct worker *w = worker_new(wait_ms, stops);
	const pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		w->result = attach(w);
		_exit(0);
	}
	w->pid = pid;
	return w;
}

/* Its result; -ECHILD when it was killed. */
static int finish(struct worker *w)
{
	int status;

	atomic_store(&w->goes_on, true);
	waitpid(w->pid, &status, 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? w->result : -ECHILD;
}

static void drop(struct worker *w)
{
	munmap(w, sizeof *w);
}

/* Somebody who comes while the worker registers, and has little time. */
static bool is_refused_for(const struct worker *holder)
{
	struct worker *w = start(SOON_MS, false);
	char words[64];
	bool good;

	snprintf(words, sizeof words, "pid %d (test-registrar)", holder->pid);
	good = finish(w) == -EBUSY && strstr(w->err.text, words) && !atomic_load(&w->holds) && w->seen == holder->pid;
	diag("%s", w->err.text);
	drop(w);
	return good;
}

static pid_t daemon_pid(void)
{
	struct moe_client *client;
	char *text = NULL, *at;
	pid_t pid = -1;

	require(moe_open(&client, fixture.socket, NULL) == 0, "connected");
	if (moe_query(client, MOE_DOCUMENT_STATUS, &text, NULL) == 0 && (at = strstr(text, "\"pid\":")))
		pid = atoi(at + 6);
	free(text);
	moe_close(client);
	return pid;
}

/* -- the tests ---------------------------------------------------------------------------------------------------- */

static void test_one_at_a_time(void)
{
	struct worker *a = start(0, true), *b;
	bool waited;

	require(await(&a->holds), "one registers");
	b = start(0, false);
	waited = await(&b->waits) && b->seen == a->pid && !atomic_load(&b->holds);
	ok(waited, "another one waits, and knows for whom");
	ok(finish(a) == 0 && finish(b) == 0, "both attach");
	ok(a->end_ns <= b->begin_ns, "one after the other");
	ok(a->told > 3 && a->done == a->total && a->total > 10000000 && !a->backwards && b->done == b->total,
	   "progress goes to the end: %u calls, %.1f MB", (unsigned)a->told, (double)a->total / 1e6);
	drop(a);
	drop(b);
}

static void test_holder_killed(void)
{
	struct worker *a = start(0, true), *b;

	require(await(&a->holds), "one registers");
	b = start(0, false);
	require(await(&b->waits), "another one waits");
	kill(a->pid, SIGKILL);
	ok(finish(a) == -ECHILD && finish(b) == 0, "kill -9 of the first one: the other one attaches");
	drop(a);
	drop(b);
}

static void test_bound(void)
{
	struct worker *a = start(0, true);

	require(await(&a->holds), "one registers");
	ok(is_refused_for(a), "who waits for long enough is told who it is");
	ok(finish(a) == 0, "and that one attaches");
	drop(a);
}

static void *attach_main(void *arg)
{
	struct worker *w = arg;

	w->result = attach(w);
	atomic_store(&w->over, true);
	return NULL;
}

/* A process of two threads: the second waits for the first, and what it closes does not give the first one's lock
 * away. */
static void test_threads(void)
{
	struct worker *a = worker_new(0, true), *b = worker_new(SOON_MS, false);
	pthread_t threads[2];
	const pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_create(&threads[0], NULL, attach_main, a);
		if (await(&a->holds))
			pthread_create(&threads[1], NULL, attach_main, b);
		pthread_join(threads[1], NULL);
		pthread_join(threads[0], NULL);
		_exit(0);
	}
	a->pid = pid;
	ok(await(&b->over) && b->result == -EBUSY && strstr(b->err.text, "(test-registrar)"),
	   "a thread beside it is refused: %s", b->err.text);
	ok(is_refused_for(a), "and the right is still the first one's");
	ok(finish(a) == 0, "which attaches");
	drop(a);
	drop(b);
}

/* With a keeper the session goes on, and so does the right. */
static void test_daemon_killed(void)
{
	struct worker *a = start(0, true);
	const pid_t before = daemon_pid();

	require(await(&a->holds) && before > 0, "one registers");
	kill(before, SIGKILL);
	ok(is_refused_for(a), "kill -9 of the daemon: its successor hands out the same lock");
	ok(daemon_pid() != before && finish(a) == 0, "and who holds it attaches");
	drop(a);
}

/* Without one there is nothing to register for. */
static void test_daemon_gone(void)
{
	struct worker *a = start(0, true);
	uint64_t done;

	require(await(&a->holds), "one registers");
	done = a->done;
	kill(fixture.pid, SIGKILL);
	waitpid(fixture.pid, NULL, 0);
	usleep(20000);
	ok(finish(a) < 0 && a->done - done <= PIECE_BYTES, "kill -9 of a daemon that nobody keeps: %s", a->err.text);
	drop(a);
}

int main(void)
{
	static const char *const kept[] = {"--writable-weights", "--threads", "1", "--keep", NULL};
	static const char *const alone[] = {"--writable-weights", "--threads", "1", NULL};

	fixture_start(&fixture, fixture_sample(), kept);
	test_one_at_a_time();
	test_holder_killed();
	test_bound();
	test_threads();
	test_daemon_killed();
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	fixture_start(&fixture, fixture_sample(), alone);
	test_daemon_gone();
	return tap_done();
}
