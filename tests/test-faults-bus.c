/* SPDX-License-Identifier: MIT */
/*
 * faults-bus - as test-faults, of a daemon on a bus: its link, its objects and their figures, calls that load, unload
 * and drain. A daemon that loses its bus lives on, and its clients of the ring do not hear of it.
 */
#include "tests/faults/plan.h"
#include "tests/faults/talk.h"

static void talk_to(struct run *run)
{
	struct talk t = {
		.model_path = model_path, .faulted = run->fault != NULL, .ever = run->fault && run->fault->ever};

	talk(&t);
	run->fine += t.fine;
	run->refused += t.refused;
	if (t.why[0])
		wrong(run, "%s", t.why);
}

int main(void)
{
	if (!talk_can()) {
		printf("1..0 # SKIP no dbus-daemon here (package dbus-daemon)\n");
		return 0;
	}
	bus.begin = talk_begin;
	bus.end = talk_end;
	bus.talk = talk_to;
	return faults_main(LIFE_PLAIN);
}
