/* SPDX-License-Identifier: MIT */
/*
 * step-carry - what a MoE layer leaves to the next one: the late step, between the two calls that know of it.
 *
 * Law: whoever gives a late step away gives it away in every case. From moe_submit_carry it comes out in *carry, goes
 * in again with the next layer's call, and is from then on that step's, or has ended.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "step.h"

/* A late step is carried by the next MoE layer and nobody else. */
static int check_carry(const struct engine *e, const struct moe_plan *plan, const struct moe_step *late,
		       struct moe_error *err)
{
	const int row = session_row(e->session, plan->layer, err);

	if (row < 0)
		return row;
	if (late->engine != e || !late->plan->late || late->row + 1 != (uint32_t)row ||
	    late->plan->tokens != plan->tokens)
		return moe_error_set(err, -EINVAL,
				     "moe_submit_carry: what is carried to layer %u is of layer %u and %u tokens; "
				     "expected the MoE layer before it, deferred in this session, and %u tokens",
				     plan->layer, late->plan->layer, late->plan->tokens, plan->tokens);
	return 0;
}

int moe_submit_carry(struct moe_session *session, struct moe_plan *plan, const float *x, struct moe_step **carry,
		     struct moe_step **ret, struct moe_error *err)
{
	struct moe_step *earlier = steal_ptr(*carry), *step = NULL;
	struct moe_plan *later = steal_ptr(plan->later);
	int r = earlier ? check_carry(session->engine, plan, earlier, err) : 0;

	if (r == 0)
		r = moe_submit(session, steal_ptr(plan), x, &step, err);
	if (r == 0 && later) /* behind the pairs that are needed first */
		r = step_submit(session->engine, steal_ptr(later), x, NULL, carry, err);
	if (r == 0) {
		step->carried = earlier;
		*ret = step;
		return 0;
	}
	moe_plan_free(plan);
	moe_plan_free(later);
	if (step)
		moe_wait(step, NULL, 0, NULL);
	if (earlier)
		moe_wait(earlier, NULL, 0, NULL);
	return r;
}
