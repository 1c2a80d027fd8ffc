/* SPDX-License-Identifier: MIT */
/*
 * Experts of each published packing become records: every bit where moe_format.h says, whatever the order and the
 * chunks in which the bytes arrive, and nothing beyond the record. The expected record is put together code by code
 * from a plain reading of the folder's bytes.
 */
#include <errno.h>
#include <fcntl.h>

#include "base/util.h"
#include "model/expert.h"
#include "tests/plain-experts.h"
#include "tests/published-experts.h"

#define GUARD 4096u
#define CHUNKS_MAX 4096

/* -- the expected record ------------------------------------------------------------------------------------------ */

static void put_code(uint8_t *record, const struct moe_part *p, uint64_t row, uint64_t col, uint32_t code)
{
	const struct moe_format_spec *f = &moe_formats[p->format];
	uint8_t *to = record + p->plane[MOE_PLANE_CODES];

	if (f->panel) {
		const uint64_t vector = col % 32 / 4, byte = row % 16 * 4 + col % 4;

		to += row / 16 * ((uint64_t)p->cols * 8) + col / 32 * 256 + vector / 2 * 64 + byte;
		*to |= (uint8_t)(code << (vector % 2 * 4));
		return;
	}
	memcpy(to + (row * p->cols + col) * (f->bits / 8), &code, f->bits / 8);
}

static void put_group(uint8_t *record, const struct moe_part *p, const struct matrix_at *m, uint64_t row,
		      uint64_t group)
{
	const struct moe_format_spec *f = &moe_formats[p->format];
	uint8_t *to = record + p->plane[MOE_PLANE_SCALES] + (row / 16 * (p->cols / f->block) + group) * f->block_bytes;
	const uint32_t scale = source_group_scale(m, row, group);

	if (f->scale == MOE_SCALE_E8M0)
		to[row % 16] = (uint8_t)scale;
	else
		memcpy(to + row % 16 * 2, &scale, 2);
	if (f->zero == MOE_ZERO_U8)
		to[32 + row % 16] = (uint8_t)source_zero(m, row, group);
}

static void expect_part(uint8_t *record, const struct moe_part *p, const struct matrix_at *m)
{
	const uint64_t tiles = (p->cols + 127) / 128;

	for (uint64_t row = 0; row < p->rows; row++) {
		for (uint64_t col = 0; col < p->cols; col++)
			put_code(record, p, row, col, source_code(m, row, col));
		for (uint64_t group = 0; m->how->group && group < p->cols / m->how->group; group++)
			put_group(record, p, m, row, group);
		for (uint64_t tile = 0; p->format == MOE_FORMAT_FP8_BLOCK && tile < tiles; tile++)
			((float *)(record + p->plane[MOE_PLANE_SCALES]))[row / 16 * tiles + tile] = source_scale(
				m, row, tile * 128);
		if (moe_formats[p->format].scale == MOE_SCALE_F32_ROW)
			((float *)(record + p->plane[MOE_PLANE_ROW_SCALES]))[row] = source_scale(m, row, 0);
		if (p->plane[MOE_PLANE_BIAS])
			((float *)(record + p->plane[MOE_PLANE_BIAS]))[row] = source_float("BF16", part_data(m, "bias"),
											   fused_row(m, row));
	}
}

static uint8_t *expected_record(struct folder *f, const struct publication *p, const struct moe_layout *layout,
				uint32_t layer, uint32_t expert)
{
	uint8_t *record = calloc(1, layout->record_bytes);

	for (uint32_t part = 0; part < MOE_PARTS; part++) {
		const struct moe_part *at = &layout->part[part];
		const struct matrix_at m = {f, publication_of_part(p, part), layer, expert, part, at->rows, at->cols};

		expect_part(record, at, &m);
	}
	return record;
}

/* -- the record as it is made ------------------------------------------------------------------------------------- */

struct guarded {
	uint8_t *room, *record;
	uint64_t bytes;
};

static struct guarded guarded_new(uint64_t bytes)
{
	struct guarded g = {.bytes = bytes};

	g.room = aligned_alloc(64, bytes + 2 * GUARD);
	g.record = g.room + GUARD;
	memset(g.room, 0xa5, bytes + 2 * GUARD);
	memset(g.record, 0, bytes);
	return g;
}

static bool guarded_whole(const struct guarded *g)
{
	for (uint64_t i = 0; i < GUARD; i++)
		if (g->room[i] != 0xa5 || g->record[g->bytes + i] != 0xa5)
			return false;
	return true;
}

struct chunk {
	const struct expert_source *source;
	uint64_t first, n;
};

/* Cuts all sources at random places and shuffles what comes out. `whole`: neither. */
static uint32_t cut(struct chunk *ret, const struct expert_source *sources, uint32_t n, unsigned long long *seed,
		    bool whole)
{
	uint32_t chunks = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t granules = sources[i].repack.bytes / sources[i].repack.granule_bytes;

		for (uint64_t at = 0, step; at < granules; at += step) {
			step = whole ? granules : 1 + tap_random(seed) % (granules / 7 + 3);
			step = MIN(step, granules - at);
			ret[chunks++] = (struct chunk){&sources[i], at, step};
			if (chunks == CHUNKS_MAX)
				abort();
		}
	}
	for (uint32_t i = chunks; !whole && i > 1; i--) {
		const uint32_t j = (uint32_t)(tap_random(seed) % i);
		const struct chunk c = ret[i - 1];

		ret[i - 1] = ret[j];
		ret[j] = c;
	}
	return chunks;
}

/* Reads from the shard as a loader would: whole granules, into a buffer that is aligned to nothing. */
static void make_record(const struct model *m, const struct moe_layout *layout, uint32_t share, uint32_t expert,
			struct guarded *g, unsigned long long *seed, bool whole)
{
	static struct chunk chunks[CHUNKS_MAX];
	struct expert_source sources[EXPERT_SOURCES_MAX];
	const uint32_t n = expert_sources(m, 1, expert, sources);
	const struct record_share to = {.layout = layout, .share = share, .memory = g->record};
	const uint32_t n_chunks = cut(chunks, sources, n, seed, whole);
	const int fd = open(m->shards[0].path, O_RDONLY);

	for (uint32_t i = 0; i < n_chunks; i++) {
		const struct repack *r = &chunks[i].source->repack;
		const uint64_t bytes = chunks[i].n * r->granule_bytes, off = tap_random(seed) % 64;
		uint8_t *buffer = malloc(bytes + off);

		if (pread(fd, buffer + off, bytes,
			  (off_t)(chunks[i].source->offset + chunks[i].first * r->granule_bytes)) != (ssize_t)bytes)
			abort();
		repack(r, &to, chunks[i].first, chunks[i].n, buffer + off);
		free(buffer);
	}
	close(fd);
}

/* The record `expected` in 2 to 5 shares: each is made of the sources, and has its rows and nothing else. */
static bool shares_right(const struct model *m, const struct moe_layout *layout, uint32_t expert, uint8_t *expected,
			 unsigned long long *seed)
{
	bool good = true;

	for (uint32_t shares = 2; shares <= MIN(5u, layout_shares_max(layout)); shares++) {
		struct moe_layout spread, again, plain;

		layout_spread(&spread, layout, shares);
		layout_spread(&again, &spread, 1);
		plain_spread(&plain, layout, shares);
		good &= memcmp(&spread, &plain, sizeof plain) == 0 && memcmp(&again, layout, sizeof again) == 0;
		for (uint32_t s = 0; s < shares && good; s++) {
			struct guarded g = guarded_new(spread.record_bytes);
			uint8_t *mine = calloc(1, spread.record_bytes);

			make_record(m, &spread, s, expert, &g, seed, false);
			plain_move_share(layout, expected, &plain, s, mine, false);
			good &= memcmp(g.record, mine, spread.record_bytes) == 0 && guarded_whole(&g);
			free(mine);
			free(g.room);
		}
		if (!good)
			diag("%u shares of expert %u", shares, expert);
	}
	return good;
}

static bool planes_in_order(const struct moe_layout *l)
{
	uint64_t end = 0;

	for (int part = 0; part < MOE_PARTS; part++)
		for (int plane = 0; plane < MOE_PLANES; plane++) {
			const struct moe_part *p = &l->part[part];
			const uint32_t band = moe_band_rows(p->format, (enum moe_plane)plane);

			if (p->plane[plane] == 0 && part + plane > 0)
				continue;
			if (p->plane[plane] != ALIGN_UP(end, (uint64_t)MOE_PART_ALIGN))
				return false;
			end = p->plane[plane] +
			      DIV_UP(p->rows, band) * moe_band_bytes(p->format, (enum moe_plane)plane, p->cols);
		}
	return l->record_bytes == ALIGN_UP(end, (uint64_t)MOE_RECORD_ALIGN);
}

static void test_publication(const struct publication *p, uint32_t hidden, uint32_t inter, unsigned long long *seed)
{
	static struct folder folder;
	struct moe_error err = {0};
	struct moe_layout layout;
	struct model *m = NULL;
	bool same = true, guarded = true, orders = true, shares = true;

	folder.seed = tap_random(seed);
	publish(&folder, p, hidden, inter);
	if (!ok(model_open(&m, folder.path, &err) == 0, "%s, %u x %u opens %s", p->name, inter, hidden, err.text)) {
		folder_remove(&folder);
		return;
	}
	expert_layout(m, 1, &layout);
	ok(layout.part[0].format == p->format && layout.part[1].format == p->format &&
		   layout.part[2].format == publication_of_part(p, MOE_PART_DOWN)->format && planes_in_order(&layout),
	   "%s: its layout", p->name);
	for (uint32_t expert = 0; expert < EXPERTS; expert++) {
		struct guarded one = guarded_new(layout.record_bytes), other = guarded_new(layout.record_bytes);
		uint8_t *expected = expected_record(&folder, p, &layout, 1, expert);

		make_record(m, &layout, 0, expert, &one, seed, true);
		make_record(m, &layout, 0, expert, &other, seed, false);
		shares &= shares_right(m, &layout, expert, expected, seed);
		same &= memcmp(one.record, expected, layout.record_bytes) == 0;
		orders &= memcmp(other.record, expected, layout.record_bytes) == 0;
		guarded &= guarded_whole(&one) && guarded_whole(&other);
		free(expected);
		free(one.room);
		free(other.room);
	}
	ok(same, "%s: each bit where the format says", p->name);
	ok(orders, "%s: in any order and any chunks", p->name);
	ok(guarded, "%s: nothing beyond the record", p->name);
	ok(shares, "%s: each share has its rows, and nothing else, in any order", p->name);
	model_free(m);
	folder_remove(&folder);
}

/* -- layouts ------------------------------------------------------------------------------------------------------ */

static int place(uint32_t gate, uint32_t up, uint32_t down, uint32_t hidden, uint32_t inter, struct moe_layout *ret)
{
	return layout_place(ret, (uint32_t[]){gate, up, down}, (bool[]){true, false, true}, hidden, inter);
}

static void test_layouts(void)
{
	bool good = true;
	struct moe_layout l = {.record_bytes = 7};

	for (uint32_t format = 1; format < MOE_FORMAT_COUNT; format++) {
		good &= place(format, format, MOE_FORMAT_BF16, 512, 768, &l) == 0 && planes_in_order(&l) &&
			l.part[0].plane[MOE_PLANE_BIAS] && !l.part[1].plane[MOE_PLANE_BIAS];
		good &= place(MOE_FORMAT_F16, MOE_FORMAT_F16, format, 512, 768, &l) == 0 && planes_in_order(&l);
		good &= place(format, format, format, 1u << 20, 1u << 20, &l) == 0 && planes_in_order(&l);
	}
	ok(good, "each format, with and without a bias");
	l.record_bytes = 7;
	ok(place(MOE_FORMAT_BF16, MOE_FORMAT_F16, MOE_FORMAT_F16, 64, 64, &l) == -EINVAL &&
		   place(0, 0, 1, 64, 64, &l) == -EINVAL && place(26, 26, 1, 64, 64, &l) == -EINVAL &&
		   place(1, 1, 1, 0, 64, &l) == -EINVAL &&
		   place(MOE_FORMAT_INT4_G64_F16, MOE_FORMAT_INT4_G64_F16, 1, 96, 64, &l) == -EINVAL &&
		   place(1, 1, MOE_FORMAT_Q4_K, 256, 128, &l) == -EINVAL && l.record_bytes == 7,
	   "what no layout holds is refused, and the output stays");
}

int main(int argc, char **argv)
{
	unsigned long long seed = tap_seed();

	for (size_t i = 0; i < ARRAY_LEN(publications); i++) {
		const struct publication *p = &publications[i];
		/* AWQ packs eight rows; bytes and halves take anything */
		const bool any = p->how == PLAIN || p->how == BYTES;

		if (p->plain_down) { /* rows that fill no panel */
			test_publication(p, 192, p->how == AWQ ? 88 : 77, &seed);
			test_publication(p, 64, p->how == AWQ ? 8 : 3, &seed);
			continue;
		}
		test_publication(p, 256, 384, &seed);
		test_publication(p, any ? 130 : 128, any ? 77 : p->group == 128 ? 640 : 192, &seed);
		if (!any && p->group == 32)
			test_publication(p, 288, 96, &seed);
	}
	test_layouts();
	return tap_done();
}
