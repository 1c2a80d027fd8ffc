/* SPDX-License-Identifier: MIT */
/* panel - the formats in panels, compiled with and without AVX-VNNI. */
#include "kernels/avx2/panel.h"
#include "kernels/vec/panel.h"

#define PANEL_MANY(name, format)                                                                                       \
	PANEL_MANY_TILE(name, format, 1, 1)                                                                            \
	PANEL_MANY_TILE(name, format, 1, 2)                                                                            \
	static panel_many_function *const name[1][3] = {{NULL, name##_many_1_1, name##_many_1_2}};

#include "kernels/vec/panel_formats.h"

PANEL_FUNCTIONS(panel, PANEL_AHEAD, 0, false)

#ifdef __AVXVNNI__
const struct kernel_ops ops_panel_avx2_vnni = PANEL_OPS(panel, 32);
const struct kernel_ops ops_panel_fine_avx2_vnni = PANEL_OPS(panel, 16);
#else
const struct kernel_ops ops_panel_avx2 = PANEL_OPS(panel, 32);
const struct kernel_ops ops_panel_fine_avx2 = PANEL_OPS(panel, 16);

PANEL_FUNCTIONS(unasked, 0, 0, true)

const struct kernel_ops ops_panel_avx2_unasked = PANEL_OPS(unasked, 32);
#endif
