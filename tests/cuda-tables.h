/* SPDX-License-Identifier: MIT */
/*
 * cuda-tables - the twins of the CUDA kernels as tables of kernels like the CPU's, for test-formats: one that decodes
 * and one that prefills. Each product runs with its threads and blocks forwards and backwards; where the two differ in
 * a bit, the result is NaN.
 */
#ifndef TESTS_CUDA_TABLES_H
#define TESTS_CUDA_TABLES_H

#include <immintrin.h>

#include "kernels/cuda/launch.h"
#include "tests/kernel-problem.h"

static inline uint64_t address_of(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static inline void cuda_run(const struct cuda_launch *launch, float *y, size_t n)
{
	float *again = malloc(n * sizeof *again + 1);

	memset(y, 0xff, n * sizeof *y);
	cuda_launch_twin(launch, CUDA_TWIN_BACKWARDS);
	memcpy(again, y, n * sizeof *again);
	memset(y, 0xff, n * sizeof *y);
	cuda_launch_twin(launch, CUDA_TWIN_FORWARDS);
	for (size_t i = 0; i < n; i++)
		if (memcmp(&y[i], &again[i], sizeof *y) != 0 && !(isnan(y[i]) && isnan(again[i])))
			y[i] = NAN;
	free(again);
}

static inline struct cuda_matrix cuda_matrix_of(const struct kernel_matrix *m)
{
	return (struct cuda_matrix){.codes = address_of(m->codes),
				    .scales = m->scales ? address_of(m->scales) : CUDA_ABSENT,
				    .row_scales = m->row_scales ? address_of(m->row_scales) : CUDA_ABSENT,
				    .bias = m->bias ? address_of(m->bias) : CUDA_ABSENT,
				    .pitch = m->pitch,
				    .scale_pitch = m->scale_pitch,
				    .format = m->format};
}

/* The rows side by side, ending at a wall. */
static inline uint64_t cuda_rows(const void *const *x, size_t tokens, uint64_t pitch)
{
	static struct wall room;
	char *at;

	if (!room.end)
		room = wall_new((size_t)TOKENS_MAX * 40000);
	at = (char *)wall_before(&room, tokens * pitch);
	for (size_t t = 0; t < tokens; t++)
		memcpy(at + t * pitch, x[t], pitch);
	return address_of(at);
}

/* The tokens stand in order[] the other way round, so that a kernel which takes a place for a pair is found out. */
static inline void cuda_product(struct cuda_product *p, bool prefill, bool down, size_t tokens, const void *const *x,
				float *const *y)
{
	static uint32_t order[TOKENS_MAX];
	static struct cuda_item items[TOKENS_MAX];
	const uint32_t most = prefill ? CUDA_PREFILL_PAIRS : CUDA_DECODE_PAIRS;
	struct cuda_counts counts = {.n_pairs = (uint32_t)tokens};
	const void *placed[TOKENS_MAX];
	struct cuda_launch launch;
	enum kernel_pack pack;
	float *out = malloc((size_t)p->rows * tokens * sizeof *out + 1);

	for (uint32_t i = 0; i < tokens; i++) {
		order[i] = (uint32_t)tokens - 1 - i;
		placed[i] = x[down ? order[i] : i];
	}
	for (uint32_t i = 0; i < tokens; i += most)
		items[counts.n_items++] = (struct cuda_item){
			.first = i, .count = (uint32_t)tokens - i < most ? (uint32_t)tokens - i : most};
	pack = cuda_pack_of(p->a.format, prefill, &p->block);
	p->x_pitch = cuda_pack_pitch(pack, p->block, p->cols);
	p->x = cuda_rows(placed, tokens, p->x_pitch);
	p->items = address_of(items);
	p->counts = address_of(&counts);
	p->order = address_of(order);
	p->y = address_of(out);
	p->topk = 1;
	cuda_launch_product(p, prefill, down, counts.n_items + 1, &launch);
	cuda_run(&launch, out, (size_t)p->rows * tokens);
	for (size_t i = 0; i < tokens && p->rows; i++)
		memcpy(y[down ? i : order[i]], out + i * p->rows, p->rows * sizeof *out);
	free(out);
}

#define CUDA_TABLE(path, prefill)                                                                                      \
	static void cuda_##path##_gate_up(const struct kernel_matrix *gate, const struct kernel_matrix *up,            \
					  size_t rows, size_t cols, const struct kernel_act *act, size_t tokens,       \
					  const void *const *x, float *const *h)                                       \
	{                                                                                                              \
		struct cuda_product p = {.a = cuda_matrix_of(gate),                                                    \
					 .b = cuda_matrix_of(up),                                                      \
					 .rows = (uint32_t)rows,                                                       \
					 .cols = (uint32_t)cols,                                                       \
					 .activation = act->kind,                                                      \
					 .limit = act->limit};                                                         \
		cuda_product(&p, prefill, false, tokens, x, h);                                                        \
	}                                                                                                              \
	static void cuda_##path##_matmul(const struct kernel_matrix *w, size_t rows, size_t cols, size_t tokens,       \
					 const void *const *x, float *const *y)                                        \
	{                                                                                                              \
		struct cuda_product p = {.a = cuda_matrix_of(w), .rows = (uint32_t)rows, .cols = (uint32_t)cols};      \
		cuda_product(&p, prefill, true, tokens, x, y);                                                         \
	}

CUDA_TABLE(decode, false)
CUDA_TABLE(prefill, true)

static inline void cuda_pack(enum kernel_pack kind, size_t cols, uint32_t block, const float *x, void *packed)
{
	struct cuda_launch launch = {.kernel = CUDA_KERNEL_moe_pack, .grid = {1, 1, 1}, .block = {128, 1, 1}};

	launch.params.pack = (struct cuda_pack){.x = address_of(x),
						.packed = address_of(packed),
						.pitch = cuda_pack_pitch(kind, block, (uint32_t)cols),
						.rows = 1,
						.cols = (uint32_t)cols,
						.kind = kind,
						.block = block};
	cuda_launch_twin(&launch, CUDA_TWIN_FORWARDS);
}

static void cuda_pack_bf16(size_t cols, uint32_t block, const float *x, void *packed)
{
	cuda_pack(PACK_BF16, cols, block, x, packed);
}

/* The floats behind the codes, which only CPUs want, are added. */
static void cuda_pack_f16(size_t cols, uint32_t block, const float *x, void *packed)
{
	const uint16_t *codes = (const uint16_t *)((const char *)packed + KERNEL_HEAD);
	float *floats = (float *)((char *)packed + KERNEL_F16_FLOATS(cols));

	cuda_pack(PACK_F16, cols, block, x, packed);
	for (size_t c = 0; c < cols; c++)
		floats[c] = _cvtsh_ss(codes[c]);
}

static void cuda_pack_i8_row(size_t cols, uint32_t block, const float *x, void *packed)
{
	cuda_pack(PACK_I8_ROW, cols, block, x, packed);
}

static void cuda_pack_i8_block(size_t cols, uint32_t block, const float *x, void *packed)
{
	cuda_pack(PACK_I8_BLOCK, cols, block, x, packed);
}

/* 0: decode, 1: prefill, then NULL. As kernels_runnable(), which asks for features of the CPU. */
static inline const struct kernels *cuda_table(uint32_t features, unsigned i)
{
	static void (*const packs[])(size_t, uint32_t, const float *, void *) = {NULL, cuda_pack_bf16, cuda_pack_f16,
										 cuda_pack_i8_row, cuda_pack_i8_block};
	static struct kernel_ops ops[2][MOE_FORMAT_COUNT];
	static struct kernels tables[2];

	(void)features;
	if (i > 1)
		return NULL;
	tables[i].name = tables[i].variant = i ? "cuda prefill" : "cuda decode";
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++) {
		uint32_t block;
		const enum kernel_pack pack = cuda_pack_of(f, i > 0, &block);

		ops[i][f] = (struct kernel_ops){.pack = pack,
						.block = block,
						.pack_row = packs[pack],
						.gate_up = i ? cuda_prefill_gate_up : cuda_decode_gate_up,
						.matmul = i ? cuda_prefill_matmul : cuda_decode_matmul};
		tables[i].of[f] = &ops[i][f];
	}
	return &tables[i];
}

#endif
