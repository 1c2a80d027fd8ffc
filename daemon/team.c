/* SPDX-License-Identifier: MIT */
#include "daemon/team.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"

int team_start(struct team *ret, const char *name, uint32_t n, void *(*run)(void *), void *argument,
	       struct moe_error *err)
{
	sigset_t all, before;
	int r = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret->n = 0;
	while (r == 0 && ret->n < MIN(n, TEAM_MAX)) {
		r = pthread_create(&ret->threads[ret->n], NULL, run, argument);
		if (r == 0)
			pthread_setname_np(ret->threads[ret->n++], name);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ret->n > 0 ? 0 : moe_error_sys(err, r ? -r : -EINVAL, "cannot start a thread (%s)", name);
}

void team_step_back(void)
{
	static _Atomic bool said;
	const struct sched_param none = {0};

	if (sched_setscheduler(0, SCHED_BATCH, &none) < 0 && !atomic_exchange(&said, true))
		log_notice(
			"threads that load cannot step back behind others, which slows down both: sched_setscheduler: "
			"%s; a filter of system calls that permits it does no harm with RestrictRealtime=",
			strerrordesc_np(errno));
}

void team_join(struct team *team)
{
	while (team->n > 0)
		pthread_join(team->threads[--team->n], NULL);
}
