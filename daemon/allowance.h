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

/* What one user may hold: as configured, or by what there is. */
void allowance_limits(uint64_t ret[ACCOUNT_RESOURCES], const struct config *config, const struct host *host);

#endif
