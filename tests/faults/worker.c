/* SPDX-License-Identifier: MIT */
/*
 * faults/worker - what a worker does with the library, one call after the other, whichever of them fails: for
 * test-faults-library, which refuses it this and that.
 *
 *     worker SOCKET MODEL-FOLDER
 *
 * Each call succeeds, or fails with words and leaves its outputs; what a step brings is what moe_compute has brought
 * for the same. Prints what is wrong. Exit codes: 0 all succeeded, 3 something was refused, 1 something is wrong.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe-expert.h"

#define HIDDEN 64
#define EXPERTS 4
#define TOKENS 3
#define TOPK 2
#define STEPS 6
#define SLOTS 2
#define HANG_S 30
#define TOLERANCE 0x1p-7 /* activations that are rounded to BF16, or not */

static int refused, wrongs;

static void wrong(const char *call, const char *what)
{
	printf("%s: %s\n", call, what);
	wrongs++;
}

/* Whether it has succeeded. */
static bool good(const char *call, int r, struct moe_error *err)
{
	if (r < 0 && !err->text[0])
		wrong(call, "an error without words");
	refused += r < 0;
	*err = (struct moe_error){0};
	return r >= 0;
}

static void query_all(struct moe_client *client)
{
	for (int what = MOE_DOCUMENT_STATUS; what <= MOE_DOCUMENT_SESSIONS; what++) {
		struct moe_error err = {0};
		char *text = NULL;

		if (good("moe_query", moe_query(client, (enum moe_document)what, &text, &err), &err) && text[0] != '{')
			wrong("moe_query", "no JSON object");
		free(text);
	}
}

struct routing {
	float x[TOKENS * HIDDEN], weights[TOKENS * TOPK], want[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
	int32_t ids[TOKENS * TOPK];
	bool known; /* want is */
};

static void route(struct routing *r, uint32_t step)
{
	for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
		r->x[i] = sinf((float)(i + step));
	for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
		r->ids[i] = (int32_t)((i + step + i / TOPK) % EXPERTS);
		r->weights[i] = 1.0f / (float)(1 + i % TOPK);
	}
}

static void compare(const struct routing *r)
{
	double worst = 0, norm = 0;

	for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) {
		worst = fmax(worst, fabs(r->y[i] - r->want[i]));
		norm = fmax(norm, fabs(r->want[i]));
	}
	if (!(norm > 0 && worst <= TOLERANCE * norm))
		wrong("moe_wait", "other results than moe_compute's");
}

static void run_step(struct moe_session *session, struct routing *r, enum moe_mode mode)
{
	struct moe_error err = {0};
	struct moe_plan *plan;
	struct moe_step *step;

	if (good("moe_plan", moe_plan(session, 1, mode, TOKENS, TOPK, r->ids, r->weights, &plan, &err), &err) &&
	    good("moe_submit", moe_submit(session, plan, r->x, &step, &err), &err) &&
	    good("moe_wait", moe_wait(step, r->y, 0, &err), &err) && r->known)
		compare(r);
}

static void run_steps(struct moe_session *session)
{
	static const enum moe_mode modes[] = {MOE_MODE_DECODE, MOE_MODE_PREFETCH, MOE_MODE_FULL};
	struct moe_error err = {0};
	struct routing r;

	for (uint32_t i = 0; i < STEPS; i++) {
		route(&r, i);
		r.known = good("moe_compute",
			       moe_compute(session, 1, TOKENS, TOPK, r.ids, r.weights, r.x, r.want, &err), &err);
		run_step(session, &r, modes[i % 3]);
	}
}

static void tell_all(struct moe_session *session)
{
	const int32_t ids[] = {1, 2};
	const float weights[] = {.75f, .5f};
	struct moe_error err = {0};
	struct moe_slot_layout layout;
	struct moe_agreement agreed;
	uint8_t digest[16];

	good("moe_nop", moe_nop(session, &err), &err);
	good("moe_phase", moe_phase(session, MOE_STEP_DECODE, 1, false, &err), &err);
	good("moe_hint_weighted", moe_hint_weighted(session, 1, 2, ids, weights, &err), &err);
	good("moe_agree", moe_agree(session, MOE_STEP_DECODE, 1, &agreed, &err), &err);
	good("moe_slot_layout", moe_slot_layout(session, 1, &layout, &err), &err);
	good("moe_record_digest", moe_record_digest(session, 1, 1, digest, &err), &err);
}

static void prefetch(struct moe_session *session)
{
	const struct moe_copy copy = {.expert = 3, .slot = 0};
	struct moe_error err = {0};
	struct moe_step *step;
	int r = moe_prefetch(session, 0, &copy, 1, &step, &err);

	if (good("moe_prefetch", r, &err))
		good("moe_wait", moe_wait(step, NULL, 0, &err), &err);
	good("moe_fill", moe_fill(session, 0, 1, 1, &err), &err);
}

static void stream(struct moe_session *session)
{
	struct moe_error err = {0};
	struct moe_stream *s;

	if (!good("moe_stream_new", moe_stream_new(session, &s, &err), &err))
		return;
	good("moe_stream_wait", moe_stream_wait(s, 0, &err), &err);
	moe_stream_free(s);
}

static void use(struct moe_client *client)
{
	const struct moe_attach_params params = {
		.size = sizeof params,
		.model = "small",
		.group = (uint64_t)getpid(),
		.max_tokens = TOKENS,
		.cache_expert_num = SLOTS,
		.dp_size = 1,
		.predict = 2,
		.ghost_layers = 1,
		.warm = true,
	};
	struct moe_session *session = NULL;
	struct moe_error err = {0};

	if (!good("moe_attach", moe_attach(client, &session, &params, &err), &err)) {
		if (session)
			wrong("moe_attach", "a session, although it has failed");
		return;
	}
	tell_all(session);
	run_steps(session);
	prefetch(session);
	stream(session);
	moe_detach(session);
}

/* Of this process's own name: others load, too. */
static void load(struct moe_client *client, const char *folder)
{
	struct moe_error err = {0};
	char name[32];
	int r;

	snprintf(name, sizeof name, "of-%d", getpid());
	while ((r = moe_load(client, folder, name, NULL, NULL, &err)) == -EBUSY)
		usleep(1000);
	if (good("moe_load", r, &err))
		good("moe_unload", moe_unload(client, name, &err), &err);
	else
		moe_unload(client, name, NULL); /* its answer may have been lost */
}

int main(int argc, char **argv)
{
	struct moe_client *client = NULL;
	struct moe_error err = {0};

	if (argc != 3)
		return 2;
	alarm(HANG_S);
	if (good("moe_open", moe_open(&client, argv[1], &err), &err)) {
		query_all(client);
		use(client);
		load(client, argv[2]);
		moe_close(client);
	} else if (client) {
		wrong("moe_open", "a client, although it has failed");
	}
	return wrongs ? 1 : refused ? 3 : 0;
}
