/* SPDX-License-Identifier: MIT */
/*
 * faults-moves - as test-faults, of a daemon that gives hot experts copies on two NUMA nodes, which are none: each call
 * from the memory of the copies to the tables that name them, while requests run. What fails leaves a layer as it was.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_MOVES);
}
