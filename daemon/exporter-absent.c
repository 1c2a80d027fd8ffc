/* SPDX-License-Identifier: MIT */
/* exporter-absent - a build without libmicrohttpd: there is no listener, so nobody wants documents. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "daemon/exporter.h"

int exporter_new(struct exporter **ret, const struct exporter_address *address, uint32_t mode, struct loop *loop,
		 struct moe_error *err)
{
	return moe_error_set(err, -ENOSYS,
			     "--metrics: this moe-expertd was built without libmicrohttpd; leave it out and use moectl "
			     "stats --prometheus");
}

bool exporter_wants(const struct exporter *exporter)
{
	return false;
}

void exporter_give(struct exporter *exporter, struct documents *documents)
{
}

struct exporter *exporter_free(struct exporter *exporter, bool leaves)
{
	return NULL;
}
