/* SPDX-License-Identifier: MIT */
/* The daemon on a bus: its objects as the manual says, models and sessions that come and go, jobs, errors by name, a
 * bus that dies. */
#include "base/util.h"
#include "moe-expert.h"
#include "tests/bus-fixture.h"
#include "tests/bus-manual.h"
#include "tests/bus-recording.h"
#include "tests/lingering.h"

static struct bus_fixture bus_daemon;
static struct fixture fixture;
static char log_path[128];

/* -- models ------------------------------------------------------------------------------------------------------- */

static void test_load(sd_bus *bus)
{
	const uint32_t from = n_heard;
	char job[64], end[96];
	int64_t began, model, ended;

	snprintf(job, sizeof job, "%s",
		 manager(bus, "LoadModel", "sa{sv}", fixture_sample(), 1, "name", "s", "a second one"));
	require(strncmp(job, BUS_ROOT "/job/", strlen(BUS_ROOT "/job/")) == 0, "LoadModel answers with a job: %s %s",
		job, call_words);
	snprintf(end, sizeof end, "%s done", job);
	ended = hear(bus, from, BUS_ROOT, "JobRemoved", end);
	began = heard_at(from, BUS_ROOT, "InterfacesAdded", job);
	model = heard_at(from, BUS_ROOT, "InterfacesAdded", BUS_ROOT "/model/a_20second_20one");
	ok(began >= 0 && model > began && ended > model, "the job appears, then the model, and the job ends");
	ok(heard_at(from, BUS_ROOT, "JobNew", job) > began, "JobNew");
	ok(heard_at(from, job, "PropertiesChanged", "Progress 1.000") > began, "its progress was told to the end");
	ok(heard_at(from, job, "PropertiesChanged", "State ended") > began, "its state as well");
	ok(hear(bus, from, BUS_ROOT, "InterfacesRemoved", job) > ended, "its object goes");
	ok(hear(bus, from, BUS_ROOT, "PropertiesChanged", "NModels 2") >= 0, "the manager has two models");
	ok(strcmp(property(bus, BUS_ROOT "/model/a_20second_20one", BUS_MODEL, "Name"), "a second one") == 0,
	   "the model's name");
	ok(strstr(manager(bus, "ListModels", NULL), "a second one") != NULL, "ListModels has it");
	ok(strcmp(manager(bus, "GetModel", "s", "a second one"), BUS_ROOT "/model/a_20second_20one") == 0, "GetModel");
	ok(strstr(call(bus, BUS_ROOT, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", NULL),
		  BUS_ROOT "/model/") != NULL,
	   "GetManagedObjects has models");
}

static void test_unload(sd_bus *bus)
{
	const uint32_t from = n_heard;
	int64_t gone;
	char job[64];

	snprintf(job, sizeof job, "%s", call(bus, BUS_ROOT "/model/a_20second_20one", BUS_MODEL, "Unload", NULL));
	ok(hear(bus, from, BUS_ROOT, "JobRemoved", job) >= 0 && heard_at(from, BUS_ROOT, "JobRemoved", " done") >= 0,
	   "Unload ends: %s", job);
	gone = hear(bus, from, BUS_ROOT, "InterfacesRemoved", BUS_ROOT "/model/a_20second_20one");
	ok(gone >= 0 && strstr(heard[gone].text, BUS_MODEL) && strstr(heard[gone].text, BUS_NAME ".ModelFigures1"),
	   "the model's object goes, with all that came with it");
	ok(hear(bus, from, BUS_ROOT, "PropertiesChanged", "NModels 1") >= 0, "the manager has one model");
	property(bus, BUS_ROOT "/model/a_20second_20one", BUS_MODEL, "Name");
	ok(strcmp(call_error, SD_BUS_ERROR_UNKNOWN_OBJECT) == 0, "it is not there any more: %s", call_error);
}

static void refused(const char *error, const char *words, const char *what)
{
	ok(strcmp(call_error, error) == 0 && strstr(call_words, words), "%s: %s: %s", what, call_error, call_words);
}

static void test_errors(sd_bus *bus)
{
	const uint32_t from = n_heard;
	char folder[160], file[192];
	int64_t at;

	manager(bus, "UnloadModel", "s", "nemo");
	refused(BUS_ERROR "NoSuchModel", "'nemo'", "a model that is not there");
	manager(bus, "GetModel", "s", "nemo");
	refused(BUS_ERROR "NoSuchModel", "'nemo'", "GetModel of it");
	manager(bus, "SetPolicy", "ss", "tinymoe", "lru");
	refused(BUS_ERROR "NotTiered", "all in memory", "SetPolicy of a model that is not tiered");
	manager(bus, "LoadModel", "sa{sv}", fixture_sample(), 0);
	refused(BUS_ERROR "ModelExists", "tinymoe", "a name that is taken");
	manager(bus, "LoadModel", "sa{sv}", "models/tinymoe", 0);
	refused(BUS_ERROR "BadArgument", "absolute", "a relative path");
	manager(bus, "LoadModel", "sa{sv}", "/", 0);
	refused(BUS_ERROR "BadArgument", "folder", "no folder's name");
	manager(bus, "LoadModel", "sa{sv}", fixture_sample(), 1, "colour", "s", "red");
	refused(BUS_ERROR "BadArgument", "colour", "an unknown option");
	manager(bus, "LoadModel", "sa{sv}", fixture_sample(), 1, "name", "u", 7);
	refused(BUS_ERROR "BadArgument", "string", "an option of the wrong type");
	manager(bus, "LoadModel", "s", fixture_sample());
	refused(SD_BUS_ERROR_INVALID_ARGS, "", "a wrong signature");

	manager(bus, "LoadModel", "sa{sv}", "/nonexistent/model", 0);
	at = hear(bus, from, BUS_ROOT, "JobRemoved", BUS_ERROR "NoSuchFile");
	ok(at >= 0 && strstr(heard[at].text, " failed ") && strstr(heard[at].text, "/nonexistent/model"),
	   "a load that fails: %s", at >= 0 ? heard[at].text : "");
	snprintf(folder, sizeof folder, "%s/bad", fixture.folder);
	snprintf(file, sizeof file, "%s/config.json", folder);
	mkdir(folder, 0700);
	close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	manager(bus, "LoadModel", "sa{sv}", folder, 0);
	at = hear(bus, from, BUS_ROOT, "JobRemoved", BUS_ERROR "BadModel");
	ok(at >= 0 && strstr(heard[at].text, "config.json"), "a folder that is no model: %s",
	   at >= 0 ? heard[at].text : "");
	unlink(file);
	rmdir(folder);
}

/* -- loads that are cancelled: tried until one was slow enough, and at many moments ------------------------------- */

static void test_cancel(sd_bus *bus)
{
	bool running = false, busy = false, canceled = false, ended_twice = false;
	uint32_t tries = 0, done = 0;
	uint64_t end = 0;

	while ((!running || !busy || !canceled || tries < 20) && tap_wait(&end)) {
		const uint32_t from = n_heard;
		char job[64], state[PATH_MAX + 64];
		bool accepted;
		int64_t at;

		snprintf(job, sizeof job, "%s",
			 manager(bus, "LoadModel", "sa{sv}", fixture_sample(), 1, "name", "s", "slow"));
		snprintf(state, sizeof state, " load %s 0.", fixture_sample());
		running |= strstr(manager(bus, "ListJobs", NULL), state) != NULL;
		manager(bus, "LoadModel", "sa{sv}", "/nonexistent/model", 0);
		busy |= strcmp(call_error, BUS_ERROR "Busy") == 0 && strstr(call_words, "one at a time");
		usleep(tries++ * 1000);
		call(bus, job, BUS_JOB, "Cancel", NULL);
		accepted = *call_error == 0;
		snprintf(state, sizeof state, "%s ", job);
		at = hear(bus, from, BUS_ROOT, "JobRemoved", state);
		require(at >= 0, "a job ends");
		canceled |= strstr(heard[at].text, " canceled " BUS_ERROR "Canceled") != NULL;
		done += accepted && !strstr(heard[at].text, " canceled ");
		call(bus, job, BUS_JOB, "Cancel", NULL);
		ended_twice |= *call_error == 0;
		while (strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "NJobs"), "0") != 0 && tap_wait(&end))
			;
		manager(bus, "UnloadModel", "s", "slow");
	}
	ok(running, "ListJobs has a load that runs");
	ok(busy, "another one is refused meanwhile");
	ok(canceled, "Cancel ends it: " BUS_ERROR "Canceled");
	ok(done == 0, "none of %u is done although its Cancel was accepted: %u", tries, done);
	ok(!ended_twice, "no job is cancelled when it has ended");
}

/* -- sessions ----------------------------------------------------------------------------------------------------- */

static struct moe_session *attach(struct moe_client **ret)
{
	const struct moe_attach_params params = {.size = sizeof params, .tp_rank = 0, .tp_size = 1};
	struct moe_session *session = NULL;
	struct moe_error err = {0};

	call_words[0] = '\0';
	if (moe_open(ret, fixture.socket, &err) < 0 || moe_attach(*ret, &session, &params, &err) < 0)
		snprintf(call_words, sizeof call_words, "%s", err.text);
	return session;
}

static void leave(struct moe_client *client, struct moe_session *session)
{
	moe_detach(session);
	moe_close(client);
}

static void test_worker(sd_bus *bus)
{
	const uint32_t from = n_heard;
	char command[1024], session[128];
	int64_t came, gone;

	snprintf(command, sizeof command,
		 "'%s/tools/moe-worker' generate --daemon '%s' --model '%s' --prompt NAME --tokens 16 >/dev/null",
		 fixture_env("MOE_BUILD"), fixture.socket, fixture_sample());
	ok(system(command) == 0, "a worker serves the model");
	came = hear(bus, from, BUS_ROOT, "InterfacesAdded", BUS_ROOT "/session/");
	require(came >= 0, "its session appears: %s", heard[came].text);
	snprintf(session, sizeof session, "%.*s", (int)strcspn(heard[came].text + 16, " "), heard[came].text + 16);
	gone = hear(bus, from, BUS_ROOT, "InterfacesRemoved", session);
	ok(gone > came && strstr(heard[gone].text, BUS_NAME ".SessionFigures1"),
	   "and goes, with all that came with it: %s", session);
	ok(heard_at(from, BUS_ROOT "/model/tinymoe", "PropertiesChanged", "Sessions 1") >= 0,
	   "the model had a session");
	ok(hear(bus, from, BUS_ROOT "/model/tinymoe", "PropertiesChanged", "Sessions 0") > came, "and has none");
	ok(hear(bus, from, BUS_ROOT, "PropertiesChanged", "NSessions 0") > came, "nor has the manager");
}

static void test_drain(sd_bus *bus)
{
	const uint32_t from = n_heard;
	struct moe_client *client = NULL, *other = NULL;
	struct moe_session *session = attach(&client), *none;
	char job[64], path[64], pid[16];
	int64_t came;

	require(session != NULL, "a session: %s", call_words);
	came = hear(bus, from, BUS_ROOT, "InterfacesAdded", BUS_ROOT "/session/");
	snprintf(path, sizeof path, "%.*s", (int)strcspn(heard[came].text + 16, " "), heard[came].text + 16);
	snprintf(pid, sizeof pid, "%d", getpid());
	ok(strcmp(property(bus, path, BUS_SESSION, "PID"), pid) == 0, "its process is this one");
	ok(strcmp(property(bus, path, BUS_SESSION, "Model"), BUS_ROOT "/model/tinymoe") == 0, "its model's object");
	ok(strstr(manager(bus, "ListSessions", NULL), path) != NULL, "ListSessions has it");
	manager(bus, "UnloadModel", "s", "tinymoe");
	refused(BUS_ERROR "Busy", "tinymoe", "a model with a session");

	snprintf(job, sizeof job, "%s", manager(bus, "Drain", NULL));
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "State"), "draining") == 0, "it is drained: %s", job);
	n_members = 0;
	test_manual(bus, path, job);
	none = attach(&other);
	ok(!none && strstr(call_words, "drained"), "a newcomer is refused: %s", call_words);
	moe_close(other);
	manager(bus, "Drain", NULL);
	refused(BUS_ERROR "Busy", "drain", "twice");
	ok(heard_at(from, BUS_ROOT, "JobRemoved", job) < 0, "while a session is there the job runs");
	leave(client, session);
	ok(hear(bus, from, BUS_ROOT, "JobRemoved", " done") >= 0 && heard_at(from, BUS_ROOT, "JobRemoved", job) >= 0,
	   "when it leaves the job is done");
	manager(bus, "Resume", NULL);
	session = attach(&client);
	require(session != NULL, "after Resume sessions are taken in: %s", call_words);
	snprintf(job, sizeof job, "%s", manager(bus, "Drain", NULL));
	call(bus, job, BUS_JOB, "Cancel", NULL);
	ok(hear(bus, from, BUS_ROOT, "JobRemoved", " canceled ") >= 0, "a drain that is cancelled");
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "State"), "ready") == 0, "is none");
	leave(client, session);
}

/* -- recordings --------------------------------------------------------------------------------------------------- */

static void test_traces(sd_bus *bus)
{
	const uint32_t from = n_heard;
	struct recording rec;
	char job[64], end[96];

	snprintf(job, sizeof job, "%s", recording_begin(&rec, bus, fixture.socket, "tinymoe"));
	ok(strcmp(property(bus, job, BUS_JOB, "Kind"), "trace") == 0, "a recording is a job: %s", job);
	call(bus, job, BUS_JOB, "Cancel", NULL);
	snprintf(end, sizeof end, "%s done", job);
	ok(hear(bus, from, BUS_ROOT, "JobRemoved", end) >= 0 && recording_end(&rec) == 64,
	   "Cancel ends it, with a head and an end");
}

/* One whose last close waits for a minute. */
static void test_descriptors(sd_bus *bus)
{
	const int listening = listen_tcp(), fd = listening < 0 ? -1 : lingering(listening);
	const uint64_t began = now_ns();

	if (fd < 0) {
		close_fd(listening);
		tap_skip("no TCP here: no descriptor whose last close waits");
		return;
	}
	call(bus, BUS_ROOT, BUS_MANAGER, "GetModel", "h", fd);
	ok(strcmp(call_error, SD_BUS_ERROR_NOT_SUPPORTED) == 0,
	   "a call with a descriptor is refused by the bus: %s: %s", call_error, call_words);
	ok(*property(bus, BUS_ROOT, BUS_MANAGER, "State") == 'r' && now_ns() - began < TAP_SOON_NS,
	   "and the daemon answers meanwhile");
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){0}, sizeof(struct linger));
	close(fd);
	close_fd(listening);
}

/* -- a bus that dies ---------------------------------------------------------------------------------------------- */

static bool logged(const char *words)
{
	char *text = read_text(log_path);
	const bool has = strstr(text, words) != NULL;

	free(text);
	return has;
}

/* Of moectl status: the line about the bus. */
static bool status_says(const char *words)
{
	char command[512], line[512];
	FILE *f;
	bool has = false;

	snprintf(command, sizeof command, "'%s/tools/moectl' --socket '%s' status", fixture_env("MOE_BUILD"),
		 fixture.socket);
	f = popen(command, "re");
	while (f && fgets(line, sizeof line, f))
		has |= strstr(line, "  bus ") && strstr(line, words);
	if (f)
		pclose(f);
	return has;
}

static sd_bus *test_restart(sd_bus *bus)
{
	struct moe_client *client = NULL;
	struct moe_session *session;
	uint64_t end = 0;

	ok(status_says("named"), "moectl says that it has its name");
	sd_bus_close_unref(bus);
	bus_kill(&bus_daemon);
	while (!status_says("lost") && tap_wait(&end))
		;
	ok(status_says("lost"), "moectl says that the bus is lost");
	session = attach(&client);
	ok(session != NULL, "the daemon serves on: %s", call_words);
	bus_run(&bus_daemon);
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "when there is a bus again the daemon is on it");
	while (!logged("there again") && tap_wait(&end))
		;
	ok(logged("goes on without it") && logged("there again"), "both is in the log");
	bus_listen(bus);
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "NSessions"), "1") == 0, "with all that it has");
	if (session)
		leave(client, session);
	ok(hear(bus, 0, BUS_ROOT, "InterfacesRemoved", BUS_ROOT "/session/") >= 0, "and tells what changes");
	return bus;
}

/* Another daemon may have another name, or the same one after this one. */
static void test_names(sd_bus *bus)
{
	const char *const named[] = {"--bus", bus_daemon.address, "--bus-name", "org.moeexpertd.b", NULL};
	const char *const same[] = {"--name", "caf\xc3\xa9", "--bus", bus_daemon.address, NULL};
	char folder[96], command[PATH_MAX + 256];
	struct fixture other, heir;

	fixture_start(&other, NULL, named);
	ok(bus_has(bus, "org.moeexpertd.b"), "an instance has a name of its own");
	ok(fixture_stop(&other) == 0, "it ends");
	snprintf(folder, sizeof folder, "%s/caf\xe9", bus_daemon.folder);
	snprintf(command, sizeof command, "cp -r '%s' '%s'", fixture_sample(), folder);
	require(system(command) == 0, "a folder whose name is not UTF-8");
	fixture_start(&heir, folder, same);
	ok(fixture_stop(&fixture) == 0, "the first daemon ends");
	ok(bus_has(bus, BUS_NAME), "the one that waited has the name");
	ok(strstr(manager(bus, "ListModels", NULL), "/caf? ") != NULL, "and answers, whatever folders are called");
	ok(strstr(property(bus, BUS_ROOT "/model/caf_c3_a9", BUS_MODEL, "Path"), "/caf?") != NULL, "so does the model");
	snprintf(command, sizeof command, "rm -r '%s'", folder);
	ok(system(command) == 0, "the folder goes");
	ok(fixture_stop(&heir) == 0, "and ends");
}

/* The bus reads its files again, with one more of this policy or, NULL, without. */
static void set_policy(sd_bus *bus, const char *policy)
{
	char path[96];
	FILE *f;

	snprintf(path, sizeof path, "%s/more", bus_daemon.folder);
	unlink(path);
	f = policy ? fopen(path, "we") : NULL;
	if (f) {
		fprintf(f, "<busconfig><policy context='mandatory'>%s</policy></busconfig>\n", policy);
		fclose(f);
	}
	ok(sd_bus_call_method(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
			      "ReloadConfig", NULL, NULL, "") >= 0,
	   "the bus has read its files again");
}

/* At a first installation the daemon can be there before the bus has seen the policy that came with it. */
static void test_late_policy(sd_bus *bus)
{
	const char *const named[] = {"--bus", bus_daemon.address, "--bus-name", "org.moeexpertd.late", NULL};
	uint64_t end = 0;

	set_policy(bus, "<deny own='org.moeexpertd.late'/>");
	fixture_start(&fixture, NULL, named);
	while (!status_says("nameless") && tap_wait(&end))
		;
	ok(status_says("nameless"), "moectl says that the name is refused");
	set_policy(bus, NULL);
	ok(bus_has(bus, "org.moeexpertd.late"), "when the policy has come the daemon has its name");
	ok(fixture_stop(&fixture) == 0, "it ends");
}

/* A daemon that is killed: the one that goes on in its place is on the bus, with the session. */
static void test_successor(sd_bus *bus)
{
	const char *const more[] = {"--keep", "--bus", bus_daemon.address, NULL};
	struct moe_client *client = NULL;
	struct moe_session *session;
	uint64_t end = 0;
	char sessions[256];

	fixture_start(&fixture, fixture_sample(), more);
	require(bus_has(bus, BUS_NAME), "a daemon with a keeper is on the bus");
	session = attach(&client);
	require(session != NULL, "a session: %s", call_words);
	snprintf(sessions, sizeof sessions, "%s", manager(bus, "ListSessions", NULL));
	kill(atoi(property(bus, BUS_ROOT, BUS_MANAGER, "PID")), SIGKILL);
	while (strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "Restarts"), "1") != 0 && tap_wait(&end))
		;
	ok(strcmp(manager(bus, "ListSessions", NULL), sessions) == 0, "its successor is, and has the session: %s",
	   sessions);
	leave(client, session);
	ok(fixture_stop(&fixture) == 0, "they end");
}

/* Of a tiered model the policy changes while the daemon runs, and stays with it under the next one. */
static void test_policy(sd_bus *bus)
{
	static const char model[] = BUS_ROOT "/model/tinymoe";
	const char *const more[] = {"--keep", "--bus", bus_daemon.address, "--pool-max", "3538944", "--tier-policy",
				    "sieve",  NULL};
	const uint32_t from = n_heard;
	uint64_t end = 0;
	char job[64];

	fixture_start(&fixture, fixture_sample(), more);
	require(bus_has(bus, BUS_NAME), "a daemon with a tiered model is on the bus");
	ok(strcmp(property(bus, model, BUS_MODEL, "Policy"), "sieve") == 0, "its policy is that of the command line");
	snprintf(job, sizeof job, "%s", manager(bus, "SetPolicy", "ss", "tinymoe", "ema"));
	ok(hear(bus, from, BUS_ROOT, "JobRemoved", job) >= 0 && heard_at(from, BUS_ROOT, "JobRemoved", " done") >= 0,
	   "SetPolicy is a job that ends: %s", job);
	ok(hear(bus, from, model, "PropertiesChanged", "Policy ema") >= 0, "the model's policy is told");
	manager(bus, "SetPolicy", "ss", "tinymoe", "mru");
	refused(BUS_ERROR "BadArgument", "'mru'", "a policy that is none");
	manager(bus, "SetPolicy", "ss", "tinymoe", "static");
	refused(BUS_ERROR "BadArgument", "'static'", "one that is for slots");
	manager(bus, "SetPolicy", "ss", "nemo", "lru");
	refused(BUS_ERROR "NoSuchModel", "'nemo'", "of a model that is not there");
	kill(atoi(property(bus, BUS_ROOT, BUS_MANAGER, "PID")), SIGKILL);
	while (strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "Restarts"), "1") != 0 && tap_wait(&end))
		;
	ok(strcmp(property(bus, model, BUS_MODEL, "Policy"), "ema") == 0, "a successor goes on with it");
	ok(fixture_stop(&fixture) == 0, "they end");
}

/* A bus that takes connections and says nothing. */
static void test_silent(void)
{
	char path[96], address[128];
	const char *const more[] = {"--bus", address, NULL};
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct moe_client *client = NULL;
	struct moe_session *session;

	snprintf(path, sizeof path, "%s/silent", bus_daemon.folder);
	snprintf(address, sizeof address, "unix:path=%s", path);
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	require(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0, "a bus that says nothing");
	fixture_start(&fixture, fixture_sample(), more);
	session = attach(&client);
	ok(session != NULL, "the daemon serves without it: %s", call_words);
	ok(status_says("connecting"), "and says so");
	if (session)
		leave(client, session);
	ok(fixture_stop(&fixture) == 0, "it ends");
	close(fd);
	unlink(path);
}

/* Its words go to a file. */
static void start_daemon(void)
{
	const char *const more[] = {"--bus", bus_daemon.address, NULL};
	const int kept = dup(2), fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	require(kept >= 0 && fd >= 0, "a log");
	dup2(fd, 2);
	fixture_start(&fixture, fixture_sample(), more);
	dup2(kept, 2);
	close(kept);
	close(fd);
}

int main(void)
{
	char path[PATH_MAX];
	sd_bus *bus;

	if (bus_missing()) {
		tap_skip("dbus-daemon is not installed");
		return tap_done();
	}
	snprintf(path, sizeof path, "%s/docs/man/org.moeexpertd.Manager1.5", fixture_env("MOE_SOURCE"));
	page = read_text(path);
	bus_start(&bus_daemon);
	snprintf(log_path, sizeof log_path, "%s/log", bus_daemon.folder);
	start_daemon();
	bus = bus_connect(&bus_daemon);
	require(bus && bus_has(bus, BUS_NAME), "the daemon is on the bus");
	bus_listen(bus);
	ok(strcmp(property(bus, BUS_ROOT, BUS_MANAGER, "State"), "ready") == 0, "the manager is ready");
	ok(strstr(manager(bus, "GetStatus", NULL), "\"bus\"") || !*call_error, "GetStatus");
	ok(strstr(manager(bus, "GetStats", NULL), "{") != NULL, "GetStats");
	test_load(bus);
	test_errors(bus);
	test_traces(bus);
	test_descriptors(bus);
	test_unload(bus);
	test_cancel(bus);
	test_worker(bus);
	test_drain(bus);
	bus = test_restart(bus);
	test_names(bus);
	test_late_policy(bus);
	test_successor(bus);
	test_policy(bus);
	test_silent();
	sd_bus_close_unref(bus);
	unlink(log_path);
	bus_end(&bus_daemon);
	free(page);
	return tap_done();
}
