/* SPDX-License-Identifier: MIT */
/*
 * Shares, through a real daemon: a session that asks for little at a time is served beside one that asks for much. Both
 * prefill and wait for each request before the next one, so that in the order of arrival each small request would stand
 * behind a large one (37 to 39 of 40 did; now about 7 large ones end meanwhile).
 *
 * On an emulated CPU (MOE_TEST_EMULATED) both ask for a fourth of that. What one is to the other, which is what shares
 * are about, stays the same.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"

enum { LARGE = 8192, SMALL = 257, TOPK = 4, CALLS = 40, LAYER = 3, MAX_LARGE = CALLS / 2, ROUNDS = 10 };
enum { EMULATED_PART = 4 }; /* so few tokens are prefill only because a PHASE says so */

static struct fixture fixture;
static struct moe_session_info info;

struct asker {
	struct moe_session *session;
	uint32_t tokens;
	int32_t *ids;
	float *weights, *x, *y;
};

static void asker_start(struct asker *ret, struct moe_client *client, uint32_t tokens)
{
	const struct moe_attach_params params = {.size = sizeof params, .max_tokens = tokens};
	struct moe_error err = {0};

	*ret = (struct asker){.tokens = tokens};
	require(moe_attach(client, &ret->session, &params, &err) == 0, "attached for %u tokens", tokens);
	require(moe_phase(ret->session, MOE_STEP_PREFILL, 1, false, &err) == 0, "it prefills %s", err.text);
	moe_session_info(ret->session, &info);
	ret->ids = calloc((size_t)tokens * TOPK, sizeof *ret->ids);
	ret->weights = calloc((size_t)tokens * TOPK, sizeof *ret->weights);
	ret->x = calloc((size_t)tokens * info.hidden, sizeof *ret->x);
	ret->y = calloc((size_t)tokens * info.hidden, sizeof *ret->y);
	require(ret->ids && ret->weights && ret->x && ret->y, "memory for %u tokens", tokens);
	for (uint32_t i = 0; i < tokens * TOPK; i++) {
		ret->ids[i] = (int32_t)((i * 7 + i / TOPK) % info.n_experts);
		ret->weights[i] = 1.0f / (float)(1 + i % TOPK);
	}
	for (uint32_t i = 0; i < tokens * info.hidden; i++)
		ret->x[i] = sinf((float)i);
}

static void asker_end(struct asker *a)
{
	moe_detach(a->session);
	free(a->ids);
	free(a->weights);
	free(a->x);
	free(a->y);
}

static int ask(struct asker *a)
{
	struct moe_error err = {0};
	const int r = moe_compute(a->session, LAYER, a->tokens, TOPK, a->ids, a->weights, a->x, a->y, &err);

	if (r < 0)
		diag("%s", err.text);
	return r;
}

static _Atomic uint32_t large_ended;
static _Atomic bool stop;

static void *ask_for_much(void *userdata)
{
	intptr_t failures = 0;

	while (!atomic_load(&stop)) {
		failures += ask(userdata) < 0;
		atomic_fetch_add(&large_ended, 1);
	}
	return (void *)failures;
}

static void test_shares(struct moe_client *client)
{
	const uint32_t part = getenv("MOE_TEST_EMULATED") ? EMULATED_PART : 1;
	struct asker large, small;
	uint32_t before, during = UINT32_MAX;
	intptr_t failures = 0;
	pthread_t thread;
	void *failed;

	asker_start(&large, client, LARGE / part);
	asker_start(&small, client, SMALL / part);
	require(pthread_create(&thread, NULL, ask_for_much, &large) == 0, "a session that asks for much");
	while (atomic_load(&large_ended) == 0)
		usleep(100);
	/* More of them end when a busy machine keeps this thread, not its requests, waiting: the best round counts. */
	for (int round = 0; round < ROUNDS && during > MAX_LARGE; round++) {
		before = atomic_load(&large_ended);
		for (int i = 0; i < CALLS; i++)
			failures += ask(&small) < 0;
		during = atomic_load(&large_ended) - before;
	}
	atomic_store(&stop, true);
	pthread_join(thread, &failed);
	ok(failures == 0 && !failed, "both are served");
	ok(during <= MAX_LARGE, "%d requests of %u tokens while %u of %u tokens ended: at most %d", CALLS, small.tokens,
	   during, large.tokens, MAX_LARGE);
	asker_end(&large);
	asker_end(&small);
}

int main(void)
{
	struct moe_client *client = NULL;
	struct moe_error err = {0};

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--threads", "1", NULL});
	require(moe_open(&client, fixture.socket, &err) == 0, "connected");
	test_shares(client);
	moe_close(client);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	return tap_done();
}
