/* SPDX-License-Identifier: MIT */
/*
 * faults-restart - as test-faults, of a daemon that takes over from one that was killed: each call from its start on,
 * the hand-over, the model, the session in the middle of a COMPUTE with a lease out, and what the client asks of it
 * then. Where it ends of its fault a third daemon takes over, unharmed: what the client then gets is as right.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_RESTARTS);
}
