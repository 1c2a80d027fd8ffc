/* SPDX-License-Identifier: MIT */
/*
 * faults-watched - as test-faults, of a daemon that is watched: scraped over HTTP, asked for its model's heat, which it
 * saves, told to record a trace, and told to read its configuration again.
 */
#include "tests/faults/plan.h"

int main(void)
{
	return faults_main(LIFE_WATCHED);
}
