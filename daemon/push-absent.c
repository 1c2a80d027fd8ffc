/* SPDX-License-Identifier: MIT */
/* push-absent - a build without CUDA: nothing is pushed into GPUs, so no slots of theirs are ever opened. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "daemon/push.h"

int push_new(struct push **ret, uint32_t patience_s, int registrar_fd, struct moe_error *err)
{
	return moe_error_set(err, -EOPNOTSUPP, "--push-cuda: this moe-expertd was built without CUDA");
}

void push_set_loop(struct push *push, struct loop *loop)
{
}

bool push_has_ended(struct push *push)
{
	return false;
}

struct push *push_free(struct push *push)
{
	return NULL;
}

int push_open(struct push *push, struct push_slots **ret, const struct resident *model,
	      const struct push_memory *memory, void *owner, struct moe_error *err)
{
	return moe_error_set(err, -EOPNOTSUPP, "this moe-expertd was built without CUDA");
}

struct push_slots *push_next_opened(struct push *push, void **ret_owner, int *ret_code, struct moe_error *err)
{
	return NULL;
}

void push_copy(struct push_slots *slots, struct pool_copy *copy, uint64_t at, const uint32_t *number)
{
	abort();
}

void push_close(struct push_slots *slots)
{
}
