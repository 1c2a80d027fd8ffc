/* SPDX-License-Identifier: MIT */
/* panel - the formats in panels, with the 8-bit dot product of AVX-512 VNNI, compiled with and without VBMI. */
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

PANEL_FUNCTIONS(streamed, PANEL_STREAMED, 0, true)

#ifdef __AVX512VBMI__
PANEL_FUNCTIONS(panel, PANEL_AHEAD, 0, false)
PANEL_FUNCTIONS(paged, PANEL_AHEAD, PANEL_FAR, false)
PANEL_FUNCTIONS(unasked, 0, 0, true)

const struct kernel_ops ops_panel_avx512 = PANEL_OPS(panel, 32);
const struct kernel_ops ops_panel_avx512_paged = PANEL_OPS(paged, 32);
const struct kernel_ops ops_panel_fine_avx512_paged = PANEL_OPS(paged, 16);
const struct kernel_ops ops_panel_avx512_streamed = PANEL_OPS(streamed, 32);
const struct kernel_ops ops_panel_fine_avx512_streamed = PANEL_OPS(streamed, 16);
const struct kernel_ops ops_panel_avx512_unasked = PANEL_OPS(unasked, 32);
const struct kernel_ops ops_panel_fine_avx512_unasked = PANEL_OPS(unasked, 16);
#else
const struct kernel_ops ops_panel_avx512_novbmi = PANEL_OPS(streamed, 32);
const struct kernel_ops ops_panel_fine_avx512_novbmi = PANEL_OPS(streamed, 16);
#endif
