/* SPDX-License-Identifier: MIT */
#include "patient.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

static bool tell(void *userdata)
{
	static atomic_flag told = ATOMIC_FLAG_INIT;

	(void)userdata;
	if (!atomic_flag_test_and_set(&told))
		fprintf(stderr,
			"%s: no word from moe-expertd for %d s: is it stopped, or does it hang? See moectl status. "
			"Still waiting\n",
			program_invocation_short_name, PATIENT_S);
	return true;
}

int open_patiently(struct moe_client **ret, const char *socket, struct moe_error *err)
{
	const struct moe_patience patience = {sizeof patience, PATIENT_S * 1000, tell, NULL};

	return moe_open_patient(ret, socket, &patience, err);
}
