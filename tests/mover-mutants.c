/* SPDX-License-Identifier: MIT */
/*
 * What test-mover is worth: with MOVER_MUTANT naming some of these, the mover beneath it does one thing less, and the
 * test has to see it (e2e/mover-mutants.t). Linked with --wrap of each function that is here.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/manifest.h"
#include "daemon/pool.h"
#include "daemon/replicas.h"

void __real_manifest_record_digest(uint8_t *ret, const struct moe_layout *layout, const uint8_t *const *share);
void __wrap_manifest_record_digest(uint8_t *ret, const struct moe_layout *layout, const uint8_t *const *share);
void __real_pool_submit_move(struct pool *pool, struct pool_move *move);
void __wrap_pool_submit_move(struct pool *pool, struct pool_move *move);
void __real_replicas_commit(struct replicas *r);
void __wrap_replicas_commit(struct replicas *r);
void __real_replicas_abort(struct replicas *r);
void __wrap_replicas_abort(struct replicas *r);

static bool is(const char *name)
{
	const char *mutants = getenv("MOVER_MUTANT");

	return mutants && strstr(mutants, name);
}

/* All digests are one: none is compared. */
void __wrap_manifest_record_digest(uint8_t *ret, const struct moe_layout *layout, const uint8_t *const *share)
{
	if (is("unchecked"))
		memset(ret, 0, MOE_DIGEST_BYTES);
	else
		__real_manifest_record_digest(ret, layout, share);
}

/* The end of a copy does not come. */
void __wrap_pool_submit_move(struct pool *pool, struct pool_move *move)
{
	if (is("short"))
		move->ranges[0].bytes /= 2;
	__real_pool_submit_move(pool, move);
}

void __wrap_replicas_commit(struct replicas *r)
{
	if (is("forgotten"))
		__real_replicas_abort(r);
	else
		__real_replicas_commit(r);
}

/* What has failed takes the place of what there was. */
void __wrap_replicas_abort(struct replicas *r)
{
	if (is("kept"))
		__real_replicas_commit(r);
	else
		__real_replicas_abort(r);
}
