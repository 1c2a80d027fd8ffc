/* SPDX-License-Identifier: MIT */
/*
 * faults - whatever the daemon asks of the system may be refused, once or from then on for ever: the daemon ends with
 * words or lives on, its clients get right results or errors, and nothing is left behind. What is refused once does not
 * end a daemon that was ready.
 *
 * A first run without a fault says which calls there are (tests/faults/preload.c, loaded before the daemon) and what
 * right results are. Then, for each kind of call, the whole story again: start, load, attach, each operation, a second
 * model, the documents, detach, SIGTERM; with one call refused, another one each time: of each place in the code its
 * first and its last call, and one in eight of all. FAULTS=all: each single call; FAULTS=sample: only one in eight;
 * FAULTS=memory:17: that one alone. FAULTS_JOBS: daemons at a time (default: one a core, at most 8).
 * test-faults-restart is the same for a daemon that takes over, -tier and -watched for others: of places that this
 * test refuses as well they have only the one in eight.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_PLAIN);
}
