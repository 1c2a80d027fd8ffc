/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/launch.h"

#include <errno.h>
#include <string.h>

const struct cuda_kernel cuda_kernels[CUDA_KERNEL_COUNT] = {
#define X(name, params) {#name, sizeof(struct params)},
	CUDA_KERNELS(X)
#undef X
};

#define BLOCKS_MAX (1u << 31) /* of a grid's first dimension */

/* Where in scratch what lies. */
struct areas {
	uint64_t order, items, counts, x, h, h_packed, out, end;
};

/* How the products of a step are computed. */
struct shape {
	bool prefill;
	uint32_t pairs, items_max, item_pairs;
	enum kernel_pack pack[2]; /* of gate and up, of down */
	uint32_t block[2];
	uint32_t cols[2];
	uint64_t pitch[2]; /* of packed rows */
};

static uint32_t most(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t log2_of(uint32_t power)
{
	return power ? (uint32_t)__builtin_ctz(power) : 0;
}

static struct cuda_spec spec_of(uint32_t format)
{
	const struct moe_format_spec *f = &moe_formats[format];

	return (struct cuda_spec){.code = f->code,
				  .offset = f->offset,
				  .scale = f->scale,
				  .zero = f->zero,
				  .group_shift = (uint8_t)log2_of(f->group),
				  .block_shift = (uint8_t)log2_of(f->block),
				  .block_bytes = f->block_bytes};
}

enum kernel_pack cuda_pack_of(uint32_t format, bool prefill, uint32_t *ret_block)
{
	const struct moe_format_spec *f = &moe_formats[format];

	*ret_block = 0;
	if (f->panel) {
		*ret_block = f->group < 32 ? f->group : 32;
		return PACK_I8_BLOCK;
	}
	if (f->code == MOE_CODE_S8)
		return PACK_I8_ROW;
	if (!prefill)
		return PACK_F32;
	return f->code == MOE_CODE_F16 ? PACK_F16 : PACK_BF16;
}

uint64_t cuda_pack_pitch(enum kernel_pack pack, uint32_t block, uint32_t cols)
{
	const uint64_t blocks = block ? ((uint64_t)cols + block - 1) / block : 0;

	switch (pack) {
	case PACK_BF16:
		return KERNEL_LINE((uint64_t)cols * 2);
	case PACK_F16:
		return KERNEL_HEAD + KERNEL_LINE((uint64_t)cols * 2);
	case PACK_I8_ROW:
		return KERNEL_HEAD + KERNEL_LINE((uint64_t)cols);
	case PACK_I8_BLOCK:
		return KERNEL_LINE((uint64_t)cols) + 2 * KERNEL_LINE(blocks * 4);
	case PACK_F32:
	case PACK_F32_UP: /* this one and the next are not of a GPU */
	case PACK_I8_PAIRS:
		break;
	}
	return (uint64_t)cols * sizeof(float);
}

static struct shape shape_of(const struct cuda_experts *w, bool prefill)
{
	struct shape s = {.prefill = prefill,
			  .pairs = w->tokens * w->topk,
			  .item_pairs = prefill ? CUDA_PREFILL_PAIRS : CUDA_DECODE_PAIRS,
			  .cols = {w->hidden, w->slice->inter}};
	const uint32_t experts = s.pairs < w->n_experts ? s.pairs : w->n_experts;

	/* Every expert may have one item that is not full; with one pair each there are no more items than pairs. */
	s.items_max = s.pairs / s.item_pairs + experts;
	s.items_max = s.items_max < s.pairs ? s.items_max : s.pairs;
	s.items_max *= w->n_shares ? w->n_shares : 1;
	for (int i = 0; i < 2; i++) {
		const uint32_t format = w->layout->part[i ? MOE_PART_DOWN : MOE_PART_GATE].format;

		s.pack[i] = cuda_pack_of(format, prefill, &s.block[i]);
		s.pitch[i] = cuda_pack_pitch(s.pack[i], s.block[i], s.cols[i]);
	}
	return s;
}

static uint64_t cut(uint64_t *at, uint64_t bytes)
{
	const uint64_t here = *at;

	*at += (bytes + CUDA_SCRATCH_ALIGN - 1) / CUDA_SCRATCH_ALIGN * CUDA_SCRATCH_ALIGN;
	return here;
}

static struct areas areas_of(const struct cuda_experts *w, const struct shape *s)
{
	struct areas a;
	uint64_t at = w->scratch;

	a.order = cut(&at, (uint64_t)s->pairs * sizeof(uint32_t));
	a.items = cut(&at, (uint64_t)s->items_max * sizeof(struct cuda_item));
	a.counts = cut(&at, sizeof(struct cuda_counts));
	a.x = s->pack[0] == PACK_F32 ? w->x : cut(&at, w->tokens * s->pitch[0]);
	a.h = cut(&at, (uint64_t)s->pairs * s->cols[1] * sizeof(float));
	a.h_packed = s->pack[1] == PACK_F32 ? a.h : cut(&at, s->pairs * s->pitch[1]);
	a.out = cut(&at, (uint64_t)s->pairs * w->hidden * sizeof(float));
	a.end = at;
	return a;
}

static bool is_prefill(const struct cuda_experts *w)
{
	if (w->n_shares)
		return false;
	if (w->path == CUDA_PATH_AUTO)
		return (uint64_t)w->tokens * w->topk >= (uint64_t)w->n_experts * CUDA_DECODE_PAIRS;
	return w->path == CUDA_PATH_PREFILL;
}

uint64_t cuda_scratch_bytes(const struct cuda_experts *work)
{
	uint64_t most = 0;

	for (int prefill = 0; prefill < 2; prefill++) {
		const struct shape s = shape_of(work, prefill);
		const uint64_t bytes = areas_of(work, &s).end - work->scratch;

		most = bytes > most ? bytes : most;
	}
	return most;
}

static void launch(struct cuda_launch *ret, enum cuda_kernel_id kernel, unsigned blocks, unsigned threads)
{
	memset(ret, 0, sizeof *ret);
	ret->kernel = kernel;
	for (int i = 0; i < 3; i++)
		ret->grid[i] = ret->block[i] = 1;
	ret->grid[0] = blocks;
	ret->block[0] = threads;
}

static void launch_group(struct cuda_launch *ret, const struct cuda_experts *w, const struct shape *s,
			 const struct areas *a)
{
	launch(ret, CUDA_KERNEL_moe_group, 1, 1024);
	ret->params.group = (struct cuda_group){.ids = w->ids,
						.map = w->map,
						.order = a->order,
						.items = a->items,
						.counts = a->counts,
						.slots = w->slots,
						.slot_bytes = w->slot_bytes,
						.records = w->records,
						.n_slots = w->n_slots,
						.n_shares = w->n_shares,
						.pairs = s->pairs,
						.n_experts = w->n_experts,
						.item_pairs = s->item_pairs};
}

/* i: 0 the activations, 1 what goes into down. */
static void launch_pack(struct cuda_launch *ret, const struct cuda_experts *w, const struct shape *s,
			const struct areas *a, int i)
{
	const uint32_t rows = i ? s->pairs : w->tokens;

	launch(ret, CUDA_KERNEL_moe_pack, rows, 128);
	ret->params.pack = (struct cuda_pack){.x = i ? a->h : w->x,
					      .packed = i ? a->h_packed : a->x,
					      .counts = i ? a->counts : 0,
					      .pitch = s->pitch[i],
					      .rows = rows,
					      .cols = s->cols[i],
					      .kind = s->pack[i],
					      .block = s->block[i]};
}

static struct cuda_matrix matrix_of(const struct moe_layout *layout, const struct moe_slice *slice,
				    enum moe_part_name part, bool in_pool)
{
	const struct moe_slice_plane *plane = slice->plane[part];
	uint64_t at[MOE_PLANES];

	for (int i = 0; i < MOE_PLANES; i++)
		at[i] = !plane[i].rows ? CUDA_ABSENT : in_pool ? plane[i].offset : plane[i].slot_offset;
	return (struct cuda_matrix){.codes = at[MOE_PLANE_CODES],
				    .scales = at[MOE_PLANE_SCALES],
				    .row_scales = at[MOE_PLANE_ROW_SCALES],
				    .bias = at[MOE_PLANE_BIAS],
				    .pitch = in_pool ? plane[MOE_PLANE_CODES].pitch : plane[MOE_PLANE_CODES].width,
				    .scale_pitch = in_pool ? plane[MOE_PLANE_SCALES].pitch
							   : plane[MOE_PLANE_SCALES].width,
				    .format = layout->part[part].format};
}

void cuda_share_of(struct cuda_share *ret, const struct moe_layout *layout, const struct moe_slice *slice,
		   uint32_t share, uint32_t shares)
{
	const uint32_t hidden = layout->part[MOE_PART_DOWN].rows;
	struct moe_slice piece;

	moe_slice_share(&piece, slice, layout, share);
	for (int i = 0; i < MOE_PARTS; i++)
		ret->part[i] = matrix_of(layout, &piece, (enum moe_part_name)i, true);
	ret->first[0] = piece.first - slice->first;
	ret->rows[0] = piece.inter;
	ret->first[1] = moe_share_row(hidden, share, shares);
	ret->rows[1] = moe_share_row(hidden, share + 1, shares) - ret->first[1];
}

/* The kernels of a format come in this order behind that of bf16. */
static unsigned family_of(uint32_t format)
{
	const struct moe_format_spec *f = &moe_formats[format];

	switch (f->code) {
	case MOE_CODE_BF16:
		return 0;
	case MOE_CODE_F16:
		return 1;
	case MOE_CODE_E4M3:
		return 2;
	case MOE_CODE_S8:
		return 3;
	default:
		return f->bits == 8 ? 7 : f->bits; /* 4, 5, 6 */
	}
}

static enum cuda_kernel_id product_kernel(uint32_t format, bool prefill, bool down)
{
	const unsigned first =
		prefill ? (down ? CUDA_KERNEL_moe_prefill_down_bf16 : CUDA_KERNEL_moe_prefill_gate_up_bf16)
			: (down ? CUDA_KERNEL_moe_decode_down_bf16 : CUDA_KERNEL_moe_decode_gate_up_bf16);

	return (enum cuda_kernel_id)(first + family_of(format));
}

static uint32_t tiles_of(uint32_t rows, bool prefill, bool down)
{
	/* Of down, or of gate and of up each. */
	const uint32_t both = prefill ? CUDA_PREFILL_ROWS : 2 * CUDA_DECODE_ROWS, tile = down ? both : both / 2;

	return (uint32_t)(((uint64_t)rows + tile - 1) / tile);
}

void cuda_launch_product(struct cuda_product *product, bool prefill, bool down, uint32_t items, struct cuda_launch *ret)
{
	product->spec = spec_of(product->a.format);
	product->tiles = tiles_of(product->rows, prefill, down);
	launch(ret, product_kernel(product->a.format, prefill, down), items * product->tiles, 256);
	ret->params.product = *product;
}

static void launch_gate_up(struct cuda_launch *ret, const struct cuda_experts *w, const struct shape *s,
			   const struct areas *a)
{
	struct cuda_product p = {.items = a->items,
				 .counts = a->counts,
				 .order = a->order,
				 .x = a->x,
				 .x_pitch = s->pitch[0],
				 .y = a->h,
				 .shares = w->shares,
				 .a = matrix_of(w->layout, w->slice, MOE_PART_GATE, false),
				 .b = matrix_of(w->layout, w->slice, MOE_PART_UP, false),
				 .rows = w->slice->inter,
				 .cols = w->hidden,
				 .topk = w->topk,
				 .activation = w->activation,
				 .limit = w->limit,
				 .block = s->block[0]};

	cuda_launch_product(&p, s->prefill, false, s->items_max, ret);
}

static void launch_down(struct cuda_launch *ret, const struct cuda_experts *w, const struct shape *s,
			const struct areas *a)
{
	struct cuda_product p = {.items = a->items,
				 .counts = a->counts,
				 .order = a->order,
				 .x = a->h_packed,
				 .x_pitch = s->pitch[1],
				 .y = a->out,
				 .shares = w->shares,
				 .a = matrix_of(w->layout, w->slice, MOE_PART_DOWN, false),
				 .rows = w->hidden,
				 .cols = w->slice->inter,
				 .topk = w->topk,
				 .block = s->block[1]};

	cuda_launch_product(&p, s->prefill, true, s->items_max, ret);
}

static void launch_combine(struct cuda_launch *ret, const struct cuda_experts *w, const struct areas *a)
{
	launch(ret, CUDA_KERNEL_moe_combine, w->tokens * cuda_combine_tiles(w->hidden), 256);
	ret->params.combine = (struct cuda_combine){.y = w->y,
						    .out = a->out,
						    .ids = w->ids,
						    .weights = w->weights,
						    .map = w->map,
						    .tokens = w->tokens,
						    .topk = w->topk,
						    .hidden = w->hidden,
						    .n_experts = w->n_experts};
}

static int check(const struct cuda_experts *w)
{
	const struct moe_part *part = w->layout->part;

	if (w->n_experts == 0 || w->n_experts > CUDA_EXPERTS_MAX || w->topk == 0)
		return -EINVAL;
	for (int i = 0; i < MOE_PARTS; i++)
		if (part[i].format == MOE_FORMAT_NONE || part[i].format >= MOE_FORMAT_COUNT)
			return -EINVAL;
	if (part[MOE_PART_GATE].format != part[MOE_PART_UP].format)
		return -EINVAL;
	return (uint64_t)w->tokens * w->topk >= BLOCKS_MAX ? -E2BIG : 0;
}

int cuda_launch_experts(const struct cuda_experts *work, struct cuda_launch ret[CUDA_LAUNCHES_MAX])
{
	const int r = check(work);
	struct shape s;
	struct areas a;
	uint32_t tiles;
	int n = 0;

	if (r < 0 || work->tokens == 0)
		return r;
	s = shape_of(work, is_prefill(work));
	tiles = most(tiles_of(work->slice->inter, s.prefill, false), tiles_of(work->hidden, s.prefill, true));
	if ((uint64_t)s.items_max * tiles >= BLOCKS_MAX)
		return -E2BIG;
	a = areas_of(work, &s);
	launch_group(&ret[n++], work, &s, &a);
	if (s.pack[0] != PACK_F32)
		launch_pack(&ret[n++], work, &s, &a, 0);
	launch_gate_up(&ret[n++], work, &s, &a);
	if (s.pack[1] != PACK_F32)
		launch_pack(&ret[n++], work, &s, &a, 1);
	launch_down(&ret[n++], work, &s, &a);
	launch_combine(&ret[n++], work, &a);
	return n;
}

/* z is the host's: 512 KiB that are on their way fill a link of 250 GB/s with 2 us of latency, and what waits for it
 * leaves most of the device to others (docs/decisions/0033). */
#define ADD_BLOCKS 128

void cuda_launch_add(uint64_t y, uint64_t z, uint64_t n, struct cuda_launch *ret)
{
	const uint64_t blocks = (n + 1023) / 1024;

	launch(ret, CUDA_KERNEL_moe_add, blocks > ADD_BLOCKS ? ADD_BLOCKS : blocks ? (unsigned)blocks : 1, 256);
	ret->params.add = (struct cuda_add){.y = y, .z = z, .n = n};
}

void cuda_launch_policy(const struct cuda_policy *policy, struct cuda_launch *ret)
{
	launch(ret, CUDA_KERNEL_moe_policy, 1, 1024);
	ret->params.policy = *policy;
}

void cuda_launch_read(uint64_t from, uint64_t bytes, uint64_t sums, uint32_t blocks, struct cuda_launch *ret)
{
	launch(ret, CUDA_KERNEL_moe_read, blocks, 256);
	ret->params.read = (struct cuda_read){.from = from, .bytes = bytes, .sums = sums};
}

void cuda_launch_peak(uint32_t rounds, uint64_t sums, uint32_t blocks, struct cuda_launch *ret)
{
	launch(ret, CUDA_KERNEL_moe_peak, blocks, 256);
	ret->params.peak = (struct cuda_peak){.sums = sums, .rounds = rounds};
}
