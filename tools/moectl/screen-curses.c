/* SPDX-License-Identifier: MIT */
/* screen-curses - the screen of moectl top by ncurses: opened, drawn line by line, and always given back. */
#include <curses.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "screen.h"

static SCREEN *screen;
static int looks[] = {[FRAME_PLAIN] = A_NORMAL,
		      [FRAME_TITLE] = A_BOLD,
		      [FRAME_HEADING] = A_REVERSE,
		      [FRAME_WARNING] = A_BOLD,
		      [FRAME_FAINT] = A_NORMAL};

static void open_colours(void)
{
	const char *none = getenv("NO_COLOR");

	if ((none && *none) || !has_colors() || start_color() == ERR || use_default_colors() == ERR)
		return;
	init_pair(1, COLOR_CYAN, -1);
	init_pair(2, COLOR_RED, -1);
	looks[FRAME_TITLE] |= COLOR_PAIR(1);
	looks[FRAME_WARNING] |= COLOR_PAIR(2);
}

int screen_open(struct moe_error *err)
{
	const char *term = getenv("TERM");

	screen = newterm(NULL, stdout, stdin);
	if (screen && !tigetstr("cup")) { /* a "dumb" one: the cursor stays where it is */
		endwin();
		delscreen(screen);
		screen = NULL;
	}
	if (!screen)
		return moe_error_set(
			err, -ENOTTY,
			"top: a terminal of the type TERM=%s is not known, or can do too little; use moectl "
			"top --once",
			term ? term : "");
	set_term(screen);
	open_colours();
	cbreak();
	noecho();
	nonl();
	curs_set(0);
	nodelay(stdscr, TRUE);
	keypad(stdscr, TRUE);
	return 0;
}

void screen_size(unsigned *ret_columns, unsigned *ret_rows)
{
	*ret_columns = (unsigned)COLS;
	*ret_rows = (unsigned)LINES;
}

void screen_draw(const struct frame *frame)
{
	erase();
	for (unsigned i = 0; i < frame->n; i++) {
		attrset(looks[frame->lines[i].look]);
		mvaddnstr((int)i, 0, frame->lines[i].text, COLS);
		if (frame->lines[i].look == FRAME_HEADING)
			mvchgat((int)i, 0, -1, (attr_t)A_REVERSE, 0, NULL);
	}
	attrset(A_NORMAL);
	refresh();
}

int screen_key(void)
{
	const int key = getch();

	return key > 0 && key < 0x80 ? key : 0;
}

void screen_resized(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col)
		resizeterm(size.ws_row, size.ws_col);
	clear();
}

void screen_close(void)
{
	if (!screen)
		return;
	endwin();
	delscreen(screen);
	screen = NULL;
}
