/* SPDX-License-Identifier: MIT */
/*
 * faults/plan - which calls are refused, one run after the other, and what came of it.
 */
#ifndef TESTS_FAULTS_PLAN_H
#define TESTS_FAULTS_PLAN_H

#include <inttypes.h>

#include "tests/faults/client.h"
#include "tests/faults/watch.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FAULTS_MAX 65536
#define CALLS_MAX 16384
#define SITES_MAX 4096
#define SAMPLE 8
#define SAMPLED_MAX 256 /* of a way */

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
static bool once; /* not for ever as well: other tests have that */
static uint32_t n_faults, n_calls[WAYS], n_sites[WAYS], first_fault[WAYS + 1];

static void add_fault(size_t way, uint32_t at)
{
	for (int ever = 0; ever <= !once && n_faults < FAULTS_MAX; ever++)
		faults[n_faults++] = (struct fault){
			.kind = ways[way].kind, .value = ways[way].value, .at = at, .ever = ever};
}

/* A place that called, as in the report. */
struct site {
	char kind[32];
	uint32_t first, last, calls;
	uint64_t chain;
};

static struct site known[SITES_MAX]; /* places that another test refuses */
static uint32_t n_known;

static bool next_site(FILE *report, struct site *ret)
{
	char line[256];

	while (fgets(line, sizeof line, report))
		if (sscanf(line, "site %31s %u %u %u %" SCNx64, ret->kind, &ret->first, &ret->last, &ret->calls,
			   &ret->chain) == 5)
			return true;
	return false;
}

static bool is_known(const struct site *site)
{
	for (uint32_t i = 0; i < n_known; i++)
		if (known[i].chain == site->chain && strcmp(known[i].kind, site->kind) == 0)
			return true;
	return false;
}

static FILE *open_report(const struct run *run)
{
	char path[PATH_MAX];
	FILE *f;

	path_in(path, run, "report");
	f = fopen(path, "re");
	require(f != NULL, "the daemon's calls are counted");
	return f;
}

static void know(const struct run *run)
{
	FILE *report = open_report(run);

	while (n_known < SITES_MAX && next_site(report, &known[n_known]))
		n_known++;
	require(n_known > 0 && n_known < SITES_MAX, "%u places are another test's", n_known);
	fclose(report);
}

/* What $FAULTS wants of this way's calls: by default the first and the last one of each place that is not known, and
 * one in eight of all, or SAMPLED_MAX. */
static void plan_way(size_t way, FILE *report)
{
	const char *asked = getenv("FAULTS") ?: "places";
	const bool all = strcmp(asked, "all") == 0, places = strcmp(asked, "places") == 0;
	static bool wanted[CALLS_MAX + 1];
	const char *number = strchr(asked, ':');
	struct site site;
	uint32_t stride;

	memset(wanted, 0, sizeof wanted);
	rewind(report);
	while (next_site(report, &site)) {
		if (strcmp(site.kind, ways[way].kind) != 0)
			continue;
		n_sites[way]++;
		n_calls[way] += site.calls;
		if (places && !is_known(&site))
			wanted[MIN(site.first, CALLS_MAX)] = wanted[MIN(site.last, CALLS_MAX)] = true;
	}
	require(n_calls[way] <= CALLS_MAX, "%u calls of %s", n_calls[way], ways[way].kind);
	stride = MAX(SAMPLE, n_calls[way] / SAMPLED_MAX);
	if (!number)
		for (uint32_t at = 1; at <= n_calls[way]; at++) {
			if (all || wanted[at] || at % stride == 1)
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
	FILE *report = open_report(clean);

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

	tap_tmp(folder, "moe-faults-XXXXXX");
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

/* test-faults has the places of a plain daemon. */
static void know_plain(void)
{
	struct run plain = {.fault = NULL};
	const typeof(bus) asked = bus;
	enum outcome outcome;

	bus = (typeof(bus)){.talk = NULL};
	outcome = story(&plain);
	bus = asked;
	require(outcome == NO_CHANGE, "a plain daemon, without a fault: %s", plain.why);
	know(&plain);
	clean_up(&plain);
}

enum life { LIFE_PLAIN, LIFE_RESTARTS, LIFE_TIER, LIFE_WATCHED, LIFE_PUSHES, LIFE_MOVES, LIFE_TIER_RESTARTS };

static int faults_main(enum life life)
{
	char folder[64], command[96];
	struct run clean = {.fault = NULL};
	bool good;

	if (SANITIZED) {
		printf("1..0 # SKIP a sanitizer brings its own malloc: faults cannot be put before it\n");
		return 0;
	}
	make_model(folder);
	if (life != LIFE_PLAIN || bus.begin)
		know_plain();
	once = life == LIFE_TIER_RESTARTS;
	restarts = life == LIFE_RESTARTS || once;
	tiered = life == LIFE_TIER || once;
	watched = life == LIFE_WATCHED;
	pushes = life == LIFE_PUSHES;
	moves = life == LIFE_MOVES;
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
