/* SPDX-License-Identifier: MIT */
/*
 * error - write one line for a person and hand on the negative errno value.
 *
 * The step that fails writes; whoever forwards the code leaves the text alone. A NULL struct moe_error is allowed
 * everywhere and only drops the text.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "moe-error.h"

/* Writes the text (cut at MOE_ERROR_TEXT_MAX) and returns `code`, which must be negative. */
int moe_error_set(struct moe_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4), cold));

/* As moe_error_set, with ": " and the system's words for `code` at the end. */
int moe_error_sys(struct moe_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4), cold));

#endif
