/* SPDX-License-Identifier: MIT */
/* The library against a real daemon: attach, round trips from many threads, tensor-parallel sums, steps on slots, the
 * daemon's death, a daemon that is stopped. All of it without slots on the host device, or with some on
 * MOE_TEST_DEVICE. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>

#include "base/util.h"
#include "kernels/kernels.h"
#include "moe-expert.h"
#include "tests/fixture.h"

#define THREADS 4
#define CALLS 500
#define SLOTS 4
#define STOPPED_MS 300
#define HIDDEN 128
#define INTER 128

static struct fixture fixture;

static struct moe_session *attach(struct moe_client *client, uint32_t rank, uint32_t size)
{
	const struct moe_attach_params params = {
		.size = sizeof params,
		.tp_rank = rank,
		.tp_size = size,
		.device = getenv("MOE_TEST_DEVICE"),
		.fill = MOE_FILL_PULL,
		.cache_expert_num = getenv("MOE_TEST_DEVICE") ? SLOTS : 0,
	};
	struct moe_session *session = NULL;
	struct moe_error err = {0};

	if (moe_attach(client, &session, &params, &err) < 0)
		diag("%s", err.text);
	return session;
}

static void test_open(void)
{
	struct moe_client *client;
	struct moe_error err = {0};
	char path[200];

	ok(moe_open(&client, "/nonexistent/socket", &err) == -ENOENT && strstr(err.text, "moe-expertd --socket"),
	   "no daemon: the error says how to start one");
	memset(path, 'x', sizeof path);
	path[sizeof path - 1] = '\0';
	ok(moe_open(&client, path, &err) == -ENAMETOOLONG, "a socket path that is too long");
}

static void test_params(struct moe_client *client)
{
	struct moe_attach_params params = {.size = sizeof params, .tp_rank = 2, .tp_size = 2};
	struct moe_session *session = NULL;
	struct moe_error err = {0};

	ok(moe_attach(client, &session, &params, &err) == -EINVAL && strstr(err.text, "tp_rank 2"),
	   "tp_rank beyond tp_size");
	params = (struct moe_attach_params){.size = 8};
	ok(moe_attach(client, &session, &params, &err) == -EINVAL && strstr(err.text, "params.size"), "params.size");
	params = (struct moe_attach_params){.size = sizeof params, .policy = "clairvoyant"};
	ok(moe_attach(client, &session, &params, &err) < 0 && strstr(err.text, "clairvoyant"), "an unknown policy");
	params = (struct moe_attach_params){.size = sizeof params, .device = "abacus"};
	ok(moe_attach(client, &session, &params, &err) < 0 && strstr(err.text, "abacus"), "an unknown device");
	params = (struct moe_attach_params){.size = sizeof params, .model = "nemo"};
	ok(moe_attach(client, &session, &params, &err) == -ENOENT && strstr(err.text, "tinymoe"), "an unknown model");
	ok(session == NULL, "outputs are untouched on failure");
}

static int call_phase(struct moe_session *session, struct moe_error *err)
{
	return moe_phase(session, MOE_STEP_DECODE, 1, false, err);
}

/* The second one waits for the first. */
static int call_hints(struct moe_session *session, struct moe_error *err)
{
	const int32_t id = 1;
	int r = moe_hint(session, 1, 1, &id, err);

	return r == 0 ? moe_hint(session, 1, 1, &id, err) : r;
}

static void *call_nops(void *userdata)
{
	struct moe_session *session = userdata;
	intptr_t failures = 0;

	for (int i = 0; i < CALLS; i++)
		failures += moe_nop(session, NULL) != 0;
	return (void *)failures;
}

static void test_threads(struct moe_client *client)
{
	struct moe_session *session = attach(client, 0, 1);
	pthread_t threads[THREADS];
	intptr_t failures = 0;

	require(session != NULL, "attached");
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, call_nops, session);
	for (int i = 0; i < THREADS; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		failures += (intptr_t)failed;
	}
	ok(failures == 0, "%d threads share a session: %d round trips", THREADS, THREADS * CALLS);
	moe_detach(session);
}

/* The child of a data loader has all descriptors of its parent, and lives on. */
static pid_t fork_idle(void)
{
	const pid_t pid = fork();

	if (pid == 0)
		for (;;)
			pause();
	return pid;
}

static void test_forked(struct moe_client *client)
{
	struct moe_attach_params params = {.size = sizeof params, .group = 7};
	struct moe_session *session = NULL;
	struct moe_error err = {0};
	uint64_t end = 0;
	pid_t child;
	int r;

	require(moe_attach(client, &session, &params, &err) == 0, "attached: %s", err.text);
	child = fork_idle();
	session = moe_detach(session);
	do
		r = moe_attach(client, &session, &params, &err);
	while (r == -EEXIST && tap_wait(&end));
	ok(r == 0, "a session has ended though a child has its socket: %s", err.text);
	moe_detach(session);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* One client in two processes: each gets its own answers. Returns how many were not. */
static int query_often(struct moe_client *client, enum moe_document document, const char *word)
{
	int wrong = 0;

	for (int i = 0; i < 200; i++) {
		char *text = NULL;

		wrong += moe_query(client, document, &text, NULL) < 0 || !strstr(text, word);
		free(text);
	}
	return wrong;
}

static void test_forked_client(void)
{
	struct moe_client *client;
	struct moe_error err = {0};
	int status, wrong;
	pid_t child;

	require(moe_open(&client, fixture.socket, &err) == 0, "connected: %s", err.text);
	child = fork();
	if (child == 0)
		_exit(query_often(client, MOE_DOCUMENT_SESSIONS, "\"sessions\"") ? 1 : 0);
	wrong = query_often(client, MOE_DOCUMENT_STATUS, "\"version\"");
	waitpid(child, &status, 0);
	ok(wrong == 0 && status == 0, "a client that was forked: %d answers of the parent's were another's", wrong);
	moe_close(client);
}

/* A daemon that is stopped does not hang up: only the watchdog's time ends the wait for it. */
static void test_stopped(struct moe_client *client)
{
	struct moe_attach_params params = {.size = sizeof params, .watchdog_ms = STOPPED_MS};
	static int (*const calls[])(struct moe_session *, struct moe_error *) = {call_phase, moe_nop, call_hints};
	static const char *const names[] = {"moe_phase", "moe_nop", "moe_hint"};

	for (size_t i = 0; i < 3; i++) {
		struct moe_session *session = NULL;
		struct moe_error err = {0};
		uint64_t began, took;
		int r, again;

		require(moe_attach(client, &session, &params, &err) == 0 && calls[i](session, &err) == 0,
			"attached: %s", err.text);
		kill(fixture.pid, SIGSTOP);
		began = now_ns();
		r = calls[i](session, &err);
		took = now_ns() - began;
		again = calls[i](session, NULL);
		ok(r == -ETIME && strstr(err.text, names[i]) && took >= STOPPED_MS * 1000000u && took < TAP_SOON_NS &&
			   again < 0,
		   "%s: a stopped daemon is given up: %d ms, %s", names[i], (int)(took / 1000000), err.text);
		moe_detach(session);
		ok(now_ns() - began < TAP_SOON_NS, "and moe_detach returns");
		kill(fixture.pid, SIGCONT);
	}
}

/* Nor does it answer who attaches: that has a limit of its own, which a short watchdog's time does not lower. */
static void test_stopped_attach(struct moe_client *client)
{
	struct moe_attach_params params = {.size = sizeof params, .watchdog_ms = STOPPED_MS};
	struct moe_session *session = NULL;
	struct moe_error err = {0};
	uint64_t began, took;
	int r;

	kill(fixture.pid, SIGSTOP);
	began = now_ns();
	r = moe_attach(client, &session, &params, &err);
	took = now_ns() - began;
	kill(fixture.pid, SIGCONT);
	ok(r == -ETIME && !session && took >= 10000000000u && took < 10000000000u + TAP_SOON_NS,
	   "moe_attach gives up after %d ms: %s", (int)(took / 1000000), err.text);
}

static void fill_inputs(float *x, int32_t *ids, float *weights, uint32_t tokens, uint32_t topk)
{
	for (uint32_t i = 0; i < tokens * HIDDEN; i++)
		x[i] = sinf((float)i);
	for (uint32_t i = 0; i < tokens * topk; i++) {
		ids[i] = (int32_t)((i * 7 + i / topk) % 32);
		weights[i] = 1.0f / (float)(1 + i % topk);
	}
}

/* How far two ways to add up the same layer may lie apart, as a share of its largest output: FP32 sums in another
 * order, and where the daemon's level packs activations as BF16, each of them rounded the other way (kernels.h: 2^-9).
 */
static double sums_tolerance(void)
{
	const struct kernel_ops *ops = kernels_get(isa_detect(NULL))->of[MOE_FORMAT_BF16];

	return ops->pack == PACK_BF16 ? 2 * 0x1p-9 : 1e-5;
}

/* The ranks' partial sums of any tp_size add up to the same layer. */
static void test_slices(struct moe_client *client)
{
	enum { TOKENS = 9, TOPK = 4 };
	static float x[TOKENS * HIDDEN], whole[TOKENS * HIDDEN], part[TOKENS * HIDDEN], sum[TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOPK];
	float weights[TOKENS * TOPK];

	fill_inputs(x, ids, weights, TOKENS, TOPK);
	for (uint32_t size = 1; size <= 7; size += size < 3 ? 1 : 4) {
		double worst = 0, norm = 0;

		memset(sum, 0, sizeof sum);
		for (uint32_t rank = 0; rank < size; rank++) {
			struct moe_session *session = attach(client, rank, size);
			struct moe_error err = {0};

			require(session != NULL, "rank %u of %u", rank, size);
			if (moe_compute(session, 3, TOKENS, TOPK, ids, weights, x, part, &err) < 0)
				diag("%s", err.text);
			for (size_t i = 0; i < ARRAY_LEN(sum); i++)
				sum[i] += part[i];
			moe_detach(session);
		}
		if (size == 1)
			memcpy(whole, sum, sizeof whole);
		for (size_t i = 0; i < ARRAY_LEN(sum); i++) {
			worst = fmax(worst, fabs(sum[i] - whole[i]));
			norm = fmax(norm, fabs(whole[i]));
		}
		ok(norm > 0 && worst <= sums_tolerance() * norm,
		   "tp_size %u: the slices add up (largest difference %.1e of %.1e)", size, worst, norm);
	}
}

/* Planned steps on slots of the device: what moe_compute says, near enough. */
static void test_steps(struct moe_client *client)
{
	enum { TOKENS = 3, TOPK = 4, STEPS = 40, LAYER = 3 };
	static const enum moe_mode modes[] = {MOE_MODE_DECODE, MOE_MODE_PREFETCH, MOE_MODE_FULL};
	const struct moe_attach_params params = {.size = sizeof params,
						 .device = getenv("MOE_TEST_DEVICE"),
						 .fill = MOE_FILL_PULL,
						 .cache_expert_num = SLOTS};
	static float x[TOKENS * HIDDEN], want[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
	struct moe_session *session = NULL;
	struct moe_error err = {0};
	double worst = 0, norm = 0;
	int failed = 0;

	require(moe_attach(client, &session, &params, &err) == 0, "attached with slots: %s", err.text);
	for (int i = 0; i < STEPS; i++) {
		int32_t ids[TOKENS * TOPK];
		float weights[TOKENS * TOPK];
		struct moe_plan *plan;
		struct moe_step *step;

		fill_inputs(x, ids, weights, TOKENS, TOPK);
		for (int k = 0; k < TOKENS * TOPK; k++)
			ids[k] = (ids[k] + i) % 32;
		failed += moe_compute(session, LAYER, TOKENS, TOPK, ids, weights, x, want, &err) < 0 ||
			  moe_plan(session, LAYER, modes[i % 3], TOKENS, TOPK, ids, weights, &plan, &err) < 0 ||
			  moe_submit(session, plan, x, &step, &err) < 0 || moe_wait(step, y, 0, &err) < 0;
		for (size_t k = 0; k < ARRAY_LEN(y); k++) {
			worst = fmax(worst, fabs(y[k] - want[k]));
			norm = fmax(norm, fabs(want[k]));
		}
	}
	/* Kernels for devices may round activations to BF16 as well. */
	ok(failed == 0 && norm > 0 && worst <= fmax(0x1p-7, 2 * sums_tolerance()) * norm,
	   "%d planned steps (largest difference %.1e of %.1e) %s", STEPS, worst, norm, err.text);
	moe_detach(session);
}

/* What a thread has asked for outlives it. */
struct hand_over {
	struct moe_session *session;
	const int32_t *ids;
	const float *weights, *x;
	struct moe_step *step;
	struct moe_error err;
};

static void *submit_and_end(void *userdata)
{
	struct hand_over *h = userdata;
	struct moe_plan *plan;

	if (moe_plan(h->session, 3, MOE_MODE_DECODE, 1, 4, h->ids, h->weights, &plan, &h->err) == 0)
		moe_submit(h->session, plan, h->x, &h->step, &h->err);
	return NULL;
}

static void test_handed_over(struct moe_client *client)
{
	enum { TOPK = 4, STEPS = 100 };
	static float x[HIDDEN], want[HIDDEN], y[HIDDEN];
	struct moe_session *session = attach(client, 0, 1);
	int32_t ids[TOPK];
	float weights[TOPK];
	double worst = 0, norm = 0;
	int good = 0;

	require(session != NULL, "attached");
	fill_inputs(x, ids, weights, 1, TOPK);
	for (int i = 0; i < STEPS; i++) {
		struct hand_over h = {.session = session, .ids = ids, .weights = weights, .x = x};
		pthread_t thread;
		int r;

		memset(y, 0, sizeof y);
		for (int k = 0; k < TOPK; k++)
			ids[k] = (ids[k] + 1) % 32;
		r = moe_compute(session, 3, 1, TOPK, ids, weights, x, want, &h.err);
		pthread_create(&thread, NULL, submit_and_end, &h);
		pthread_join(thread, NULL);
		if (r == 0 && h.step)
			r = moe_wait(h.step, y, 0, &h.err);
		good += r == 0 && h.step;
		if (r < 0 || !h.step)
			diag("%s", h.err.text);
		for (size_t k = 0; k < ARRAY_LEN(y); k++) {
			worst = fmax(worst, fabs(y[k] - want[k]));
			norm = fmax(norm, fabs(want[k]));
		}
	}
	ok(good == STEPS && norm > 0 && worst <= fmax(0x1p-7, 2 * sums_tolerance()) * norm,
	   "%d of %d steps whose thread ended before they did (largest difference %.1e of %.1e)", good, STEPS, worst,
	   norm);
	moe_detach(session);
}

/* What tinymoe's slots look like: BF16, so each part has one plane of rows. */
static void test_slot_layout(struct moe_client *client)
{
	struct moe_session *session = attach(client, 2, 3);
	const uint32_t first = 2 * INTER / 3, inter = INTER - 2 * INTER / 3;
	struct moe_session_info info;
	struct moe_slot_layout l;
	struct moe_error err = {0};
	uint64_t at = 0;
	bool good;

	require(session != NULL, "rank 2 of 3");
	moe_session_info(session, &info);
	good = moe_slot_layout(session, 3, &l, &err) == 0 && l.first == first && l.inter == inter &&
	       l.bytes == info.slot_bytes && info.slice_inter == inter;
	for (uint32_t i = 0; i < MOE_SLOT_PARTS; i++) {
		const struct moe_slot_part *p = &l.part[i];

		good = good && strcmp(p->format_name, "bf16") == 0 && p->format == 1 &&
		       p->rows == (i == 2 ? HIDDEN : inter) && p->cols == (i == 2 ? inter : HIDDEN) &&
		       p->plane[0].offset == at && p->plane[0].rows == p->rows && p->plane[0].width == 2 * p->cols &&
		       p->plane[0].pitch == p->plane[0].width && !p->plane[1].rows && !p->plane[2].rows &&
		       !p->plane[3].rows;
		at += ALIGN_UP((uint64_t)p->rows * p->cols * 2, (uint64_t)64);
	}
	ok(good && at == l.bytes, "the layout of a slot");
	ok(moe_slot_layout(session, info.n_layers, &l, &err) == -EINVAL && strstr(err.text, "layer"),
	   "of a layer that is not there: %s", err.text);
	moe_detach(session);
}

static void *kill_later(void *userdata)
{
	usleep(100000);
	kill(fixture.pid, SIGKILL);
	return NULL;
}

static void test_death(struct moe_client *client)
{
	struct moe_session *session = attach(client, 0, 1);
	uint64_t begin, killed_ns;
	pthread_t killer;
	int r = 0;

	require(session != NULL, "attached");
	pthread_create(&killer, NULL, kill_later, NULL);
	begin = now_ns();
	while (r == 0 && now_ns() - begin < 2 * TAP_SOON_NS)
		r = moe_nop(session, NULL);
	killed_ns = now_ns();
	pthread_join(killer, NULL);
	ok(r == -EPIPE, "when the daemon is killed a waiting call ends with -EPIPE");
	ok(killed_ns - begin < TAP_SOON_NS, "soon");
	ok(moe_nop(session, NULL) == -EPIPE, "and so does every later call");
	moe_detach(session);
	ok(true, "and the session can still be given back");
	waitpid(fixture.pid, NULL, 0);
}

/* Whether the kernel still has ends of connections to it: those that an io_uring of its had in use are closed in the
 * kernel's own time, after the process, and until then messages are taken that nobody receives. */
static bool has_ends(const char *socket)
{
	FILE *all = fopen("/proc/net/unix", "re");
	char line[256];
	bool found = false;

	while (all && !found && fgets(line, sizeof line, all))
		found = strstr(line, socket);
	if (all)
		fclose(all);
	return found;
}

static void wait_closed(void)
{
	uint64_t end = 0;

	while (has_ends(fixture.socket) && tap_wait(&end))
		continue;
}

/* A connection without sessions is lost with its daemon; what is asked next goes to the one that came after it. */
static void test_another(struct moe_client *client)
{
	const struct moe_trace_params params = {.size = sizeof params};
	const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct moe_trace_result result;
	struct moe_error err = {0};
	char *text = NULL;
	int r;

	for (int i = 0; i < 4; i++) {
		wait_closed();
		fixture.made = true; /* the same socket */
		fixture_start(&fixture, NULL, NULL);
		r = i == 0   ? moe_unload(client, "nobody", &err)
		    : i == 1 ? moe_forget_heat(client, "nobody", &err)
		    : i == 2 ? moe_load(client, "/nonexistent", NULL, NULL, NULL, &err)
			     : moe_trace(client, null, &params, NULL, NULL, &result, &err);
		ok(r < 0 && r != -EPIPE, "the next daemon answers: %s", err.text);
		kill(fixture.pid, SIGKILL);
		waitpid(fixture.pid, NULL, 0);
	}
	close(null);
	ok(moe_query(client, MOE_DOCUMENT_STATUS, &text, &err) == -ECONNREFUSED, "without one nobody does: %s",
	   err.text);
}

int main(void)
{
	struct moe_client *client;
	struct moe_error err = {0};

	test_open();
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "2", "--writable-weights", NULL});
	require(moe_open(&client, fixture.socket, &err) == 0, "connected");
	test_params(client);
	test_threads(client);
	test_slices(client);
	test_steps(client);
	test_handed_over(client);
	test_slot_layout(client);
	if (!getenv("MOE_TEST_DEVICE") && !getenv("MOE_TEST_EMULATED")) /* both take their time */
		test_stopped(client);
	test_forked(client);
	test_forked_client();
	if (!getenv("MOE_TEST_DEVICE") && !getenv("MOE_TEST_EMULATED"))
		test_stopped_attach(client);
	test_death(client);
	test_another(client);
	moe_close(client);
	return tap_done();
}
