/* SPDX-License-Identifier: MIT */
/* screen-absent - a build without ncurses: no screen is ever opened. */
#include <errno.h>

#include "base/error.h"
#include "screen.h"

int screen_open(struct moe_error *err)
{
	return moe_error_set(err, -ENOSYS, "top: this moectl was built without ncurses; use moectl top --once");
}

void screen_size(unsigned *ret_columns, unsigned *ret_rows)
{
	*ret_columns = *ret_rows = 0;
}

void screen_draw(const struct frame *frame)
{
}

int screen_key(void)
{
	return 0;
}

void screen_resized(void)
{
}

void screen_close(void)
{
}
