/* SPDX-License-Identifier: MIT */
/*
 * panel_ahead - what is asked for of panels in the record before it is read.
 *
 * Law: asking never changes what is read. What comes behind a panel's last column is what is read after it, a jump
 * away; an address that is not mapped is ignored by the processor.
 */
#ifndef KERNELS_VEC_PANEL_AHEAD_H
#define KERNELS_VEC_PANEL_AHEAD_H

#include <stdbool.h>

#include "kernels/vec/panel_codes.h"

/* How far ahead of their use codes are asked for, in bytes; and where the processor follows a stream itself
 * (docs/decisions/0021). */
#define PANEL_AHEAD 5120
#define PANEL_STREAMED 2048
/* The same of a line of each page, for a stream that is alone, where finding out where a page lies takes long
 * (docs/decisions/0075). */
#define PANEL_FAR 24576
#define PANEL_PAGE 4096

/* A column block of a panel, in the record; and for what is asked for ahead, the columns from here to the panel's end
 * and the bytes from there to the panel that comes after this one. */
struct panel_at {
	const uint8_t *codes, *scales;
	size_t left, jump_codes, jump_scales;
	size_t ahead; /* columns; 0: these, as they are read (not asking would be a branch that costs more) */
	size_t far;   /* the same of a line of each page of codes */
};

/* Where 32 columns of a panel lie in the record, and what is asked for meanwhile. */
struct tile_place {
	const uint8_t *codes, *scales; /* the scale block's */
	uintptr_t ahead, scales_ahead;
};

/* Asks for the scales of the 32 columns at->ahead after column c, once for each line of them, and returns where their
 * codes lie. */
PANEL_INLINE uintptr_t panel_ahead(uint32_t format, const struct panel_at *at, size_t c)
{
	const size_t ahead = c + at->ahead;
	const uintptr_t codes = (uintptr_t)at->codes + panel_code_bytes(format, ahead);
	const uintptr_t scales = (uintptr_t)at->scales + panel_scale_bytes(format, ahead) +
				 (ahead < at->left ? 0 : at->jump_scales);

	if (scales % 64 < panel_scale_bytes(format, MOE_BLOCK_COLS))
		_mm_prefetch((const char *)scales, _MM_HINT_T0);
	return codes + (ahead < at->left ? 0 : at->jump_codes);
}

/* Asks for the line where a page begins in these 32 columns: the processor finds out early where it lies. No other line
 * of the page may be the first one (docs/decisions/0101). */
PANEL_INLINE void panel_page(uint32_t format, uintptr_t codes)
{
	const uintptr_t to = -codes % PANEL_PAGE;

	if (to < panel_code_bytes(format, MOE_BLOCK_COLS))
		_mm_prefetch((const char *)(codes + to), _MM_HINT_T0);
}

/* Asks for the quarter of those codes that belongs to vectors v and v + 1: in step with reading, a burst of requests
 * holds up what is read. */
PANEL_INLINE void panel_ask(uint32_t format, uintptr_t ahead, int v)
{
	const int bits = (int)moe_formats[format].bits;

#pragma GCC unroll 2
	for (int line = v / 2 * bits / 4; line < (v / 2 + 1) * bits / 4; line++)
		_mm_prefetch((const char *)(ahead + (uintptr_t)line * 64), _MM_HINT_T0);
}

/* What is asked for until block `end` of 32 columns, where one of them is behind a jump: bytes from the codes read. */
struct tile_asks {
	size_t codes[PANEL_SIDE], page, end;
};

PANEL_INLINE void tile_asks(uint32_t format, size_t streams, const struct panel_at *at, size_t c, size_t cols,
			    struct tile_place *here, struct tile_asks *ret)
{
	const bool near = c + at->ahead < at->left, far = c + at->far < at->left;
	size_t end = cols;

	if (near && at->left - at->ahead < end)
		end = at->left - at->ahead;
	if (streams == 1 && far && at->left - at->far < end)
		end = at->left - at->far;
	ret->end = end / MOE_BLOCK_COLS;
	ret->page = panel_code_bytes(format, at->far) + (far ? 0 : at->jump_codes);
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++) {
		ret->codes[i] = panel_code_bytes(format, at->ahead) + (near ? 0 : at[i].jump_codes);
		here[i].scales_ahead = (uintptr_t)at[i].scales + panel_scale_bytes(format, c + at->ahead) +
				       (near ? 0 : at[i].jump_scales);
	}
}

/* Of the columns at `here`. */
PANEL_INLINE void tile_ask(uint32_t format, size_t streams, const struct tile_asks *asks, struct tile_place *here)
{
	if (streams == 1)
		panel_page(format, (uintptr_t)here->codes + asks->page);
#pragma GCC unroll 4
	for (size_t i = 0; i < streams; i++) {
		here[i].ahead = (uintptr_t)here[i].codes + asks->codes[i];
		_mm_prefetch((const char *)here[i].scales_ahead, _MM_HINT_T0);
		here[i].scales_ahead += panel_scale_bytes(format, MOE_BLOCK_COLS);
	}
}

#endif
