/* SPDX-License-Identifier: MIT */
/*
 * top-fetch - asks the daemon in a thread of its own, so that a daemon that hangs does not hang the screen.
 *
 * Law: one question at a time. Its answer is announced by `fd`, which then is readable, and taken once. A thread that
 * waits for a daemon that hangs is left behind when the program ends.
 */
#ifndef TOOLS_TOP_FETCH_H
#define TOOLS_TOP_FETCH_H

#include "moe-error.h"
#include "moectl.h"
#include "top-view.h"

struct top_fetch;

int top_fetch_new(struct top_fetch **ret, const struct arguments *arg, struct moe_error *err);
int top_fetch_fd(const struct top_fetch *fetch);
/* False: the question before has no answer yet. */
bool top_fetch_ask(struct top_fetch *fetch);
/* After `fd` was readable: 0 and the documents, which are the caller's, or the error. */
int top_fetch_take(struct top_fetch *fetch, struct top_documents *ret, struct moe_error *err);

/* The same here and now. */
int top_fetch_now(const struct arguments *arg, struct top_documents *ret, struct moe_error *err);

#endif
