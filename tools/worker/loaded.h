/* SPDX-License-Identifier: MIT */
/* loaded - finds the model of a folder among those that a running daemon has loaded. */
#ifndef WORKER_LOADED_H
#define WORKER_LOADED_H

#include "moe-error.h"

/* The name to attach by (malloc'ed): of the model that was loaded from `dir`, else of one that bears the folder's name;
 * else of the one that is being loaded, of which the daemon has more to say to who attaches. -ENOENT, with the command
 * that loads it, when there is none of these. */
int loaded_find(char **ret, const char *socket, const char *dir, struct moe_error *err);

#endif
