/* SPDX-License-Identifier: MIT */
/*
 * The forward pass on a GPU: attention, router and the rest of the dense part by the worker's own kernels, the routed
 * experts by the library on the same stream; the activations never leave the device.
 *
 * A planned step needs the experts' numbers on the host, where moe_plan splits them: the stream is waited for once in
 * each MoE layer. A captured step needs nothing of the host but the token and its position, which are copied to where
 * the graph reads them: after GRAPH_AFTER tokens, whose steps have filled slots, the caches are taken as they are, and
 * each decode step replays the same graph. What it gives counts only once the lanes' errors have been asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/worker/cuda/pass.h"
#include "tools/worker/forward.h"

#define GRAPH_AFTER 16u

/* Registered host memory. */
struct forward_host_side {
	struct pass_input *input;
	int32_t *choices; /* [tokens][topk], or of a captured step [n_moe_layers][choice_pitch] */
	float *shares;
	float *logits;    /* [PASS_LOGITS_MAX][vocab] */
	uint32_t *failed; /* what worker_route says of a captured step */
	float *part;      /* with other ranks: [tokens][hidden] */
};

struct forward_cuda {
	struct forward base;
	struct experts *experts;
	struct group *group;
	struct gpu *gpu;
	struct placed *placed;
	struct pass *pass;
	struct forward_host_side host;
	bool graph;    /* it is wanted */
	bool captured; /* it is there */
	bool fixed;    /* the caches are taken as they are */
	bool begun;    /* a step of the experts has not been ended */
	bool replayed; /* the last step's logits are here */
};

/* -- planned steps ------------------------------------------------------------------------------------------------ */

static int end_experts(struct forward_cuda *f, struct moe_error *err)
{
	const bool begun = f->begun;

	f->begun = false;
	return begun ? f->experts->end(f->experts, NULL, err) : 0;
}

static int check_choice(const struct forward_cuda *f, uint32_t layer, uint32_t tokens, struct moe_error *err)
{
	const uint32_t topk = f->base.arch->router.topk;

	for (uint32_t t = 0; t < tokens; t++)
		if (f->host.choices[t * topk + topk - 1] < 0)
			return moe_error_set(err, -EDOM, "layer %u, position %u: the router's scores are not numbers",
					     layer, f->base.used + t);
	return 0;
}

/* The ranks' parts, added up on the host. */
static int sum_parts(struct forward_cuda *f, uint32_t tokens, struct moe_error *err)
{
	const uint64_t n = (uint64_t)tokens * f->base.arch->hidden;
	int r = end_experts(f, err);

	gpu_to_host(f->gpu, f->host.part, f->pass->part, n * sizeof(float));
	if (r == 0)
		r = gpu_wait(f->gpu, err);
	if (r == 0)
		r = group_sum(f->group, f->host.part, n, err);
	if (r == 0)
		gpu_to_device(f->gpu, f->pass->part, f->host.part, n * sizeof(float));
	return r;
}

static int run_moe(struct forward_cuda *f, uint32_t layer, uint32_t tokens, struct moe_error *err)
{
	const struct pass *p = f->pass;
	const uint64_t pairs = (uint64_t)tokens * p->arch->router.topk * sizeof(int32_t);
	const struct experts_step step = {.layer = layer,
					  .tokens = tokens,
					  .ids = f->host.choices,
					  .weights = f->host.shares,
					  .stream = gpu_stream(f->gpu),
					  .on_x = p->normed,
					  .on_y = p->part};
	int r;

	pass_route(p, layer, tokens, 0);
	gpu_to_host(f->gpu, f->host.choices, p->choices, pairs);
	gpu_to_host(f->gpu, f->host.shares, p->shares, pairs);
	pass_mlp(p, layer, tokens);
	if ((r = gpu_wait(f->gpu, err)) < 0 || (r = end_experts(f, err)) < 0 ||
	    (r = check_choice(f, layer, tokens, err)) < 0 || (r = f->experts->begin(f->experts, &step, err)) < 0)
		return r;
	f->begun = true;
	r = f->group->size > 1 ? sum_parts(f, tokens, err) : 0;
	pass_join(p, tokens);
	return r;
}

static void give_input(struct forward_cuda *f, uint32_t tokens)
{
	gpu_to_device(f->gpu, f->pass->input, f->host.input, sizeof(struct pass_input) + tokens * sizeof(int32_t));
	pass_embed(f->pass, tokens);
}

static int run_planned(struct forward_cuda *f, uint32_t tokens, struct moe_error *err)
{
	const struct arch *a = f->base.arch;
	int r = 0;

	if (f->fixed)
		f->experts->lanes_release(f->experts);
	f->fixed = f->replayed = false;
	give_input(f, tokens);
	for (uint32_t i = 0; i < a->n_layers && r == 0; i++) {
		pass_attend(f->pass, i, tokens);
		if (a->is_moe[i])
			r = run_moe(f, i, tokens, err);
		else
			pass_mlp(f->pass, i, tokens);
	}
	if (r < 0)
		return r;
	pass_end(f->pass, tokens);
	r = gpu_wait(f->gpu, err);
	return r == 0 ? end_experts(f, err) : r;
}

/* -- captured steps ----------------------------------------------------------------------------------------------- */

static int give_lane(struct forward_cuda *f, uint32_t layer, uint32_t row, struct moe_error *err)
{
	const struct pass *p = f->pass;
	const struct experts_lane step = {.layer = layer,
					  .lane = row % 2,
					  .stream = gpu_stream(f->gpu),
					  .x = p->normed,
					  .ids = p->choices + pass_row(p, row),
					  .weights = p->shares + pass_row(p, row),
					  .y = p->part};

	return f->experts->lane(f->experts, &step, err);
}

/* All that a decode step is, given to the stream. */
static int give_step(struct forward_cuda *f, struct moe_error *err)
{
	const struct arch *a = f->base.arch;
	const struct pass *p = f->pass;
	uint32_t row = 0;
	int r = 0;

	give_input(f, 1);
	for (uint32_t i = 0; i < a->n_layers && r == 0; i++) {
		pass_attend(p, i, 1);
		if (a->is_moe[i])
			pass_route(p, i, 1, row);
		pass_mlp(p, i, 1);
		if (a->is_moe[i]) {
			r = give_lane(f, i, row++, err);
			pass_join(p, 1);
		}
	}
	pass_end(p, 1);
	pass_output(p, 0, 1);
	gpu_to_host(f->gpu, f->host.logits, p->logits, a->vocab * sizeof(float));
	gpu_to_host(f->gpu, f->host.choices, p->choices, pass_row(p, row));
	gpu_to_host(f->gpu, f->host.failed, p->input + offsetof(struct pass_input, failed), sizeof(uint32_t));
	return r;
}

static int capture(struct forward_cuda *f, struct moe_error *err)
{
	int r = gpu_capture_begin(f->gpu, err), end;

	if (r < 0)
		return r;
	r = give_step(f, err);
	end = gpu_capture_end(f->gpu, r == 0 ? err : NULL);
	f->captured = r == 0 && end == 0;
	return r < 0 ? r : end;
}

static int run_captured(struct forward_cuda *f, struct moe_error *err)
{
	int r = f->fixed ? 0 : f->experts->lanes_fix(f->experts, err);

	if (r < 0)
		return r;
	f->fixed = true;
	if (!f->captured && (r = capture(f, err)) < 0)
		return r;
	gpu_replay(f->gpu);
	if ((r = gpu_wait(f->gpu, err)) < 0 ||
	    (r = f->experts->replayed(f->experts, f->host.choices, f->pass->choice_pitch, err)) < 0)
		return r;
	if (*f->host.failed)
		return moe_error_set(err, -EDOM, "layer %u, position %u: the router's scores are not numbers",
				     *f->host.failed - 1, f->base.used);
	f->replayed = true;
	f->base.replays++;
	return 0;
}

/* -- the back-end ------------------------------------------------------------------------------------------------- */

static int cuda_step(struct forward *base, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		     struct moe_error *err)
{
	struct forward_cuda *f = (struct forward_cuda *)base;
	int r = f->experts->phase(f->experts, phase, base->steps, err);

	if (r < 0)
		return r;
	*f->host.input = (struct pass_input){.position = base->used};
	memcpy(f->host.input->ids, ids, tokens * sizeof(*ids));
	if (f->graph && phase == MOE_STEP_DECODE && tokens == 1 && base->tokens >= GRAPH_AFTER)
		return run_captured(f, err);
	return run_planned(f, tokens, err);
}

static int cuda_logits(struct forward *base, uint32_t first, uint32_t n, float *logits, struct moe_error *err)
{
	struct forward_cuda *f = (struct forward_cuda *)base;
	const uint64_t vocab = base->arch->vocab;
	int r = 0;

	for (uint32_t done = 0; done < n && r == 0;) {
		const uint32_t some = MIN(n - done, PASS_LOGITS_MAX);

		if (!f->replayed) {
			pass_output(f->pass, first + done, some);
			gpu_to_host(f->gpu, f->host.logits, f->pass->logits, some * vocab * sizeof(float));
			r = gpu_wait(f->gpu, err);
		}
		if (r == 0)
			memcpy(logits + done * vocab, f->host.logits, some * vocab * sizeof(float));
		done += some;
	}
	return r;
}

static struct forward *cuda_free(struct forward *base)
{
	struct forward_cuda *f = (struct forward_cuda *)base;

	pass_free(f->pass);
	placed_free(f->placed);
	gpu_close(f->gpu);
	free(f);
	return NULL;
}

static void cleanup_forward(struct forward **forward)
{
	forward_free(*forward);
}

static int make_host_side(struct forward_cuda *f, struct moe_error *err)
{
	const struct arch *a = f->base.arch;
	const uint64_t t = f->base.tokens_max;
	const uint64_t pairs = MAX(t * a->router.topk, (uint64_t)a->n_moe_layers * f->pass->choice_pitch);
	const struct {
		void **at;
		uint64_t bytes;
	} arrays[] = {
		{(void **)&f->host.input, sizeof(struct pass_input) + t * sizeof(int32_t)},
		{(void **)&f->host.choices, pairs * sizeof(int32_t)},
		{(void **)&f->host.shares, pairs * sizeof(float)},
		{(void **)&f->host.logits, (uint64_t)PASS_LOGITS_MAX * a->vocab * sizeof(float)},
		{(void **)&f->host.failed, sizeof(uint32_t)},
		{(void **)&f->host.part, f->group->size > 1 ? t * a->hidden * sizeof(float) : 0},
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(arrays) && r == 0; i++)
		if (arrays[i].bytes)
			r = gpu_host(f->gpu, arrays[i].bytes, arrays[i].at, err);
	return r;
}

bool forward_cuda_finds(const char *device)
{
	struct gpu *gpu = NULL;
	const bool found = gpu_open(&gpu, device, NULL) == 0;

	gpu_close(gpu);
	return found;
}

int forward_cuda_new(struct forward **ret, const char *device, bool graph, const struct arch *arch,
		     const struct weights *weights, struct experts *experts, struct group *group, uint32_t positions,
		     uint32_t tokens_max, struct moe_error *err)
{
	_cleanup_(cleanup_forward) struct forward *base = NULL;
	struct forward_cuda *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return moe_error_set(err, -ENOMEM, "no memory for a forward pass");
	base = &f->base;
	*base = (struct forward){.arch = arch,
				 .on_device = true,
				 .positions = positions,
				 .tokens_max = tokens_max,
				 .step = cuda_step,
				 .logits = cuda_logits,
				 .free = cuda_free};
	f->experts = experts;
	f->group = group;
	f->graph = graph;
	if ((r = gpu_open(&f->gpu, device, err)) < 0 ||
	    (r = placed_new(&f->placed, f->gpu, arch, weights, positions, err)) < 0 ||
	    (r = pass_new(&f->pass, f->gpu, arch, f->placed, positions, tokens_max, err)) < 0 ||
	    (r = make_host_side(f, err)) < 0)
		return r;
	base->where = gpu_name(f->gpu);
	*ret = steal_ptr(base);
	return 0;
}
