/* SPDX-License-Identifier: MIT */
#include "tools/worker/forward.h"

#include <errno.h>

#include "base/error.h"

void forward_reset(struct forward *f)
{
	f->used = 0;
}

int forward_step(struct forward *f, const int32_t *ids, uint32_t tokens, enum moe_step_phase phase,
		 struct moe_error *err)
{
	int r;

	if (tokens == 0 || tokens > f->tokens_max || tokens > f->positions - f->used)
		return moe_error_set(err, -EINVAL, "a step of %u tokens at position %u; expected 1 to %u, %u positions",
				     tokens, f->used, f->tokens_max, f->positions);
	r = f->step(f, ids, tokens, phase, err);
	if (r < 0)
		return r;
	f->used += tokens;
	f->tokens += tokens;
	f->steps++;
	return 0;
}

int forward_logits(struct forward *f, uint32_t first, uint32_t n, float *logits, struct moe_error *err)
{
	return f->logits(f, first, n, logits, err);
}
