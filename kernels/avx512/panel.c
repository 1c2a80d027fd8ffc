/* SPDX-License-Identifier: MIT */
/* panel - the formats in panels, with the 8-bit dot product of AVX-512 VNNI, compiled with and without VBMI. */
#include "kernels/avx512/panel_tiles.h"

PANEL_FUNCTIONS(streamed, PANEL_STREAMED, 0, true)

#ifdef __AVX512VBMI__
PANEL_FUNCTIONS(panel, PANEL_AHEAD, 0, false)
PANEL_FUNCTIONS(paged, PANEL_AHEAD, PANEL_FAR, false)
PANEL_FUNCTIONS(unasked, 0, 0, true)

const struct kernel_ops ops_panel_avx512 = PANEL_OPS(panel, 32);
const struct kernel_ops ops_panel_fine_avx512 = PANEL_OPS(panel, 16);
const struct kernel_ops ops_panel_avx512_paged = PANEL_OPS(paged, 32);
const struct kernel_ops ops_panel_fine_avx512_paged = PANEL_OPS(paged, 16);
const struct kernel_ops ops_panel_avx512_streamed = PANEL_OPS(streamed, 32);
const struct kernel_ops ops_panel_fine_avx512_streamed = PANEL_OPS(streamed, 16);
const struct kernel_ops ops_panel_avx512_unasked = PANEL_OPS(unasked, 32);
#else
const struct kernel_ops ops_panel_avx512_novbmi = PANEL_OPS(streamed, 32);
const struct kernel_ops ops_panel_fine_avx512_novbmi = PANEL_OPS(streamed, 16);
#endif
