/* SPDX-License-Identifier: MIT */
/*
 * panel - gate_up and matmul of all panel formats, written in the names of the level that includes this file.
 *
 * Few tokens: panel by panel or in pairs, codes used as they pass. Many: two panels at a time, decoded a column block
 * at a time and used for up to PANEL_TOKENS tokens while they are in the first-level cache.
 */
#ifndef KERNELS_VEC_PANEL_H
#define KERNELS_VEC_PANEL_H

#include "kernels/levels.h"
#include "kernels/vec/activation.h"
#include "kernels/vec/panel_pack.h"
#include "kernels/vec/panel_tile.h"

/* The functions for a format, by panels - 1 and tokens. */
struct panel_kind {
	panel_few_function *few[2][PANEL_FEW + 1]; /* of two panels where these are faster */
	panel_decode_function *decode;
	panel_many_function *const (*many)[PANEL_TILE_TOKENS + 1]; /* up to PANEL_TILE_PANELS */
};

/* The panels whose totals are computed together: gate and up, or two neighbours. */
struct panel_group {
	size_t panels; /* 1 or 2 */
	struct panel_at at[2];
	size_t jump_codes,
		jump_scales; /* to the panel that follows, where the two are neighbours: over the other one */
};

/* The one at row `first`. */
static inline void group_add(struct panel_group *g, const struct kernel_matrix *m, size_t first)
{
	const struct kernel_matrix from = kernel_rows(m, first);

	g->at[g->panels].codes = from.codes;
	g->at[g->panels++].scales = from.scales;
}

/* Its panels at a column block. */
static inline void group_at(const struct panel_group *g, uint32_t format, size_t cols, size_t c, struct panel_at at[2])
{
	for (size_t p = 0; p < g->panels; p++)
		at[p] = (struct panel_at){g->at[p].codes + moe_band_bytes(format, MOE_PLANE_CODES, c),
					  g->at[p].scales + moe_band_bytes(format, MOE_PLANE_SCALES, c), cols - c,
					  g->jump_codes, g->jump_scales};
}

static inline struct panel_x panel_x(uint32_t format, const void *const *rows, size_t cols, size_t c)
{
	const size_t unit = panel_unit(format), at = c / unit * sizeof(float);

	return (struct panel_x){rows, c, KERNEL_I8_SCALES(cols) + at, KERNEL_I8_SUMS(cols, unit) + at};
}

static inline size_t panel_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

static void group_few(const struct panel_kind *kind, uint32_t format, const struct panel_group *g, size_t cols,
		      size_t tokens, const void *const *rows, panel_totals *totals)
{
	const size_t together = g->panels == 2 && kind->few[1][tokens] ? 2 : 1;

	for (size_t p = 0; p < g->panels; p += together)
		for (size_t c = 0; c < cols; c += PANEL_COLS) {
			const struct panel_x x = panel_x(format, rows, cols, c);
			struct panel_at at[2];

			group_at(g, format, cols, c, at);
			kind->few[together - 1][tokens](at + p, panel_min(cols - c, PANEL_COLS), &x, 0, totals + p);
		}
}

/* Tiles of nearly equal width: a narrow one waits for its own sums. */
static void group_tiles(const struct panel_kind *kind, size_t panels, const struct panel_bytes *bytes, size_t cols,
			const struct panel_x *x, size_t tokens, panel_totals *totals)
{
	for (size_t t = 0; t < tokens;) {
		const size_t tiles = (tokens - t + PANEL_TILE_TOKENS - 1) / PANEL_TILE_TOKENS;
		const size_t n = tiles > 2 ? PANEL_TILE_TOKENS : (tokens - t + tiles - 1) / tiles;

		for (size_t p = 0; p < panels; p += PANEL_TILE_PANELS)
			kind->many[panel_min(panels - p, PANEL_TILE_PANELS) - 1][n](bytes + p, cols, x, t, totals + p);
		t += n;
	}
}

static void group_many(const struct panel_kind *kind, uint32_t format, const struct panel_group *g, size_t cols,
		       size_t tokens, const void *const *rows, panel_totals *totals)
{
	struct panel_bytes bytes[2];

	for (size_t c = 0; c < cols; c += PANEL_COLS) {
		const size_t width = panel_min(cols - c, PANEL_COLS);
		const struct panel_x x = panel_x(format, rows, cols, c);

		struct panel_at at[2];

		group_at(g, format, cols, c, at);
		for (size_t p = 0; p < g->panels; p++)
			kind->decode(&at[p], width, &bytes[p]);
		group_tiles(kind, g->panels, bytes, width, &x, tokens, totals);
	}
}

static void group_run(const struct panel_kind *kind, uint32_t format, const struct panel_group *g, size_t cols,
		      size_t tokens, const void *const *rows, panel_totals *totals)
{
	for (size_t p = 0; p < g->panels; p++)
		memset(totals[p], 0, tokens * sizeof(totals[p][0]));
	if (tokens <= PANEL_FEW)
		group_few(kind, format, g, cols, tokens, rows, totals);
	else
		group_many(kind, format, g, cols, tokens, rows, totals);
}

/* The totals of `rows` rows (at most a vector's) with their bias. */
static inline vec panel_biased(const float *totals, const float *bias, size_t rows)
{
	if (!bias)
		return vec_load(totals);
	return vec_add(vec_load(totals), rows < VEC_FLOATS ? vec_load_n(bias, rows) : vec_load(bias));
}

static inline void panel_put(float *to, vec v, size_t rows)
{
	if (rows < VEC_FLOATS)
		vec_store_n(to, v, rows);
	else
		vec_store(to, v);
}

static inline const float *panel_bias(const float *bias, size_t row)
{
	return bias ? bias + row : NULL;
}

static void panel_matmul_some(const struct panel_kind *kind, const struct kernel_matrix *w, size_t rows, size_t cols,
			      size_t tokens, const void *const *x, float *const *y)
{
	const bool together = tokens > PANEL_FEW || kind->few[1][tokens];
	panel_totals totals[2];

	for (size_t first = 0; first < rows; first += 2 * MOE_PANEL_ROWS) {
		struct panel_group g = {0};

		group_add(&g, w, first);
		if (rows - first > MOE_PANEL_ROWS)
			group_add(&g, w, first + MOE_PANEL_ROWS);
		if (together) {
			g.jump_codes = w->pitch;
			g.jump_scales = w->scale_pitch;
		}
		group_run(kind, w->format, &g, cols, tokens, x, totals);
		for (size_t t = 0; t < tokens; t++)
			for (size_t r = 0; r < 2 * MOE_PANEL_ROWS && first + r < rows; r += VEC_FLOATS) {
				const float *from = totals[r / MOE_PANEL_ROWS][t] + r % MOE_PANEL_ROWS;
				const size_t left = rows - first - r;

				panel_put(y[t] + first + r, panel_biased(from, panel_bias(w->bias, first + r), left),
					  left);
			}
	}
}

static void panel_gate_up_some(const struct panel_kind *kind, const struct kernel_matrix *gate,
			       const struct kernel_matrix *up, size_t rows, size_t cols, const struct kernel_act *act,
			       size_t tokens, const void *const *x, float *const *h)
{
	panel_totals totals[2];

	for (size_t first = 0; first < rows; first += MOE_PANEL_ROWS) {
		struct panel_group g = {0};

		group_add(&g, gate, first);
		group_add(&g, up, first);
		group_run(kind, gate->format, &g, cols, tokens, x, totals);
		for (size_t t = 0; t < tokens; t++)
			for (size_t r = 0; r < MOE_PANEL_ROWS && first + r < rows; r += VEC_FLOATS) {
				const size_t left = rows - first - r;
				const vec a = panel_biased(totals[0][t] + r, panel_bias(gate->bias, first + r), left);
				const vec b = panel_biased(totals[1][t] + r, panel_bias(up->bias, first + r), left);

				panel_put(h[t] + first + r, vec_gated(act, a, b), left);
			}
	}
}

/* -- tiles of a format -------------------------------------------------------------------------------------------- */

#define PANEL_FEW_TILE(name, format, panels, tokens)                                                                   \
	static void name##_few_##panels##_##tokens(const struct panel_at *at, size_t cols, const struct panel_x *x,    \
						   size_t first, panel_totals *totals)                                 \
	{                                                                                                              \
		tile_run(format, true, panels, tokens, at, NULL, cols, x, first, totals);                              \
	}

#define PANEL_MANY_TILE(name, format, panels, tokens)                                                                  \
	static void name##_many_##panels##_##tokens(const struct panel_bytes *bytes, size_t cols,                      \
						    const struct panel_x *x, size_t first, panel_totals *totals)       \
	{                                                                                                              \
		tile_run(format, false, panels, tokens, NULL, bytes, cols, x, first, totals);                          \
	}

/* Few tokens, and the decoder, of a format. PANEL_PAIRS: the level's tiles of two panels, PANEL_PAIRED: their names. */
#define PANEL_FORMAT(name, format)                                                                                     \
	PANEL_FEW_TILE(name, format, 1, 1)                                                                             \
	PANEL_FEW_TILE(name, format, 1, 2)                                                                             \
	PANEL_FEW_TILE(name, format, 1, 3)                                                                             \
	PANEL_FEW_TILE(name, format, 1, 4)                                                                             \
	PANEL_PAIRS(name, format)                                                                                      \
	static void name##_decode(const struct panel_at *at, size_t cols, struct panel_bytes *bytes)                   \
	{                                                                                                              \
		panel_decode(format, at, cols, bytes);                                                                 \
	}

#define PANEL_KIND(name, many_tiles)                                                                                   \
	{                                                                                                              \
		.few = {{NULL, name##_few_1_1, name##_few_1_2, name##_few_1_3, name##_few_1_4}, PANEL_PAIRED(name)},   \
		.decode = name##_decode, .many = many_tiles                                                            \
	}

#endif
