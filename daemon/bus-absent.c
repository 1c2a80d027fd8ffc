/* SPDX-License-Identifier: MIT */
/* bus-absent - a build without libsystemd: the daemon is on no bus, and says so. */
#include <stdlib.h>

#include "base/log.h"
#include "daemon/bus.h"
#include "daemon/service.h"

static const char why[] = "this moe-expertd was built without libsystemd";

int bus_new(struct bus **ret, struct service *service, struct moe_error *err)
{
	log_warning("--bus %s: goes on without a bus: %s", service->config->bus, why);
	return 0;
}

struct bus *bus_free(struct bus *bus)
{
	return NULL;
}

void bus_note(struct bus *bus)
{
}

bool bus_turn(struct bus *bus)
{
	return false;
}

void bus_begin_document(struct bus *bus, uint32_t what)
{
}

void bus_send_document(struct bus *bus, int fd, uint64_t bytes, const struct moe_error *err)
{
}

void bus_state(const struct service *service, const char **ret_state, const char **ret_why)
{
	*ret_state = service->config->bus ? "missing" : "off";
	*ret_why = why;
}
