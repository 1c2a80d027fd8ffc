/* SPDX-License-Identifier: MIT */
/*
 * cuda-kernels - the kernels of the CUDA back-end: their names, their parameters, and their twins on the host.
 *
 * Law: each kernel takes exactly one argument, its parameter struct by value, and needs no dynamic shared memory. All
 * pointers in it are device addresses, as numbers. Nothing is added with floating-point atomics and no result depends
 * on the order in which blocks or threads run: the same inputs give the same bits.
 *
 * A twin is the text of the kernel compiled for the host: it runs the blocks of the grid one after the other, and in a
 * block the threads between two barriers as a loop, forwards or backwards. Its pointers are host memory.
 *
 * This header is plain C and is included by the kernels too.
 */
#ifndef KERNELS_CUDA_KERNELS_H
#define KERNELS_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_ABSENT UINT64_MAX

#define CUDA_DECODE_PAIRS 4    /* pairs that one decode block computes with one reading of the weights */
#define CUDA_DECODE_ROWS 16    /* rows of a matrix that it computes: of gate and of up, or twice of down */
#define CUDA_PREFILL_PAIRS 128 /* the same of a prefill block */
#define CUDA_PREFILL_ROWS 128  /* of down, or of gate and up together */
#define CUDA_EXPERTS_MAX 4096

/* A matrix in a slot or a record: offsets from its first byte, or CUDA_ABSENT; pitches from band to band in bytes. */
struct cuda_matrix {
	uint64_t codes, scales, row_scales, bias;
	uint64_t pitch, scale_pitch;
	uint32_t format; /* enum moe_format */
	uint32_t reserved;
};

/* What a kernel must know of a format: struct moe_format_spec, with shifts for its powers of two. */
struct cuda_spec {
	uint8_t code, offset, scale, zero;
	uint8_t group_shift, block_shift; /* columns that share a scale, of a scale block */
	uint16_t block_bytes;             /* of a scale block in the scales plane */
};

/* What moe_group made of the ids: n_items items, n_pairs pairs in the device's hands. */
struct cuda_counts {
	uint32_t n_pairs, n_items;
};

/* Pairs order[first .. first + count - 1] of one expert, whose slot begins at `slot`; share 1 and up: whose record does
 * in pool file share - 1, which has some of its rows. */
struct cuda_item {
	uint64_t slot;
	uint32_t first;
	uint16_t count, share;
};

/* What one pool file has of the slice of a record: matrices, and which rows these are. */
struct cuda_share {
	struct cuda_matrix part[3]; /* gate, up, down */
	uint32_t first[2], rows[2]; /* of gate and up, of down */
};

/*
 * moe_group: splits off the pairs whose expert lies in a slot and sorts them by expert. One block of 1024 threads.
 * order[] receives the pairs' places in ids, grouped by expert; the order within an expert is any. An item has at most
 * item_pairs of them. What the map says from n_slots on is, where n_shares is not 0, a record in the pool: it has
 * n_shares items instead of one, and addresses in records[]. Ids outside 0 .. n_experts - 1 are on no path.
 */
struct cuda_group {
	uint64_t ids;    /* const int32_t [tokens][topk] */
	uint64_t map;    /* const int32_t [n_experts]: slot or negative */
	uint64_t order;  /* uint32_t [tokens * topk] */
	uint64_t items;  /* struct cuda_item [cuda_items_max()] */
	uint64_t counts; /* struct cuda_counts */
	uint64_t slots, slot_bytes;
	uint64_t records; /* const uint64_t [][n_shares] */
	uint32_t pairs, n_experts, item_pairs;
	uint32_t n_slots, n_shares, reserved;
};

/*
 * moe_pack: packs rows of floats exactly as kernels.h says (enum kernel_pack but PACK_F32; of PACK_F16 only the codes,
 * not the floats behind them). A block of 128 threads for each row. counts 0: `rows` rows; else counts->n_pairs.
 */
struct cuda_pack {
	uint64_t x;      /* const float [rows][cols] */
	uint64_t packed; /* rows of `pitch` bytes, a multiple of 64 */
	uint64_t counts; /* const struct cuda_counts, or 0 */
	uint64_t pitch;
	uint32_t rows, cols;
	uint32_t kind;  /* enum kernel_pack */
	uint32_t block; /* of PACK_I8_BLOCK: 16 or 32 columns */
};

/*
 * moe_*_gate_up_*: y[p] = act(gate x[t] + bias, up x[t] + bias) for each place p of order[], t = order[p] / topk.
 * moe_*_down_*: y[order[p]] = a x[p] + bias.
 * x: rows of x_pitch bytes, packed or floats as cuda_pack_of() says; y: float rows of `rows` numbers.
 * A block of 256 threads for each item and each tile of rows: block item * tiles + tile.
 */
struct cuda_product {
	uint64_t items, counts, order, x, x_pitch, y;
	struct cuda_matrix a;  /* gate or down */
	struct cuda_matrix b;  /* up; of down: unused */
	uint64_t shares;       /* const struct cuda_share []: of items in the pool; decode only */
	struct cuda_spec spec; /* of their format */
	uint32_t rows, cols, tiles, topk;
	uint32_t activation; /* enum kernel_activation */
	float limit;
	uint32_t block; /* of PACK_I8_BLOCK: columns */
	uint32_t reserved;
};

/*
 * moe_combine: y[t] = sum over k, in this order, of weights[t][k] * out[t * topk + k] where the pair's expert lies in a
 * slot; zeros where none does. A block of 256 threads for CUDA_COMBINE_COLS columns of a token: block token * tiles +
 * tile.
 */
#define CUDA_COMBINE_COLS 1024

#ifdef __CUDACC__
__host__ __device__
#endif
	static inline uint32_t
	cuda_combine_tiles(uint32_t hidden)
{
	return (hidden + CUDA_COMBINE_COLS - 1) / CUDA_COMBINE_COLS;
}

struct cuda_combine {
	uint64_t y;       /* float [tokens][hidden] */
	uint64_t out;     /* const float [tokens * topk][hidden] */
	uint64_t ids;     /* as in cuda_group */
	uint64_t weights; /* const float [tokens][topk] */
	uint64_t map;
	uint32_t tokens, topk, hidden, n_experts;
};

/* moe_add: y[i] += z[i], i < n: the CPU's answer joins. y and z are multiples of 16. Blocks of 256 threads, any number
 * of them: each thread has 16 bytes of z on their way. */
struct cuda_add {
	uint64_t y, z, n;
};

/* As struct moe_copy of the library. */
struct cuda_fill {
	int32_t expert, slot;
};

enum cuda_policy_rule { CUDA_POLICY_LRU, CUDA_POLICY_ORIGINAL };

/*
 * moe_policy: one decode step of one layer's cache, as cache_update() of the library takes it. One block of 1024
 * threads. The state is zero at first, but for cache_map (-1), miss_map and miss_expert (0, 1, ...) and free_slots
 * (n_slots - 1 ... 0) with heads->n_free = n_slots.
 */
struct cuda_policy_heads {
	uint64_t clock; /* events so far */
	uint32_t n_free, n_cached, n_fills, reserved;
};

struct cuda_policy {
	uint64_t ids;         /* const int32_t [tokens][topk] */
	uint64_t heads;       /* struct cuda_policy_heads; n_fills is written */
	uint64_t cache_map;   /* int32_t [n_experts] */
	uint64_t miss_map;    /* int32_t [n_experts] */
	uint64_t miss_expert; /* int32_t [n_experts] */
	uint64_t free_slots;  /* int32_t [n_slots] */
	uint64_t age;         /* uint64_t [n_experts]: of cached experts, coldest smallest; all different */
	uint64_t fills;       /* struct cuda_fill [min(max_fills, n_slots)], written */
	uint64_t scratch;     /* uint64_t [2 * n_experts] */
	uint32_t tokens, topk, n_experts, n_slots;
	uint32_t rule; /* enum cuda_policy_rule */
	uint32_t cache_topk, max_fills, reserved;
};

/*
 * Limits, for moe-bench. moe_read: reads `bytes` (a multiple of 16) in blocks of 256 threads; each leaves the sum of
 * the words that it has read. moe_peak: `rounds` products of 16 rows and 64 tokens over 16 columns by each warp of
 * blocks of 256 threads, CUDA_PEAK_OPERATIONS each, of ones and minus ones: each thread leaves the sum of its results.
 */
struct cuda_read {
	uint64_t from, bytes;
	uint64_t sums; /* uint32_t [blocks][256] */
};

struct cuda_peak {
	uint64_t sums; /* float [blocks][256] */
	uint32_t rounds, reserved;
};

#define CUDA_PEAK_ROUNDS_MAX 16384 /* sums are whole numbers that a float can hold */
#define CUDA_PEAK_ROWS 16
#define CUDA_PEAK_TOKENS 64
#define CUDA_PEAK_COLS 16
#define CUDA_PEAK_OPERATIONS (2ull * CUDA_PEAK_ROWS * CUDA_PEAK_TOKENS * CUDA_PEAK_COLS)

#ifdef __CUDACC__
__host__ __device__
#endif
	/* Which are minus one: of the rows (which = 0) or the tokens (1). */
	static inline int
	cuda_peak_negative(unsigned which, unsigned row, unsigned col)
{
	return (row * 7 + col * (which ? 5 : 3) + row * col) / 3 % 2;
}

/* How a product computes. */
enum cuda_family { CUDA_FAMILY_BF16, CUDA_FAMILY_F16, CUDA_FAMILY_FP8, CUDA_FAMILY_INT8, CUDA_FAMILY_PANEL };

/* What products are compiled for: name, family, bits of a code; and what else the caller gives. */
#define CUDA_VARIANTS(V, a, b)                                                                                         \
	V(bf16, CUDA_FAMILY_BF16, 16, a, b)                                                                            \
	V(f16, CUDA_FAMILY_F16, 16, a, b)                                                                              \
	V(fp8, CUDA_FAMILY_FP8, 8, a, b)                                                                               \
	V(int8, CUDA_FAMILY_INT8, 8, a, b)                                                                             \
	V(p4, CUDA_FAMILY_PANEL, 4, a, b)                                                                              \
	V(p5, CUDA_FAMILY_PANEL, 5, a, b)                                                                              \
	V(p6, CUDA_FAMILY_PANEL, 6, a, b)                                                                              \
	V(p8, CUDA_FAMILY_PANEL, 8, a, b)

#define CUDA_GATE_UP(name, family, bits, X, path) X(moe_##path##_gate_up_##name, cuda_product)
#define CUDA_DOWN(name, family, bits, X, path) X(moe_##path##_down_##name, cuda_product)

/* name, parameters */
#define CUDA_PRODUCTS(X, path)                                                                                         \
	CUDA_VARIANTS(CUDA_GATE_UP, X, path)                                                                           \
	CUDA_VARIANTS(CUDA_DOWN, X, path)

#define CUDA_KERNELS(X)                                                                                                \
	X(moe_group, cuda_group)                                                                                       \
	X(moe_pack, cuda_pack)                                                                                         \
	X(moe_combine, cuda_combine)                                                                                   \
	X(moe_add, cuda_add)                                                                                           \
	X(moe_policy, cuda_policy)                                                                                     \
	X(moe_read, cuda_read)                                                                                         \
	X(moe_peak, cuda_peak)                                                                                         \
	CUDA_PRODUCTS(X, decode)                                                                                       \
	CUDA_PRODUCTS(X, prefill)

enum cuda_kernel_id {
#define X(name, params) CUDA_KERNEL_##name,
	CUDA_KERNELS(X)
#undef X
		CUDA_KERNEL_COUNT
};

enum cuda_twin_order { CUDA_TWIN_FORWARDS, CUDA_TWIN_BACKWARDS };

typedef void cuda_twin(const void *params, const unsigned grid[3], const unsigned block[3], enum cuda_twin_order order);

struct cuda_kernel {
	const char *name; /* as cuModuleGetFunction takes it */
	size_t params_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif

extern const struct cuda_kernel cuda_kernels[CUDA_KERNEL_COUNT];

/* Of the same order; in a library of their own, for tests and simulators. */
extern cuda_twin *const cuda_twins[CUDA_KERNEL_COUNT];

/* The fat binary of all kernels; only where the build has nvcc. */
extern const unsigned char cuda_fatbin[];
extern const size_t cuda_fatbin_bytes;

#ifdef __cplusplus
}
#endif

#endif
