/* SPDX-License-Identifier: MIT */
/*
 * A panel is written block by block: the same four bytes of 16 rows become a line of 64 bytes, and the fields of a byte
 * (nibbles, single bits, pairs of bits) then change places between lines. Vectors of 16 bytes are enough: this runs
 * several times faster than any disk.
 */
#include "model/repack-gguf.h"

#include <emmintrin.h>
#include <string.h>

#define ROWS MOE_PANEL_ROWS
#define LINE 64
#define SOURCE_MAX 256 /* no block has more bytes */
#define CODES_MAX 4096 /* nor its codes, nor its scales, in a panel */
#define SCALES_MAX 320

typedef void block_fn(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch);

struct line {
	__m128i of[4]; /* rows 4i .. 4i + 3, four bytes each */
};

#define inlined static inline __attribute__((always_inline))

/* Bytes 4i .. 4i + 3 of all rows become line i; n is a multiple of 4. */
inlined void gather(struct line *lines, unsigned n, const uint8_t *source, size_t pitch)
{
	for (unsigned i = 0; i < n; i += 4) {
		for (unsigned q = 0; q < 4; q++) {
			const uint8_t *row = source + 4 * q * pitch + 4 * i;
			const __m128i a = _mm_loadu_si128((const __m128i *)row);
			const __m128i b = _mm_loadu_si128((const __m128i *)(row + pitch));
			const __m128i c = _mm_loadu_si128((const __m128i *)(row + 2 * pitch));
			const __m128i d = _mm_loadu_si128((const __m128i *)(row + 3 * pitch));
			const __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b);
			const __m128i cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);

			lines[i].of[q] = _mm_unpacklo_epi64(ab0, cd0);
			lines[i + 1].of[q] = _mm_unpackhi_epi64(ab0, cd0);
			lines[i + 2].of[q] = _mm_unpacklo_epi64(ab1, cd1);
			lines[i + 3].of[q] = _mm_unpackhi_epi64(ab1, cd1);
		}
	}
}

inlined void put(uint8_t *to, const struct line *line)
{
	for (unsigned q = 0; q < 4; q++)
		_mm_storeu_si128((__m128i *)(to + 16 * q), line->of[q]);
}

/* In each byte the bits mask << shift of a and the bits mask of b change places. */
inlined void exchange(struct line *a, struct line *b, int shift, uint8_t mask)
{
	for (unsigned q = 0; q < 4; q++) {
		const __m128i moved = _mm_xor_si128(_mm_srli_epi16(a->of[q], shift), b->of[q]);
		const __m128i differ = _mm_and_si128(moved, _mm_set1_epi8((char)mask));

		b->of[q] = _mm_xor_si128(b->of[q], differ);
		a->of[q] = _mm_xor_si128(a->of[q], _mm_slli_epi16(differ, shift));
	}
}

/* (line >> shift) & mask, byte by byte. */
inlined struct line field(const struct line *line, int shift, uint8_t mask)
{
	struct line ret;

	for (unsigned q = 0; q < 4; q++)
		ret.of[q] = _mm_and_si128(_mm_srli_epi16(line->of[q], shift), _mm_set1_epi8((char)mask));
	return ret;
}

inlined struct line either(const struct line *a, const struct line *b)
{
	struct line ret;

	for (unsigned q = 0; q < 4; q++)
		ret.of[q] = _mm_or_si128(a->of[q], b->of[q]);
	return ret;
}

/* The lower or upper 16 bits of each row's four bytes: a vector of 16. */
inlined void put_halves(uint8_t *to, const struct line *line, int upper)
{
	for (unsigned i = 0; i < 4; i += 2) {
		__m128i a = line->of[i], b = line->of[i + 1];

		if (!upper) {
			a = _mm_slli_epi32(a, 16);
			b = _mm_slli_epi32(b, 16);
		}
		/* sign extension keeps the packing from saturating */
		_mm_storeu_si128((__m128i *)(to + 8 * i),
				 _mm_packs_epi32(_mm_srai_epi32(a, 16), _mm_srai_epi32(b, 16)));
	}
}

/* Byte g of each row's four: the vector of 16 at to + g * step. */
inlined void put_bytes(uint8_t *to, size_t step, const struct line *line)
{
	const __m128i mask = _mm_set1_epi32(0xff);

	for (int g = 0; g < 4; g++) {
		const __m128i a = _mm_and_si128(_mm_srli_epi32(line->of[0], 8 * g), mask);
		const __m128i b = _mm_and_si128(_mm_srli_epi32(line->of[1], 8 * g), mask);
		const __m128i c = _mm_and_si128(_mm_srli_epi32(line->of[2], 8 * g), mask);
		const __m128i d = _mm_and_si128(_mm_srli_epi32(line->of[3], 8 * g), mask);

		_mm_storeu_si128((__m128i *)(to + (size_t)g * step),
				 _mm_packus_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)));
	}
}

inlined void copy_halves(uint8_t *to, const uint8_t *source, size_t pitch)
{
	for (unsigned r = 0; r < ROWS; r++)
		memcpy(to + 2 * r, source + r * pitch, 2);
}

/* 16 bytes a row: columns 0 to 15 in the lower nibbles, 16 to 31 in the upper ones. */
inlined void nibbles_near(uint8_t *codes, const uint8_t *source, size_t pitch)
{
	struct line l[4];

	gather(l, 4, source, pitch);
	exchange(&l[0], &l[1], 4, 0x0f);
	exchange(&l[2], &l[3], 4, 0x0f);
	put(codes, &l[0]);
	put(codes + LINE, &l[2]);
	put(codes + 2 * LINE, &l[1]);
	put(codes + 3 * LINE, &l[3]);
}

/* 32 bytes a row: the columns of one block in the lower nibbles, those of another one in the upper ones. */
inlined void nibbles_far(uint8_t *lower, uint8_t *upper, const uint8_t *source, size_t pitch)
{
	struct line l[8];

	gather(l, 8, source, pitch);
	for (unsigned j = 0; j < 4; j++) {
		exchange(&l[2 * j], &l[2 * j + 1], 4, 0x0f);
		put(lower + j * LINE, &l[2 * j]);
		put(upper + j * LINE, &l[2 * j + 1]);
	}
}

/* half d | 32 signed bytes */
static void block_q8_0(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	const __m128i sign = _mm_set1_epi8((char)0x80);
	struct line l[8];

	copy_halves(scales, source, pitch);
	gather(l, 8, source + 2, pitch);
	for (unsigned i = 0; i < 8; i++) {
		for (unsigned q = 0; q < 4; q++)
			l[i].of[q] = _mm_xor_si128(l[i].of[q], sign);
		put(codes + i * LINE, &l[i]);
	}
}

/* half d | 16 bytes */
static void block_q4_0(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	copy_halves(scales, source, pitch);
	nibbles_near(codes, source + 2, pitch);
}

/* half d, m | 16 bytes */
static void block_q4_1(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	copy_halves(scales, source, pitch);
	copy_halves(scales + 32, source + 2, pitch);
	nibbles_near(codes, source + 4, pitch);
}

/* e8m0 | 16 bytes */
static void block_mxfp4(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	for (unsigned r = 0; r < ROWS; r++)
		scales[r] = source[r * pitch];
	nibbles_near(codes, source + 1, pitch);
}

/*
 * half d, dmin | 12 bytes: eight scales s and eight minima m of 6 bits. Bytes 0 to 3 hold s 0 to 3, bytes 4 to 7 m 0 to
 * 3, in their lower 6 bits; bytes 8 to 11 the lower 4 bits of s 4 to 7 and, above, of m 4 to 7, whose upper 2 bits are
 * the upper ones of bytes 0 to 3 and 4 to 7.
 */
inlined void scales_k(uint8_t *scales, const uint8_t *source, size_t pitch)
{
	uint8_t *s = scales + 64, *m = s + 128;
	struct line l[4], low, high;

	gather(l, 4, source, pitch);
	put_halves(scales, &l[0], 0);
	put_halves(scales + 32, &l[0], 1);
	low = field(&l[1], 0, 0x3f);
	put_bytes(s, ROWS, &low);
	low = field(&l[2], 0, 0x3f);
	put_bytes(m, ROWS, &low);
	low = field(&l[3], 0, 0x0f);
	high = field(&l[1], 2, 0x30);
	low = either(&low, &high);
	put_bytes(s + 4 * ROWS, ROWS, &low);
	low = field(&l[3], 4, 0x0f);
	high = field(&l[2], 2, 0x30);
	low = either(&low, &high);
	put_bytes(m + 4 * ROWS, ROWS, &low);
}

/* scales as above | for each 64 columns 32 bytes: the first 32 columns in the lower nibbles */
static void block_q4_k(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	scales_k(scales, source, pitch);
	for (unsigned c = 0; c < 4; c++)
		nibbles_far(codes + c * 512, codes + c * 512 + 256, source + 16 + c * 32, pitch);
}

/* scales as above | 32 bytes: bit b of byte i is the fifth bit of column 32 b + i | nibbles as in Q4_K */
static void block_q5_k(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	struct line l[8];

	scales_k(scales, source, pitch);
	for (unsigned c = 0; c < 4; c++)
		nibbles_far(codes + c * 640, codes + c * 640 + 320, source + 48 + c * 32, pitch);
	gather(l, 8, source + 16, pitch);
	for (unsigned v = 0; v < 4; v++)
		exchange(&l[v], &l[v + 4], 4, 0x0f);
	for (unsigned v = 0; v < 8; v += v % 2 ? 3 : 1)
		exchange(&l[v], &l[v + 2], 2, 0x33);
	for (unsigned v = 0; v < 8; v += 2)
		exchange(&l[v], &l[v + 1], 1, 0x55);
	for (unsigned b = 0; b < 8; b++)
		put(codes + b * 320 + 256, &l[b]);
}

/*
 * 128 bytes of nibbles, 64 for each 128 columns: columns 0 to 63 in the lower ones, 64 to 127 in the upper ones | 64
 * bytes of upper bits, 32 for each 128 columns: bits 2q and 2q + 1 of byte i are those of column 32 q + i | 16 signed
 * scales | half d
 */
static void block_q6_k(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	struct line l[8];

	copy_halves(scales, source + 208, pitch);
	gather(l, 4, source + 192, pitch);
	for (unsigned i = 0; i < 4; i++)
		put_bytes(scales + 32 + i * 4 * ROWS, ROWS, &l[i]);
	for (unsigned n = 0; n < 2; n++) {
		uint8_t *half = codes + n * 4 * 384;

		nibbles_far(half, half + 2 * 384, source + n * 64, pitch);
		nibbles_far(half + 384, half + 3 * 384, source + n * 64 + 32, pitch);
		gather(l, 8, source + 128 + n * 32, pitch);
		for (unsigned j = 0; j < 8; j += 4) {
			exchange(&l[j], &l[j + 2], 4, 0x0f);
			exchange(&l[j + 1], &l[j + 3], 4, 0x0f);
			exchange(&l[j], &l[j + 1], 2, 0x33);
			exchange(&l[j + 2], &l[j + 3], 2, 0x33);
			for (unsigned q = 0; q < 4; q++)
				put(half + q * 384 + 256 + j / 4 * LINE, &l[j + q]);
		}
	}
}

/*
 * half d | 16 bits: bits 2g and 2g + 1 are the upper bits of group g's scale | 4 bytes: the lower four bits, group 2i's
 * in the lower nibble of byte i | for each 32 columns 16 bytes. A scale is 32 more than it means.
 */
static void block_iq4_xs(uint8_t *codes, uint8_t *scales, const uint8_t *source, size_t pitch)
{
	for (unsigned r = 0; r < ROWS; r++) {
		const uint8_t *row = source + r * pitch;
		const unsigned high = row[2] | (unsigned)row[3] << 8;

		memcpy(scales + 2 * r, row, 2);
		for (unsigned g = 0; g < 8; g++) {
			const unsigned low = row[4 + g / 2] >> 4 * (g % 2) & 15;

			scales[32 + g * ROWS + r] = (uint8_t)((low | (high >> 2 * g & 3) << 4) - 32);
		}
	}
	for (unsigned b = 0; b < 8; b++)
		nibbles_near(codes + b * 256, source + 8 + b * 16, pitch);
}

/* How a format's blocks are read, and of what its scale block consists: vectors of halves, then of bytes. */
struct blocks {
	block_fn *fn;
	uint16_t bytes;
	uint8_t halves, singles;
};

static const struct blocks formats[MOE_FORMAT_COUNT] = {
	[MOE_FORMAT_Q8_0] = {block_q8_0, 34, 1, 0},   [MOE_FORMAT_Q4_0] = {block_q4_0, 18, 1, 0},
	[MOE_FORMAT_Q4_1] = {block_q4_1, 20, 2, 0},   [MOE_FORMAT_MXFP4] = {block_mxfp4, 17, 0, 1},
	[MOE_FORMAT_Q4_K] = {block_q4_k, 144, 2, 16}, [MOE_FORMAT_Q5_K] = {block_q5_k, 176, 2, 16},
	[MOE_FORMAT_Q6_K] = {block_q6_k, 210, 1, 16}, [MOE_FORMAT_IQ4_XS] = {block_iq4_xs, 136, 1, 8},
};

/* Where a panel's codes and scales go, and how far they go on with each block. */
struct target {
	uint8_t *codes, *scales;
	size_t codes_step, scales_step;
};

static void whole_panel(const struct blocks *blocks, struct target to, const uint8_t *source, uint64_t n, size_t pitch)
{
	for (uint64_t b = 0; b < n; b++) {
		blocks->fn(to.codes, to.scales, source, pitch);
		to.codes += to.codes_step;
		to.scales += to.scales_step;
		source += blocks->bytes;
	}
}

/* What belongs to rows row .. row + rows of a block's codes and scales. */
static void copy_rows(const struct blocks *blocks, const struct target *to, const uint8_t *codes, const uint8_t *scales,
		      uint32_t row, uint32_t rows)
{
	for (size_t at = 4 * row; at < to->codes_step; at += LINE)
		memcpy(to->codes + at, codes + at, 4 * rows);
	for (size_t i = 0, at = 2 * row; i < blocks->halves; i++, at += 2 * ROWS)
		memcpy(to->scales + at, scales + at, 2 * rows);
	for (size_t i = 0, at = 2 * ROWS * blocks->halves + row; i < blocks->singles; i++, at += ROWS)
		memcpy(to->scales + at, scales + at, rows);
}

static void part_of_panel(const struct blocks *blocks, struct target to, const uint8_t *source, uint64_t n,
			  size_t pitch, uint32_t row, uint32_t rows)
{
	uint8_t in[ROWS * SOURCE_MAX] = {0}, codes[CODES_MAX], scales[SCALES_MAX];

	for (uint64_t b = 0; b < n; b++) {
		for (uint32_t r = 0; r < rows; r++)
			memcpy(in + (row + r) * SOURCE_MAX, source + r * pitch + b * blocks->bytes, blocks->bytes);
		blocks->fn(codes, scales, in, SOURCE_MAX);
		copy_rows(blocks, &to, codes, scales, row, rows);
		to.codes += to.codes_step;
		to.scales += to.scales_step;
	}
}

void repack_gguf(const struct repack *repack, const struct record_share *share, uint64_t first, uint64_t n,
		 const void *bytes)
{
	const struct moe_part *part = &share->layout->part[repack->part];
	const struct blocks *blocks = &formats[part->format];
	const struct moe_format_spec *spec = &moe_formats[part->format];
	const uint64_t count = part->cols / spec->block;
	const size_t pitch = count * blocks->bytes;
	const uint32_t rows = repack_gguf_granule(part->rows);
	const uint64_t codes = moe_band_bytes(part->format, MOE_PLANE_CODES, part->cols);
	const uint64_t scales = moe_band_bytes(part->format, MOE_PLANE_SCALES, part->cols);
	const struct repack_range mine = repack_share_granules(share, repack->part, rows, first, n);
	const uint64_t before = repack_share_rows(share, repack->part).first / ROWS;

	for (uint64_t i = mine.first; i < mine.end; i++) {
		const uint64_t panel = i * rows / ROWS - before;
		const uint8_t *source = (const uint8_t *)bytes + (i - first) * rows * pitch;
		const struct target to = {.codes = share->memory + part->plane[MOE_PLANE_CODES] + panel * codes,
					  .scales = share->memory + part->plane[MOE_PLANE_SCALES] + panel * scales,
					  .codes_step = spec->block * spec->bits * ROWS / 8,
					  .scales_step = spec->block_bytes};

		if (rows == ROWS)
			whole_panel(blocks, to, source, count, pitch);
		else
			part_of_panel(blocks, to, source, count, pitch, (uint32_t)(i * rows % ROWS), rows);
	}
}
