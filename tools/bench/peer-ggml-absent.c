/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "base/error.h"
#include "tools/bench/peer.h"

int peer_ggml(struct peer **ret, const struct ffn_run *run, bool packed, struct moe_error *err)
{
	return moe_error_set(err, -ENOSYS,
			     "not built in: install libggml-dev (Debian 13: from backports), then "
			     "'meson setup --reconfigure -Dggml=enabled' and build");
}
