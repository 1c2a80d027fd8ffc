/* SPDX-License-Identifier: MIT */
/*
 * allowance - what this process may have of the machine, and what one user may hold of that.
 */
#ifndef DAEMON_ALLOWANCE_H
#define DAEMON_ALLOWANCE_H

#include "base/host.h"
#include "daemon/accounts.h"
#include "daemon/config.h"

/* As many descriptors as the administrator allows, not as many as shells start with. */
void allowance_raise(void);

/* Accounts with the configured limits, or by what there is. 0 or -errno. */
int allowance_open_accounts(struct accounts **ret, const struct config *config, const struct host *host,
			    struct moe_error *err);

#endif
