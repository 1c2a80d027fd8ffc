/* SPDX-License-Identifier: MIT */
/*
 * service-manager - what a service and the manager that started it (systemd) say to each other besides descriptors.
 */
#include <string.h>

#include "base/log.h"
#include "base/util.h"
#include "daemon/allowance.h"
#include "daemon/handover.h"
#include "daemon/service.h"

/* -- reloading ---------------------------------------------------------------------------------------------------- */

/* What has copies of settings is told; the rest looks into config when it needs them. */
static void spread(struct service *s)
{
	uint64_t limits[ACCOUNT_RESOURCES];

	config_open_log(s->config);
	allowance_limits(limits, s->config, s->host);
	accounts_set_limits(s->accounts, limits);
	sched_set_fill_budget(s->sched, s->config->fill_budget);
}

void service_reload(struct service *s)
{
	struct moe_error err = {0};
	uint32_t changed;
	int r;

	/* Before READY there is nothing to come back to. */
	if (s->ready)
		handover_notify(s->handover, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(now_ns() / 1000));
	r = config_reload(s->config, &changed, &err);
	if (r < 0) {
		log_err("reloading: %s; everything stays as it was", err.text);
	} else {
		spread(s);
		log_notice("reloaded the configuration: %u settings changed", changed);
	}
	if (s->ready)
		handover_notify(s->handover, "READY=1");
}
