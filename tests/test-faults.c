/* SPDX-License-Identifier: MIT */
/*
 * faults - whatever the daemon asks of the system may be refused, once or from then on for ever: the daemon ends with
 * words or lives on, its clients get right results or errors, and nothing is left behind. What is refused once does not
 * end a daemon that was ready.
 *
 * A first run without a fault says which calls there are (tests/faults/preload.c, loaded before the daemon) and what
 * right results are. Then, for each kind of call, the whole story again: start, load, attach, each operation, a second
 * model, the documents, detach, SIGTERM; with the first and with the last call of each place refused. FAULTS=all: with
 * every call refused, one after the other; that also strikes in the middle of jansson's parser and of libnuma, and
 * jansson 2.14 writes past its buffer then, libnuma 2.0.16 reads at NULL: those runs are reported like all others.
 * FAULTS_JOBS: daemons at a time (default: one a core, at most 8).
 */
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "tests/raw-client.h"
#include "uapi/moe_manifest.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define PATIENCE_MS 30000 /* a hang is a hang: nothing here is a measurement */
#define TOKENS 2
#define TOPK 2
#define FAULTS_MAX 65536
#define WHY_BYTES 512
#define ARENA_BYTES (1u << 20)
/* Without memory libnuma ends the program, which is at its start: nothing is counted then. */
#define LIBNUMA_WORDS "Out of memory allocating bitmask"

struct fault {
	const char *kind;
	int value; /* errno value, 0: the kind's own */
	uint32_t at;
	bool ever;
};

enum outcome { REFUSED_START, ENDED, REFUSED_SOME, NO_CHANGE, BAD, OUTCOMES };

struct run {
	const struct fault *fault; /* NULL: none */
	struct fixture f;
	int ready_fd;
	bool ended; /* the daemon, by itself or not: waited for */
	int status;
	bool closed; /* a connection was closed under the client */
	uint32_t refused, fine;
	char why[WHY_BYTES]; /* what is wrong, "": nothing */
};

struct client {
	int sock;
	struct ring ring;
	const struct moe_manifest *manifest;
	const uint8_t *pool;
	uint8_t *slots;
	uint64_t manifest_bytes, pool_bytes, slot_bytes;
};

static char model_path[PATH_MAX];
static uint8_t expected[1u << 16]; /* y of a run without faults */
static uint64_t expected_bytes;

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

__attribute__((format(printf, 2, 3))) static bool wrong(struct run *run, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (!run->why[0])
		vsnprintf(run->why, sizeof run->why, format, args);
	va_end(args);
	return false;
}

/* -- the daemon --------------------------------------------------------------------------------------------------- */

static void path_in(char ret[static PATH_MAX], const struct run *run, const char *name)
{
	snprintf(ret, PATH_MAX, "%s/%s", run->f.folder, name);
}

static void set_number(const char *name, uint32_t n)
{
	char text[16];

	snprintf(text, sizeof text, "%u", n);
	setenv(name, text, 1);
}

static void become_daemon(const struct run *run, int ready_fd)
{
	char program[PATH_MAX], preload[PATH_MAX], path[PATH_MAX], fd[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(program, sizeof program, "%s/daemon/moe-expertd", fixture_env("MOE_BUILD"));
	snprintf(preload, sizeof preload, "%s/tests/faults-preload.so", fixture_env("MOE_BUILD"));
	snprintf(fd, sizeof fd, "%d", ready_fd);
	path_in(path, run, "words");
	dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
	path_in(path, run, "report");
	setenv("FAULTS_REPORT", path, 1);
	setenv("LD_PRELOAD", preload, 1);
	if (run->fault) {
		setenv("FAULTS_KIND", run->fault->kind, 1);
		set_number("FAULTS_AT", run->fault->at);
		if (run->fault->value)
			set_number("FAULTS_VALUE", (uint32_t)run->fault->value);
		if (run->fault->ever)
			setenv("FAULTS_EVER", "1", 1);
	}
	execl(program, program, "--socket", run->f.socket, "--ready-fd", fd, "--threads", "1", "--model", model_path,
	      "--name", "small", (char *)NULL);
	_exit(127);
}

static bool start(struct run *run)
{
	int fds[2];

	snprintf(run->f.folder, sizeof run->f.folder, "/tmp/moe-test-XXXXXX");
	if (!mkdtemp(run->f.folder) || pipe2(fds, O_CLOEXEC) < 0)
		return wrong(run, "no folder or pipe for a run");
	snprintf(run->f.socket, sizeof run->f.socket, "%s/socket", run->f.folder);
	fixture = run->f;
	run->f.pid = fork();
	if (run->f.pid == 0) {
		fcntl(fds[1], F_SETFD, 0);
		become_daemon(run, fds[1]);
	}
	close(fds[1]);
	run->ready_fd = fds[0];
	return true;
}

/* False: it has ended instead, or is stuck. */
static bool get_ready(struct run *run)
{
	struct pollfd p = {.fd = run->ready_fd, .events = POLLIN};
	char word[16];

	if (poll(&p, 1, PATIENCE_MS) != 1)
		return wrong(run, "neither ready nor ended after %d s", PATIENCE_MS / 1000);
	return read(run->ready_fd, word, sizeof word) == 6;
}

static bool has_ended(struct run *run, int wait_ms)
{
	const uint64_t end = now_ms() + (uint64_t)wait_ms;

	while (!run->ended) {
		run->ended = waitpid(run->f.pid, &run->status, WNOHANG) == run->f.pid;
		if (now_ms() >= end)
			break;
		if (!run->ended)
			usleep(500);
	}
	return run->ended;
}

static void copy_line(struct run *run, const char *name, const char *begin)
{
	char path[PATH_MAX], line[256];
	FILE *f;

	path_in(path, run, name);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, begin, strlen(begin)) == 0)
			wrong(run, "%s: %s", name, line);
	}
	if (f)
		fclose(f);
}

static bool says(const struct run *run, const char *words)
{
	char path[PATH_MAX], line[256];
	bool found = false;
	FILE *f;

	path_in(path, run, "words");
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof line, f))
		found = strstr(line, words);
	if (f)
		fclose(f);
	return found;
}

static bool is_empty(const struct run *run, const char *name)
{
	struct stat st;
	char path[PATH_MAX];

	path_in(path, run, name);
	return stat(path, &st) < 0 || st.st_size == 0;
}

/* However it ended: by itself, with words when something was wrong, and with all given back. */
static void check_end(struct run *run, bool ready)
{
	if (!run->ended)
		kill(run->f.pid, SIGTERM);
	if (!has_ended(run, PATIENCE_MS)) {
		wrong(run, "does not end");
		kill(run->f.pid, SIGKILL);
		waitpid(run->f.pid, &run->status, 0);
		return;
	}
	if (WIFSIGNALED(run->status)) {
		wrong(run, "killed by signal %d (%s)", WTERMSIG(run->status), strsignal(WTERMSIG(run->status)));
		return;
	}
	if (WEXITSTATUS(run->status) > 1)
		wrong(run, "exit status %d", WEXITSTATUS(run->status));
	if (WEXITSTATUS(run->status) && is_empty(run, "words"))
		wrong(run, "exit status %d without a word", WEXITSTATUS(run->status));
	if (WEXITSTATUS(run->status) == 0 && !ready)
		wrong(run, "ended before it was ready, but with exit status 0");
	if (is_empty(run, "report") && (ready || !says(run, LIBNUMA_WORDS)))
		wrong(run, "no report");
	copy_line(run, "report", "left ");
}

static void clean_up(struct run *run)
{
	static const char *const names[] = {"words", "report", "socket", "socket.lock"};
	char path[PATH_MAX];

	close_fd(run->ready_fd);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		path_in(path, run, names[i]);
		if (i >= 2 && access(path, F_OK) == 0 && !run->why[0])
			wrong(run, "%s is left", names[i]);
		unlink(path);
	}
	rmdir(run->f.folder);
}

/* -- its client --------------------------------------------------------------------------------------------------- */

/* A connection that is closed is an answer as well: what it had is gone. */
static bool lost(struct run *run)
{
	run->closed = true;
	return false;
}

static int connect_to(struct run *run)
{
	const struct timeval wait = {.tv_sec = PATIENCE_MS / 1000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", run->f.socket);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	if (connect(sock, (struct sockaddr *)&address, sizeof address) < 0) {
		lost(run);
		return close_fd(sock);
	}
	return sock;
}

/* What was asked for has come; an error must have words. */
static bool answered(struct run *run, const char *what, unsigned int type, unsigned int asked)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;

	if (type == (asked | MOE_MSG_REPLY)) {
		run->fine++;
		return true;
	}
	if (type == 0)
		return lost(run);
	run->refused++;
	if (type != MOE_MSG_ERROR || e->msg.status >= 0 || !e->text[0])
		wrong(run, "%s: answer %u, status %d, '%.80s'", what, type, e->msg.status, e->text);
	return false;
}

static bool say_hello(struct run *run, int sock)
{
	return sock >= 0 && answered(run, "hello", hello(sock), MOE_MSG_HELLO);
}

static bool ask_documents(struct run *run, int sock)
{
	for (__u32 what = MOE_QUERY_STATUS; what <= MOE_QUERY_SESSIONS; what++) {
		struct moe_msg_query m = {.what = what};
		char begin_text[2] = "", end_text[2] = "";
		uint64_t bytes;

		begin(&m, sizeof m, MOE_MSG_QUERY, 0);
		if (!answered(run, "query", exchange(sock, &m, sizeof m, NULL, 0), MOE_MSG_QUERY)) {
			if (run->closed)
				return false;
			continue;
		}
		bytes = ((const struct moe_msg_document *)answer)->bytes;
		if (n_answer_fds != 1 || bytes < 2 || pread(answer_fds[0], begin_text, 1, 0) != 1 ||
		    pread(answer_fds[0], end_text, 1, (off_t)bytes - 1) != 1 || *begin_text != '{' || *end_text != '}')
			wrong(run, "document %u is no JSON object", what);
	}
	return true;
}

static bool map_one(struct run *run, void *ret, int fd, uint64_t bytes, int prot)
{
	struct moe_error err = {0};

	if (memfd_map(ret, fd, bytes, prot, "region", &err) < 0)
		return wrong(run, "client: %s", err.text);
	return true;
}

static bool attach_to(struct run *run, struct client *c)
{
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	struct moe_msg_attach m = good_attach();

	snprintf(m.name, sizeof m.name, "small");
	if (!answered(run, "attach", attach(c->sock, &m), MOE_MSG_ATTACH))
		return false;
	if (n_answer_fds != 4 + a->n_pools || a->n_pools < 1)
		return wrong(run, "attach: %zu descriptors for %u pools", n_answer_fds, a->n_pools);
	c->ring.sock = c->sock;
	c->ring.doorbell = dup(answer_fds[3]);
	c->ring.client_bytes = a->client_bytes;
	c->ring.daemon_bytes = a->daemon_bytes;
	c->manifest_bytes = a->manifest_bytes;
	if (!map_one(run, &c->manifest, answer_fds[0], a->manifest_bytes, PROT_READ) ||
	    !map_one(run, &c->ring.client, answer_fds[1], a->client_bytes, PROT_READ | PROT_WRITE) ||
	    !map_one(run, &c->ring.daemon, answer_fds[2], a->daemon_bytes, PROT_READ))
		return false;
	c->pool_bytes = c->manifest->pools[0].bytes;
	return map_one(run, &c->pool, answer_fds[4], c->pool_bytes, PROT_READ);
}

static bool add_arena(struct run *run, struct client *c, enum moe_arena kind, uint8_t **ret)
{
	_cleanup_close_ int fd = memfd_new("arena", ARENA_BYTES, NULL);

	return map_one(run, ret, fd, ARENA_BYTES, PROT_READ | PROT_WRITE) &&
	       answered(run, "arena", arena(c->sock, fd, ARENA_BYTES, kind), MOE_MSG_ARENA);
}

/* False: no completion came, because the connection is closed; or it must have come. */
static bool await(struct run *run, struct ring *r)
{
	const uint64_t end = now_ms() + PATIENCE_MS;
	struct pollfd p = {.fd = r->sock, .events = POLLRDHUP};

	for (uint32_t i = 0; __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head; i++) {
		if (i < 100) {
			sched_yield();
			continue;
		}
		if (poll(&p, 1, 1) > 0)
			return lost(run);
		if (now_ms() > end)
			return wrong(run, "no completion after %d s", PATIENCE_MS / 1000);
	}
	return true;
}

/* True: done with success; else it was refused, or the connection is lost. */
static bool call(struct run *run, struct client *c, struct moe_sqe e, struct moe_cqe *ret)
{
	struct ring *r = &c->ring;
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);

	if (run->closed)
		return false;
	e.user_data = r->tail + 1000;
	sqes[r->tail & (r->daemon->sq_entries - 1)] = e;
	__atomic_store_n(&r->client->sq_tail, ++r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
	if (!await(run, r))
		return false;
	*ret = cqes[r->head & (r->daemon->cq_entries - 1)];
	__atomic_store_n(&r->client->cq_head, ++r->head, __ATOMIC_RELEASE);
	if (ret->user_data != e.user_data || ret->status > 0)
		return wrong(run, "operation %u: completion of another, or status %d", e.op, ret->status);
	run->refused += ret->status < 0;
	run->fine += ret->status == 0;
	return ret->status == 0;
}

/* -- the story ---------------------------------------------------------------------------------------------------- */

static uint16_t first_layer(const struct moe_manifest *m)
{
	const int32_t *index = (const int32_t *)(m + 1);
	uint16_t layer = 0;

	while (index[layer] != 0)
		layer++;
	return layer;
}

static void fill(struct run *run, struct client *c)
{
	const struct moe_record *record =
		(const struct moe_record *)((const char *)c->manifest + c->manifest->records_offset) + 1;
	struct moe_cqe cqe;

	memset(c->slots, 0xa5, c->manifest->record_bytes);
	if (call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .layer = first_layer(c->manifest), .fill.expert = 1},
		 &cqe) &&
	    (cqe.bytes == 0 || memcmp(c->slots, c->pool + record->offset, cqe.bytes) != 0))
		wrong(run, "FILL brought wrong bytes");
}

static void compute(struct run *run, struct client *c)
{
	const uint64_t values = (uint64_t)TOKENS * c->manifest->hidden, bytes = values * sizeof(float);
	struct moe_sqe e = {.op = MOE_OP_COMPUTE, .layer = first_layer(c->manifest), .count = TOKENS};
	float *x = (float *)c->ring.data;
	struct moe_cqe cqe;

	e.compute.topk = TOPK;
	e.compute.ids = ALIGN_UP(bytes, 4096);
	e.compute.weights = e.compute.ids + 4096;
	e.compute.y = e.compute.ids + 8192;
	for (uint64_t i = 0; i < values; i++)
		x[i] = (float)(int)(i * 37 % 201 - 100) / 100.0f;
	for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
		((int32_t *)(c->ring.data + e.compute.ids))[i] = (int32_t)(i % c->manifest->n_experts);
		((float *)(c->ring.data + e.compute.weights))[i] = 0.5f;
	}
	memset(c->ring.data + e.compute.y, 0xa5, bytes);
	if (!call(run, c, e, &cqe))
		return;
	if (!run->fault) {
		expected_bytes = MIN(bytes, sizeof expected);
		memcpy(expected, c->ring.data + e.compute.y, expected_bytes);
	} else if (memcmp(c->ring.data + e.compute.y, expected, expected_bytes) != 0) {
		wrong(run, "COMPUTE brought other numbers than without a fault");
	}
}

static void operate(struct run *run, struct client *c)
{
	const uint16_t layer = first_layer(c->manifest);
	struct moe_sqe e = {.op = MOE_OP_PHASE};
	struct moe_cqe cqe = {0};

	call(run, c, (struct moe_sqe){.op = MOE_OP_NOP}, &cqe);
	e.phase.phase = MOE_PHASE_DECODE;
	call(run, c, e, &cqe);
	if (c->slots)
		fill(run, c);
	if (c->ring.data) {
		compute(run, c);
		compute(run, c);
	}
	if (call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer}, &cqe))
		call(run, c, (struct moe_sqe){.op = MOE_OP_RELEASE, .release.lease = cqe.lease}, &cqe);
	/* Given back by leaving. */
	call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer}, &cqe);
}

static unsigned int unload(int sock)
{
	struct moe_msg_unload m = {.name = "another"};

	begin(&m, sizeof m, MOE_MSG_UNLOAD, 0);
	return exchange(sock, &m, sizeof m, NULL, 0);
}

static void load_another(struct run *run, int sock)
{
	struct moe_msg_load load = {.name = "another"};
	unsigned int type;

	snprintf(load.path, sizeof load.path, "%s", model_path);
	begin(&load, sizeof load, MOE_MSG_LOAD, 0);
	type = exchange(sock, &load, sizeof load, NULL, 0);
	while (type == MOE_MSG_PROGRESS)
		type = fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) > 0
			       ? ((struct moe_msg *)answer)->type
			       : 0;
	if (answered(run, "load", type, MOE_MSG_LOAD))
		answered(run, "unload", unload(sock), MOE_MSG_UNLOAD);
}

static void let_go(struct client *c)
{
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	if (c->manifest)
		munmap((void *)c->manifest, c->manifest_bytes);
	if (c->pool)
		munmap((void *)c->pool, c->pool_bytes);
	if (c->ring.client)
		munmap(c->ring.client, c->ring.client_bytes);
	if (c->ring.daemon)
		munmap((void *)c->ring.daemon, c->ring.daemon_bytes);
	if (c->ring.data)
		munmap(c->ring.data, ARENA_BYTES);
	if (c->slots)
		munmap(c->slots, ARENA_BYTES);
	close_fd(c->ring.doorbell);
	close_fd(c->sock);
}

static void use(struct run *run)
{
	struct client c = {.sock = connect_to(run), .ring.doorbell = -1};

	if (say_hello(run, c.sock) && attach_to(run, &c)) {
		add_arena(run, &c, MOE_ARENA_DATA, &c.ring.data);
		if (!run->closed)
			add_arena(run, &c, MOE_ARENA_SLOTS, &c.slots);
		operate(run, &c);
		if (!run->closed)
			ask_documents(run, c.sock);
		if (!run->closed)
			load_another(run, c.sock);
	}
	let_go(&c);
}

/* With the session gone, and what its client could no more unload, as few descriptors are open as before it came. */
static void check_descriptors(struct run *run, int probe, int before)
{
	const uint64_t end = now_ms() + PATIENCE_MS;
	int now = before;

	while (!has_ended(run, 0) && (now = fixture_count_fds(run->f.pid)) > before && now_ms() < end) {
		if (unload(probe) == 0)
			return; /* closed as well: the model stays */
		usleep(1000);
	}
	if (!run->ended && now > before)
		wrong(run, "%d descriptors are open, %d before the session", now, before);
}

static void tell_story(struct run *run)
{
	int probe = connect_to(run);
	const bool probes = say_hello(run, probe);
	const int before = fixture_count_fds(run->f.pid);

	run->closed = false;
	use(run);
	if (probes && before > 0)
		check_descriptors(run, probe, before);
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	close_fd(probe);
}

static enum outcome tell(struct run *run)
{
	bool ready = false;

	if (start(run)) {
		ready = get_ready(run);
		if (ready)
			tell_story(run);
		check_end(run, ready);
		if (!run->fault)
			return run->why[0] || run->refused || run->closed ? BAD : NO_CHANGE;
		clean_up(run);
	}
	if (run->why[0])
		return BAD;
	if (!ready)
		return REFUSED_START;
	return WEXITSTATUS(run->status) ? ENDED : run->refused || run->closed ? REFUSED_SOME : NO_CHANGE;
}

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

static void plan_way(size_t way, FILE *report, bool all)
{
	uint32_t first, last, calls;
	char line[256], kind[32];

	rewind(report);
	while (fgets(line, sizeof line, report)) {
		if (sscanf(line, "site %31s %u %u %u", kind, &first, &last, &calls) != 4 ||
		    strcmp(kind, ways[way].kind) != 0)
			continue;
		n_sites[way]++;
		n_calls[way] += calls;
		if (!all)
			add_fault(way, first);
		if (!all && last != first)
			add_fault(way, last);
	}
	for (uint32_t at = 1; all && at <= n_calls[way]; at++)
		add_fault(way, at);
}

static void plan(const struct run *clean)
{
	const char *asked = getenv("FAULTS");
	const bool all = asked && strcmp(asked, "all") == 0;
	char path[PATH_MAX];
	FILE *report;

	path_in(path, clean, "report");
	report = fopen(path, "re");
	require(report != NULL, "the daemon's calls are counted");
	for (size_t way = 0; way < WAYS; way++) {
		first_fault[way] = n_faults;
		plan_way(way, report, all);
		ok(n_calls[way] > 0, "%s: %u calls from %u places", ways[way].kind, n_calls[way], n_sites[way]);
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
	for (uint32_t i = job; i < n_faults; i += jobs) {
		struct run run = {.fault = &faults[i]};
		struct result result = {.fault = i, .outcome = tell(&run)};

		memcpy(result.why, run.why, sizeof result.why);
		if (write(out, &result, sizeof result) != sizeof result)
			_exit(1);
	}
	_exit(0);
}

static void take_result(const struct result *result)
{
	const struct fault *fault = &faults[result->fault];
	size_t way = 0;

	while (result->fault >= first_fault[way + 1])
		way++;
	counts[way][fault->ever][result->outcome]++;
	if (result->outcome == BAD)
		diag("FAULTS_KIND=%s FAULTS_AT=%u %s%s%s: %s", fault->kind, fault->at,
		     fault->ever ? "FAULTS_EVER=1 " : "", fault->value ? "error " : "",
		     fault->value ? strerrorname_np(fault->value) : "", result->why);
}

static uint32_t run_all(uint32_t jobs)
{
	struct result result;
	uint32_t n = 0;
	int fds[2];

	require(pipe2(fds, O_CLOEXEC) == 0, "a pipe for results");
	for (uint32_t job = 0; job < jobs; job++)
		if (fork() == 0)
			work(job, jobs, fds[1]);
	close(fds[1]);
	for (; read(fds[0], &result, sizeof result) == sizeof result; n++)
		take_result(&result);
	close(fds[0]);
	while (wait(NULL) > 0)
		;
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

int main(void)
{
	char folder[64], command[96];
	struct run clean = {.fault = NULL};
	bool good;

	if (SANITIZED) {
		printf("1..0 # SKIP a sanitizer brings its own malloc: faults cannot be put before it\n");
		return 0;
	}
	make_model(folder);
	good = tell(&clean) == NO_CHANGE;
	require(good, "without a fault: %u answers, %u refused: %s", clean.fine, clean.refused,
		clean.why[0] ? clean.why : "nothing is left");
	plan(&clean);
	clean_up(&clean);
	ok(run_all(jobs_wanted()) == n_faults, "all %u faults were tried", n_faults);
	for (size_t way = 0; way < WAYS; way++)
		judge(way);
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	ok(system(command) == 0, "the model is gone");
	return tap_done();
}
