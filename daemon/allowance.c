/* SPDX-License-Identifier: MIT */
#include "daemon/allowance.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"

#define FDS_OWN 256 /* descriptors that the daemon keeps for itself: models, loads, rings */

/* A session takes five descriptors: as many as the administrator allows, not as many as shells start with. */
void allowance_raise(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

/* Half of the memory that this process may have. */
static uint64_t half_memory(const struct host *host)
{
	const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	return (host->mem_limit > 0 ? MIN((uint64_t)host->mem_limit, memory) : memory) / 2;
}

/* Half of the descriptors that the daemon does not need for itself. */
static uint64_t half_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > ACCOUNT_LIMIT_MAX)
		return ACCOUNT_LIMIT_MAX;
	return (files.rlim_cur - MIN(files.rlim_cur / 4, FDS_OWN)) / 2;
}

int allowance_open_accounts(struct accounts **ret, const struct config *config, const struct host *host,
			    struct moe_error *err)
{
	const uint64_t files = half_files(), given = config->uid_limits[ACCOUNT_FDS];
	uint64_t limits[ACCOUNT_RESOURCES] = {
		[ACCOUNT_BYTES] = half_memory(host),
		[ACCOUNT_FDS] = files,
		[ACCOUNT_CONNECTIONS] = ACCOUNT_CONNECTIONS_DEFAULT,
		[ACCOUNT_SESSIONS] = ACCOUNT_SESSIONS_DEFAULT,
		[ACCOUNT_REQUESTS] = ACCOUNT_REQUESTS_DEFAULT,
		[ACCOUNT_LEASES] = ACCOUNT_LEASES_DEFAULT,
	};

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		if (config->uid_limits[i])
			limits[i] = config->uid_limits[i];
	if (given > files)
		log_warning("--uid-limit fds=%llu: %llu is what ulimit -n (LimitNOFILE= of the unit) allows",
			    (unsigned long long)given, (unsigned long long)files);
	limits[ACCOUNT_FDS] = MIN(limits[ACCOUNT_FDS], files);
	return accounts_new(ret, limits, err);
}
