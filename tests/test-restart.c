/* SPDX-License-Identifier: MIT */
/*
 * restart - a client works on while its daemon is killed, at each state of a request and each step of the journal, and
 * a second time while it recovers: every request is completed once, with the right bytes, or as cancelled if the client
 * asked for that. And clients that are killed, at each state as well, leave nothing behind.
 *
 * The daemon runs under `moe-expertd --keep` and kills itself by MOE_CRASH_PLAN (daemon/crash.h). The client speaks the
 * protocol itself, keeps many requests in flight, and knows of each what it must bring. RESTART_KILLS=N: kills a point
 * (default 50; at night 1000). Built with RESTART_TIERED two thirds of the model fit into memory (test-restart-tier):
 * what is lent must stay where and what it is meanwhile.
 */
#include "tests/restart-client.h"

#ifdef RESTART_TIERED
static const char *const options[] = {"--keep", "--pool-max", "12M", NULL};
#else
static const char *const options[] = {"--keep", NULL};
#endif

/* -- the daemon that dies ------------------------------------------------------------------------------------------ */

static void plan(const char *point, uint32_t kills, bool twice)
{
	FILE *f = fopen(plan_path, "w");

	require(f != NULL, "the plan is written");
	for (uint32_t i = 0; i < kills; i++) {
		fprintf(f, "%s %u\n", point, 1 + pick(40));
		if (twice && i % 4 == 0)
			fprintf(f, "recovery 1\n");
	}
	fclose(f);
}

/* -- clients that die --------------------------------------------------------------------------------------------- */

/* Its daemon died between a message of it and the answer: the next one has closed the connection. */
static bool given_up(void)
{
	struct pollfd p = {.fd = ring.sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* Works until it comes to its death; what the daemon alone can see of a request, it meets by chance. */
static void doomed(uint32_t state)
{
	memset(flights, 0, sizeof flights);
	ring = (struct ring){.tail = 0};
	out = n_leases = 0;
	open_ring();
	fill_inputs();
	death = state;
	lives = state == MOE_REQUEST_FREE ? 0 : pick(12);
	die_at(MOE_REQUEST_FREE);
	while (!given_up()) {
		const uint64_t before = ended;

		while (out < ENTRIES / 2)
			post((enum kind)pick(KINDS));
		while (state == MOE_REQUEST_CLAIMED && !given_up() &&
		       __atomic_load_n(&ring.daemon->sq_head, __ATOMIC_ACQUIRE) != ring.tail)
			sched_yield();
		die_at(MOE_REQUEST_CLAIMED);
		usleep(pick(100));
		die_at(MOE_REQUEST_QUEUED);
		usleep(pick(100));
		die_at(MOE_REQUEST_RUNNING);
		die_at(MOE_REQUEST_DONE);
		if (answered())
			die_at(MOE_REQUEST_COMPLETED);
		drain();
		if (ended != before)
			die_at(MOE_REQUEST_RETIRED);
		usleep(pick(20));
		die_at(MOE_REQUEST_REAPED);
	}
}

static void test_clients(uint32_t kills)
{
	uint64_t end = 0;

	for (uint32_t state = 0; state < MOE_REQUEST_STATES; state++) {
		uint32_t died = 0;

		for (uint32_t i = 0; i < kills; i++) {
			pid_t pid;
			int status;

			fflush(stdout);
			pid = fork();
			if (pid == 0) {
				random_state ^= (uint64_t)(state * 1000 + i + 1) << 20;
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				if (freopen("/dev/null", "w", stdout)) /* its words are not the test's */
					doomed(state);
				_exit(1);
			}
			if (i % 10 == 9) /* both at once */
				kill_daemon();
			died += waitpid(pid, &status, 0) == pid &&
				(i % 10 == 9 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
		}
		ok(died == kills, "%u of %u clients died in state %u", died, kills, state);
	}
	while ((asked("status", "sessions") != 1 || asked("models", "leases") != 0) && tap_wait(&end))
		;
	ok(asked("status", "sessions") == 1, "of their sessions none is left");
	ok(asked("models", "leases") == 0, "nor of their leases");
}

/* One request at a time, beside the tail (the law of the lone request): what is given out beside the queue first. */
static void lone_requests(uint32_t kills)
{
	static const char *const points[] = {"inflight", "journalled", "last", "cqe",
					     "alone",    "seq",        "tail", "cleared"};
	char what[64];

	if (module.fd >= 0)
		return;
	lone = true;
	for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
		snprintf(what, sizeof what, "%s, lone requests", points[i]);
		plan(points[i], kills, true);
		kill_daemon();
		work(50);
		check_books(what);
	}
	lone = false;
	ok(beside >= kills, "%llu completions were taken beside the queue", (unsigned long long)beside);
}

int main(void)
{
	static const char *const points[] = {"claimed", "queued", "running", "done",     "completed",  "retired",
					     "reaped",  "free",   "last",    "inflight", "journalled", "cqe",
					     "seq",     "tail",   "effect",  "cleared"};
	const char *kills_text = getenv("RESTART_KILLS");
	const uint32_t kills = kills_text ? (uint32_t)atoi(kills_text) : 50;

	fixture_make_folder(&fixture);
	snprintf(plan_path, sizeof plan_path, "%s/plan", fixture.folder);
	setenv("MOE_CRASH_PLAN", plan_path, 1);
	fixture_start(&fixture, fixture_sample(), options);
	open_ring();
	require(manifest->flags == (options[1] ? MOE_MANIFEST_TIERED : 0), "the model is tiered where it should be");
	learn_records();
	fill_inputs();
	learn();
	cancelled = 0;
	for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
		plan(points[i], kills, true);
		kill_daemon();
		work(200);
		check_books(points[i]);
		require(posted == ended, "nothing is out");
	}
	/* Half of those that the point `seq` has given out. */
	ok(ahead >= kills / 16 || module.fd >= 0, "%llu completions were taken before cq_tail counted them",
	   (unsigned long long)ahead);
	lone_requests(kills);
	for (uint32_t i = 0; i < kills; i++) {
		struct timespec t = {.tv_nsec = pick(2000000)};

		kill_daemon();
		for (uint32_t k = 0; k < 8 && out < ENTRIES; k++)
			post((enum kind)pick(KINDS));
		nanosleep(&t, NULL);
		drain();
	}
	work(200);
	check_books("at any moment");
	ok(cancelled > 0, "%llu requests were cancelled", (unsigned long long)cancelled);
	while (n_leases) {
		post(GIVE_BACK);
		wait_until(0);
	}
	ok(refused == 0, "all leases that the client holds can be given back");
	test_clients(kills);
	work(200);
	check_books("after other clients");
	ok(fixture_stop(&fixture) == 0, "keeper and daemon end with 0");
	return tap_done();
}
