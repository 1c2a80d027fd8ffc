/* SPDX-License-Identifier: MIT */
/*
 * verbs - the command lines of what moe-mkmodel does with models that are there already.
 */
#ifndef MKMODEL_VERBS_H
#define MKMODEL_VERBS_H

#include <stdio.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* argv[0] is the verb. They print what they did or why not, and return the exit code. */
int verb_quantize(int argc, char **argv);
int verb_widen(int argc, char **argv);

void verbs_help(FILE *to);

#endif
