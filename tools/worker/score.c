/* SPDX-License-Identifier: MIT */
/*
 * The rule: consecutive windows, each from an empty context at position 0; all tokens of a window but its first are
 * scored, by natural logarithm; a last partial window is dropped. A window goes through the model in as few prefill
 * steps as hold it, or with --decode in one decode step per token.
 */
#include "tools/worker/run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/stdout.h"
#include "base/util.h"
#include "tools/worker/stats.h"

#define LOGITS_AT_ONCE 16u /* tokens whose logits are held at a time */

struct score {
	double nll; /* summed */
	uint64_t tokens, windows;
};

static double negative_log_likelihood(const float *logits, uint32_t n, int32_t id)
{
	double max = logits[0], sum = 0;

	for (uint32_t i = 1; i < n; i++)
		max = MAX(max, (double)logits[i]);
	for (uint32_t i = 0; i < n; i++)
		sum += expf((float)(logits[i] - max));
	return max + log(sum) - logits[id];
}

/* `targets` are the tokens that follow the last step's tokens 0 .. n - 1. */
static int score_step(const struct run *run, const int32_t *targets, uint32_t n, float *logits, struct score *score,
		      struct moe_error *err)
{
	const uint32_t vocab = run->arch->vocab;

	for (uint32_t first = 0; first < n; first += LOGITS_AT_ONCE) {
		const uint32_t some = MIN(n - first, LOGITS_AT_ONCE);

		const int r = forward_logits(run->forward, first, some, logits, err);

		if (r < 0)
			return r;
		for (uint32_t i = 0; i < some; i++)
			score->nll += negative_log_likelihood(logits + (size_t)i * vocab, vocab, targets[first + i]);
	}
	score->tokens += n;
	return 0;
}

static int score_window(struct run *run, const int32_t *ids, float *logits, struct score *score, struct moe_error *err)
{
	const enum moe_step_phase phase = run->options->decode ? MOE_STEP_DECODE : MOE_STEP_PREFILL;
	struct forward *f = run->forward;
	int r;

	forward_reset(f);
	for (uint32_t at = 0; at < run->window;) {
		const uint32_t n = MIN(run->window - at, f->tokens_max);

		r = forward_step(f, ids + at, n, phase, err);
		if (r < 0)
			return r;
		/* Only the rank that speaks needs the numbers. The window's last token has no successor. */
		if (run->speaks)
			r = score_step(run, ids + at + 1, MIN(n, run->window - at - 1), logits, score, err);
		if (r < 0)
			return r;
		at += n;
	}
	score->windows++;
	return 0;
}

static int print_score(const struct run *run, const struct score *score, uint64_t ns, struct moe_error *err)
{
	const double nll = score->nll / (double)score->tokens, seconds = (double)ns / 1e9;
	const uint64_t tokens = run->forward->tokens;
	const struct stats_times times = run->options->decode
						 ? (struct stats_times){.decode_tokens = tokens, .decode_ns = ns}
						 : (struct stats_times){.prefill_tokens = tokens, .prefill_ns = ns};
	json_t *object;
	int r;

	if (!isfinite(nll))
		return moe_error_set(err, -EDOM, "the score is not a number");
	if (!run->options->json) {
		printf("%llu tokens in %llu windows of %u: %.7f nats per token, %.4f bits\n\n",
		       (unsigned long long)score->tokens, (unsigned long long)score->windows, run->window, nll,
		       nll / M_LN2);
		stats_print(run, &times);
		r = stdout_flush();
		return r < 0 ? moe_error_sys(err, r, "cannot write to standard output") : 0;
	}
	object = json_pack("{s:I,s:f,s:I,s:i,s:f}", "tokens", (json_int_t)score->tokens, "nll_per_token", nll,
			   "windows", (json_int_t)score->windows, "window", (int)run->window, "seconds", seconds);
	r = object ? stats_add(run, object, err) : moe_error_set(err, -ENOMEM, "no memory for the JSON");
	if (r == 0)
		r = stats_write(object, err);
	json_decref(object);
	return r;
}

int run_score(struct run *run, struct moe_error *err)
{
	_cleanup_free_ float *logits = malloc((size_t)LOGITS_AT_ONCE * run->arch->vocab * sizeof(float));
	const uint64_t start = now_ns();
	struct score score = {0};
	int r;

	if (!logits)
		return moe_error_set(err, -ENOMEM, "no memory for the logits of %u tokens", LOGITS_AT_ONCE);
	if (run->input->n < run->window)
		return moe_error_set(err, -EINVAL, "the text has %zu tokens, expected at least one window of %u",
				     run->input->n, run->window);
	for (size_t at = 0; at + run->window <= run->input->n; at += run->window) {
		if (run_interrupted())
			return moe_error_set(err, -EINTR, "interrupted");
		r = score_window(run, run->input->ids + at, logits, &score, err);
		if (r < 0)
			return r;
	}
	return run->speaks ? print_score(run, &score, now_ns() - start, err) : 0;
}
