/* SPDX-License-Identifier: MIT */
/*
 * faults-restart-tier - as test-faults-restart, of a daemon whose model has fewer frames than records: the lease that
 * is out has its record in a frame, which the one that takes over has to find there and keep.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_TIER_RESTARTS);
}
