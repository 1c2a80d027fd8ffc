/* SPDX-License-Identifier: MIT */
/*
 * faults-push - as test-faults, of a daemon that pushes FILLs into a GPU's memory, on the simulated driver: each call
 * of its own from the driver's start to its end, while slots are imported, filled and counted in a timeline.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_PUSHES);
}
