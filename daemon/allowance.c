/* SPDX-License-Identifier: MIT */
#include "daemon/allowance.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"

#define FDS_OWN 256 /* descriptors that the daemon keeps for itself: models, loads, rings */

/* A session takes six descriptors or more: as many as the administrator allows, not as many as shells start with. */
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

void allowance_limits(uint64_t ret[ACCOUNT_RESOURCES], const struct config *config, const struct host *host)
{
	const uint64_t files = half_files(), given = config->uid_limits[ACCOUNT_FDS];

	memcpy(ret, config->uid_limits, sizeof config->uid_limits);
	if (!ret[ACCOUNT_BYTES])
		ret[ACCOUNT_BYTES] = half_memory(host);
	if (given > files)
		log_warning("--uid-limit fds=%llu: %llu is what ulimit -n (LimitNOFILE= of the unit) allows",
			    (unsigned long long)given, (unsigned long long)files);
	ret[ACCOUNT_FDS] = given ? MIN(given, files) : files;
}
