/* SPDX-License-Identifier: MIT */
/* panel_tiles - the tiles of all panel formats, with the 8-bit dot product of AVX-512 VNNI. */
#ifndef KERNELS_AVX512_PANEL_TILES_H
#define KERNELS_AVX512_PANEL_TILES_H

#include "kernels/avx512/panel.h"
#include "kernels/vec/panel.h"

#define TILES(name, format, panels)                                                                                    \
	PANEL_MANY_TILE(name, format, panels, 1)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 2)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 3)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 4)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 5)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 6)

#define LIST(name, panels)                                                                                             \
	{                                                                                                              \
		NULL, name##_many_##panels##_1, name##_many_##panels##_2, name##_many_##panels##_3,                    \
			name##_many_##panels##_4, name##_many_##panels##_5, name##_many_##panels##_6                   \
	}

#define PANEL_MANY(name, format)                                                                                       \
	TILES(name, format, 1)                                                                                         \
	TILES(name, format, 2)                                                                                         \
	static panel_many_function *const name[2][7] = {LIST(name, 1), LIST(name, 2)};

#include "kernels/vec/panel_formats.h"

#endif
