/* SPDX-License-Identifier: MIT */
/*
 * The worker's side of a captured step, with a library of this test's own: a lane that has failed ends the pass with
 * that lane's words, and its pairs are counted nowhere. Nothing else would notice it on the last layer of a pass: what
 * a failed lane leaves there goes straight into the logits.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "tests/tap.h"
#include "tools/worker/experts.h"
#include "tools/worker/proof.h"

#define LAYERS 3 /* the first one is dense */
#define TOPK 2
#define EXPERTS 4
#define PITCH 4

static int lane_codes[2];
static uint32_t lanes_asked, plans;
static const int32_t layer_index[LAYERS] = {-1, 0, 1};

/* -- the library -------------------------------------------------------------------------------------------------- */

int moe_open_patient(struct moe_client **ret, const char *path, const struct moe_patience *patience,
		     struct moe_error *err)
{
	return 0;
}

int moe_attach(struct moe_client *client, struct moe_session **ret, const struct moe_attach_params *params,
	       struct moe_error *err)
{
	ok(params->lanes == 2 && params->lane_tokens == 1, "with --graph two lanes of a token are asked for");
	return 0;
}

void moe_session_info(const struct moe_session *session, struct moe_session_info *ret)
{
	*ret = (struct moe_session_info){.model = "m",
					 .n_layers = LAYERS,
					 .n_moe_layers = LAYERS - 1,
					 .n_experts = EXPERTS,
					 .topk = TOPK,
					 .device = "",
					 .layer_index = layer_index};
}

int proof_check(const struct moe_session *session, const struct model *model, const char *socket, struct moe_error *err)
{
	return 0;
}

int moe_lane_error(struct moe_session *session, uint32_t lane, struct moe_error *err)
{
	lanes_asked |= 1u << lane;
	return lane_codes[lane] < 0 ? moe_error_set(err, lane_codes[lane], "words of lane %u", lane) : 0;
}

int moe_plan(struct moe_session *session, uint32_t layer, enum moe_mode mode, uint32_t tokens, uint32_t topk,
	     const int32_t *ids, const float *weights, struct moe_plan **ret, struct moe_error *err)
{
	plans++;
	return 0;
}

void moe_plan_view(const struct moe_plan *plan, struct moe_plan_view *ret)
{
	*ret = (struct moe_plan_view){.pairs_hit = 1, .pairs_cpu = 1};
}

struct moe_plan *moe_plan_free(struct moe_plan *plan)
{
	return NULL;
}

struct moe_session *moe_detach(struct moe_session *session)
{
	return NULL;
}

struct moe_client *moe_close(struct moe_client *client)
{
	return NULL;
}

/* What no captured step calls. */
static int not_called(void)
{
	abort();
}

int moe_phase(struct moe_session *session, enum moe_step_phase phase, uint64_t step, bool dummy, struct moe_error *err)
{
	return not_called();
}

int moe_submit_carry(struct moe_session *session, struct moe_plan *plan, const float *x, struct moe_step **carry,
		     struct moe_step **ret, struct moe_error *err)
{
	return not_called();
}

int moe_submit_on(struct moe_session *session, struct moe_plan *plan, uintptr_t stream, uint64_t x, uint64_t y,
		  struct moe_step **ret, struct moe_error *err)
{
	return not_called();
}

int moe_wait(struct moe_step *step, float *y, uint32_t timeout_ms, struct moe_error *err)
{
	return not_called();
}

int moe_lane_submit(struct moe_session *session, const struct moe_lane_step *step, struct moe_error *err)
{
	return not_called();
}

int moe_lanes_fix(struct moe_session *session, struct moe_error *err)
{
	return not_called();
}

void moe_lanes_release(struct moe_session *session)
{
	not_called();
}

void moe_set_n_copy(struct moe_session *session, uint32_t n_copy)
{
	not_called();
}

/* -- passes ------------------------------------------------------------------------------------------------------- */

static int pass(struct experts *experts, int lane0, int lane1, struct moe_error *err)
{
	const int32_t ids[(LAYERS - 1) * PITCH] = {0, 1, 0, 0, 2, 3};

	*err = (struct moe_error){0};
	experts->stats = (struct experts_stats){0};
	lane_codes[0] = lane0;
	lane_codes[1] = lane1;
	lanes_asked = plans = 0;
	return experts->replayed(experts, ids, PITCH, err);
}

static bool counts(const struct experts *experts, uint64_t pairs)
{
	return experts->stats.hit == pairs && experts->stats.cpu == pairs;
}

int main(void)
{
	const struct options options = {.experts = EXPERTS_CACHE, .graph = true, .slots = 2};
	const struct arch arch = {
		.n_layers = LAYERS, .n_moe_layers = LAYERS - 1, .router = {.n_experts = EXPERTS, .topk = TOPK}};
	const struct group group = {.size = 1};
	struct experts *experts = NULL;
	struct moe_error err = {0};
	int r = experts_daemon_new(&experts, &options, "/s", "m", NULL, &arch, &group, 1, &err);

	require(r == 0, "attached: %s", err.text);
	r = pass(experts, 0, 0, &err);
	ok(r == 0 && lanes_asked == 3 && plans == 2 && counts(experts, 2), "a pass whose lanes did well is counted");
	r = pass(experts, -EIO, 0, &err);
	ok(r == -EIO && strcmp(err.text, "words of lane 0") == 0 && counts(experts, 0), "lane 0 has failed: %s",
	   err.text);
	r = pass(experts, 0, -ETIME, &err);
	ok(r == -ETIME && strcmp(err.text, "words of lane 1") == 0 && counts(experts, 0), "lane 1 has failed: %s",
	   err.text);
	r = pass(experts, 0, -EPIPE, &err);
	ok(r == -EPIPE && strstr(err.text, "/s") && counts(experts, 0), "the daemon is gone: %s", err.text);
	experts_free(experts);
	return tap_done();
}
