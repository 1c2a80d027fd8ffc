/* SPDX-License-Identifier: MIT */
/*
 * faults/plan - which calls are refused, one run after the other, and what came of it.
 */
#ifndef TESTS_FAULTS_PLAN_H
#define TESTS_FAULTS_PLAN_H

#include "tests/faults/client.h"
#include "tests/faults/watch.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FAULTS_MAX 65536
#define CALLS_MAX 16384
#define SAMPLE 8

/* -- which faults ------------------------------------------------------------------------------------------------- */

/* With which errors a kind of call is refused. */
static const struct {
	const char *kind;
	int value;
} ways[] = {
	{"memory", 0},    {"map", 0},          {"files", 0},           {"descriptor", 0},
	{"thread", 0},    {"populate", 0},     {"message", 0},         {"ring", EAGAIN},
	{"ring", ENOMEM}, {"completion", EIO}, {"completion", EAGAIN}, {"completion", ECANCELED},
	{"short", 0},
};
#define WAYS (sizeof ways / sizeof *ways)

static struct fault faults[FAULTS_MAX];
static uint32_t n_faults, n_calls[WAYS], n_sites[WAYS], first_fault[WAYS + 1];

static void add_fault(size_t way, uint32_t at)
{
	for (int ever = 0; ever < 2 && n_faults < FAULTS_MAX; ever++)
		faults[n_faults++] = (struct fault){
			.kind = ways[way].kind, .value = ways[way].value, .at = at, .ever = ever};
}

/* What $FAULTS wants of this way's calls: by default of each place the first and the last one, and one in eight. */
static void plan_way(size_t way, FILE *report)
{
	const char *asked = getenv("FAULTS") ?: "places";
	const bool all = strcmp(asked, "all") == 0, places = strcmp(asked, "places") == 0;
	static bool wanted[CALLS_MAX + 1];
	const char *number = strchr(asked, ':');
	uint32_t calls, first, last;
	char line[256], kind[32];

	memset(wanted, 0, sizeof wanted);
	rewind(report);
	while (fgets(line, sizeof line, report)) {
		if (sscanf(line, "site %31s %u %u %u", kind, &first, &last, &calls) == 4 &&
		    strcmp(kind, ways[way].kind) == 0) {
			n_sites[way]++;
			n_calls[way] += calls;
			wanted[MIN(first, CALLS_MAX)] = wanted[MIN(last, CALLS_MAX)] = places;
		}
	}
	require(n_calls[way] <= CALLS_MAX, "%u calls of %s", n_calls[way], ways[way].kind);
	if (!number)
		for (uint32_t at = 1; at <= n_calls[way]; at++) {
			if (all || wanted[at] || at % SAMPLE == 1)
				add_fault(way, at);
		}
	else if (strncmp(asked, ways[way].kind, (size_t)(number - asked)) == 0)
		add_fault(way, (uint32_t)atoi(number + 1));
}

/* What is told of each fault, and what is seen to at the end. */
static enum outcome (*story)(struct run *run) = tell;
static void (*at_end)(void);

/* A daemon that takes over reads no weights and touches no pages. */
static bool asks_loader(size_t way)
{
	return strcmp(ways[way].kind, "populate") == 0 || strcmp(ways[way].kind, "short") == 0;
}

static void plan(const struct run *clean)
{
	char path[PATH_MAX];
	FILE *report;

	path_in(path, clean, "report");
	report = fopen(path, "re");
	require(report != NULL, "the daemon's calls are counted");
	for (size_t way = 0; way < WAYS; way++) {
		first_fault[way] = n_faults;
		plan_way(way, report);
		ok(n_calls[way] > 0 || (restarts && asks_loader(way)) || story != tell, "%s: %u calls from %u places",
		   ways[way].kind, n_calls[way], n_sites[way]);
	}
	first_fault[WAYS] = n_faults;
	require(n_faults < FAULTS_MAX, "%u faults", n_faults);
	fclose(report);
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

struct result {
	uint32_t fault;
	enum outcome outcome;
	char why[WHY_BYTES];
};

static uint32_t counts[WAYS][2][OUTCOMES];

static void work(uint32_t job, uint32_t jobs, int out)
{
	if (bus.begin && freopen("/dev/null", "w", stdout)) /* its checks are not the test's */
		bus_address = bus.begin();
	for (uint32_t i = job; i < n_faults; i += jobs) {
		struct run run = {.fault = &faults[i]};
		struct result result = {.fault = i, .outcome = story(&run)};

		memcpy(result.why, run.why, sizeof result.why);
		if (write(out, &result, sizeof result) != sizeof result)
			_exit(1);
	}
	if (bus.end)
		bus.end();
	_exit(0);
}

static void take_result(const struct result *result)
{
	const struct fault *fault = &faults[result->fault];
	size_t way = 0;

	while (result->fault >= first_fault[way + 1])
		way++;
	counts[way][fault->ever][result->outcome]++;
	if (result->outcome == BAD || (result->outcome == ENDED && !fault->ever))
		diag("FAULTS_KIND=%s FAULTS_AT=%u %s%s%s: %s", fault->kind, fault->at,
		     fault->ever ? "FAULTS_EVER=1 " : "", fault->value ? "error " : "",
		     fault->value ? strerrorname_np(fault->value) : "",
		     result->outcome == BAD ? result->why : "it was ready, and ended");
}

static uint32_t run_all(uint32_t jobs)
{
	_cleanup_free_ pid_t *pids = calloc(jobs, sizeof *pids);
	struct result result;
	uint32_t n = 0;
	int fds[2];

	require(pids && pipe2(fds, O_CLOEXEC) == 0, "a pipe for results");
	for (uint32_t job = 0; job < jobs; job++) {
		pids[job] = fork();
		if (pids[job] == 0)
			work(job, jobs, fds[1]);
	}
	close(fds[1]);
	for (; read(fds[0], &result, sizeof result) == sizeof result; n++)
		take_result(&result);
	close(fds[0]);
	for (uint32_t job = 0; job < jobs; job++)
		waitpid(pids[job], NULL, 0);
	return n;
}

static void judge(size_t way)
{
	const char *error = ways[way].value ? strerrorname_np(ways[way].value) : "refused";

	for (int ever = 0; ever < 2; ever++) {
		const uint32_t *c = counts[way][ever];

		ok(c[BAD] == 0 && (ever || c[ENDED] == 0),
		   "%s, %s %s: %u did not start, %u ended, %u refused something, %u changed nothing, %u bad",
		   ways[way].kind, error, ever ? "for ever" : "once", c[REFUSED_START], c[ENDED], c[REFUSED_SOME],
		   c[NO_CHANGE], c[BAD]);
	}
}

static void make_model(char folder[static 64])
{
	char command[2 * PATH_MAX];

	snprintf(folder, 64, "/tmp/moe-faults-XXXXXX");
	require(mkdtemp(folder) != NULL, "a folder");
	snprintf(model_path, sizeof model_path, "%s/model", folder);
	snprintf(command, sizeof command,
		 "'%s/tools/moe-mkmodel' --out '%s' --family qwen3_moe --layers 2 --hidden 64 --inter 32 --experts 4 "
		 "--topk 2 --heads 2 --kv-heads 1 --head-dim 32 --vocab 64 >/dev/null",
		 fixture_env("MOE_BUILD"), model_path);
	require(system(command) == 0, "a small model");
}

static uint32_t jobs_wanted(void)
{
	const char *asked = getenv("FAULTS_JOBS");
	cpu_set_t cpus;

	if (asked)
		return (uint32_t)MAX(atoi(asked), 1);
	return sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : (uint32_t)MIN(CPU_COUNT(&cpus), 8);
}

enum life { LIFE_PLAIN, LIFE_RESTARTS, LIFE_TIER, LIFE_WATCHED, LIFE_PUSHES, LIFE_MOVES };

static int faults_main(enum life life)
{
	char folder[64], command[96];
	struct run clean = {.fault = NULL};
	bool good;

	if (SANITIZED) {
		printf("1..0 # SKIP a sanitizer brings its own malloc: faults cannot be put before it\n");
		return 0;
	}
	restarts = life == LIFE_RESTARTS;
	tiered = life == LIFE_TIER;
	watched = life == LIFE_WATCHED;
	pushes = life == LIFE_PUSHES;
	moves = life == LIFE_MOVES;
	make_model(folder);
	if (bus.begin)
		bus_address = bus.begin();
	good = story(&clean) == NO_CHANGE && clean.fine > 0;
	require(good, "without a fault: %u answers, %u refused: %s", clean.fine, clean.refused,
		clean.why[0] ? clean.why : "nothing is left");
	plan(&clean);
	clean_up(&clean);
	if (bus.end)
		bus.end();
	ok(run_all(jobs_wanted()) == n_faults, "all %u faults were tried", n_faults);
	for (size_t way = 0; way < WAYS; way++)
		judge(way);
	if (at_end)
		at_end();
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	ok(system(command) == 0, "the model is gone");
	return tap_done();
}

#endif
