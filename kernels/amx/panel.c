/* SPDX-License-Identifier: MIT */
/*
 * panel - the formats in panels with fewer tokens than a group (panel_groups.c): decoded as for AVX-512, multiplied in
 * tiles from six tokens on.
 *
 * The integer sums are exact and what is done with them is kernels/vec/panel_tile.h's, so results have the same bits
 * with few tokens, whose tiles would be nearly empty, and with many.
 */
#include "kernels/amx/tiles.h"
#include "kernels/avx512/panel.h"

#undef PANEL_TILE_TOKENS
#define PANEL_TILE_TOKENS TILE_ROWS
#define PANEL_TILE_ASKS 0
#define FEW_TOKENS 5 /* up to which they are computed without tiles */
#define PANEL_PASSES 1

#include "kernels/vec/panel.h"

/* Sums over two units, so that those of one are used while the other's are on their way: by panel and token. */
typedef int32_t unit_sums[2][TILE_ROWS][MOE_PANEL_ROWS];

/* The sums over the unit at column c of the block: tiles 0 and 1, or for every other unit 2 and 3. */
static inline void unit_dots(size_t panels, const struct panel_bytes *bytes, const struct tile_rows *x, size_t c,
			     int other, unit_sums *sums)
{
	const size_t at = c / 4 * TILE_BYTES;

	TILE_LOAD(4, x->base + c, x->stride);
	TILE_LOAD(6, bytes[0].codes + at, TILE_BYTES);
	if (panels > 1)
		TILE_LOAD(7, bytes[1].codes + at, TILE_BYTES);
	if (other) {
		TILE_ZERO(2);
		TILE_ZERO(3);
		TILE_S8_U8(2, 4, 6);
		if (panels > 1)
			TILE_S8_U8(3, 4, 7);
		TILE_STORE(2, sums[1][0], TILE_BYTES);
		TILE_STORE(3, sums[1][1], TILE_BYTES);
	} else {
		TILE_ZERO(0);
		TILE_ZERO(1);
		TILE_S8_U8(0, 4, 6);
		if (panels > 1)
			TILE_S8_U8(1, 4, 7);
		TILE_STORE(0, sums[0][0], TILE_BYTES);
		TILE_STORE(1, sums[0][1], TILE_BYTES);
	}
}

/* totals += what unit u of a panel contributes. */
PANEL_INLINE void unit_add(uint32_t format, size_t tokens, const struct panel_bytes *bytes, size_t u,
			   const struct panel_extra *extra, const int32_t (*sums)[MOE_PANEL_ROWS],
			   float (*totals)[MOE_PANEL_ROWS])
{
	const vec scale = vec_load(bytes->scales[u]);
	const ivec zero = moe_formats[format].zero == MOE_ZERO_U8 ? ivec_load(bytes->more[u]) : ivec_set(0);

	for (size_t t = 0; t < tokens; t++) {
		const ivec begin = tile_begin(format, zero, &extra[t].more[u]);
		const ivec dot = _mm512_add_epi32(begin, ivec_load(sums[t]));
		vec total = vec_load(totals[t]);

		total = vec_fma(ivec_float(dot), vec_mul(scale, vec_set(extra[t].scales[u])), total);
		if (panel_has_minimum(format))
			total = vec_fma(vec_load(bytes->more[u]), vec_set(extra[t].more[u]), total);
		vec_store(totals[t], total);
	}
}

/* 16 tokens' codes of a column block; the tiles are configured for 16. */
static inline struct tile_rows panel_codes(const struct panel_x *x, size_t first, size_t tokens, size_t cols,
					   uint8_t (*copy)[PANEL_COLS])
{
	struct tile_rows rows;

	if (tokens == TILE_ROWS && rows_even(x->rows + first, tokens, &rows)) {
		rows.base += x->codes;
		return rows;
	}
	rows_copy(x->rows + first, tokens, x->codes, cols, copy[0], PANEL_COLS);
	return (struct tile_rows){copy[0], PANEL_COLS};
}

PANEL_INLINE void panel_tiles(uint32_t format, size_t panels, size_t tokens, const struct panel_bytes *bytes,
			      size_t cols, const struct panel_x *x, size_t first, panel_totals *totals)
{
	const size_t unit = panel_unit(format), units = cols / unit;
	_Alignas(64) uint8_t copy[TILE_ROWS][PANEL_COLS];
	const struct tile_rows rows = panel_codes(x, first, tokens, cols, copy);
	struct panel_extra extra[TILE_ROWS];
	_Alignas(64) unit_sums sums[2];

	for (size_t t = 0; t < tokens; t++) {
		const char *row = x->rows[first + t];

		tile_extra(format, units, row + x->scales, row + x->sums, extra[t].scales, extra[t].more);
	}
	for (size_t u = 0; u <= units; u++) {
		if (u < units)
			unit_dots(panels, bytes, &rows, u * unit, u % 2, sums);
		for (size_t p = 0; p < panels && u > 0; p++)
			unit_add(format, tokens, &bytes[p], u - 1, extra, sums[(u - 1) % 2][p], totals[p] + first);
	}
}

#define WIDE_TILE(name, panels, tokens)                                                                                \
	static void name##_many_##panels##_##tokens(const struct panel_bytes *bytes, size_t cols,                      \
						    const struct panel_x *x, size_t first, panel_totals *totals)       \
	{                                                                                                              \
		name##_tiles(panels, tokens, bytes, cols, x, first, totals);                                           \
	}

#define TILES(name, format, panels)                                                                                    \
	PANEL_MANY_TILE(name, format, panels, 1)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 2)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 3)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 4)                                                                       \
	PANEL_MANY_TILE(name, format, panels, 5)                                                                       \
	WIDE_TILE(name, panels, 6)                                                                                     \
	WIDE_TILE(name, panels, 7)                                                                                     \
	WIDE_TILE(name, panels, 8)                                                                                     \
	WIDE_TILE(name, panels, 9)                                                                                     \
	WIDE_TILE(name, panels, 10)                                                                                    \
	WIDE_TILE(name, panels, 11)                                                                                    \
	WIDE_TILE(name, panels, 12)                                                                                    \
	WIDE_TILE(name, panels, 13)                                                                                    \
	WIDE_TILE(name, panels, 14)                                                                                    \
	WIDE_TILE(name, panels, 15)                                                                                    \
	WIDE_TILE(name, panels, 16)

#define LIST(name, panels)                                                                                             \
	{                                                                                                              \
		NULL, name##_many_##panels##_1, name##_many_##panels##_2, name##_many_##panels##_3,                    \
			name##_many_##panels##_4, name##_many_##panels##_5, name##_many_##panels##_6,                  \
			name##_many_##panels##_7, name##_many_##panels##_8, name##_many_##panels##_9,                  \
			name##_many_##panels##_10, name##_many_##panels##_11, name##_many_##panels##_12,               \
			name##_many_##panels##_13, name##_many_##panels##_14, name##_many_##panels##_15,               \
			name##_many_##panels##_16                                                                      \
	}

#define PANEL_MANY(name, format)                                                                                       \
	static __attribute__((noinline)) void name##_tiles(                                                            \
		size_t panels, size_t tokens, const struct panel_bytes *bytes, size_t cols, const struct panel_x *x,   \
		size_t first, panel_totals *totals)                                                                    \
	{                                                                                                              \
		panel_tiles(format, panels, tokens, bytes, cols, x, first, totals);                                    \
	}                                                                                                              \
	TILES(name, format, 1)                                                                                         \
	TILES(name, format, 2)                                                                                         \
	static panel_many_function *const name[2][TILE_ROWS + 1] = {LIST(name, 1), LIST(name, 2)};

#include "kernels/vec/panel_formats.h"

PANEL_FUNCTIONS(panel, PANEL_STREAMED, 0, true)

static void tiles_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens, const void *const *x,
			 float *const *y)
{
	if (tokens > FEW_TOKENS)
		tiles_configure(TILE_ROWS, panel_unit(w->format));
	panel_matmul(w, rows, cols, tokens, x, y);
	if (tokens > FEW_TOKENS)
		tiles_release();
}

static void tiles_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up, size_t rows, size_t cols,
			  const struct kernel_act *act, size_t tokens, const void *const *x, float *const *h)
{
	if (tokens > FEW_TOKENS)
		tiles_configure(TILE_ROWS, panel_unit(gate->format));
	panel_gate_up(gate, up, rows, cols, act, tokens, x, h);
	if (tokens > FEW_TOKENS)
		tiles_release();
}

const struct kernel_ops ops_panel_amx = {.pack = PACK_I8_BLOCK,
					 .block = 32,
					 .pack_row = panel_pack_row,
					 .gate_up = tiles_gate_up,
					 .matmul = tiles_matmul,
					 .groups = &groups_panel_amx};
const struct kernel_ops ops_panel_fine_amx = {.pack = PACK_I8_BLOCK,
					      .block = 16,
					      .pack_row = panel_pack_row,
					      .gate_up = tiles_gate_up,
					      .matmul = tiles_matmul,
					      .groups = &groups_panel_fine_amx};
