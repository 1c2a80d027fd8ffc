/* SPDX-License-Identifier: MIT */
/*
 * patient - a connection for programs that wait for the daemon whatever it takes, and say so.
 */
#ifndef TOOLS_PATIENT_H
#define TOOLS_PATIENT_H

#include "moe-expert.h"

#define PATIENT_S 20 /* a busy machine is no daemon that hangs */

/* moe_open; a daemon that does not answer for so long is told of on stderr, once in the program's life. */
int open_patiently(struct moe_client **ret, const char *socket, struct moe_error *err);

#endif
