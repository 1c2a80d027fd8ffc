/* SPDX-License-Identifier: MIT */
/*
 * faults-tier - as test-faults, of a daemon whose model has fewer frames than records: each call of the pass over its
 * files, and of reading records while COMPUTEs and FILLs wait for them. However a read ends, in the kernel or before
 * it, that costs an error at most: what does come is right, and the daemon lives on.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_TIER);
}
