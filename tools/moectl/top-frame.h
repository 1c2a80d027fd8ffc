/* SPDX-License-Identifier: MIT */
/*
 * top-frame - one picture of `moectl top`: lines of ASCII for a terminal of any size.
 *
 * Law: pure. No line is wider than the terminal, no frame higher; at 80 columns all that a session has is there, in
 * fewer the columns that matter least are left out, whole; what has no room is counted in a line.
 */
#ifndef TOOLS_TOP_FRAME_H
#define TOOLS_TOP_FRAME_H

#include "top-view.h"

#define FRAME_COLUMNS_MAX 256
#define FRAME_ROWS_MAX 256

enum frame_look { FRAME_PLAIN, FRAME_TITLE, FRAME_HEADING, FRAME_WARNING, FRAME_FAINT };

struct frame_line {
	char text[FRAME_COLUMNS_MAX + 1];
	enum frame_look look;
};

struct frame {
	unsigned rows, columns; /* of the terminal; rows 0: as many as it takes */
	unsigned n;
	struct frame_line lines[FRAME_ROWS_MAX];
};

/* notice: of the last line but one, "" for none. keys: of the last line, or NULL for none. */
void frame_draw(struct frame *ret, unsigned columns, unsigned rows, const struct top_view *view, const char *notice,
		const char *keys);

#endif
