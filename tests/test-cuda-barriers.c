/* SPDX-License-Identifier: MIT */
/*
 * test-cuda-barriers - the kernels with each thread as a coroutine that runs from barrier to barrier, as far as it may:
 * forwards, backwards and in random order the results are those of the twins. And each barrier is needed: without any
 * one of them, in some order, some result changes.
 */
#include "kernels/cuda/launch.h"
#include "tests/cuda-barriers.h"

#define X(name, params) void coroutine_##name(const void *p);
CUDA_KERNELS(X)
#undef X

static void (*const coroutines[CUDA_KERNEL_COUNT])(const void *params) = {
#define X(name, params) coroutine_##name,
	CUDA_KERNELS(X)
#undef X
};

static bool launch_run(const struct cuda_launch *launch, enum schedule schedule)
{
	return grid_run(coroutines[launch->kernel], &launch->params, launch->grid[0], launch->block[0], schedule);
}

/* -- subjects ----------------------------------------------------------------------------------------------------- */

/* A launch, its memory, which is all that it reads and writes, and the part of it that is the result. */
struct subject {
	struct cuda_launch launch;
	uint8_t *memory, *before, *want;
	uint64_t barriers; /* those that it passes */
	size_t bytes, first, count;
};

static uint64_t take(struct subject *s, size_t bytes)
{
	const size_t here = s->bytes;

	s->bytes += (bytes + 255) & ~(size_t)255;
	return (uint64_t)(uintptr_t)(s->memory + here);
}

static void subject_start(struct subject *s, enum cuda_kernel_id kernel, unsigned blocks, unsigned threads)
{
	*s = (struct subject){
		.memory = aligned_alloc(256, 4 << 20), .before = malloc(4 << 20), .want = malloc(4 << 20)};
	if (!s->memory || !s->before || !s->want)
		abort();
	s->launch = (struct cuda_launch){.kernel = kernel, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}};
}

/* The result that the twin gives. */
static void subject_settle(struct subject *s, uint64_t result, size_t count)
{
	s->first = (size_t)(result - (uint64_t)(uintptr_t)s->memory);
	s->count = count;
	memcpy(s->before, s->memory, s->bytes);
	cuda_launch_twin(&s->launch, CUDA_TWIN_FORWARDS);
	memcpy(s->want, s->memory, s->bytes);
}

static bool subject_same(void *subject, enum schedule schedule)
{
	struct subject *s = subject;
	bool even;

	memcpy(s->memory, s->before, s->bytes);
	even = launch_run(&s->launch, schedule);
	return even && memcmp(s->memory + s->first, s->want + s->first, s->count) == 0;
}

static void subject_free(struct subject *s)
{
	free(s->memory);
	free(s->before);
	free(s->want);
}

static void floats(uint64_t address, size_t n)
{
	float *x = (float *)(uintptr_t)address;

	for (size_t i = 0; i < n; i++)
		x[i] = (float)below(2000) / 1000 - 1;
}

static void small_ids(uint64_t address, size_t n, uint32_t experts)
{
	int32_t *ids = (int32_t *)(uintptr_t)address;

	for (size_t i = 0; i < n; i++)
		ids[i] = below(9) ? (int32_t)below(experts) : -1;
}

/* The order within an expert is any: an item for each pair, so that items[] and counts do not depend on it, and one
 * expert a pair, so that order[] does not either. */
static void make_group(struct subject *s)
{
	enum { experts = 2000, pairs = 1500 };
	struct cuda_group *p = &s->launch.params.group;
	uint64_t result;

	subject_start(s, CUDA_KERNEL_moe_group, 1, 1024);
	p->ids = take(s, pairs * 4);
	p->map = take(s, experts * 4);
	result = p->order = take(s, pairs * 4);
	p->items = take(s, pairs * sizeof(struct cuda_item));
	p->counts = take(s, sizeof(struct cuda_counts));
	p->slot_bytes = 64, p->pairs = pairs, p->n_experts = experts, p->item_pairs = 1;
	for (uint32_t i = 0; i < pairs; i++)
		((int32_t *)(uintptr_t)p->ids)[i] = (int32_t)((i * 7 + 3) % experts);
	for (uint32_t i = 0; i < experts; i++)
		((int32_t *)(uintptr_t)p->map)[i] = below(3) ? (int32_t)i : -1;
	memset((void *)(uintptr_t)result, 0xff, s->bytes - (size_t)(result - p->ids));
	subject_settle(s, result, s->bytes - (size_t)(result - (uint64_t)(uintptr_t)s->memory));
}

static void make_pack(struct subject *s, enum kernel_pack kind)
{
	enum { cols = 736 };
	struct cuda_pack *p = &s->launch.params.pack;

	subject_start(s, CUDA_KERNEL_moe_pack, 2, 128);
	p->kind = kind, p->cols = cols, p->rows = 2;
	p->block = kind == PACK_I8_BLOCK ? 32 : 0;
	p->pitch = cuda_pack_pitch(kind, p->block, cols);
	p->x = take(s, 2 * cols * 4);
	p->packed = take(s, 2 * p->pitch);
	floats(p->x, 2 * cols);
	for (int i = 0; i < 2; i++) /* the largest is one thread's only, which thread 0 does not meet at once */
		((float *)(uintptr_t)p->x)[i * cols + 77] = 3;
	subject_settle(s, p->packed, 2 * p->pitch);
}

/* More pairs than the block has threads. */
static void make_combine(struct subject *s)
{
	enum { tokens = 3, topk = 260, hidden = 300 };
	struct cuda_combine *p = &s->launch.params.combine;

	subject_start(s, CUDA_KERNEL_moe_combine, tokens, 256);
	*p = (struct cuda_combine){.tokens = tokens, .topk = topk, .hidden = hidden, .n_experts = 4};
	p->y = take(s, tokens * hidden * 4);
	p->out = take(s, tokens * topk * hidden * 4);
	p->ids = take(s, tokens * topk * 4);
	p->weights = take(s, tokens * topk * 4);
	p->map = take(s, 4 * 4);
	floats(p->out, tokens * topk * hidden);
	floats(p->weights, tokens * topk);
	small_ids(p->ids, tokens * topk, 4);
	small_ids(p->map, 4, 4);
	subject_settle(s, p->y, tokens * hidden * 4);
}

static void make_add(struct subject *s)
{
	struct cuda_add *p = &s->launch.params.add;

	subject_start(s, CUDA_KERNEL_moe_add, 2, 256);
	p->n = 1000;
	p->y = take(s, 4000);
	p->z = take(s, 4000);
	floats(p->y, 1000);
	floats(p->z, 1000);
	subject_settle(s, p->y, 4000);
}

static void make_read(struct subject *s)
{
	uint64_t from, sums;

	subject_start(s, CUDA_KERNEL_moe_read, 2, 256);
	from = take(s, 100000);
	sums = take(s, 512 * 4);
	for (size_t i = 0; i < 100000; i++)
		s->memory[i] = (uint8_t)below(256);
	cuda_launch_read(from, 100000, sums, 2, &s->launch);
	subject_settle(s, sums, 512 * 4);
}

static void make_peak(struct subject *s)
{
	uint64_t sums;

	subject_start(s, CUDA_KERNEL_moe_peak, 2, 256);
	sums = take(s, 512 * 4);
	cuda_launch_peak(2, sums, 2, &s->launch);
	subject_settle(s, sums, 512 * 4);
}

static void make_policy(struct subject *s, uint32_t rule)
{
	enum { experts = 1100, slots = 500, pairs = 800 };
	struct cuda_policy *p = &s->launch.params.policy;
	struct cuda_policy_heads *heads;
	int32_t *ids;

	subject_start(s, CUDA_KERNEL_moe_policy, 1, 1024);
	*p = (struct cuda_policy){.tokens = pairs / 8,
				  .topk = 8,
				  .n_experts = experts,
				  .n_slots = slots,
				  .rule = rule,
				  .cache_topk = 4,
				  .max_fills = 40};
	p->ids = take(s, pairs * 4);
	p->heads = take(s, sizeof *heads);
	p->cache_map = take(s, experts * 4);
	p->miss_map = take(s, experts * 4);
	p->miss_expert = take(s, experts * 4);
	p->free_slots = take(s, slots * 4);
	p->age = take(s, experts * 8);
	p->fills = take(s, 40 * sizeof(struct cuda_fill));
	p->scratch = take(s, 2 * experts * 8);
	memset(s->memory, 0, s->bytes);
	heads = (struct cuda_policy_heads *)(uintptr_t)p->heads;
	heads->n_free = slots;
	ids = (int32_t *)(uintptr_t)p->ids;
	for (int32_t i = 0; i < experts; i++) {
		((int32_t *)(uintptr_t)p->cache_map)[i] = -1;
		((int32_t *)(uintptr_t)p->miss_map)[i] = ((int32_t *)(uintptr_t)p->miss_expert)[i] = i;
	}
	for (int32_t i = 0; i < slots; i++)
		((int32_t *)(uintptr_t)p->free_slots)[i] = slots - 1 - i;
	for (int round = 0; round < 40; round++) { /* until it is full */
		for (int32_t i = 0; i < pairs; i++)
			ids[i] = (int32_t)below(round % 2 ? 300 : experts);
		cuda_launch_twin(&s->launch, CUDA_TWIN_FORWARDS);
	}
	small_ids(p->ids, pairs, experts);
	subject_settle(s, p->heads, (size_t)(p->scratch - p->heads));
}

/* Any product: codes and packed activations are random bytes, scales are floats. */
static void make_product(struct subject *s, uint32_t format, bool prefill, bool down)
{
	const struct moe_format_spec *f = &moe_formats[format];
	const uint32_t rows = 24,
		       cols = f->block > 128 ? 256 : 160 / (f->block ? f->block : 1) * (f->block ? f->block : 1);
	const uint32_t pairs = prefill ? 21 : CUDA_DECODE_PAIRS;
	struct cuda_product p = {.rows = rows, .cols = cols, .topk = 1};
	struct cuda_launch launch;
	struct cuda_matrix *m;
	struct cuda_item *item;
	enum kernel_pack pack;
	uint64_t weights;

	subject_start(s, CUDA_KERNEL_moe_group, 1, 256);
	pack = cuda_pack_of(format, prefill, &p.block);
	p.x_pitch = cuda_pack_pitch(pack, p.block, cols);
	p.items = take(s, sizeof(struct cuda_item));
	p.counts = take(s, sizeof(struct cuda_counts));
	p.order = take(s, pairs * 4);
	p.x = take(s, pairs * p.x_pitch);
	p.y = take(s, (size_t)pairs * rows * 4);
	weights = take(s, 0);
	for (int i = 0; i < 2; i++) {
		m = i ? &p.b : &p.a;
		*m = (struct cuda_matrix){.format = format,
					  .scales = CUDA_ABSENT,
					  .row_scales = CUDA_ABSENT,
					  .bias = CUDA_ABSENT,
					  .pitch = moe_band_bytes(format, MOE_PLANE_CODES, cols),
					  .scale_pitch = moe_band_bytes(format, MOE_PLANE_SCALES, cols)};
		m->codes = take(s, 64 * m->pitch) - weights;
		if (moe_format_has(format, MOE_PLANE_SCALES))
			m->scales = take(s, 4 * m->scale_pitch) - weights;
		if (moe_format_has(format, MOE_PLANE_ROW_SCALES))
			m->row_scales = take(s, rows * 4) - weights;
	}
	for (size_t i = 0; i < s->bytes; i++) /* no NaN of any kind: sums must tell threads apart */
		s->memory[i] = (uint8_t)(below(256) & 0x37);
	item = (struct cuda_item *)(uintptr_t)p.items;
	*item = (struct cuda_item){.slot = weights, .first = 0, .count = pairs};
	*(struct cuda_counts *)(uintptr_t)p.counts = (struct cuda_counts){.n_pairs = pairs, .n_items = 1};
	for (uint32_t i = 0; i < pairs; i++)
		((uint32_t *)(uintptr_t)p.order)[i] = pairs - 1 - i;
	cuda_launch_product(&p, prefill, down, 1, &launch);
	s->launch = launch;
	subject_settle(s, p.y, (size_t)pairs * rows * 4);
}

/* One format of each family. */
static const uint32_t families[] = {MOE_FORMAT_BF16,  MOE_FORMAT_F16,  MOE_FORMAT_FP8_BLOCK, MOE_FORMAT_INT8,
				    MOE_FORMAT_MXFP4, MOE_FORMAT_Q5_K, MOE_FORMAT_Q6_K,      MOE_FORMAT_Q8_0};

#define FAMILIES (sizeof families / sizeof families[0])
#define SUBJECTS (9 + 4 * FAMILIES)

static void subject_make(struct subject *s, size_t i)
{
	switch (i) {
	case 0:
		make_group(s);
		return;
	case 1:
	case 8:
		make_pack(s, i == 1 ? PACK_I8_ROW : PACK_I8_BLOCK);
		return;
	case 2:
		make_combine(s);
		return;
	case 3:
		make_add(s);
		return;
	case 4:
	case 5:
		make_policy(s, i == 4 ? CUDA_POLICY_LRU : CUDA_POLICY_ORIGINAL);
		return;
	case 6:
		make_read(s);
		return;
	case 7:
		make_peak(s);
		return;
	default:
		i -= 9;
		make_product(s, families[i / 4], i % 2, i / 2 % 2);
	}
}

static void test_orders(struct subject *subjects)
{
	bool ran[CUDA_KERNEL_COUNT] = {false};
	int n = 0;

	for (size_t i = 0; i < SUBJECTS; i++) {
		struct subject *s = &subjects[i];
		bool f, b, r;

		for (int k = 0; k < n_barriers; k++)
			barriers[k].passed = false;
		f = subject_same(s, FORWARDS), b = subject_same(s, BACKWARDS), r = subject_same(s, RANDOM);
		for (int k = 0; k < n_barriers; k++)
			s->barriers |= (uint64_t)barriers[k].passed << k;

		ok(f && b && r,
		   "%s: threads forwards (%d), backwards (%d) and in random order (%d) give the twin's bits",
		   cuda_kernels[s->launch.kernel].name, f, b, r);
		ran[s->launch.kernel] = true;
	}
	for (int i = 0; i < CUDA_KERNEL_COUNT; i++)
		n += ran[i];
	ok(n == CUDA_KERNEL_COUNT, "all %d kernels were run", n);
}

static bool subject_notices(void *subjects, size_t i, int barrier)
{
	struct subject *s = (struct subject *)subjects + i;

	return (s->barriers >> barrier & 1) && is_noticed(subject_same, s, barrier);
}

int main(void)
{
	static struct subject subjects[SUBJECTS];

	coroutines_start();
	for (size_t i = 0; i < SUBJECTS; i++)
		subject_make(&subjects[i], i);
	test_orders(subjects);
	test_mutants(subject_notices, subjects, SUBJECTS, 16);
	for (size_t i = 0; i < SUBJECTS; i++)
		subject_free(&subjects[i]);
	free(stacks);
	return tap_done();
}
