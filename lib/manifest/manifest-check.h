/* SPDX-License-Identifier: MIT */
/*
 * manifest-check - is a manifest sound? Asked by clients, who got it from a daemon, and by a daemon, who got it from
 * the keeper of the one before.
 *
 * After manifest_check() all tables lie in the manifest; every plane of every layout has room for the largest share in
 * its record; each row's records have one layout and lie in pool files of the sizes that the manifest names. Whether
 * the files have these sizes the caller checks. Nothing that is computed from a sound manifest needs another check.
 */
#ifndef LIB_MANIFEST_CHECK_H
#define LIB_MANIFEST_CHECK_H

#include <stdint.h>

#include "moe-error.h"
#include "uapi/moe_manifest.h"

/* `m` is a mapping of `bytes` bytes, sizeof *m at least, that nobody can write (F_SEAL_WRITE). -EPROTO. */
int manifest_check(const struct moe_manifest *m, uint64_t bytes, struct moe_error *err);

#endif
