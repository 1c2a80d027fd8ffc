/* SPDX-License-Identifier: MIT */
/*
 * options - the command line becomes a spec.
 */
#ifndef MKMODEL_OPTIONS_H
#define MKMODEL_OPTIONS_H

#include <stdio.h>

#include "tools/mkmodel/spec.h"

enum options_verdict { OPTIONS_RUN, OPTIONS_HELP };

/* Fills *ret and *ret_out (the folder; points into argv). -EINVAL: usage, the text says what. */
int options_parse(int argc, char **argv, struct spec *ret, const char **ret_out, enum options_verdict *ret_verdict,
		  struct moe_error *err);

void options_help(FILE *to);

#endif
