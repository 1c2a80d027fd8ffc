/* SPDX-License-Identifier: MIT */
/*
 * moe-error.h - how every fallible call of moe-expertd reports a failure.
 *
 * A call returns 0 or a negative errno value, never errno itself. When the caller passes a struct moe_error, the
 * first failing step also writes one line for a person: which file or peer, which field, what was found, what was
 * expected, and what to do. The struct is plain memory: it owns nothing and needs no initialisation or release.
 */
#ifndef MOE_ERROR_H
#define MOE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_ERROR_TEXT_MAX 496

struct moe_error {
	int code; /* negative errno value; both are written by calls that fail, and mean nothing after others */
	char text[MOE_ERROR_TEXT_MAX]; /* NUL-terminated, no trailing newline */
};

#ifdef __cplusplus
}
#endif
#endif
