/* SPDX-License-Identifier: MIT */
/*
 * screen - the terminal as a whole: frames on it, keys from it, and as it was before when it is closed.
 *
 * Law: nothing else writes to the terminal between screen_open and screen_close, and whoever opens it closes it,
 * whatever ends the program but SIGKILL. Colours only where the terminal has them and NO_COLOR is not set.
 *
 * Alternative files: screen-curses.c, or screen-absent.c where the build has no ncurses.
 */
#ifndef TOOLS_SCREEN_H
#define TOOLS_SCREEN_H

#include "moe-error.h"
#include "top-frame.h"

/* -ENOSYS: no ncurses; -ENOTTY: not a terminal that it knows. */
int screen_open(struct moe_error *err);
void screen_size(unsigned *ret_columns, unsigned *ret_rows);
void screen_draw(const struct frame *frame);
/* A letter, or 0 when none was typed. Waits for nothing. */
int screen_key(void);
/* After SIGWINCH. */
void screen_resized(void);
void screen_close(void);

#endif
