/* SPDX-License-Identifier: MIT */
#include "daemon/seat.h"

#include "base/host.h"
#include "base/util.h"

/* So many requests within this time: who runs here between two of them runs for microseconds, as a client does that
 * polls, and not for a slice, as a thread of the pool. */
#define SHARED_MAX 8
#define SHARED_NS 2000000u
/* Between two moves, each of which takes some tens of microseconds: the second, and any. */
#define STAY_MIN_NS 2000000u
#define STAY_MAX_NS 20000000u

void seat_shared(struct seat *seat)
{
	const uint64_t now = now_ns();

	seat->lost = false;
	if (seat->shared == 0 || now - seat->since_ns > SHARED_NS) {
		seat->since_ns = now;
		seat->shared = 0;
	}
	if (++seat->shared < SHARED_MAX || (seat->moved_ns && now - seat->moved_ns < seat->stay_ns))
		return;
	if (!seat->moved_ns || now - seat->moved_ns > 2 * STAY_MAX_NS)
		seat->stay_ns = STAY_MIN_NS;
	else
		seat->stay_ns = MIN(2 * seat->stay_ns, (uint64_t)STAY_MAX_NS);
	seat->shared = 0;
	seat->moved_ns = now;
	/* Where it stays there is nothing to settle: requests are answered there as well. */
	seat->settle_ns = host_leave_cpu() < 0 ? 0 : now + SEAT_SETTLE_NS;
}
