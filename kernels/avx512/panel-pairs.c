/* SPDX-License-Identifier: MIT */
/* panel-pairs - the formats in panels whose codes leave room for products of sums, for processors that gain by them. */
#define PANEL_PAIRS 1
#include "kernels/avx512/panel_tiles.h"

PANEL_FUNCTIONS(panel, PANEL_AHEAD, 0, false)
PANEL_FUNCTIONS(unasked, 0, 0, true)

PANEL_PAIRS_OPS(ops_pairs_4_avx512_unasked, unasked, PANEL_PAIRS_4)
PANEL_PAIRS_OPS(ops_pairs_5_avx512, panel, PANEL_PAIRS_5)
PANEL_PAIRS_OPS(ops_pairs_e2m1_avx512, panel, PANEL_PAIRS_E2M1)
